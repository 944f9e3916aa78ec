//! The file `DURABLE`: a byte position up to which the manifest is known to be durable
//! (`docs/format/durable.md`).
//!
//! A crash may tear the manifest's last append, which is then dropped. Lost durable records leave
//! the same bytes. This file distinguishes the two.
//!
//! Invariants:
//! 1. It is a lower bound that stays true. It is written after the sync that it reports, no
//!    manifest is ever truncated below its durable end, and none is replaced by one of a lower
//!    number. Each earlier content of the file is therefore true as well, and the file needs no
//!    sync of its own. It has one when a store is closed, and after a record whose loss nothing
//!    else would show: that of a dropped keyspace, or of changed options.
//! 2. Nothing depends on it. A file that is missing, torn or of another store has no effect, and a
//!    failure to write it is not a failure of the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::log::manifest_path;
use super::record::Identity;
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::vfs::{Access, File, Vfs};

/// The file's name.
pub(crate) const DURABLE_FILE_NAME: &str = "DURABLE";

const MAGIC: [u8; 8] = *b"SPINDURA";
const VERSION: u32 = 1;
const BYTES: usize = 40;

/// A position in a manifest up to which it is known to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DurableEnd {
    pub(super) identity: Identity,
    pub(super) bytes: u64,
}

impl DurableEnd {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.identity.number.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&checksum(self.identity.store_id, &out).to_le_bytes());
        out
    }

    /// Decodes the file for the store with this number. Returns `None` if it is torn or of another
    /// store.
    ///
    /// # Errors
    /// `UnsupportedVersion`.
    pub(super) fn decode(bytes: &[u8], store_id: u64, file: &Path) -> Result<Option<DurableEnd>> {
        let mut decoder = Decoder::new(bytes, file, 0);
        let parts = (decoder.take(BYTES - 8, "body"), decoder.u64("checksum"));
        let (Ok(body), Ok(found)) = parts else { return Ok(None) };
        if !body.starts_with(&MAGIC) || found != checksum(store_id, body) {
            return Ok(None);
        }
        let mut decoder = Decoder::new(&body[MAGIC.len()..], file, MAGIC.len() as u64);
        decoder.version(VERSION, "DURABLE version")?;
        decoder.u32("reserved bytes")?;
        let identity = Identity { store_id, number: decoder.u64("manifest number")? };
        Ok(Some(DurableEnd { identity, bytes: decoder.u64("durable bytes")? }))
    }

    /// Reads the file of the store in `dir`. Returns `None` if it cannot be read.
    ///
    /// # Errors
    /// `UnsupportedVersion`.
    pub(super) fn read(vfs: &dyn Vfs, dir: &Path, store_id: u64) -> Result<Option<DurableEnd>> {
        let path = path(dir);
        if !vfs.exists(&path).unwrap_or(false) {
            return Ok(None);
        }
        let mut bytes = [0; BYTES];
        let opened = vfs.open(&path, Access::Buffered, false);
        match opened.and_then(|file| file.read_at(0, &mut bytes)) {
            Ok(()) => DurableEnd::decode(&bytes, store_id, &path),
            Err(_) => Ok(None),
        }
    }

    /// Checks that the newest intact manifest, `newest`, with valid records up to `end` in a file
    /// of `file_bytes`, has everything that was durable.
    ///
    /// # Errors
    /// `Corruption` with the manifest and the missing part.
    pub(super) fn check(
        self,
        dir: &Path,
        newest: Identity,
        end: u64,
        file_bytes: u64,
    ) -> Result<()> {
        let DurableEnd { identity, bytes } = self;
        if (newest.number, end) >= (identity.number, bytes) {
            return Ok(());
        }
        let path = manifest_path(dir, identity.number);
        let says = format!("as {DURABLE_FILE_NAME} says");
        if newest.number < identity.number {
            let expected = format!("a manifest that has been durable up to byte {bytes}, {says}");
            let found = format!("none that is whole but an older one, number {}", newest.number);
            return Err(Error::corruption(&path, 0, "manifest", expected, found));
        }
        let expected = format!("records up to byte {bytes}, which have been durable, {says}");
        let found = match file_bytes - end {
            0 => "the end of the file".to_string(),
            torn => format!("{torn} bytes that are no record"),
        };
        Err(Error::corruption(&path, end, "end of the manifest", expected, found))
    }
}

/// The file, written by an open store.
#[derive(Debug, Default)]
pub(super) struct DurableFile {
    file: Option<Arc<dyn File>>,
    /// True if this open created the file, so that its name may not be durable.
    is_new: bool,
}

impl DurableFile {
    /// Records what has been made durable, without a sync. If that fails, the file has an older
    /// position or none.
    pub(super) fn note(&mut self, vfs: &dyn Vfs, dir: &Path, end: DurableEnd) {
        let path = path(dir);
        if self.file.is_none() {
            let exists = vfs.exists(&path);
            self.is_new = matches!(exists, Ok(false));
            let opened = exists.and_then(|exists| match exists {
                true => vfs.open(&path, Access::Buffered, true),
                false => vfs.create(&path, Access::Buffered),
            });
            self.file = opened.ok();
        }
        if let Some(file) = &self.file {
            let _ = file.write_at(0, &end.encode());
        }
    }

    /// Makes the recorded position durable, as far as possible.
    pub(super) fn sync(&mut self, vfs: &dyn Vfs, dir: &Path) {
        let Some(file) = &self.file else { return };
        let synced = file.sync();
        if self.is_new && synced.is_ok() && vfs.sync_dir(dir).is_ok() {
            self.is_new = false;
        }
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(DURABLE_FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{Crash, TestVfs};
    use super::super::{Edit, Manifest, NewStore, OpenOptions, RecoveredState};
    use super::*;
    use crate::base::documented::hex_block;
    use crate::base::ids::Seqno;
    use crate::base::key_hash::HashSecret;

    const STORE_ID: u64 = 0x0123_4567_89ab_cdef;

    fn dir() -> &'static Path {
        Path::new("/store")
    }

    fn end(number: u64, bytes: u64) -> DurableEnd {
        DurableEnd { identity: Identity { store_id: STORE_ID, number }, bytes }
    }

    fn open(vfs: &Arc<TestVfs>) -> Result<(Manifest, RecoveredState)> {
        let vfs: Arc<dyn Vfs> = Arc::<TestVfs>::clone(vfs);
        let new_store = NewStore { store_id: STORE_ID, hash_secret: HashSecret::default() };
        Manifest::open(&vfs, dir(), OpenOptions { create: true, new_store })
    }

    fn commit(manifest: &Manifest, seqno: u64) {
        let edit = Edit { last_seqno: Some(Seqno(seqno)), ..Edit::default() };
        manifest.commit(&edit).unwrap();
    }

    fn manifest_bytes(vfs: &TestVfs, number: u64) -> Vec<u8> {
        let file = vfs.open(&manifest_path(dir(), number), Access::Buffered, false).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_worked_example_of_the_format_page_is_what_is_written() {
        let example = hex_block(include_str!("../../docs/format/durable.md"), 0);
        assert_eq!(end(1, 136).encode(), example);
        let decode = |bytes: &[u8], store| DurableEnd::decode(bytes, store, &path(dir())).unwrap();
        assert_eq!(decode(&example, STORE_ID), Some(end(1, 136)));
        assert_eq!(decode(&example, STORE_ID + 1), None, "of another store");
        for cut in 0..BYTES {
            assert_eq!(decode(&example[..cut], STORE_ID), None, "cut to {cut}");
            let mut flipped = example.clone();
            flipped[cut] ^= 1;
            assert_eq!(decode(&flipped, STORE_ID), None, "byte {cut} flipped");
        }
        let mut newer = example[..BYTES - 8].to_vec();
        newer[8] = 2;
        newer.extend_from_slice(&checksum(STORE_ID, &newer).to_le_bytes());
        let newer = DurableEnd::decode(&newer, STORE_ID, &path(dir()));
        assert!(matches!(newer, Err(Error::UnsupportedVersion { found: 2, .. })), "{newer:?}");
    }

    /// Every length of the manifest below its durable end is refused, whatever follows, and so is a
    /// manifest of a lower number. Nothing is removed.
    #[test]
    fn a_manifest_that_ends_before_its_durable_end_is_refused() {
        let vfs = Arc::new(TestVfs::default());
        let (manifest, _) = open(&vfs).unwrap();
        (1..5).for_each(|seqno| commit(&manifest, seqno));
        let old = manifest_bytes(&vfs, 1);
        assert!(manifest.rewrite(4, &[]).unwrap());
        (5..9).for_each(|seqno| commit(&manifest, seqno));
        manifest.confirm_end();
        drop(manifest);
        let whole = manifest_bytes(&vfs, 2);
        for cut in 0..whole.len() {
            let vfs = Arc::new(vfs.crash(Crash::Power));
            vfs.put(&manifest_path(dir(), 2), &whole[..cut]);
            let error = open(&vfs).err().unwrap();
            let Error::Corruption { file, offset, .. } = &error else { panic!("{cut}: {error}") };
            assert_eq!(*file, manifest_path(dir(), 2), "{cut}: {error}");
            assert!(*offset <= cut as u64, "{cut}: {error}");
            assert_eq!(manifest_bytes(&vfs, 2).len(), cut);
            // An older manifest is not accepted instead.
            vfs.put(&manifest_path(dir(), 1), &old);
            let error = open(&vfs).err().unwrap();
            assert!(error.is_corruption(), "{cut}: {error}");
            assert_eq!(
                vfs.names(),
                [DURABLE_FILE_NAME, "SPINNEY", "manifest-00000001", "manifest-00000002"]
            );
        }
        let torn = [&*whole, &[1; 30]].concat();
        vfs.put(&manifest_path(dir(), 2), &torn);
        assert_eq!(open(&vfs).unwrap().1.torn_bytes, 30, "a torn append behind the end is none");
    }

    /// Without a close, the file has the content of the last commit or older, or is missing:
    /// nothing is refused.
    #[test]
    fn no_crash_makes_the_file_say_too_much() {
        for crash in [Crash::Process, Crash::Power, Crash::Removals, Crash::Torn] {
            let mut vfs = Arc::new(TestVfs::default());
            for round in 0..6 {
                let (manifest, _) = open(&vfs).unwrap();
                commit(&manifest, round * 3 + 1);
                commit(&manifest, round * 3 + 2);
                if round % 2 == 1 {
                    assert!(manifest.rewrite(2, &[]).unwrap());
                }
                if round % 3 == 1 {
                    commit(&manifest, round * 3 + 3);
                    manifest.confirm_end();
                }
                drop(manifest);
                vfs = Arc::new(vfs.crash(crash));
            }
            let found = DurableEnd::read(&*vfs, dir(), STORE_ID).unwrap();
            assert!(found.is_some_and(|end| end.identity.number >= 2), "{crash:?}: {found:?}");
            open(&vfs).unwrap();
        }
    }

    /// A store that cannot write the file works without it.
    #[test]
    fn a_failure_to_write_the_file_is_none_of_the_store() {
        let vfs = Arc::new(TestVfs::default());
        vfs.create_dir_all(dir()).unwrap();
        drop(open(&vfs).unwrap());
        vfs.create_dir_all(&path(dir())).unwrap();
        let (manifest, _) = open(&vfs).unwrap();
        commit(&manifest, 1);
        manifest.confirm_end();
        drop(manifest);
        assert_eq!(open(&vfs).unwrap().1.last_seqno, Seqno(1));
    }
}
