//! Reads the undamaged leaves of a table in order, without its index.
//!
//! Leaves are consecutive from the first unit, and each stores the full order of its entries. So
//! neither footer nor index is needed. The keys of two readable leaves bound what is lost between
//! them.
//!
//! Invariants:
//! 1. Entries are returned in the table's order, as they were written.
//! 2. Damage is reported before the first entry after it.

use std::sync::Arc;

use super::footer::Footer;
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::Parsed;
use super::page_kind;
use super::properties::{Origin, Properties};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::cache::{DataFiles, FileType, PageFile, PagePointer, PageScan};

/// The number of units read at once.
const CHUNK_UNITS: u32 = 32;
/// The number of units at a file's end that are searched for properties if there is no footer.
const PROPERTIES_UNITS_MAX: u32 = 64;

/// A part of a table that cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct LostPart {
    /// The last key before it; `None` at the table's beginning. The lost part may have older
    /// versions of this key, and later keys.
    pub(crate) after: Option<Vec<u8>>,
    /// The largest key that it may have; `None` if that is not known.
    pub(crate) upto: Option<Vec<u8>>,
    /// The damage, with its location.
    pub(crate) error: Error,
}

/// One pass over a table.
pub(crate) struct TableSalvage {
    file: Arc<PageFile>,
    /// `Some` while leaves are being read: it has buffers and a queue.
    pages: Option<PageScan>,
    /// The end of the scan.
    end_unit: u32,
    leaf: LeafCursor,
    /// The table's totals and origin, if they can be read.
    properties: Option<(Properties, Option<Origin>)>,
    /// The end of the leaves, if known.
    leaf_units: Option<u32>,
    started: bool,
    /// The unit after the last page read.
    unit: u32,
    /// The last key of the last leaf.
    last_key: Option<Vec<u8>>,
    lost: Vec<LostPart>,
}

impl TableSalvage {
    /// Opens the readable part of a table.
    ///
    /// # Errors
    /// `Io` if there is no such file; `UnsupportedVersion`.
    pub(crate) fn open(files: &Arc<DataFiles>, id: FileId) -> Result<TableSalvage> {
        let file = PageFile::open_torn(files, id, FileType::Table)?;
        let (properties, leaf_units) = match file.units() {
            0 => (None, None),
            _ => ends(&file)?,
        };
        let end = leaf_units.unwrap_or(file.units());
        Ok(TableSalvage {
            pages: None,
            end_unit: end,
            file,
            leaf: LeafCursor::new(),
            properties,
            leaf_units,
            started: false,
            unit: 0,
            last_key: None,
            lost: Vec::new(),
        })
    }

    /// The table's totals, if they can be read.
    pub(crate) fn properties(&self) -> Option<&Properties> {
        self.properties.as_ref().map(|(properties, _)| properties)
    }

    /// The table's origin, if it can be read.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        self.properties.as_ref()?.1.as_ref()
    }

    /// The file's name.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.file.path()
    }

    /// Returns the parts found to be lost since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<LostPart> {
        std::mem::take(&mut self.lost)
    }

    /// The current entry; `None` before the first call of `next` and after the last entry.
    pub(crate) fn entry(&self) -> Option<EntryRef<'_>> {
        self.leaf.entry()
    }

    /// Moves forward by one entry.
    ///
    /// # Errors
    /// Errors that are neither damage nor failed reads.
    pub(crate) fn next(&mut self) -> Result<()> {
        if !self.started {
            self.started = true;
            self.pages = Some(self.file.scan(0..self.end_unit, CHUNK_UNITS));
            return self.next_leaf();
        }
        let next = self.leaf.index() + 1;
        if next < self.leaf.entries() {
            // The rest of the leaf is lost too.
            let shown = self.leaf.entry().map(|entry| entry.key.to_vec());
            match self.place(next) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_unreadable() => self.lose(error, shown),
                Err(error) => return Err(error),
            }
        }
        self.next_leaf()
    }

    /// Moves to entry `i` of the leaf. If it is split, the next page has to have its rest.
    fn place(&mut self, i: usize) -> Result<()> {
        let page = PagePointer { unit: self.unit.saturating_sub(1), units: 1 };
        let placed = self.leaf.place(i).map_err(|damage| self.wrong(page, damage))?;
        let Some(pages) = self.pages.as_mut().filter(|_| placed == Placed::Split) else {
            return Ok(());
        };
        let damage = match pages.peek_page()? {
            Some((_, next)) => self.leaf.join(next).err(),
            None => Some("end of a split value"),
        };
        damage.map_or(Ok(()), |damage| Err(self.wrong(page, damage)))
    }

    fn wrong(&self, page: PagePointer, what: &'static str) -> Error {
        self.file.corrupt(page, what, "a well-formed page", "bytes that cannot be one")
    }

    /// Records a lost part after a key.
    fn lose(&mut self, error: Error, after: Option<Vec<u8>>) {
        // Adjacent lost leaves are one part.
        let open = self.lost.last().is_some_and(|lost| lost.upto.is_none());
        if !open {
            self.lost.push(LostPart { after, upto: None, error });
        }
    }

    /// Moves to the first entry of the next readable leaf.
    fn next_leaf(&mut self) -> Result<()> {
        let Some(mut pages) = self.pages.take() else {
            self.leaf.unplace();
            return Ok(());
        };
        loop {
            self.leaf.unplace();
            let page = PagePointer { unit: pages.next_unit(), units: 1 };
            let loaded = match pages.next_page() {
                Ok(None) => break,
                Ok(Some((_, payload))) => {
                    self.leaf.load(payload).map_err(|what| self.wrong(page, what))
                }
                Err(error) if error.is_unreadable() => Err(error),
                Err(error) => return Err(error),
            };
            if pages.next_unit() == page.unit {
                pages.skip_unit();
            } else if pages.kind() != page_kind::LEAF {
                // All leaves are before the first page of another kind.
                break;
            }
            self.unit = pages.next_unit();
            let damage =
                loaded.and_then(|()| self.first_and_last().map_err(|what| self.wrong(page, what)));
            match damage {
                Ok((first, last)) => {
                    if let Some(lost) = self.lost.last_mut().filter(|lost| lost.upto.is_none()) {
                        lost.upto = Some(first);
                    }
                    let before = self.last_key.replace(last);
                    let whole = self.leaf.first();
                    if whole == self.leaf.entries() {
                        // It has no more than the rest of an entry.
                        continue;
                    }
                    self.pages = Some(pages);
                    match self.place(whole) {
                        Ok(()) => return Ok(()),
                        Err(error) if error.is_unreadable() => self.lose(error, before),
                        Err(error) => return Err(error),
                    }
                    match self.pages.take() {
                        Some(taken) => pages = taken,
                        None => break,
                    }
                }
                Err(error) => self.lose(error, self.last_key.clone()),
            }
        }
        self.leaf = LeafCursor::new();
        self.finish();
        Ok(())
    }

    /// Returns the leaf's first and last key. A leaf whose ends are malformed is lost as a whole.
    fn first_and_last(&mut self) -> Parsed<(Vec<u8>, Vec<u8>)> {
        let last = self.leaf.entries().saturating_sub(1);
        for whole in [self.leaf.first(), last] {
            if whole >= self.leaf.first() && whole <= last {
                let (Placed::Whole | Placed::Split) = self.leaf.place(whole)?;
            }
        }
        self.leaf.unplace();
        Ok((self.leaf.key_at(0)?, self.leaf.key_at(last)?))
    }

    /// At the end: damage with an unknown end extends to the table's last key.
    fn finish(&mut self) {
        let end = self.properties().map(|properties| properties.last_key.clone());
        let is_short = match (&end, &self.last_key) {
            (Some(end), Some(last)) => last < end,
            (Some(_), None) => true,
            // Without properties or footer, leaves may be missing at the end without notice.
            (None, _) => self.leaf_units.is_none(),
        };
        if is_short {
            let page = PagePointer { unit: self.file.units(), units: 1 };
            let (expected, found) = ("leaves up to the table's last key", "none");
            let error = self.file.corrupt(page, "end of the table", expected, found);
            self.lose(error, self.last_key.clone());
        }
        if let (Some(lost), Some(end)) = (self.lost.last_mut(), end)
            && lost.upto.is_none()
        {
            lost.upto = Some(end);
        }
    }
}

/// Returns a table's properties, origin and end of the leaves, as far as they can be read.
type Ends = (Option<(Properties, Option<Origin>)>, Option<u32>);

fn ends(file: &Arc<PageFile>) -> Result<Ends> {
    let read = |pointer| match file.read_uncached(pointer) {
        Ok(payload) => Ok(Some(payload)),
        Err(error) if error.is_unreadable() => Ok(None),
        Err(error) => Err(error),
    };
    let last = file.last_unit();
    let footer = match read(last)? {
        Some(payload) => match Footer::decode(&payload, &file.path(), last.offset()) {
            Ok(footer) => Some(footer),
            Err(error) if error.is_unreadable() => None,
            Err(error) => return Err(error),
        },
        None => None,
    };
    let decode = |payload: &[u8], at: PagePointer| {
        Properties::decode_with_origin(payload, &file.path(), at.offset()).ok()
    };
    if let Some(footer) = footer {
        let payload = read(footer.properties)?;
        let properties = payload.and_then(|payload| decode(&payload, footer.properties));
        return Ok((properties, Some(footer.leaf_units)));
    }
    // Properties are in the last page but one.
    let first = file.units().saturating_sub(PROPERTIES_UNITS_MAX);
    for unit in (first..file.units()).rev() {
        let mut pages = file.scan(unit..file.units(), 1);
        if let Ok(Some((pointer, payload))) = pages.next_page() {
            let found = decode(payload, pointer);
            if pages.kind() == page_kind::PROPERTIES {
                return Ok((found, None));
            }
        }
    }
    Ok((None, None))
}
