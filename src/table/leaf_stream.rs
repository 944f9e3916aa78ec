//! [`LeafStream`]: entries of a table at places that are known beforehand, in ascending order.
//!
//! Who reads neighbours one after the other meets the same leaf several times, and then the next one. So the leaf is copied
//! once, and the next entry is looked at before the leaf is searched.
//!
//! Invariants:
//! 1. It holds no cached page.
//! 2. Pages that are read past the cache ([`PageScan`]) are in buffers leased from the read-ahead budget. What such a scan
//!    cannot read is read through the cache: only a page that is needed is reported as damaged.
//! 3. What it returns for a key is all versions that the table has, or it says that it cannot tell.

use std::sync::Arc;

use super::cursor::scan_past_cache;
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::{Damage, FLAG_CONTINUES, FLAG_SPLIT, Node, Parsed, Shape};
use super::reader::{Table, rest_page};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::cache::{Lease, PageClass, PagePointer, PageScan, ReadContext};

/// A scan goes over so many units that nobody needs. Farther away, it begins anew.
const SKIPPED_UNITS_MAX: u32 = 32;

/// See the module's description.
pub(crate) struct LeafStream {
    table: Arc<Table>,
    leaf: LeafCursor,
    /// The loaded leaf.
    loaded: Option<PagePointer>,
    /// The entry behind the last one that was returned.
    next: usize,
    pages: Option<(PageScan, Lease)>,
}

impl LeafStream {
    pub(crate) fn new(table: &Arc<Table>) -> LeafStream {
        LeafStream {
            table: Arc::clone(table),
            leaf: LeafCursor::new(),
            loaded: None,
            next: 0,
            pages: None,
        }
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Memory used, except the buffers of a scan.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<LeafStream>() + self.leaf.memory_bytes()
    }

    /// Whether a leaf can be had without a wait: it is loaded, or a scan comes to it.
    pub(crate) fn has(&self, leaf: PagePointer) -> bool {
        let is_near = |next: u32| next <= leaf.unit && leaf.unit - next <= SKIPPED_UNITS_MAX;
        self.loaded == Some(leaf)
            || self.pages.as_ref().is_some_and(|(pages, _)| is_near(pages.next_unit()))
    }

    /// Reads past the cache from this leaf on, if there is memory for that; with buffers of at most so many bytes.
    pub(crate) fn scan_from(&mut self, leaf: PagePointer, bytes_max: usize) {
        self.pages = None;
        self.pages = scan_past_cache(&self.table, leaf.unit, bytes_max);
    }

    /// Ends a scan whose buffers take more bytes.
    pub(crate) fn keep_scan(&mut self, bytes_max: usize) {
        self.pages.take_if(|(_, lease)| lease.bytes() > bytes_max);
    }

    /// Calls `f` with all versions of a key, newest first, of which the newest is in this leaf. Returns false if there may be
    /// others, or none: the table has to be asked then, and what `f` was called with does not count.
    ///
    /// # Errors
    /// Those of reading the leaf, and damage in it. `f` may have been called.
    pub(crate) fn versions(
        &mut self,
        key: &[u8],
        leaf: PagePointer,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>),
    ) -> Result<bool> {
        if self.loaded != Some(leaf) {
            self.load(leaf, context)?;
        }
        let first = self.find(key).map_err(|damage| self.damaged(leaf, damage))?;
        let Some(first) = first else { return Ok(false) };
        let mut at = first;
        while at < self.leaf.entries() {
            let placed = self.leaf.place(at).map_err(|damage| self.damaged(leaf, damage))?;
            if self.leaf.placed_key() != key {
                break;
            }
            if placed == Placed::Split && !self.join(key, leaf, context)? {
                // Joined, the entry would look whole to whoever asks again.
                self.loaded = None;
                return Ok(false);
            }
            if let Some(entry) = self.leaf.entry() {
                f(entry);
            }
            at += 1;
        }
        self.next = at;
        Ok(at > first)
    }

    /// The first entry of a key in the loaded leaf. `None` if there is none, or if versions go on in the next leaf.
    fn find(&mut self, key: &[u8]) -> Parsed<Option<usize>> {
        let leaf = &mut self.leaf;
        let entries = leaf.entries();
        let next = self.next.max(leaf.first());
        let is_next = next < entries && {
            let _ = leaf.place(next)?;
            leaf.placed_key() == key
        };
        // Those before have smaller keys.
        let at = match is_next {
            true => next,
            false => leaf.search(key, Seqno::MAX.0 + 1)?.max(leaf.first()),
        };
        let goes_on = leaf.flags() & (FLAG_CONTINUES | FLAG_SPLIT) == FLAG_CONTINUES;
        if at >= entries || (goes_on && leaf.key_at(entries - 1)? == key) {
            return Ok(None);
        }
        Ok(Some(at))
    }

    fn damaged(&mut self, leaf: PagePointer, damage: Damage) -> Error {
        self.loaded = None;
        self.table.damaged(leaf, damage)
    }

    /// Copies a leaf: from the scan if that comes to it, or else from the cache.
    fn load(&mut self, leaf: PagePointer, context: &ReadContext) -> Result<()> {
        self.loaded = None;
        self.next = 0;
        if let Some((pages, _)) = &mut self.pages {
            match page_at(pages, leaf) {
                Some(payload) => {
                    context.pages_read.set(context.pages_read.get() + 1);
                    self.leaf.load(payload).map_err(|damage| self.table.damaged(leaf, damage))?;
                    self.loaded = Some(leaf);
                    return Ok(());
                }
                None => self.pages = None,
            }
        }
        let file = Arc::clone(self.table.pages());
        let copy = &mut self.leaf;
        file.with_page(leaf, PageClass::Leaf, context, |payload| copy.load(payload))?
            .map_err(|damage| self.table.damaged(leaf, damage))?;
        self.loaded = Some(leaf);
        Ok(())
    }

    /// Completes the split entry that was placed last. Returns false if there may be older versions behind it.
    fn join(&mut self, key: &[u8], leaf: PagePointer, context: &ReadContext) -> Result<bool> {
        let rest = rest_page(leaf);
        let copy = &mut self.leaf;
        let mut join = |payload: &[u8]| -> Parsed<bool> {
            copy.join(payload)?;
            let shape = Shape::parse(payload, 0)?;
            let is_behind = |at: usize| Node { bytes: payload, shape: &shape }.key_is(at, key);
            Ok(match shape.entries {
                1 => shape.flags & FLAG_CONTINUES == 0,
                _ => !is_behind(1)?,
            })
        };
        if let Some((pages, _)) = &mut self.pages
            && let Ok(Some((page, payload))) = pages.peek_page()
            && page.unit == rest.unit
        {
            return join(payload).map_err(|damage| self.damaged(rest, damage));
        }
        let file = Arc::clone(self.table.pages());
        let joined = file.with_page(rest, PageClass::Leaf, context, join)?;
        joined.map_err(|damage| self.damaged(rest, damage))
    }
}

/// The payload of a page that a scan comes to, if it can be read.
fn page_at(pages: &mut PageScan, leaf: PagePointer) -> Option<&[u8]> {
    while pages.next_unit() < leaf.unit && leaf.unit - pages.next_unit() <= SKIPPED_UNITS_MAX {
        pages.next_page().ok().flatten()?;
    }
    if pages.next_unit() != leaf.unit {
        return None;
    }
    let (page, payload) = pages.next_page().ok().flatten()?;
    (page == leaf).then_some(payload)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::base::entry::EntryKind;
    use crate::base::random::SplitMix;
    use crate::table::test_support::TestFiles;
    use crate::table::tests::{Entry, build, sort};

    /// Some keys with several versions, of which some are larger than a leaf.
    fn entries(count: u64, bytes_max: u64) -> Vec<Entry> {
        let mut random = SplitMix::new(5);
        let mut entries = Vec::new();
        for at in 0..count {
            let key = random.bytes(24);
            for version in 0..1 + random.below(20).saturating_sub(16) {
                let bytes = random.below(bytes_max) as usize;
                let value = random.bytes(bytes);
                entries.push((key.clone(), 5 * at + version + 1, EntryKind::Put, value));
            }
        }
        sort(&mut entries);
        entries
    }

    /// The versions of a key as the stream says them, or as the table does where the stream cannot.
    fn versions(
        table: &Arc<Table>,
        stream: &mut LeafStream,
        key: &[u8],
        leaf: PagePointer,
        told: &mut u64,
    ) -> Vec<(Seqno, Vec<u8>)> {
        let mut found = Vec::new();
        let mut push = |entry: EntryRef<'_>| found.push((entry.seqno, entry.value.to_vec()));
        let context = ReadContext::blocking();
        if stream.versions(key, leaf, &context, &mut push).unwrap() {
            *told += 1;
        } else {
            found.clear();
            table
                .get(key, Seqno(u64::MAX >> 8), &context, |entry| {
                    found.push((entry.seqno, entry.value.to_vec()));
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
        }
        found
    }

    #[test]
    fn a_stream_returns_all_versions_or_none_and_reads_each_page_once() {
        for (bytes_max, past_cache, step) in
            [(1500, false, 1), (1500, true, 1), (40, true, 1), (30_000, true, 1), (1500, true, 7)]
        {
            let files = TestFiles::new();
            let entries = entries(3000, bytes_max);
            let table = build(&files, false, &entries);
            let context = ReadContext::blocking();
            let by_key: Vec<&[Entry]> = entries.chunk_by(|a, b| a.0 == b.0).step_by(step).collect();
            let leaf_of =
                |key: &[u8]| table.find_leaf(key, Seqno::MAX.0, &context, |_| {}).unwrap();
            let leaves: Vec<PagePointer> = by_key.iter().map(|of| leaf_of(&of[0].0)).collect();
            table.pages().forget_pages();
            let before = files.vfs.bytes_read.load(Ordering::Relaxed);
            let mut stream = LeafStream::new(&table);
            let mut told = 0;
            for (of_key, leaf) in by_key.iter().zip(leaves) {
                if past_cache && !stream.has(leaf) {
                    stream.scan_from(leaf, 1 << 20);
                }
                let expected: Vec<_> =
                    of_key.iter().map(|entry| (Seqno(entry.1), entry.3.clone())).collect();
                let found = versions(&table, &mut stream, &of_key[0].0, leaf, &mut told);
                assert_eq!(found, expected);
            }
            let read = files.vfs.bytes_read.load(Ordering::Relaxed) - before;
            let all = u64::from(table.footer.leaf_units) * 4096;
            // A key that the table was asked for may have several leaves.
            let asked = (by_key.len() as u64 - told) * (bytes_max + 3 * 4096);
            assert!(read <= all + all / 8 + asked, "{bytes_max}: {read} bytes of {all}");
            // An entry of two leaves that had been completed looked whole to who asked again: versions behind it were lost.
            for of_key in &by_key {
                let leaf = leaf_of(&of_key[0].0);
                let mut ask = || versions(&table, &mut stream, &of_key[0].0, leaf, &mut 0).len();
                assert_eq!([ask(), ask()], [of_key.len(); 2]);
            }
            assert!(told * 10 >= by_key.len() as u64 * 8, "{told} of {}", by_key.len());
        }
    }
}
