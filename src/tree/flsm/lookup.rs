//! Point reads: the tables on the way to a key, and which of their filters are worth a read.
//!
//! Filters are asked together: the waits for memory overlap, and of pages that are not cached all that the
//! lookup will probably ask are read at once.
//!
//! The last table on the way is not like the others. A key that none of the others has is there or nowhere,
//! and where most keys that are asked for exist, its filter would nearly always say yes: if the filter's page
//! is not cached, reading the entry itself is one read instead of two. Where the keys often do not exist, the
//! filter is worth its page. [`Presence`] remembers which of the two lately was so.
//!
//! Invariants:
//! 1. Tables are looked into youngest first, and each unless its keys or its filter rule the key out.
//! 2. A damaged filter page is an error only for lookups that need its answer.

use std::ops::ControlFlow;
use std::slice::Iter;
use std::sync::Arc;

use super::guard::{Fragment, Guard};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::sync::plain::{AtomicU32, Ordering};
use crate::cache::{ReadContext, fetch_misses};
use crate::table::{FilterUse, Table};

/// Tables whose filters are asked together.
const TOGETHER_MAX: usize = 32;

/// How often keys that no other table had were in the last one on their way: a running mean.
pub(super) struct Presence {
    /// Of 65,536.
    share: AtomicU32,
}

/// Always.
const WHOLE: u32 = 1 << 16;

/// One in so many lookups counts, by its key's hash: the rest write to no memory that others use.
const COUNTED_ONE_IN: u64 = 16;

impl Default for Presence {
    fn default() -> Presence {
        Presence { share: AtomicU32::new(WHOLE) }
    }
}

impl Presence {
    /// Whether a key that is asked for is rather there than not.
    fn is_likely(&self) -> bool {
        self.share.load(Ordering::Relaxed) > WHOLE / 2
    }

    fn note(&self, hash: u64, held: bool) {
        if !hash.is_multiple_of(COUNTED_ONE_IN) {
            return;
        }
        // One that is lost to another thread's does no harm.
        let before = self.share.load(Ordering::Relaxed);
        let after = before - before / 16 + if held { WHOLE / 16 } else { 0 };
        self.share.store(after, Ordering::Relaxed);
    }
}

/// The tables on the way to a key from the root down, youngest first, whose keys reach over it.
struct Path<'a> {
    key: &'a [u8],
    guard: &'a Guard,
    fragments: Iter<'a, Fragment>,
}

impl<'a> Path<'a> {
    fn new(root: &'a Guard, key: &'a [u8]) -> Path<'a> {
        Path { key, guard: root, fragments: root.fragments.iter() }
    }
}

impl<'a> Iterator for Path<'a> {
    type Item = &'a Arc<Table>;

    #[inline]
    fn next(&mut self) -> Option<&'a Arc<Table>> {
        loop {
            for fragment in self.fragments.by_ref().rev() {
                let table = &fragment.table;
                if *table.first_key() <= *self.key && *self.key <= *table.last_key() {
                    return Some(table);
                }
            }
            self.guard = self.guard.children.get(self.guard.child_of(self.key))?;
            self.fragments = self.guard.fragments.iter();
        }
    }
}

/// A lookup of one key.
pub(super) struct Lookup<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: u64,
    pub(super) snapshot: Seqno,
    pub(super) context: &'a ReadContext,
    pub(super) presence: &'a Presence,
    /// Where filter pages are noted that are not cached.
    missing: ReadContext,
    pub(super) filter_use: FilterUse,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(
        key: &'a [u8],
        hash: u64,
        snapshot: Seqno,
        context: &'a ReadContext,
        presence: &'a Presence,
    ) -> Lookup<'a> {
        let missing = ReadContext::collecting();
        Lookup { key, hash, snapshot, context, presence, missing, filter_use: FilterUse::default() }
    }

    /// Calls `f` with the key's versions, newest first, until it breaks.
    pub(super) fn run(
        &mut self,
        root: &Guard,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut path = Path::new(root, self.key);
        let mut next = path.next();
        while let Some(first) = next {
            let mut tables = [first; TOGETHER_MAX];
            let mut count = 0;
            while let Some(table) = next
                && count < TOGETHER_MAX
            {
                table.prefetch_filter_place(self.hash);
                tables[count] = table;
                count += 1;
                next = path.next();
            }
            let tables = &tables[..count];
            tables.iter().for_each(|table| table.prefetch_filter_bytes(self.hash));
            for at in 0..tables.len() {
                if self.ask(&tables[at..], next.is_none(), f)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Looks into the first of the tables, unless its filter rules the key out; the others come after it,
    /// and behind them nothing if `is_end`.
    fn ask(
        &mut self,
        tables: &[&Arc<Table>],
        is_end: bool,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let [table, later @ ..] = tables else { return Ok(ControlFlow::Continue(())) };
        let is_last = is_end && later.is_empty();
        let answer = match table.may_contain(self.hash, &self.missing) {
            Err(Error::NotResident) => self.ask_missing(tables, is_end)?,
            answer => Some(answer?),
        };
        self.filter_use.probes += u64::from(answer.is_some() && table.has_filter());
        let (mut held, mut flow) = (false, ControlFlow::Continue(()));
        if answer != Some(false) {
            table.get(self.key, self.snapshot, self.context, |entry| {
                held = true;
                flow = f(entry);
                flow
            })?;
            if answer.is_none() && !held {
                // The filter would have spared a read, and will the next: what it says is known, and
                // damage is for those to report who need it.
                let _ = table.may_contain(self.hash, self.context);
            }
            let is_filtered = answer.is_some() && table.has_filter();
            self.filter_use.false_positives += u64::from(is_filtered && !held);
        }
        if is_last {
            self.presence.note(self.hash, held);
        }
        Ok(flow)
    }

    /// What the filter of the first of the tables says, of which a page is missing that has been noted;
    /// `None` if it is not worth reading.
    #[cold]
    #[inline(never)]
    fn ask_missing(&mut self, tables: &[&Arc<Table>], is_end: bool) -> Result<Option<bool>> {
        let Some(missing) = &self.missing.misses else { return Ok(None) };
        let unasked = usize::from(is_end && self.presence.is_likely());
        let [table, later @ ..] = &tables[..tables.len() - unasked] else {
            missing.borrow_mut().clear();
            return Ok(None);
        };
        // What the lookup asks next, up to the table that seems to have the key.
        for table in later {
            if let Ok(true) = table.may_contain(self.hash, &self.missing) {
                break;
            }
        }
        let mut missing = missing.take();
        if let Some(misses) = &self.context.misses {
            misses.borrow_mut().append(&mut missing);
            return Err(Error::NotResident);
        }
        // If they cannot be read together, each is read when its turn comes.
        if missing.len() > 1
            && let Ok(pages) = fetch_misses(missing)
        {
            self.context.pages_read.set(self.context.pages_read.get() + pages);
        }
        table.may_contain(self.hash, self.context).map(Some)
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
