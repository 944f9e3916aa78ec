//! A bidirectional cursor over a table, for user-facing iterators.
//!
//! Invariants:
//! 1. It holds no cached page: it copies the current leaf.
//! 2. It reads ahead only after it has moved from leaf to leaf in one direction, in growing steps
//!    of up to 32 pages through the cache. A long forward run continues past the cache
//!    ([`PageScan`]), so that it does not evict what point reads need. Its buffers are leased from
//!    the read-ahead budget ([`ReadAhead`](crate::cache::ReadAhead)); without a lease, leaves are
//!    read one by one.
//! 3. After an error there is no position.

use std::cmp::Ordering;
use std::sync::Arc;

use super::blob_pointer::BlobPointer;
use super::index::{PLAIN_SEPARATOR, child_pointer};
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::Parsed;
use super::reader::{Step, Table, rest_page};
use super::scan::BEFORE_ALL_VERSIONS;
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::cache::{Lease, PageClass, PageMiss, PagePointer, PageScan, ReadContext, fetch_misses};

/// A seek so many leaves ahead goes on with a run.
const NEAR_LEAVES_MAX: usize = 8;
/// The largest number of pages read ahead through the cache.
const AHEAD_PAGES_MAX: usize = 32;
/// The number of leaves read through the cache in one forward run. Later leaves bypass the cache.
const CACHED_RUN_PAGES: u32 = 64;
/// The largest and smallest chunk of reads that bypass the cache, in units.
const SCAN_CHUNK_UNITS: usize = 32;
const SCAN_CHUNK_UNITS_MIN: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}

/// The cursor. See the module's description.
pub(crate) struct TableCursor {
    table: Arc<Table>,
    context: ReadContext,
    leaf: LeafCursor,
    /// The loaded leaf.
    loaded: Option<PagePointer>,
    /// The path from the index root to the leaf. It is not kept while `pages` runs.
    path: Vec<Step>,
    pages: Option<(PageScan, Lease)>,
    /// Leaves crossed in this direction since the last seek.
    run: (Direction, u32),
    ahead_pages: usize,
    /// True if it was positioned for a forward run. The length of the run predicts the length of
    /// the next.
    sought: bool,
    /// The leaf and threshold of a prefetched seek to `prefetched_key`, to which `path` leads.
    prefetched: Option<(PagePointer, u64)>,
    prefetched_key: Vec<u8>,
    /// Restricts reads; see [`TableCursor::go_carefully`].
    careful: bool,
    /// Pages beyond this key in this direction are ignored.
    limit: Option<(Box<[u8]>, Direction)>,
}

impl Table {
    /// A cursor without a position.
    pub(crate) fn cursor(self: &Arc<Self>) -> TableCursor {
        TableCursor {
            table: Arc::clone(self),
            context: ReadContext::blocking(),
            leaf: LeafCursor::new(),
            loaded: None,
            path: Vec::new(),
            pages: None,
            run: (Direction::Forward, 0),
            ahead_pages: 1,
            sought: false,
            prefetched: None,
            prefetched_key: Vec::new(),
            careful: false,
            limit: None,
        }
    }
}

impl Table {
    /// Whether the table may have a put or an operand with a number below `seqno` for a key in `[lower, upper)`. Reads few
    /// leaves, through the cache: beyond so many entries the answer is yes.
    pub(crate) fn has_older_in(
        self: &Arc<Self>,
        (lower, upper): (&[u8], Option<&[u8]>),
        seqno: Seqno,
    ) -> Result<bool> {
        const ENTRIES_MAX: usize = 64;
        if *self.last_key() < *lower || upper.is_some_and(|upper| *self.first_key() >= *upper) {
            return Ok(false);
        }
        let mut cursor = self.cursor();
        cursor.seek(lower)?;
        for _ in 0..ENTRIES_MAX {
            let within = |entry: &EntryRef<'_>| upper.is_none_or(|upper| *entry.key < *upper);
            match cursor.entry().filter(within) {
                None => return Ok(false),
                Some(entry) if entry.seqno < seqno && entry.kind != EntryKind::Delete => break,
                Some(_) => cursor.next()?,
            }
        }
        Ok(true)
    }
}

/// A scan of the leaves from a unit on, if there is memory for its buffers, of at most so many bytes.
pub(super) fn scan_past_cache(
    table: &Table,
    first_unit: u32,
    bytes_max: usize,
) -> Option<(PageScan, Lease)> {
    let file = &table.file;
    let buffers = |units: usize| 2 * units * UNIT_BYTES;
    let account = &file.files().read_ahead;
    let least = buffers(SCAN_CHUNK_UNITS_MIN);
    let wanted = buffers(SCAN_CHUNK_UNITS).min(bytes_max);
    let lease = account.lease(Some(wanted).filter(|wanted| *wanted >= least)?, least)?;
    let units = first_unit..table.footer.leaf_units.max(first_unit);
    let chunk_units = (lease.bytes() / buffers(1)) as u32;
    Some((file.scan(units, chunk_units), lease))
}

impl TableCursor {
    /// The table it reads.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Memory used, except the buffers of a long run.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<TableCursor>()
            + self.leaf.memory_bytes()
            + self.path.capacity() * size_of::<Step>()
            + self.prefetched_key.capacity()
    }

    /// Leaf and index pages that were read from disk one by one.
    pub(crate) fn pages_read(&self) -> u32 {
        self.context.pages_read.get()
    }

    /// Reads only what is necessary, page by page, and no page from `limit` on (backwards: below
    /// it), because a page there is known to be damaged. The caller must not ask for anything on
    /// that side.
    pub(crate) fn go_carefully(&mut self, limit: Option<&[u8]>, forward: bool) {
        let direction = if forward { Direction::Forward } else { Direction::Back };
        self.careful = true;
        self.limit = limit.map(|limit| (Box::from(limit), direction));
    }

    /// Seeks the newest version of `key` up to `snapshot`, or else the first entry of the next key.
    /// Unlike `seek`, it skips the versions that the snapshot does not see.
    pub(crate) fn seek_at(&mut self, key: &[u8], snapshot: Seqno) -> Result<()> {
        let threshold = snapshot.0.min(Seqno::MAX.0) + 1;
        self.rest();
        self.descend(key, threshold - 1)?;
        self.sought = true;
        let index = self.search(key, threshold)?;
        self.place_or_cross(index)
    }

    /// The index of the first entry from `key` on, which is ahead of the position, if it is in the same leaf.
    fn find_ahead_in_leaf(&mut self, key: &[u8]) -> Result<Option<usize>> {
        let index = self.search(key, Seqno::MAX.0 + 1)?;
        Ok(Some(index).filter(|index| *index < self.leaf.entries()))
    }

    /// Seeks a key that is ahead of the position and in another leaf. If that is one of the next leaves, this is a step of
    /// a forward run, and leaves are read ahead as for one that visits each.
    fn seek_ahead(&mut self, key: &[u8]) -> Result<()> {
        let before = self.path.last().copied();
        if self.careful || self.pages.is_some() || self.run.0 != Direction::Forward {
            return self.seek_at(key, Seqno::MAX);
        }
        self.leaf.unplace();
        let threshold = Seqno::MAX.0 + 1;
        let leaf = self.retrace(key, threshold - 1)?;
        let leaves = match (before, self.path.last()) {
            (Some(before), Some(now)) if before.page == now.page => {
                now.child.checked_sub(before.child).filter(|leaves| *leaves <= NEAR_LEAVES_MAX)
            }
            _ => None,
        };
        match leaves {
            Some(leaves) => {
                // Beyond that, leaves would be read past the cache one by one.
                self.run.1 = (self.run.1 + leaves as u32).min(CACHED_RUN_PAGES);
                self.read_ahead(leaf, Direction::Forward)?;
            }
            None => {
                self.rest();
                self.sought = true;
            }
        }
        self.load(leaf)?;
        let index = self.search(key, threshold)?;
        self.place_or_cross(index)
    }

    /// Returns true if a forward run is expected to read more than one leaf.
    pub(crate) fn expects_more(&self) -> bool {
        self.table.run_length.expected() > 1
    }

    /// Determines the path of `seek` (forward) or `seek_before` for `key`, and adds the uncached
    /// pages that they will read to `misses`. If an index page is missing, that page is added and
    /// the result is false. Otherwise the leaf is added, and forwards also the following leaves
    /// with keys below `upper`, as many as recent cursors have read. Afterwards there is no
    /// position.
    pub(crate) fn prefetch(
        &mut self,
        key: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
        misses: &mut Vec<PageMiss>,
    ) -> Result<bool> {
        self.rest();
        self.path.clear();
        self.prefetched = None;
        let threshold = if forward { Seqno::MAX.0 } else { BEFORE_ALL_VERSIONS };
        let context = ReadContext::collecting();
        let path = &mut self.path;
        let leaf = match self.table.find_leaf(key, threshold, &context, |step| path.push(step)) {
            Ok(leaf) => leaf,
            Err(Error::NotResident) => {
                misses.extend(context.misses.into_iter().flat_map(|found| found.into_inner()));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.prefetched = Some((leaf, threshold));
        self.prefetched_key.clear();
        self.prefetched_key.extend_from_slice(key);
        self.note_missing(leaf, misses);
        if self.path.last().is_some_and(|step| step.is_split) {
            self.note_missing(rest_page(leaf), misses);
        }
        let leaves = if forward { self.table.run_length.expected() } else { 1 };
        if let Some(step) = self.path.last()
            && leaves > 1
        {
            self.table.with_index(step.page, 1, &context, |node| {
                let mut end = (step.child + leaves).min(step.children);
                if let Some(upper) = upper {
                    end = end.min(node.search(upper, BEFORE_ALL_VERSIONS)?);
                }
                for child in step.child + 1..end {
                    self.note_missing(child_pointer(node, child)?, misses);
                }
                Ok(())
            })?;
        }
        Ok(true)
    }

    /// Calls `f` with the entries that are next in the loaded leaf; see [`LeafCursor::entries_ahead`].
    pub(crate) fn entries_ahead(
        &self,
        forward: bool,
        count: usize,
        f: &mut dyn FnMut(Vec<u8>, Seqno, Option<BlobPointer>),
    ) {
        self.leaf.entries_ahead(forward, count, f);
    }

    fn note_missing(&self, leaf: PagePointer, misses: &mut Vec<PageMiss>) {
        if !self.table.is_cached(leaf) {
            let file = Arc::clone(&self.table.file);
            misses.push(PageMiss { file, pointer: leaf, class: PageClass::Leaf });
        }
    }

    /// Forgets the position and the run.
    fn rest(&mut self) {
        self.note_run();
        self.leaf.unplace();
        self.pages = None;
        self.run = (Direction::Forward, 0);
        self.ahead_pages = self.table.run_length.expected().div_ceil(2);
    }

    /// Reports to the table how far the cursor went since it was positioned.
    fn note_run(&mut self) {
        if std::mem::take(&mut self.sought) && self.run.0 == Direction::Forward {
            self.table.run_length.note(self.run.1 + 1);
        }
    }

    fn checked<T>(&mut self, result: Parsed<T>) -> Result<T> {
        result.map_err(|damage| {
            let page = self.loaded.take().unwrap_or(self.table.footer.root);
            self.leaf.unplace();
            self.table.damaged(page, damage)
        })
    }

    fn search(&mut self, key: &[u8], threshold: u64) -> Result<usize> {
        let found = self.leaf.search(key, threshold);
        self.checked(found)
    }

    #[inline]
    fn place(&mut self, index: usize) -> Result<()> {
        match self.leaf.place(index) {
            Ok(Placed::Whole) => Ok(()),
            Ok(Placed::Split) => self.join(),
            Err(damage) => self.checked(Err(damage)),
        }
    }

    /// Completes the split entry that was placed last with the page after the leaf.
    #[cold]
    fn join(&mut self) -> Result<()> {
        if let Some((limit, Direction::Forward)) = &self.limit
            && self.leaf.placed_key() >= &**limit
        {
            // Nothing is asked for there.
            return Ok(());
        }
        let (leaf, table) = (&mut self.leaf, &self.table);
        if let Some((pages, _)) = &mut self.pages {
            return match pages.peek_page()? {
                Some((page, next)) => leaf.join(next).map_err(|damage| table.damaged(page, damage)),
                None => Err(table.damaged(table.footer.root, "end of a split value")),
            };
        }
        let Some(loaded) = self.loaded else { return Ok(()) };
        let page = rest_page(loaded);
        // Through the cache: the cursor needs the page again when it goes on.
        table
            .file
            .with_page(page, PageClass::Leaf, &self.context, |next| leaf.join(next))?
            .map_err(|damage| table.damaged(page, damage))
    }

    /// Moves to the first whole entry from `index` on.
    fn place_or_cross(&mut self, index: usize) -> Result<()> {
        let index = index.max(self.leaf.first());
        if index < self.leaf.entries() { self.place(index) } else { self.cross(Direction::Forward) }
    }

    /// Moves to the last whole entry before `index`.
    fn place_before(&mut self, index: usize) -> Result<()> {
        match index.checked_sub(1).filter(|&last| last >= self.leaf.first()) {
            Some(last) => self.place(last),
            None => self.cross(Direction::Back),
        }
    }

    /// Loads the leaf that [`Table::find_leaf`] returns.
    fn descend(&mut self, key: &[u8], threshold: u64) -> Result<()> {
        let leaf = match self.prefetched.take() {
            Some((leaf, at)) if at == threshold && self.prefetched_key == key => leaf,
            _ => self.retrace(key, threshold)?,
        };
        self.load(leaf)
    }

    fn retrace(&mut self, key: &[u8], threshold: u64) -> Result<PagePointer> {
        self.path.clear();
        self.prefetched = None;
        let path = &mut self.path;
        self.table.find_leaf(key, threshold, &self.context, |step| path.push(step))
    }

    fn load(&mut self, page: PagePointer) -> Result<()> {
        if self.loaded == Some(page) {
            return Ok(());
        }
        self.loaded = None;
        let through_cache = self.run.1 <= CACHED_RUN_PAGES || self.table.is_cached(page);
        let (leaf, file) = (&mut self.leaf, &self.table.file);
        let loaded = if through_cache {
            file.with_page(page, PageClass::Leaf, &self.context, |payload| leaf.load(payload))?
        } else {
            self.context.pages_read.set(self.context.pages_read.get() + 1);
            leaf.load(&file.read_uncached(page)?)
        };
        loaded.map_err(|damage| self.table.damaged(page, damage))?;
        self.loaded = Some(page);
        Ok(())
    }

    /// Moves to the nearest entry in `direction` that is not in this leaf. Beyond the last leaf there is no position.
    #[cold]
    #[inline(never)]
    fn cross(&mut self, direction: Direction) -> Result<()> {
        // A leaf may have no more than the rest of an entry.
        while self.cross_to_leaf(direction)? {
            let (first, end) = (self.leaf.first(), self.leaf.entries());
            if first < end {
                return self.place(match direction {
                    Direction::Forward if planted(Bug::CursorForwardSkips) => {
                        (first + 1).min(end - 1)
                    }
                    Direction::Forward => first,
                    Direction::Back if planted(Bug::CursorBackSkips) => {
                        (end - 1).saturating_sub(1).max(first)
                    }
                    Direction::Back => end - 1,
                });
            }
        }
        Ok(())
    }

    /// Loads the next leaf in `direction`. Returns false beyond the last.
    fn cross_to_leaf(&mut self, direction: Direction) -> Result<bool> {
        if self.run.0 != direction {
            self.turn(direction)?;
        }
        self.leaf.unplace();
        self.run.1 += 1;
        let is_long = direction == Direction::Forward && self.run.1 > CACHED_RUN_PAGES;
        if is_long && self.can_scan() {
            return self.cross_past_cache();
        }
        let Some(page) = self.neighbour(direction)? else { return Ok(false) };
        if !is_long {
            self.read_ahead(page, direction)?;
        }
        self.load(page)?;
        Ok(true)
    }

    /// Prepares for a change of direction.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        self.run = (direction, 0);
        self.ahead_pages = 1;
        if self.pages.take().is_some()
            && let Some(entry) = self.leaf.entry()
        {
            // The path was not kept: finds it again, to the loaded leaf.
            let (key, seqno) = (entry.key.to_vec(), entry.seqno);
            self.retrace(&key, seqno.0)?;
        }
        Ok(())
    }

    /// Returns true if a scan that bypasses the cache is running. Begins one if there is memory for
    /// its buffers.
    fn can_scan(&mut self) -> bool {
        if self.careful {
            return false;
        }
        if self.pages.is_some() {
            return true;
        }
        let Some(loaded) = self.loaded else { return false };
        let next = loaded.unit + u32::from(loaded.units);
        self.pages = scan_past_cache(&self.table, next, usize::MAX);
        self.pages.is_some()
    }

    fn cross_past_cache(&mut self) -> Result<bool> {
        self.loaded = None;
        let Some((pages, _)) = &mut self.pages else { return Ok(false) };
        let Some((page, payload)) = pages.next_page()? else { return Ok(false) };
        self.leaf.load(payload).map_err(|damage| self.table.damaged(page, damage))?;
        self.loaded = Some(page);
        Ok(true)
    }

    /// The next leaf in `direction`; `path` then leads to it.
    fn neighbour(&mut self, direction: Direction) -> Result<Option<PagePointer>> {
        let can_step = |step: &Step| match direction {
            Direction::Forward => step.child + 1 < step.children,
            Direction::Back => step.child > 0,
        };
        let Some(depth) = self.path.iter().rposition(can_step) else { return Ok(None) };
        let height = usize::from(self.table.footer.height);
        if self.is_at_limit(direction, self.path[depth], (height - depth) as u8)? {
            return Ok(None);
        }
        let mut page = self.path[depth].page;
        for at in depth..height {
            let old = (at == depth).then(|| self.path[at].child);
            let level = (height - at) as u8;
            let (step, child) = self.table.with_index(page, level, &self.context, |node| {
                let children = node.shape.entries;
                let child = match (old, direction) {
                    (Some(old), Direction::Forward) => old + 1,
                    (Some(old), Direction::Back) => old - 1,
                    (None, Direction::Forward) => 0,
                    (None, Direction::Back) => children - 1,
                };
                let step = Step { page, child, children, is_split: false };
                Ok((step, child_pointer(node, child)?))
            })?;
            self.path[at] = step;
            page = child;
        }
        Ok(Some(page))
    }

    /// Returns true if the neighbour of a step's child in `direction` is beyond the limit.
    fn is_at_limit(&self, direction: Direction, step: Step, level: u8) -> Result<bool> {
        let Some((limit, _)) = &self.limit else { return Ok(false) };
        self.table.with_index(step.page, level, &self.context, |node| match direction {
            Direction::Forward => Ok(*node.key(step.child + 1)? >= **limit),
            // At a separator between versions of one key, the newer versions are on the other side.
            Direction::Back => match node.key(step.child)?[..].cmp(&**limit) {
                Ordering::Equal => Ok(node.meta(step.child) == PLAIN_SEPARATOR),
                order => Ok(order == Ordering::Less),
            },
        })
    }

    /// Reads `page` and its next siblings into the cache together, if `page` is not cached.
    fn read_ahead(&mut self, page: PagePointer, direction: Direction) -> Result<()> {
        if self.table.is_cached(page) {
            return Ok(());
        }
        let count = self.ahead_pages;
        self.ahead_pages = (count * 2).min(AHEAD_PAGES_MAX);
        let Some(&step) = self.path.last().filter(|_| count > 1) else { return Ok(()) };
        let siblings = self.table.with_index(step.page, 1, &self.context, |node| {
            let range = match direction {
                Direction::Forward => step.child..(step.child + count).min(step.children),
                Direction::Back => (step.child + 1).saturating_sub(count)..step.child + 1,
            };
            range.map(|child| child_pointer(node, child)).collect::<Parsed<Vec<_>>>()
        })?;
        let misses: Vec<PageMiss> = siblings
            .into_iter()
            .filter(|&pointer| !self.table.is_cached(pointer))
            .map(|pointer| PageMiss {
                file: Arc::clone(&self.table.file),
                pointer,
                class: PageClass::Leaf,
            })
            .collect();
        // Damage of a page is reported when the cursor reaches it.
        if let Ok(read) = fetch_misses(misses) {
            self.context.pages_read.set(self.context.pages_read.get() + read);
        }
        Ok(())
    }
}

impl Drop for TableCursor {
    fn drop(&mut self) {
        self.note_run();
    }
}

impl Cursor for TableCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.rest();
        let table = Arc::clone(&self.table);
        self.descend(table.first_key(), Seqno::MAX.0)?;
        self.place_or_cross(0)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.rest();
        let table = Arc::clone(&self.table);
        self.descend(table.last_key(), 0)?;
        self.place_before(self.leaf.entries())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if self.leaf.entry().is_none_or(|entry| entry.key >= key) {
            return self.seek_at(key, Seqno::MAX);
        }
        match self.find_ahead_in_leaf(key)? {
            Some(index) => self.place(index),
            None => self.seek_ahead(key),
        }
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.rest();
        self.descend(key, BEFORE_ALL_VERSIONS)?;
        let index = self.search(key, BEFORE_ALL_VERSIONS)?;
        self.place_before(index)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let next = self.leaf.index() + 1;
        if next < self.leaf.entries() { self.place(next) } else { self.cross(Direction::Forward) }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.place_before(self.leaf.index())
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.leaf.entry()
    }
}
