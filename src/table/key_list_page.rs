//! Pages of a stored list of keys: what an index outside the table is built from, if it is lost (`docs/format/table.md`).
//!
//! Invariants:
//! 1. A page can be read alone: its first key is whole.
//! 2. Keys ascend, each once, over all pages.

use super::key_list::{KeyList, ListedKey, ListedVersions};
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::limits::{KEY_BYTES_MAX, UNIT_BYTES};
use crate::base::planted::{Bug, planted};
use crate::cache::{PAGE_HEADER_BYTES, PagePointer};

/// The kind of such pages among a table's filters.
pub(crate) const FILTER_KIND_KEYS: u8 = 3;

/// No key takes fewer bytes: flags, two lengths, a number.
const KEY_BYTES_MIN: usize = 4;

/// A page is closed before it has more than this, unless one key needs more.
const PAGE_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;

/// Flags of a key.
const KIND_MASK: u8 = 7;
const IS_SPLIT: u8 = 8;
/// Its leaf is that of the key before.
const SAME_LEAF: u8 = 16;
const SEVERAL: u8 = 32;
const FLAGS: u8 = 63;
/// Flags of the oldest of several versions.
const HAS_BASE: u8 = 8;
const TOMBSTONES: u8 = 16;
const OLDEST_FLAGS: u8 = 31;

/// A key of a table, with what is known of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableKey {
    pub(crate) key: Vec<u8>,
    pub(crate) versions: ListedVersions,
    /// The numbers of its versions, newest first, if all are tombstones.
    pub(crate) tombstones: Vec<Seqno>,
}

impl TableKey {
    /// A place for keys.
    pub(crate) fn none() -> TableKey {
        let leaf = (PagePointer { unit: 0, units: 0 }, false);
        let versions = ListedVersions::one(leaf, Seqno(0), EntryKind::Put);
        TableKey { key: Vec::new(), versions, tombstones: Vec::new() }
    }

    /// Its newest version is the next one of a table.
    pub(crate) fn begin(
        &mut self,
        key: &[u8],
        leaf: (PagePointer, bool),
        seqno: Seqno,
        kind: EntryKind,
    ) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.versions = ListedVersions::one(leaf, seqno, kind);
        self.tombstones.clear();
        self.tombstones.extend((kind == EntryKind::Delete).then_some(seqno));
    }

    /// It has an older version.
    pub(crate) fn add(&mut self, seqno: Seqno, kind: EntryKind) {
        if kind != EntryKind::Delete {
            self.tombstones.clear();
        } else if !self.tombstones.is_empty() {
            self.tombstones.push(seqno);
        }
        self.versions.add(seqno, kind);
    }

    /// For messages.
    pub(super) fn describe(&self) -> String {
        let ListedVersions { leaf: (leaf, is_split), count, newest, base, oldest } = self.versions;
        let (key, tombstones) = (self.key.escape_ascii(), self.tombstones.len());
        let base = base.map_or(0, |base| base.0);
        format!(
            "\"{key}\" in {} units at {} (split: {is_split}), {count} versions from {} {:?} to {} {:?}, \
             {base} supersedes, {tombstones} tombstones alone",
            leaf.units, leaf.unit, newest.0, newest.1, oldest.0, oldest.1
        )
    }

    pub(crate) fn listed(&self) -> ListedKey<'_> {
        ListedKey { key: &self.key, versions: self.versions }
    }
}

/// What the pages of a list take in the file of a table whose smallest number is `seqno_min`; `None` if that is more than so
/// many bytes.
pub(super) fn file_bytes(list: &KeyList, seqno_min: Seqno, bytes_max: usize) -> Option<usize> {
    if list.len() * KEY_BYTES_MIN > bytes_max {
        return None;
    }
    let mut bytes = 0;
    for page in pages_of(list, seqno_min) {
        bytes += (page.len() + PAGE_HEADER_BYTES).next_multiple_of(UNIT_BYTES);
        if bytes > bytes_max {
            return None;
        }
    }
    Some(bytes)
}

/// The pages of a list, one after the other.
pub(super) fn pages_of(list: &KeyList, seqno_min: Seqno) -> impl Iterator<Item = Vec<u8>> {
    let mut encoder = KeyEncoder::new(seqno_min);
    let mut tombstones = list.older_tombstones().iter().peekable();
    let (mut of_key, mut at) = (Vec::new(), 0);
    std::iter::from_fn(move || {
        while let Some(listed) = list.get(at) {
            of_key.clear();
            while let Some((_, seqno)) = tombstones.next_if(|(of, _)| *of == at) {
                of_key.push(*seqno);
            }
            at += 1;
            if let Some(page) = encoder.add(&listed, &of_key) {
                return Some(page);
            }
        }
        encoder.finish()
    })
}

/// Writes a list.
pub(super) struct KeyEncoder {
    seqno_min: Seqno,
    page: Vec<u8>,
    last_key: Vec<u8>,
    leaf: PagePointer,
}

impl KeyEncoder {
    /// Of a table whose smallest number is `seqno_min`.
    pub(super) fn new(seqno_min: Seqno) -> KeyEncoder {
        let leaf = PagePointer { unit: 0, units: 0 };
        KeyEncoder { seqno_min, page: Vec::new(), last_key: Vec::new(), leaf }
    }

    /// Adds a key. If it has tombstones alone, and several, `older` has the numbers of all but the newest. Returns the page
    /// before, if it has no room for this key.
    pub(super) fn add(&mut self, listed: &ListedKey<'_>, older: &[Seqno]) -> Option<Vec<u8>> {
        let (before, mut full) = (self.page.len(), None);
        self.encode(listed, older);
        if before > 0 && self.page.len() > PAGE_BYTES {
            self.page.truncate(before);
            full = Some(std::mem::take(&mut self.page));
            self.encode(listed, older);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(listed.key);
        self.leaf = listed.versions.leaf.0;
        full
    }

    /// The last page, once.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.page)).filter(|page| !page.is_empty())
    }

    fn encode(&mut self, listed: &ListedKey<'_>, older: &[Seqno]) {
        let is_first = self.page.is_empty();
        let ListedVersions { leaf: (leaf, is_split), count, newest, base, oldest } =
            listed.versions;
        let is_same = !is_first && leaf == self.leaf;
        let flags = newest.1 as u8
            | if is_split { IS_SPLIT } else { 0 }
            | if is_same { SAME_LEAF } else { 0 }
            | if count > 1 { SEVERAL } else { 0 };
        let same = listed.key.iter().zip(&self.last_key).take_while(|(a, b)| a == b);
        let shared = if is_first { 0 } else { same.count() };
        let page = &mut self.page;
        page.push(flags);
        put_varint(page, shared as u64);
        put_bytes(page, &listed.key[shared..]);
        if !is_same {
            let from = if is_first { 0 } else { self.leaf.unit };
            put_varint(page, u64::from(leaf.unit - from));
            put_varint(page, u64::from(leaf.units));
        }
        put_varint(page, newest.0.0 - self.seqno_min.0);
        if count > 1 {
            put_varint(page, u64::from(count));
            put_varint(page, newest.0.0 - oldest.0.0);
            let has_base = if base.is_some() { HAS_BASE } else { 0 };
            let tombstones = if older.is_empty() { 0 } else { TOMBSTONES };
            page.push(oldest.1 as u8 | has_base | tombstones);
            base.into_iter().for_each(|base| put_varint(page, newest.0.0 - base.0));
            let mut above = newest.0;
            // The oldest is known.
            for seqno in older.split_last().map_or(&[][..], |(_, between)| between) {
                put_varint(page, above.0 - seqno.0);
                above = *seqno;
            }
        }
    }
}

/// What the keys of a list may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListLimits {
    /// Leaves are in the units below.
    pub(super) leaf_units: u32,
    pub(super) seqno_min: Seqno,
    pub(super) seqno_max: Seqno,
}

/// Reads the next key of a page. `key` has the one before, of this page or an earlier one; `is_first`: there is none in this
/// page.
///
/// # Errors
/// `Corruption` if the page is damaged.
pub(super) fn read_key(
    from: &mut Decoder<'_>,
    is_first: bool,
    limits: &ListLimits,
    into: &mut TableKey,
) -> Result<()> {
    let flags = from.u8("flags of a listed key")?;
    let kind = kind_of(from, flags, FLAGS)?;
    let shared = from.varint("shared bytes of a listed key")?;
    let rest = from.byte_string("listed key")?;
    let shared = usize::try_from(shared).unwrap_or(usize::MAX);
    let shared_max = if is_first { 0 } else { into.key.len() };
    if shared > shared_max || shared + rest.len() > KEY_BYTES_MAX {
        return Err(from.corrupt("shared bytes of a listed key", shared_max, shared));
    }
    let is_first_of_list = into.versions.leaf.0.units == 0;
    // The first key of a page is whole, and greater than the last one of the page before.
    let from_shared = into.key.get(shared..).unwrap_or_default();
    if !is_first_of_list && from_shared >= rest {
        return Err(from.corrupt("listed key", "a greater one", rest.escape_ascii()));
    }
    into.key.truncate(shared);
    into.key.extend_from_slice(rest);
    let mut leaf = into.versions.leaf.0;
    if flags & SAME_LEAF == 0 {
        let unit = from.varint("unit of a leaf")?;
        let unit = unit.saturating_add(if is_first { 0 } else { u64::from(leaf.unit) });
        let units = from.varint("units of a leaf")?;
        let is_in_table = unit.saturating_add(units) <= u64::from(limits.leaf_units);
        match (u32::try_from(unit), u16::try_from(units)) {
            (Ok(unit), Ok(units)) if units > 0 && is_in_table => {
                leaf = PagePointer { unit, units };
            }
            _ => return Err(from.corrupt("unit of a leaf", limits.leaf_units, unit)),
        }
    } else if is_first {
        return Err(from.corrupt("flags of a listed key", "a leaf", flags));
    }
    let number = from.varint("number of a listed key")?;
    let number = number.saturating_add(limits.seqno_min.0);
    if number > limits.seqno_max.0 {
        return Err(from.corrupt("number of a listed key", limits.seqno_max, number));
    }
    let newest = Seqno(number);
    into.versions = ListedVersions::one((leaf, flags & IS_SPLIT != 0), newest, kind);
    into.tombstones.clear();
    into.tombstones.extend((kind == EntryKind::Delete).then_some(newest));
    if flags & SEVERAL != 0 {
        read_older(from, limits, into)?;
    }
    Ok(())
}

/// Reads what follows of a key with several versions.
fn read_older(from: &mut Decoder<'_>, limits: &ListLimits, into: &mut TableKey) -> Result<()> {
    let (newest, _) = into.versions.newest;
    let count = from.varint("versions of a listed key")?;
    let count = u32::try_from(count).ok().filter(|count| *count > 1);
    let count = count.ok_or_else(|| from.corrupt("versions of a listed key", "several", "one"))?;
    let older = |above: Seqno, from: &mut Decoder<'_>| {
        let difference = from.varint("number of an older version")?;
        let number = above.0.checked_sub(difference).filter(|it| *it >= limits.seqno_min.0);
        number
            .map(Seqno)
            .ok_or_else(|| from.corrupt("number of an older version", limits.seqno_min, difference))
    };
    let oldest = older(newest, from)?;
    let flags = from.u8("flags of the oldest version")?;
    let mut kind = kind_of(from, flags, OLDEST_FLAGS)?;
    if planted(Bug::KeyListOperandsForgotten) {
        kind = EntryKind::Put;
    }
    let base = if flags & HAS_BASE != 0 { Some(older(newest, from)?) } else { None };
    into.tombstones.clear();
    if flags & TOMBSTONES != 0 {
        if (into.versions.newest.1, kind) != (EntryKind::Delete, EntryKind::Delete) {
            return Err(from.corrupt("flags of the oldest version", "a tombstone", flags));
        }
        let mut above = newest;
        into.tombstones.push(newest);
        for _ in 2..count {
            above = older(above, from)?;
            into.tombstones.push(above);
        }
        into.tombstones.push(oldest);
        if !into.tombstones.is_sorted_by(|above, below| above > below) {
            return Err(from.corrupt("numbers of tombstones", "descending ones", oldest));
        }
    }
    let versions = &mut into.versions;
    (versions.count, versions.oldest, versions.base) = (count, (oldest, kind), base);
    Ok(())
}

fn kind_of(from: &Decoder<'_>, flags: u8, known: u8) -> Result<EntryKind> {
    let kind = EntryKind::from_tag(flags & KIND_MASK).filter(|_| flags & !known == 0);
    let kind = kind.filter(|kind| *kind != EntryKind::RangeDelete);
    kind.ok_or_else(|| from.corrupt("kind of a listed version", "a known one", flags))
}
