//! The file, which changes in place: two root slots, and behind them images of the tree.
//!
//! Layout, all numbers little-endian. A root slot has 4 KiB; slot 0 is at 0 and slot 1 at 4096. The root of a
//! generation is in slot `generation % 2`: magic (8), version (4), zeros (4), generation (8), flushed (8), image
//! offset (8), image bytes (8), image checksum (8), zeros, and in the last 8 bytes the checksum of all before it. An image is a list of
//! entries in entry order: varint key bytes, key, varint sequence number, kind (1), varint value bytes, value.
//!
//! Invariants:
//! 1. The manifest names one generation, the *durable* root. Neither that root nor its image is written to: the next
//!    root is in the other slot, and its image does not overlap the durable one.
//! 2. An image is durable before a root names it, and a root is durable before the manifest names it.
//! 3. A root that the manifest does not name is ignored, whatever its generation: it holds entries above the
//!    keyspace's `flushed`, of which the journal may have lost some.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edit::{Named, NamedLog};
use crate::base::checksum::checksum;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::Mutex;
use crate::cache::{DataFiles, FileType, open_named};
use crate::table::BlobPointer;
use crate::tree::sorted::Sorted;
use crate::vfs::{Access, File};

const MAGIC: [u8; 8] = *b"SPNYPOOL";
const FORMAT_VERSION: u32 = 1;
const SLOT_BYTES: u64 = 4096;
/// Where images begin.
const IMAGES_OFFSET: u64 = 2 * SLOT_BYTES;
/// Where a slot's own checksum is.
const CHECKSUM_AT: usize = SLOT_BYTES as usize - 8;

/// A root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Root {
    generation: u64,
    flushed: Seqno,
    image_offset: u64,
    image_bytes: u64,
    image_checksum: u64,
}

impl Root {
    fn slot_offset(generation: u64) -> u64 {
        generation % 2 * SLOT_BYTES
    }

    fn image_end(&self) -> u64 {
        self.image_offset + self.image_bytes
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let (generation, flushed) = (self.generation, self.flushed.0);
        let image = [self.image_offset, self.image_bytes, self.image_checksum];
        for number in [generation, flushed].into_iter().chain(image) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(CHECKSUM_AT, 0);
        out.extend_from_slice(&checksum(generation, &out).to_le_bytes());
        out
    }

    /// Reads the slot of a generation, of a file of so many bytes. Images end within the file.
    fn read(file: &dyn File, file_bytes: u64, generation: u64) -> Result<Root> {
        let (path, at) = (file.path(), Root::slot_offset(generation));
        if file_bytes < at + SLOT_BYTES {
            return Err(Error::corruption(path, at, "pool root", "a slot", "the end of the file"));
        }
        let mut slot = vec![0; SLOT_BYTES as usize];
        file.read_at(at, &mut slot)?;
        let mut from = Decoder::new(&slot, path, at);
        from.magic(&MAGIC, "pool root magic")?;
        from.version(FORMAT_VERSION, "pool format version")?;
        from.u32("reserved field")?;
        let (found, flushed) = (from.u64("generation")?, Seqno(from.u64("flushed")?));
        let (image_offset, image_bytes) = (from.u64("image offset")?, from.u64("image bytes")?);
        let root = Root {
            generation,
            flushed,
            image_offset,
            image_bytes,
            image_checksum: from.u64("image checksum")?,
        };
        // The slot as it should be: all of its bytes are compared.
        if found != generation || slot != root.encode() {
            let expected = format_args!("the root of generation {generation}");
            let found = format_args!("generation {found}, or a wrong checksum");
            return Err(Error::corruption(path, at, "pool root", expected, found));
        }
        match image_offset.checked_add(image_bytes) {
            Some(end) if image_offset >= IMAGES_OFFSET && end <= file_bytes => Ok(root),
            _ => {
                let expected = format_args!("a range within {IMAGES_OFFSET}..{file_bytes}");
                let found = format_args!("{image_bytes} bytes at {image_offset}");
                Err(Error::corruption(path, at, "pool image", expected, found))
            }
        }
    }

    /// Reads and verifies the image.
    fn read_image(&self, file: &dyn File) -> Result<Sorted> {
        let mut image = vec![0; self.image_bytes as usize];
        file.read_at(self.image_offset, &mut image)?;
        let found = checksum(self.image_offset, &image);
        if found != self.image_checksum {
            let expected = format_args!("checksum {:#018x}", self.image_checksum);
            let found = format_args!("{found:#018x}");
            let at = self.image_offset;
            return Err(Error::corruption(file.path(), at, "pool image", expected, found));
        }
        decode_image(&image, file.path(), self.image_offset)
    }
}

/// The durable root.
struct Durable {
    /// `None` until the first root is durable.
    root: Option<Root>,
    /// Bytes of the file.
    bytes: u64,
    /// The file, once it has been opened for writing.
    writable: Option<Arc<dyn File>>,
}

/// The file of one tree. It is deleted with the last version that holds it.
pub(super) struct Pool {
    files: Arc<DataFiles>,
    id: FileId,
    durable: Mutex<Durable>,
}

impl Pool {
    /// Creates an empty file.
    pub(super) fn create(files: &Arc<DataFiles>) -> Result<Arc<Pool>> {
        let id = files.allocate();
        let file = files.vfs.create(&files.path(id, FileType::Pool), Access::Buffered)?;
        let durable = Mutex::new(Durable { root: None, bytes: 0, writable: Some(file) });
        Ok(Arc::new(Pool { files: Arc::clone(files), id, durable }))
    }

    /// Opens the file that the manifest names, and reads the entries below the root that it names.
    ///
    /// # Errors
    /// `Corruption` that names the file if it, that root or its image is missing or damaged.
    pub(super) fn open(
        files: &Arc<DataFiles>,
        named: &Named,
        flushed: Seqno,
    ) -> Result<(Arc<Pool>, Sorted)> {
        let path = files.path(named.file, FileType::Pool);
        let file = open_named(&*files.vfs, &path, Access::Buffered, "data file")?;
        let bytes = file.len()?;
        let root = Root::read(&*file, bytes, named.generation)?;
        if root.flushed > flushed {
            let at = Root::slot_offset(root.generation);
            let expected = format_args!("at most {flushed}, as the manifest says");
            return Err(Error::corruption(&path, at, "flushed number", expected, root.flushed));
        }
        let entries = root.read_image(&*file)?;
        let durable = Mutex::new(Durable { root: Some(root), bytes, writable: None });
        let pool = Pool { files: Arc::clone(files), id: named.file, durable };
        Ok((Arc::new(pool), entries))
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn path(&self) -> PathBuf {
        self.files.path(self.id, FileType::Pool)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.durable.lock().bytes
    }

    /// Opens the file for writing, if that has not been done.
    pub(super) fn make_writable(&self) -> Result<()> {
        self.writable(&mut self.durable.lock()).map(drop)
    }

    fn writable(&self, durable: &mut Durable) -> Result<Arc<dyn File>> {
        let file = match &durable.writable {
            Some(file) => Arc::clone(file),
            None => self.files.vfs.open(&self.path(), Access::Buffered, true)?,
        };
        durable.writable = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Writes entries as the next generation. `commit` makes the manifest name it, beside these log files; if that fails,
    /// the root before stays the durable one. Returns what `commit` was told, and the bytes written.
    pub(super) fn replace(
        &self,
        entries: &Sorted,
        flushed: Seqno,
        logs: Vec<NamedLog>,
        commit: impl FnOnce(&Named) -> Result<()>,
    ) -> Result<(Named, u64)> {
        let mut durable = self.durable.lock();
        let image = encode_image(entries);
        let image_bytes = image.len() as u64;
        let image_offset = match durable.root {
            Some(old) if IMAGES_OFFSET + image_bytes > old.image_offset => {
                old.image_end().next_multiple_of(SLOT_BYTES)
            }
            _ => IMAGES_OFFSET,
        };
        let root = Root {
            generation: durable.root.map_or(1, |old| old.generation + 1),
            flushed,
            image_offset,
            image_bytes,
            image_checksum: checksum(image_offset, &image),
        };
        let file = self.writable(&mut durable)?;
        let end = root.image_end().max(IMAGES_OFFSET);
        if durable.bytes < end {
            // An image may be empty: the file is long enough for its place all the same.
            file.truncate(end)?;
            durable.bytes = end;
        }
        file.write_at(image_offset, &image)?;
        file.sync()?;
        file.write_at(Root::slot_offset(root.generation), &root.encode())?;
        file.sync()?;
        let named = Named { file: self.id, generation: root.generation, logs };
        commit(&named)?;
        durable.root = Some(root);
        Ok((named, SLOT_BYTES + image_bytes))
    }

    /// Verifies the durable root and its image; returns the number of entries. The file may be newer than the version
    /// that asks.
    pub(super) fn check(&self) -> Result<u64> {
        let durable = self.durable.lock();
        let Some(root) = durable.root else { return Ok(0) };
        let file = self.files.vfs.open(&self.path(), Access::Buffered, false)?;
        let bytes = file.len()?;
        Ok(Root::read(&*file, bytes, root.generation)?.read_image(&*file)?.len() as u64)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.files.retains() {
            // If the removal fails, the file is an orphan that the next open removes.
            let _ = self.files.vfs.remove(&self.path());
        }
    }
}

/// A file with one root, for a checkpoint.
pub(super) fn file_of(entries: &Sorted, flushed: Seqno, generation: u64) -> Vec<u8> {
    let image = encode_image(entries);
    let root = Root {
        generation,
        flushed,
        image_offset: IMAGES_OFFSET,
        image_bytes: image.len() as u64,
        image_checksum: checksum(IMAGES_OFFSET, &image),
    };
    let mut out = vec![0; IMAGES_OFFSET as usize];
    let slot = Root::slot_offset(generation) as usize;
    out[slot..slot + SLOT_BYTES as usize].copy_from_slice(&root.encode());
    out.extend_from_slice(&image);
    out
}

fn encode_image(entries: &Sorted) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries.iter() {
        put_bytes(&mut out, entry.key);
        put_varint(&mut out, entry.seqno.0);
        out.push(entry.kind as u8);
        put_bytes(&mut out, entry.value);
    }
    out
}

fn decode_image(image: &[u8], path: &Path, offset: u64) -> Result<Sorted> {
    let mut from = Decoder::new(image, path, offset);
    let mut entries = Sorted::default();
    while !from.is_empty() {
        let at = from.offset();
        let key = from.byte_string("entry key")?;
        let seqno = Seqno(from.varint("entry number")?);
        let tag = from.u8("entry kind")?;
        let value = from.byte_string("entry value")?;
        let wrong = |what, expected| Err(Error::corruption(path, at, what, expected, tag));
        let Some(kind) = EntryKind::from_tag(tag).filter(|kind| *kind != EntryKind::RangeDelete)
        else {
            return wrong("entry kind", "one of 1 to 3, 5 and 6");
        };
        if kind.is_blob() && BlobPointer::decode(value).is_none() {
            return wrong("entry value", "a blob pointer");
        }
        if !entries.push(EntryRef { key, seqno, kind, value }) {
            return wrong("entry", "one behind the entry before it");
        }
    }
    Ok(entries)
}
