//! [`PlacedRun`]: entries at known places of several tables, as one run.
//!
//! Invariants:
//! 1. Keys ascend. All parts of a key together have each of its versions once, those of an earlier part are newer.
//! 2. A part that a number supersedes lies below a version of that number. If no part has that one, it is a tombstone.
//! 3. A run never changes.

use std::cmp::Reverse;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::placed_pass::{KEYS_CACHED_MAX, PlacedPass};
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::cache::{PageClass, PageMiss, PagePointer, ReadContext, fetch_misses, fetch_runs};
use crate::table::{BlobPointer, Hole, HoleAt, Table, rest_page};

/// Room for values that a cursor keeps from key to key.
const VALUES_KEPT_BYTES: usize = 64 << 10;

/// The most keys whose pages are read together.
const KEYS_AHEAD_MAX: usize = 16;
/// A table is read leaf by leaf if it has so many keys of a run, on average.
const KEYS_PER_STREAM_MIN: usize = 4;
/// The most units that are read at once of a table behind a leaf that is needed.
const UNITS_AHEAD_MAX: usize = 32;

/// The versions of a key that one table has.
#[derive(Clone, Copy)]
pub(crate) struct PlacedPart {
    /// The place of the table among those of the run.
    pub(crate) table: usize,
    /// The leaf with the newest, and whether that goes on in the next leaf, if known.
    pub(crate) leaf: Option<(PagePointer, bool)>,
    /// The number of the younger version or of the tombstone that supersedes them.
    pub(crate) superseded: Option<Seqno>,
}

/// Keys and where their versions are.
pub(crate) struct PlacedKeys {
    tables: Vec<Arc<Table>>,
    keys: Vec<u8>,
    parts: Vec<PlacedPart>,
    /// Where each key, and each key's parts, end.
    ends: Vec<(usize, usize)>,
}

impl PlacedKeys {
    /// With room for so many keys of so many bytes together.
    pub(crate) fn with_capacity(keys: usize, key_bytes: usize) -> PlacedKeys {
        PlacedKeys {
            tables: Vec::new(),
            keys: Vec::with_capacity(key_bytes),
            parts: Vec::with_capacity(keys),
            ends: Vec::with_capacity(keys),
        }
    }

    /// Adds a table. Returns its place.
    pub(crate) fn add_table(&mut self, table: Arc<Table>) -> usize {
        self.tables.push(table);
        self.tables.len() - 1
    }

    /// Adds a part of the key that `end_key` will add, older than the parts before.
    pub(crate) fn push_part(&mut self, part: PlacedPart) {
        self.parts.push(part);
    }

    /// Adds a key, greater than those before, unless it has got no part.
    pub(crate) fn end_key(&mut self, key: &[u8]) {
        if self.parts.len() > self.ends.last().map_or(0, |end| end.1) {
            self.keys.extend_from_slice(key);
            self.ends.push((self.keys.len(), self.parts.len()));
        }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    /// Where a key and its parts begin.
    fn start(&self, at: usize) -> (usize, usize) {
        at.checked_sub(1).map_or((0, 0), |before| self.ends[before])
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.keys[self.start(at).0..self.ends[at].0]
    }

    fn parts(&self, at: usize) -> &[PlacedPart] {
        &self.parts[self.start(at).1..self.ends[at].1]
    }

    fn memory_bytes(&self) -> usize {
        self.keys.capacity()
            + self.parts.capacity() * size_of::<PlacedPart>()
            + self.ends.capacity() * size_of::<(usize, usize)>()
            + self.tables.capacity() * size_of::<Arc<Table>>()
    }
}

/// See the module's description.
pub(crate) struct PlacedRun {
    keys: PlacedKeys,
    /// Younger versions do not count.
    seqno_max: Seqno,
    reads: Option<Arc<dyn RangeReads>>,
    /// Which tables range queries read is of interest.
    counts_tables: bool,
}

/// Who wants to know what range queries read one after the other.
pub(crate) trait RangeReads: Send + Sync {
    /// So many neighbouring keys were in these tables, each of them named for each key.
    fn note(&self, keys: usize, tables: &[FileId]);

    /// A range query has ended after so many keys.
    fn ended(&self, keys: usize);

    /// How many keys the next range query will probably read.
    fn expected(&self) -> usize;
}

/// Keys of a range query of which the tables are noted together.
const KEYS_NOTED: usize = 30;

impl PlacedRun {
    /// A run of at least one key, without versions younger than `seqno_max`.
    pub(crate) fn new(
        keys: PlacedKeys,
        seqno_max: Seqno,
        reads: Option<Arc<dyn RangeReads>>,
        counts_tables: bool,
    ) -> Option<PlacedRun> {
        (keys.len() > 0).then_some(PlacedRun { keys, seqno_max, reads, counts_tables })
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        self.keys.key(0)
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        self.keys.key(self.keys.len() - 1)
    }

    /// The first keys at or behind a place that cannot be read: neighbours that fail in the same way are one hole.
    ///
    /// # Errors
    /// Errors that are neither damage nor failed reads.
    pub(crate) fn hole(&self, at: HoleAt<'_>) -> Result<Option<Hole>> {
        let (keys, forward) = match at {
            HoleAt::From(key) => (self.position(key)..self.keys.len(), true),
            HoleAt::Before(None) => (0..self.keys.len(), false),
            HoleAt::Before(Some(key)) => (0..self.position(key), false),
        };
        let context = ReadContext::blocking();
        let count = keys.len();
        let mut found: Option<Hole> = None;
        for step in 0..count {
            let at = if forward { keys.start + step } else { keys.end - 1 - step };
            let error = match (self.read(at, &context, &mut Versions::default()), &found) {
                (Err(error), _) => error,
                (Ok(()), None) => continue,
                (Ok(()), Some(_)) => break,
            };
            if !error.is_unreadable() {
                return Err(error);
            }
            let key = self.keys.key(at);
            let behind = [key, &[0][..]].concat();
            match &mut found {
                None => found = Some(Hole { lower: key.to_vec(), upper: behind, error }),
                Some(hole) if hole.error.to_string() != error.to_string() => break,
                Some(hole) if forward => hole.upper = behind,
                Some(hole) => hole.lower = key.to_vec(),
            }
        }
        Ok(found)
    }

    /// The number of keys before this one.
    fn position(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.keys.len());
        while low < high {
            let middle = low.midpoint(high);
            if *self.keys.key(middle) < *key { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn table(&self, part: &PlacedPart) -> &Arc<Table> {
        &self.keys.tables[part.table]
    }

    /// Reads a key's versions that count, newest first, in place of others.
    fn read(&self, key: usize, context: &ReadContext, versions: &mut Versions) -> Result<()> {
        versions.clear();
        let parts = self.keys.parts(key);
        for part in parts {
            let seqno_max = self.seqno_max.min(newest_in(part.superseded));
            let before = versions.list.len();
            self.each_version(key, part, context, &mut |entry| versions.push(entry))?;
            let table = self.table(part);
            if versions.list.len() == before && table.properties().seqno_max <= seqno_max {
                let file = table.pages().path();
                return Err(Error::corruption(&file, 0, "a key", "one that an index has", "none"));
            }
        }
        for seqno in parts.iter().filter_map(|part| part.superseded) {
            versions.require(seqno);
        }
        Ok(())
    }

    /// Calls `f` with the versions of a key that a part has and that count.
    fn each_version(
        &self,
        key: usize,
        part: &PlacedPart,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>),
    ) -> Result<()> {
        let seqno_max = self.seqno_max.min(newest_in(part.superseded));
        self.table(part).get_at(self.keys.key(key), part.leaf, seqno_max, context, |entry| {
            f(entry);
            ControlFlow::Continue(())
        })
    }

    /// Whether all that a part has counts, so that whoever reads its table leaf by leaf finds it. A reader of older versions may
    /// need others than those of the leaf.
    fn is_streamed(&self, part: &PlacedPart) -> bool {
        let seqno_max = self.seqno_max.min(newest_in(part.superseded));
        self.table(part).properties().seqno_max <= seqno_max
    }

    /// The page of a part, if it is not cached.
    fn missing(&self, part: &PlacedPart) -> Option<PagePointer> {
        let (pointer, _) = part.leaf?;
        (!self.table(part).is_cached(pointer)).then_some(pointer)
    }
}

/// The versions of a key, newest first.
#[derive(Default)]
struct Versions {
    list: Vec<Version>,
    values: Vec<u8>,
}

/// A version that has been read.
struct Version {
    seqno: Seqno,
    kind: EntryKind,
    /// Its value, among those of all versions.
    value: Range<usize>,
}

impl Versions {
    fn clear(&mut self) {
        self.list.clear();
        self.values.clear();
        // What one key needed is not kept for all others.
        if self.values.capacity() > VALUES_KEPT_BYTES {
            self.values.shrink_to(VALUES_KEPT_BYTES);
        }
    }

    fn push(&mut self, entry: EntryRef<'_>) {
        let start = self.values.len();
        self.values.extend_from_slice(entry.value);
        let value = start..self.values.len();
        self.list.push(Version { seqno: entry.seqno, kind: entry.kind, value });
    }

    /// Adds a tombstone of this number, unless there is a version of it.
    fn require(&mut self, seqno: Seqno) {
        let found = self.list.binary_search_by_key(&Reverse(seqno), |it| Reverse(it.seqno));
        if let Err(at) = found {
            self.list.insert(at, Version { seqno, kind: EntryKind::Delete, value: 0..0 });
        }
    }
}

/// A cursor over a run. It reads the pages of several keys together once it has read some one after the other.
pub(crate) struct PlacedCursor {
    run: Arc<PlacedRun>,
    context: ReadContext,
    /// The key and the version at the position.
    at: Option<(usize, usize)>,
    /// The versions of that key.
    versions: Versions,
    /// Keys whose pages have been asked for together the last time.
    ahead: usize,
    /// What it has read in this direction, also in the runs before.
    pass: PlacedPass,
    /// The keys that are of use in the direction that the cursor goes.
    useful: Range<usize>,
    /// Keys that have been read one after the other, and their tables.
    noted: usize,
    tables: Vec<FileId>,
    /// Nothing is read ahead.
    careful: bool,
    /// Keys beyond this one are ignored: in the forward direction if true.
    limit: Option<(Box<[u8]>, bool)>,
}

impl PlacedCursor {
    pub(crate) fn new(run: &Arc<PlacedRun>) -> PlacedCursor {
        PlacedCursor {
            run: Arc::clone(run),
            context: ReadContext::blocking(),
            at: None,
            versions: Versions::default(),
            ahead: 0,
            pass: PlacedPass::default(),
            useful: 0..run.keys.len(),
            noted: 0,
            tables: Vec::new(),
            careful: false,
            limit: None,
        }
    }

    /// This cursor reads no more, nor does one that goes on where it is.
    pub(crate) fn end(&self) {
        if self.pass.keys > 0 {
            self.run.reads.iter().for_each(|reads| reads.ended(self.pass.keys));
        }
    }

    /// From now on no page is read ahead, and none that only keys beyond `limit` need in this direction.
    pub(crate) fn go_carefully(&mut self, limit: Option<&[u8]>, forward: bool) {
        self.careful = true;
        self.limit = limit.map(|limit| (Box::from(limit), forward));
    }

    /// The cursor goes on with a pass, no further than to `limit`.
    pub(crate) fn go_on(&mut self, pass: PlacedPass, limit: Option<&[u8]>, forward: bool) {
        let limit = limit.map(|limit| self.run.position(limit));
        let count = self.run.keys.len();
        self.pass = pass;
        // Streams that are not used would have what is read otherwise.
        match self.is_dense() {
            true => self.pass.retain(&self.run.keys.tables),
            false => self.pass.retain(&[]),
        }
        self.useful = match forward {
            true => 0..limit.unwrap_or(count),
            false => limit.unwrap_or(0)..count,
        };
    }

    /// What has been read, for the cursor of the next run.
    pub(crate) fn take_pass(&mut self) -> PlacedPass {
        std::mem::take(&mut self.pass)
    }

    fn is_beyond_limit(&self, key: usize, forward: bool) -> bool {
        let key = self.run.keys.key(key);
        self.limit.as_ref().is_some_and(|(limit, is_forward)| match forward {
            true => *is_forward && *key >= **limit,
            false => !*is_forward && *key < **limit,
        })
    }

    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        let Versions { list, values } = &self.versions;
        let versions = list.capacity() * size_of::<Version>() + values.capacity();
        versions + self.pass.memory_bytes() + self.run.keys.memory_bytes()
    }

    pub(crate) fn pages_read(&self) -> u64 {
        u64::from(self.context.pages_read.get())
    }

    /// Reads a key's versions. `forward` says where the cursor will probably go.
    fn load(&mut self, key: usize, forward: bool) -> Result<()> {
        self.at = None;
        self.pass.keys += 1;
        self.pass.ahead += 1;
        let is_streamed = forward && self.is_dense();
        if !(is_streamed && self.scans_past_cache(key)) {
            self.read_ahead(key, forward);
        }
        let run = &self.run;
        // What is read past the cache is in order in each table: how many these are makes no difference.
        if run.counts_tables && self.pass.keys as u64 <= KEYS_CACHED_MAX {
            self.noted += 1;
            self.tables.extend(run.keys.parts(key).iter().map(|part| run.table(part).id()));
        }
        if self.noted == KEYS_NOTED {
            run.reads.iter().for_each(|reads| reads.note(self.noted, &self.tables));
            self.noted = 0;
            self.tables.clear();
        }
        match is_streamed && self.read_streamed(key) {
            true => Ok(()),
            false => self.run.read(key, &self.context, &mut self.versions),
        }
    }

    /// Whether each table has several keys of the run, so that most are in a leaf that has been read.
    fn is_dense(&self) -> bool {
        let keys = &self.run.keys;
        !self.careful
            && !self.pass.has_failed
            && keys.len() >= KEYS_PER_STREAM_MIN * keys.tables.len()
    }

    /// Whether a long pass has the leaves of a key without the cache.
    fn scans_past_cache(&mut self, key: usize) -> bool {
        let run = &self.run;
        let Some(bytes_max) = self.pass.scan_bytes_max(&run.keys.tables) else { return false };
        run.keys.parts(key).iter().all(|part| {
            let Some((leaf, _)) = part.leaf.filter(|_| run.is_streamed(part)) else { return false };
            let table = run.table(part);
            let stream = self.pass.stream(table);
            if !stream.has(leaf) && !table.is_cached(leaf) && !table.is_cached_behind(leaf) {
                stream.scan_from(leaf, bytes_max);
            }
            stream.has(leaf) || table.is_cached(leaf)
        })
    }

    /// Reads a key's versions leaf by leaf. Returns false if they have to be read as a single key's are.
    fn read_streamed(&mut self, key: usize) -> bool {
        let (run, versions) = (&self.run, &mut self.versions);
        versions.clear();
        let name = run.keys.key(key);
        for part in run.keys.parts(key) {
            let Some((leaf, _)) = part.leaf.filter(|_| run.is_streamed(part)) else { return false };
            let stream = self.pass.stream(run.table(part));
            let push = &mut |entry: EntryRef<'_>| versions.push(entry);
            match stream.versions(name, leaf, &self.context, push) {
                Ok(true) => {}
                Ok(false) => return false,
                // Damage is reported by the read of the key alone, if it needs what is damaged.
                Err(_) => {
                    self.pass.give_up_streams();
                    return false;
                }
            }
        }
        for seqno in run.keys.parts(key).iter().filter_map(|part| part.superseded) {
            versions.require(seqno);
        }
        true
    }

    /// Calls `f` with entries of the keys behind the position (in front of it, if it goes backwards), until it has passed
    /// `count` puts in blob files, whose pointers it passes too. Entries that cannot be read are left out.
    pub(crate) fn entries_ahead(
        &self,
        forward: bool,
        count: usize,
        f: &mut dyn FnMut(Vec<u8>, Seqno, Option<BlobPointer>),
    ) {
        let Some((at, _)) = self.at else { return };
        self.pass.looks_ahead.set(true);
        let mut left = count;
        let mut from = at;
        while left > 0 {
            // As many keys as there are values to be found, and their pages together.
            let keys = match forward {
                true => from + 1..self.run.keys.len().min(from + 1 + left),
                false => from.saturating_sub(left)..from,
            };
            if keys.is_empty() {
                return;
            }
            from = if forward { keys.end - 1 } else { keys.start };
            self.fetch(keys.clone(), forward);
            for key in keys {
                left = left.saturating_sub(self.pass(key, f));
            }
        }
    }

    /// Calls `f` with the entries of a key. Returns the number of pointers among them.
    fn pass(&self, key: usize, f: &mut dyn FnMut(Vec<u8>, Seqno, Option<BlobPointer>)) -> usize {
        let mut pointers = 0;
        let name = self.run.keys.key(key);
        for part in self.run.keys.parts(key) {
            let mut pass = |entry: EntryRef<'_>| {
                let is_blob = entry.kind == EntryKind::PutBlob;
                let pointer = is_blob.then(|| BlobPointer::decode(entry.value)).flatten();
                pointers += usize::from(pointer.is_some());
                f(name.to_vec(), entry.seqno, pointer);
            };
            // Damage is reported by the read that needs the entry.
            let _ = self.run.each_version(key, part, &self.context, &mut pass);
            part.superseded.iter().for_each(|seqno| f(name.to_vec(), *seqno, None));
        }
        pointers
    }

    /// If the page of a key is not cached, reads it together with those of keys behind it: as many as range queries usually
    /// read, or else no more than have been passed. A cursor that has passed many also reads what comes next in their
    /// tables.
    fn read_ahead(&mut self, key: usize, forward: bool) {
        let keys = &self.run.keys;
        if self.careful || !keys.parts(key).iter().any(|part| self.missing(part).is_some()) {
            return;
        }
        // At once: most range queries wait for one read, and read what they need.
        let expected = self.run.reads.as_ref().filter(|_| !self.pass.is_slow);
        let expected = expected.map_or(0, |reads| reads.expected() + 1);
        let expected = expected.saturating_sub(self.pass.keys);
        let is_pass = self.pass.ahead > KEYS_AHEAD_MAX;
        self.ahead = (self.ahead * 2).clamp(1, KEYS_AHEAD_MAX);
        let wanted = |ahead: usize| match forward {
            true => key..self.useful.end.min(key + ahead),
            false => self.useful.start.max((key + 1).saturating_sub(ahead))..key + 1,
        };
        let is_whole = match expected > self.ahead {
            true => self.fetch(wanted(expected), forward),
            false if is_pass => self.fetch_ahead(wanted(self.pass.ahead.min(keys.len())), forward),
            false => {
                self.fetch(wanted(self.ahead), forward);
                return;
            }
        };
        // One page that cannot be read would take others along again and again.
        if !is_whole {
            self.pass.slow_down();
            self.ahead = 1;
        }
    }

    /// The page of a part, if it is neither cached nor where a scan comes to.
    fn missing(&self, part: &PlacedPart) -> Option<PagePointer> {
        let pointer = self.run.missing(part)?;
        (!self.pass.has(self.run.table(part), pointer)).then_some(pointer)
    }

    /// The most units that are read ahead: pages that have been used are kept before those that have not, and no lease is more
    /// than a quarter.
    fn units_ahead_max(&self) -> usize {
        let Some(table) = self.run.keys.tables.first() else { return 0 };
        let files = table.pages().files();
        let cached = files.cache.capacity_bytes() as usize / 32;
        (files.read_ahead.bytes_max() / 8).min(cached) / UNIT_BYTES
    }

    /// Reads the pages of keys together, if there are several that are missing. Returns false if that has failed.
    fn fetch(&self, keys: Range<usize>, forward: bool) -> bool {
        let units_max = self.units_ahead_max();
        let mut misses: Vec<PageMiss> = Vec::new();
        let (mut units, mut parts) = (0, 0);
        for part in nearest_first(keys, forward).flat_map(|key| self.run.keys.parts(key)) {
            let Some((leaf, is_split)) = part.leaf else { continue };
            let table = self.run.table(part);
            if self.pass.has(table, leaf) {
                continue;
            }
            if parts >= KEYS_AHEAD_MAX && units >= units_max {
                break;
            }
            parts += 1;
            // Of neighbours in a table, the page is named once.
            for pointer in [Some(leaf), is_split.then(|| rest_page(leaf))].into_iter().flatten() {
                let is_named =
                    |miss: &PageMiss| miss.pointer == pointer && miss.file.id() == table.id();
                if !misses.last().is_some_and(is_named) && !table.is_cached(pointer) {
                    let file = Arc::clone(table.pages());
                    units += usize::from(pointer.units);
                    misses.push(PageMiss { file, pointer, class: PageClass::Leaf });
                }
            }
        }
        if misses.len() <= 1 {
            return true;
        }
        // Damage is reported by the read that needs the page.
        let Ok(read) = fetch_misses(misses) else { return false };
        self.context.pages_read.set(self.context.pages_read.get() + read);
        true
    }

    /// Reads the pages of keys that are not cached, and what their tables have next in a direction: no more than there is
    /// memory for until it is used. Returns false if they were not all read.
    fn fetch_ahead(&self, keys: Range<usize>, forward: bool) -> bool {
        let all = &self.run.keys;
        let units_max = self.units_ahead_max();
        // Another run goes on at the end of this one, but not at the end of the iterator.
        let goes_on = match forward {
            true => keys.end < self.useful.end || keys.end == all.len(),
            false => keys.start > self.useful.start || keys.start == 0,
        };
        let units_ahead = match goes_on {
            true => (units_max / all.tables.len().max(1)).min(UNITS_AHEAD_MAX) as u32,
            false => 0,
        };
        let (mut runs, mut last) = (Vec::new(), None);
        let (mut units, mut parts) = (0, 0);
        for part in nearest_first(keys, forward).flat_map(|key| all.parts(key)) {
            let Some(pointer) = self.missing(part) else { continue };
            if last.replace((part.table, pointer)) == Some((part.table, pointer)) {
                continue;
            }
            // As many keys as without a pass are always worth it.
            if parts >= KEYS_AHEAD_MAX && units >= units_max {
                break;
            }
            parts += 1;
            units += usize::from(pointer.units);
            runs.push(self.run.table(part).leaves_ahead(pointer, forward, units_ahead));
        }
        // Whoever needs a leaf alone reads it itself, with the next one if an entry goes on there.
        if runs.iter().map(|run| run.units.len()).sum::<usize>() <= 1 {
            return true;
        }
        let Ok(fetched) = fetch_runs(runs, PageClass::Leaf) else { return false };
        self.context.pages_read.set(self.context.pages_read.get() + fetched.pages);
        fetched.is_whole
    }

    /// Moves to a key, or the next one that has versions: to its newest version, or its oldest.
    fn place(&mut self, mut key: Option<usize>, forward: bool) -> Result<()> {
        self.at = None;
        while let Some(at) = key.filter(|at| *at < self.run.keys.len())
            && !self.is_beyond_limit(at, forward)
        {
            self.load(at, forward)?;
            if let Some(last) = self.versions.list.len().checked_sub(1) {
                self.at = Some((at, if forward { 0 } else { last }));
                break;
            }
            // All of its versions are younger than the run.
            key = if forward { Some(at + 1) } else { at.checked_sub(1) };
        }
        Ok(())
    }
}

/// Keys in the order in which a cursor comes to them.
fn nearest_first(keys: Range<usize>, forward: bool) -> impl Iterator<Item = usize> {
    let (start, end) = (keys.start, keys.end);
    keys.map(move |key| if forward { key } else { end - 1 - (key - start) })
}

/// The newest version that counts of a part that a number supersedes. A compaction may have put versions beside it that
/// were superseded meanwhile, by what the index has not kept a number of: nobody needs them.
pub(crate) fn newest_in(superseded: Option<Seqno>) -> Seqno {
    let superseded = superseded.filter(|_| !planted(Bug::SlmMarkIgnored));
    superseded.map_or(Seqno::MAX, |superseded| Seqno(superseded.0.saturating_sub(1)))
}

impl Cursor for PlacedCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.place(Some(0), true)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.place(self.run.keys.len().checked_sub(1), false)
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let position = self.run.position(key);
        // What was read before a jump says nothing of how much will be read behind it.
        if self.at.is_some_and(|(at, _)| position != at && position != at + 1) {
            self.end();
            (self.pass.keys, self.pass.ahead, self.ahead, self.noted) = (0, 0, 0, 0);
            self.tables.clear();
        }
        self.place(Some(position), true)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.place(self.run.position(key).checked_sub(1), false)
    }

    fn next(&mut self) -> Result<()> {
        match self.at {
            Some((key, version)) if version + 1 < self.versions.list.len() => {
                self.at = Some((key, version + 1));
                Ok(())
            }
            Some((key, _)) => self.place(Some(key + 1), true),
            None => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.at {
            Some((key, version)) if version > 0 => {
                self.at = Some((key, version - 1));
                Ok(())
            }
            Some((key, _)) => self.place(key.checked_sub(1), false),
            None => Ok(()),
        }
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (key, version) = self.at?;
        let Version { seqno, kind, value } = self.versions.list.get(version)?;
        let value = &self.versions.values[value.clone()];
        Some(EntryRef { key: self.run.keys.key(key), seqno: *seqno, kind: *kind, value })
    }
}
