//! Gaps: key ranges of a keyspace that hold no visible pair, so that iterators need not step over what was deleted
//! there.
//!
//! An iterator finds a gap by stepping over it. While it does so, it *watches* the range: puts and merges into the
//! range are noted, so that it knows which part of the range is still empty when it records the gap.
//!
//! Gaps are in memory only. A store that is opened has none.
//!
//! Invariants:
//! 1. At every number `n >= since` that readers have been given, no key of a gap is visible. A writer calls [`Gaps::note`] with
//!    the key of each put and merge after its commit has taken its number and before it counts as applied. So a
//!    reader that determines its number first, and looks for gaps then, finds every gap ended that a commit up to its
//!    number has put a key into. (A delete ends no gap.)
//! 2. A gap that is recorded satisfies invariant 1. A commit that took its number before the watch began is applied
//!    before the iterator, after [`Committer::catch_up`], opens its cursors, and the iterator ends the range at a put
//!    that it finds above its own number. (A put that a compaction has dropped is not found. Then a later delete of the
//!    key is there, and no reader has a number between the two: `snapshots`.) A commit that took its number later has
//!    seen `is_watched` and noted its keys: both change the next number with one atomic read-modify-write, the iterator
//!    after it began the watch and the writer before it looks.
//! 3. Noting, recording and looking up are atomic with respect to each other: one lock. A writer takes it only while
//!    something is watched or recorded (`is_watched`), and its key may be there (`span`). Both are stored under the lock.
//!    At any moment since the watch of a gap began, they cover the gap. So it does not matter if a writer sees values of
//!    several moments.
//! 4. The union of two gaps that overlap or adjoin is a gap, since the larger of their numbers. They are united unless
//!    readers are left for whom only the older one holds.
//! 5. The memory is bounded: `GAPS_MAX` gaps with keys of at most `KEY_BYTES`, and `WATCHES_MAX` watches, each with the
//!    whole key where it begins and one key that was put.
//! 6. A reader steps over the same run twice at most once in vain, while few others do.
//! 7. Short runs are recorded as well once they have cost readers as much as some long ones ([`Gaps::is_short_run_due`]).
//! 8. A gap that is not used goes after `SPLITS_MAX` puts into it, and one that does not grow after `SPLITS_ALL_MAX`. So a
//!    range that is filled again does not cost its writers indefinitely.
//!
//! [`Committer::catch_up`]: crate::commit::Committer::catch_up

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::CachePadded;
use crate::base::sync::modelled::{AtomicBool, AtomicU64, Mutex, Ordering};

/// The number of gaps that a keyspace remembers. (Unit tests have keys of one byte.)
const GAPS_MAX: usize = if cfg!(test) { 64 } else { 512 };
/// The number of iterators that watch a range of one keyspace at a time.
const WATCHES_MAX: usize = 16;
/// Longer bounds are replaced by shorter ones inside the gap: an upper bound by its beginning, which is lower, and a
/// lower bound by the first key that is above all keys of the same beginning.
const KEY_BYTES: usize = 256;
/// So many runs that were stepped over twice in vain are known.
const VAIN_MAX: usize = 16;
/// Puts into a gap since its last use after which it goes.
const SPLITS_MAX: u32 = 64;
/// Puts into a gap since it was recorded or grew after which it goes.
const SPLITS_ALL_MAX: u32 = 1024;
/// More dead entries make a gap worth no more. (Compactions drop entries, and nobody counts that.)
const WORTH_MAX: u64 = 4096;
/// A put leaves less than half of a gap only if about so many dead entries are in it: fewer are stepped over as fast.
const PART_ENTRIES_MIN: f64 = 8.0;
/// Dead entries of short runs that readers step over before one of these runs is recorded. To record it, a reader steps over
/// it once more.
const SHORT_RUNS_ENTRIES: u64 = 2048;
/// So many runs that a full list refuses cost each gap in it one dead entry of its worth, until it is used again.
const REFUSALS_PER_ENTRY: u64 = 8;

/// The gaps of one keyspace.
pub(crate) struct Gaps {
    published: CachePadded<Published>,
    state: Mutex<State>,
    /// Dead entries of short runs that readers have stepped over since one was last watched.
    short_runs: AtomicU64,
}

/// What is known without the lock.
struct Published {
    /// There is a gap or a watch.
    is_watched: AtomicBool,
    /// Keys with a lower or a higher beginning are in no gap, and nobody watches them.
    span: [AtomicU64; 2],
}

/// The first eight bytes of a key, as a number.
#[inline]
fn beginning(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(bytes.len());
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

struct State {
    /// Ascending and disjoint.
    gaps: Vec<Gap>,
    watches: Vec<Watched>,
    next_watch: u64,
    /// The score of the gap that went last, and more after refusals.
    age: u64,
    /// Runs that were not worth the place of a gap.
    refusals: u64,
    /// Hashes of readers' numbers with the beginnings of runs that they have stepped over twice in vain, and the next
    /// place. A snapshot whose range has been filled again would do so at each look.
    vain: ([u64; VAIN_MAX], usize),
}

/// A number for a reader and the beginning of a run.
fn hash_of(direction: Direction, from: Option<&[u8]>, reader: Seqno) -> u64 {
    let mut hasher = DefaultHasher::new();
    (direction == Direction::Forward, from, reader.0).hash(&mut hasher);
    hasher.finish() | 1
}

/// A key of at most `KEY_BYTES` that is no lower: the first above all keys that begin like this one, if it is longer.
fn shortened_up(key: &[u8]) -> Option<Box<[u8]>> {
    let Some(beginning) = key.get(..KEY_BYTES).filter(|_| key.len() > KEY_BYTES) else {
        return Some(Box::from(key));
    };
    let last = beginning.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut above = beginning.get(..=last)?.to_vec();
    *above.last_mut()? += 1;
    Some(above.into())
}

/// Whether something is left of a range once its bounds are shortened.
fn is_left_of(lower: &[u8], upper: Option<&[u8]>) -> bool {
    if lower.len().max(upper.map_or(0, <[u8]>::len)) <= KEY_BYTES {
        return true;
    }
    let Some(lower) = shortened_up(lower) else { return false };
    upper.is_none_or(|upper| *lower < *upper.get(..KEY_BYTES).unwrap_or(upper))
}

/// A range without a visible pair.
#[derive(Debug, Clone)]
struct Gap {
    lower: Box<[u8]>,
    /// `None`: no bound.
    upper: Option<Box<[u8]>>,
    /// The number from which on the range is empty.
    since: Seqno,
    /// Dead entries that were stepped over in it (estimated once it has been split).
    dead: u64,
    /// The age of the list when it was used last, plus its worth: the gap with the least goes.
    score: u64,
    /// Puts since its last use that split it.
    splits: u32,
    /// Puts since it was recorded or grew.
    splits_all: u32,
}

impl Gap {
    /// Whether the key lies below the upper bound.
    fn ends_after(&self, key: &[u8]) -> bool {
        self.upper.as_ref().is_none_or(|upper| **upper > *key)
    }

    fn is_empty(&self) -> bool {
        self.upper.as_ref().is_some_and(|upper| *upper <= self.lower)
    }

    /// An estimate of the part of its dead entries that are below a key of it, by the distance of the keys as numbers.
    /// In a stack or a deque, each put is beside one end of a gap.
    fn share_below(&self, key: &[u8]) -> f64 {
        let upper = self.upper.as_deref().unwrap_or(&[0xff; 8]);
        let common = self.lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
        let number = |key: &[u8]| {
            let mut bytes = [0; 8];
            let rest = key.get(common..).unwrap_or_default();
            let len = rest.len().min(bytes.len());
            bytes[..len].copy_from_slice(&rest[..len]);
            u64::from_be_bytes(bytes)
        };
        let lower = number(&self.lower);
        let distance = number(key).saturating_sub(lower) as f64;
        let whole = number(upper).saturating_sub(lower).max(1) as f64;
        (distance / whole).min(1.0)
    }

    /// What it is worth beside others.
    fn worth(&self) -> u64 {
        self.dead.min(WORTH_MAX)
    }

    /// Notes a use while the list has this age.
    fn used(&mut self, age: u64) {
        self.score = age.saturating_add(self.worth());
        self.splits = 0;
    }

    /// Whether `next` begins where it ends.
    fn adjoins(&self, next: &Gap) -> bool {
        self.upper.as_ref() == Some(&next.lower)
    }

    /// Unites it with one that overlaps or adjoins.
    fn unite(&mut self, other: Gap) {
        if other.lower < self.lower {
            self.lower = other.lower;
        }
        self.upper = match (self.upper.take(), other.upper) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
        self.since = self.since.max(other.since);
        self.dead = self.dead.saturating_add(other.dead);
    }

    /// Shortens a long upper bound. Returns false if the gap is not to be remembered.
    fn fit(&mut self) -> bool {
        if let Some(upper) = &mut self.upper
            && let Some(beginning) = upper.get(..KEY_BYTES)
        {
            *upper = Box::from(beginning);
        }
        let Some(lower) = shortened_up(&self.lower) else { return false };
        self.lower = lower;
        !self.is_empty()
    }

    /// Whether the key lies in it, or, backward, the keys just before it (or the last of all keys, without one).
    fn has(&self, direction: Direction, key: Option<&[u8]>) -> bool {
        match (direction, key) {
            (Direction::Forward, key) => {
                let key = key.unwrap_or_default();
                *self.lower <= *key && self.ends_after(key)
            }
            (Direction::Backward, Some(key)) => {
                *self.lower < *key && self.upper.as_ref().is_none_or(|upper| **upper >= *key)
            }
            (Direction::Backward, None) => self.upper.is_none(),
        }
    }
}

/// The direction in which an iterator goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A range that an iterator is stepping over.
struct Watched {
    id: u64,
    /// [`hash_of`] its reader.
    reader: u64,
    direction: Direction,
    /// Where the range begins: its lower bound forward, its upper bound backward.
    from: Option<Box<[u8]>>,
    /// The end of the part that no put has been noted in: its upper bound forward, its lower bound backward.
    nearest: Option<Box<[u8]>>,
}

impl Watched {
    /// Notes a put at `key`.
    fn note(&mut self, key: &[u8]) {
        let from = self.from.as_deref();
        let nearest = self.nearest.as_deref();
        let shortens = match self.direction {
            Direction::Forward => {
                from.is_none_or(|from| key >= from) && nearest.is_none_or(|nearest| key < nearest)
            }
            Direction::Backward => {
                from.is_none_or(|from| key < from) && nearest.is_none_or(|nearest| key >= nearest)
            }
        };
        if shortens {
            self.nearest = Some(match self.direction {
                Direction::Forward => Box::from(key),
                Direction::Backward => after(key).into(),
            });
        }
    }

    /// The range up to `reached`.
    fn whole(&self, reached: Option<&[u8]>) -> (Box<[u8]>, Option<Box<[u8]>>) {
        let reached = reached.map(Box::from);
        match self.direction {
            Direction::Forward => (self.from.clone().unwrap_or_default(), reached),
            Direction::Backward => (reached.unwrap_or_default(), self.from.clone()),
        }
    }

    /// The part of the range up to `reached` that no put has been noted in.
    fn quiet_part(&self, reached: Option<&[u8]>) -> (Box<[u8]>, Option<Box<[u8]>>) {
        let nearest = self.nearest.as_deref().filter(|_| !planted(Bug::GapRecordedDespitePut));
        match self.direction {
            Direction::Forward => {
                let upper = match (reached, nearest) {
                    (Some(reached), Some(nearest)) => Some(reached.min(nearest)),
                    (reached, nearest) => reached.or(nearest),
                };
                (self.from.clone().unwrap_or_default(), upper.map(Box::from))
            }
            Direction::Backward => {
                let lower = reached.unwrap_or_default().max(nearest.unwrap_or_default());
                (Box::from(lower), self.from.clone())
            }
        }
    }
}

/// The first key after `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Default for Gaps {
    fn default() -> Gaps {
        let state = State {
            gaps: Vec::new(),
            watches: Vec::new(),
            next_watch: 0,
            age: 0,
            refusals: 0,
            vain: ([0; VAIN_MAX], 0),
        };
        let span = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];
        let published = Published { is_watched: AtomicBool::new(false), span };
        let short_runs = AtomicU64::new(0);
        Gaps { published: CachePadded::new(published), state: Mutex::new(state), short_runs }
    }
}

impl Gaps {
    /// Whether there is a gap or a watch. A writer that has taken its number sees every watch that begins before a
    /// later call of `catch_up` (invariant 2), without an ordering of this load.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.published.is_watched.load(Ordering::Relaxed)
    }

    /// Whether a key may be in a gap, or in a range that is watched. (Invariant 3.)
    fn may_have(&self, key: &[u8]) -> bool {
        let [least, most] = &self.published.span;
        let beginning = beginning(key);
        least.load(Ordering::Relaxed) <= beginning && beginning <= most.load(Ordering::Relaxed)
    }

    /// Ends the gaps at a key that is being put or merged. For a commit that has its number and has not been
    /// applied.
    #[cold]
    pub(crate) fn note(&self, key: &[u8]) {
        if !self.may_have(key) {
            return;
        }
        let mut state = self.state.lock();
        for watched in &mut state.watches {
            watched.note(key);
        }
        if !planted(Bug::GapSurvivesPut) {
            state.split_at(key);
        }
        self.publish(&state);
    }

    /// The upper bound of the gap that `key` lies in, for a reader at `seqno`; `Some(None)` if no key is above it. Gaps
    /// with fewer dead entries are not worth it.
    pub(crate) fn above(&self, key: &[u8], seqno: Seqno, dead_min: u64) -> Option<Option<Vec<u8>>> {
        if !self.may_have(key) {
            return None;
        }
        let mut state = self.state.lock();
        let from = state.index_of(Direction::Forward, Some(key))?;
        let mut to = from;
        while state
            .gaps
            .get(to + 1)
            .is_some_and(|next| next.serves(seqno) && state.gaps[to].adjoins(next))
        {
            to += 1;
        }
        let last = state.use_gaps(from..=to, seqno, dead_min)?.1;
        Some(last.upper.as_ref().map(|upper| upper.to_vec()))
    }

    /// The lower bound of the gap that the keys just before `key` lie in (or the last of all keys, without one), for
    /// a reader at `seqno`. Gaps with fewer dead entries are not worth it.
    pub(crate) fn below(&self, key: Option<&[u8]>, seqno: Seqno, dead_min: u64) -> Option<Vec<u8>> {
        if key.is_some_and(|key| !self.may_have(key)) {
            return None;
        }
        let mut state = self.state.lock();
        let to = state.index_of(Direction::Backward, key)?;
        let mut from = to;
        while from > 0
            && state.gaps[from - 1].serves(seqno)
            && state.gaps[from - 1].adjoins(&state.gaps[from])
        {
            from -= 1;
        }
        let first = state.use_gaps(from..=to, seqno, dead_min)?.0;
        Some(first.lower.to_vec())
    }

    /// Begins to watch the keys from `from` on, in one direction (without `from`, from the end of all keys), for a reader
    /// that has passed `dead` dead entries from there to `at`. Returns `None` if that is not worth it: many others watch, a
    /// younger gap is there already, there are many gaps that save more, or the same reader has done so in vain.
    pub(crate) fn watch(
        self: &Arc<Self>,
        direction: Direction,
        (from, at): (Option<&[u8]>, Option<&[u8]>),
        seqno: Seqno,
        dead: u64,
    ) -> Option<Watch> {
        let reader = hash_of(direction, from, seqno);
        let (lower, upper) = match direction {
            Direction::Forward => (from, at),
            Direction::Backward => (at, from),
        };
        if lower.is_some_and(|lower| !is_left_of(lower, upper)) {
            return None;
        }
        let mut state = self.state.lock();
        if state.vain.0.contains(&reader) {
            return None;
        }
        let is_served = state.index_of(direction, at).map(|index| state.gaps[index].serves(seqno));
        let is_worth = match is_served {
            // It grows.
            Some(true) => true,
            Some(false) => false,
            None => state.is_worth(dead),
        };
        if !is_worth || state.watches.len() >= WATCHES_MAX {
            return None;
        }
        let id = state.next_watch;
        state.next_watch += 1;
        // Not shortened: a put between the shortened bound and this one has to end the run, because the reader tells of
        // the first such put alone.
        let from = from.map(Box::from);
        state.watches.push(Watched { id, reader, direction, from, nearest: None });
        self.publish(&state);
        drop(state);
        Some(Watch { gaps: Arc::clone(self), id })
    }

    /// Notes a run that has not been recorded, since it was short.
    pub(crate) fn passed_short_run(&self, dead: u64) {
        self.short_runs.fetch_add(dead, Ordering::Relaxed);
    }

    /// Whether the next short run is to be recorded.
    pub(crate) fn is_short_run_due(&self) -> bool {
        self.short_runs.load(Ordering::Relaxed) >= SHORT_RUNS_ENTRIES
    }

    /// A short run is watched, to be recorded: the next one is due later.
    pub(crate) fn records_short_run(&self) {
        self.short_runs.store(0, Ordering::Relaxed);
    }

    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if !self.is_watched() {
            return 0;
        }
        let state = self.state.lock();
        let keys = |gap: &Gap| gap.lower.len() + gap.upper.as_ref().map_or(0, |upper| upper.len());
        let keys: usize = state.gaps.iter().map(keys).sum();
        (state.gaps.capacity() * size_of::<Gap>() + keys) as u64
    }

    /// The number of gaps.
    #[cfg(all(test, not(loom), not(shuttle)))]
    fn len(&self) -> usize {
        self.state.lock().gaps.len()
    }

    /// With the lock held, after a change. What has not changed is not stored: all writers have that cache line.
    fn publish(&self, state: &State) {
        let span = match (state.gaps.first(), state.gaps.last()) {
            _ if !state.watches.is_empty() => [0, u64::MAX],
            (Some(first), Some(last)) => {
                [beginning(&first.lower), last.upper.as_deref().map_or(u64::MAX, beginning)]
            }
            _ => [u64::MAX, 0],
        };
        let Published { is_watched, span: published } = &*self.published;
        for (value, published) in span.into_iter().zip(published) {
            if published.load(Ordering::Relaxed) != value {
                published.store(value, Ordering::Relaxed);
            }
        }
        let watched = !state.gaps.is_empty() || !state.watches.is_empty();
        if is_watched.load(Ordering::Relaxed) != watched {
            is_watched.store(watched, Ordering::Relaxed);
        }
    }
}

impl Gap {
    /// Whether the range is empty for a reader at `seqno`.
    fn serves(&self, seqno: Seqno) -> bool {
        self.since <= seqno || planted(Bug::GapOfOlderSnapshot)
    }
}

impl State {
    /// The place of the gap that has a key, or, backward, the keys just before it.
    fn index_of(&self, direction: Direction, key: Option<&[u8]>) -> Option<usize> {
        let begins = |gap: &Gap| match (direction, key) {
            (Direction::Forward, key) => *gap.lower <= *key.unwrap_or_default(),
            (Direction::Backward, key) => key.is_none_or(|key| *gap.lower < *key),
        };
        let index = self.gaps.partition_point(begins).checked_sub(1)?;
        self.gaps[index].has(direction, key).then_some(index)
    }

    /// Notes a use of gaps of which each begins where the one before ends. Returns the first and the last of them; `None` if
    /// a reader at `seqno` may not skip them, or they have fewer dead entries than `dead_min`.
    fn use_gaps(
        &mut self,
        places: RangeInclusive<usize>,
        seqno: Seqno,
        dead_min: u64,
    ) -> Option<(&Gap, &Gap)> {
        let age = self.age;
        let gaps = self.gaps.get_mut(places)?;
        let dead = gaps.iter().fold(0u64, |sum, gap| sum.saturating_add(gap.dead));
        if dead < dead_min || !gaps.iter().all(|gap| gap.serves(seqno)) {
            return None;
        }
        gaps.iter_mut().for_each(|gap| gap.used(age));
        Some((gaps.first()?, gaps.last()?))
    }

    /// Whether a gap with so many dead entries is worth the place of another. With more runs than gaps, each would
    /// otherwise be stepped over twice, and lose its place to the next before it is used.
    fn is_worth(&mut self, dead: u64) -> bool {
        let least = self.gaps.iter().map(|gap| gap.score).min().unwrap_or(0);
        if self.gaps.len() < GAPS_MAX || self.age.saturating_add(dead / 2) > least {
            return true;
        }
        self.refusals += 1;
        if self.refusals.is_multiple_of(REFUSALS_PER_ENTRY) {
            self.age += 1;
        }
        false
    }

    /// Takes a key out of the gap that has it.
    fn split_at(&mut self, key: &[u8]) {
        let Some(index) = self.gaps.partition_point(|gap| *gap.lower <= *key).checked_sub(1) else {
            return;
        };
        if !self.gaps[index].ends_after(key) {
            return;
        }
        let mut gap = self.gaps.remove(index);
        gap.splits += 1;
        gap.splits_all += 1;
        if gap.splits > SPLITS_MAX || gap.splits_all > SPLITS_ALL_MAX {
            return;
        }
        let share = gap.share_below(key);
        let base = gap.score.saturating_sub(gap.worth());
        let below = Gap { upper: Some(Box::from(key)), ..gap.clone() };
        let above = Gap { lower: after(key).into(), ..gap };
        let parts =
            [(below, share), (above, 1.0 - share)].into_iter().filter_map(|(part, share)| {
                let dead = part.dead as f64 * share;
                let is_kept = dead >= PART_ENTRIES_MIN || share >= 0.5;
                let dead = (dead as u64).max(1);
                let mut part = Gap { dead, ..part };
                part.score = base.saturating_add(part.worth());
                (is_kept && part.fit()).then_some(part)
            });
        self.gaps.splice(index..index, parts);
        self.shrink();
    }

    /// Adds a gap, united with those that it overlaps or adjoins. If there is a reader for whom some of those hold and it
    /// does not, it is united with the others, and cut to what lies between these. `oldest`: the least number of a reader.
    fn add(&mut self, mut gap: Gap, oldest: Seqno) {
        if !gap.fit() {
            return;
        }
        // Those that begin at or below its end, and end at or above its beginning.
        let from = self
            .gaps
            .partition_point(|other| other.upper.as_ref().is_some_and(|upper| *upper < gap.lower));
        let upto = self
            .gaps
            .partition_point(|other| gap.upper.as_ref().is_none_or(|upper| other.lower <= *upper));
        let is_young = gap.since > oldest;
        let mut stay: Vec<Gap> = Vec::new();
        for other in self.gaps.splice(from..upto.max(from), []) {
            match stay.last_mut() {
                _ if !is_young || other.since > oldest => gap.unite(other),
                Some(last) if last.adjoins(&other) => last.unite(other),
                _ => stay.push(other),
            }
        }
        let mut parts = Vec::with_capacity(stay.len() + 1);
        let mut rest = Some(gap);
        for old in &stay {
            let Some(gap) = rest.take() else { break };
            if gap.lower < old.lower {
                parts.push(Gap { upper: Some(old.lower.clone()), ..gap.clone() });
            }
            rest = old.upper.as_ref().filter(|upper| gap.ends_after(upper)).map(|upper| {
                let lower = gap.lower.clone().max(upper.clone());
                Gap { lower, ..gap }
            });
        }
        parts.extend(rest);
        let count = parts.len().max(1) as u64;
        parts.iter_mut().for_each(|part| part.dead = (part.dead / count).max(1));
        parts.append(&mut stay);
        parts.sort_by(|one, other| one.lower.cmp(&other.lower));
        for part in &mut parts {
            part.splits_all = 0;
            part.used(self.age);
        }
        self.gaps.splice(from..from, parts);
        self.shrink();
    }

    /// Drops the least useful gaps if there are too many.
    fn shrink(&mut self) {
        while self.gaps.len() > GAPS_MAX {
            let least = (0..self.gaps.len()).min_by_key(|index| self.gaps[*index].score);
            // What stays loses worth compared to what is used or added from now on.
            self.age = self.age.max(self.gaps.remove(least.unwrap_or(0)).score);
        }
    }
}

/// A range that is being watched, until it is recorded or dropped.
pub(crate) struct Watch {
    gaps: Arc<Gaps>,
    id: u64,
}

impl Watch {
    /// Records that the range up to `reached` held no visible pair at `since` (forward, `reached` is its upper bound,
    /// or there is none; backward, it is its lower bound), except for the part from the first key on of which the
    /// iterator has found a `newer` version, or a put was noted. `oldest`: no reader has a lower number.
    pub(crate) fn record(
        self,
        reached: Option<&[u8]>,
        newer: Option<&[u8]>,
        (since, oldest): (Seqno, Seqno),
        dead: u64,
    ) {
        let mut state = self.gaps.state.lock();
        let Some(watched) = state.watches.iter_mut().find(|watched| watched.id == self.id) else {
            return;
        };
        let (lower, upper) = watched.whole(reached);
        let whole = Gap { lower, upper, since, dead, score: 0, splits: 0, splits_all: 0 };
        if let Some(newer) = newer {
            watched.note(newer);
        }
        let (lower, upper) = watched.quiet_part(reached);
        let reader = watched.reader;
        // What was passed in the part that is cut off does not count.
        let upto = upper.as_ref().filter(|_| upper != whole.upper);
        let upto = upto.map_or(1.0, |upper| whole.share_below(upper));
        let from = if lower == whole.lower { 0.0 } else { whole.share_below(&lower) };
        let left = dead as f64 * (upto - from).max(0.0);
        // Compactions may have dropped all since the run was passed first.
        if dead > 0 && (left >= PART_ENTRIES_MIN || left >= dead as f64 / 2.0) {
            state.add(Gap { lower, upper, dead: (left as u64).max(1), ..whole }, oldest);
        } else {
            let (known, next) = &mut state.vain;
            known[*next % VAIN_MAX] = reader;
            *next = (*next + 1) % VAIN_MAX;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.gaps.state.lock();
        state.watches.retain(|watched| watched.id != self.id);
        self.gaps.publish(&state);
    }
}
