//! How a transaction commits: validation of what it depends on, and locks of keys before that.
//!
//! A transaction with few reads validates them as conditions of its commit: their keys are locked, and memtables are asked
//! for newer versions. What has left the memtables since its snapshot is read again. One that has read ranges, or many
//! keys, publishes them as watches (`store::watch`), looks at what has been written up to then, and commits if no watch
//! has been hit.
//!
//! Invariants:
//! 1. What was read at the snapshot is unchanged in the state right before the commit: the transaction might have run
//!    there as a whole.
//! 2. Validation fails only if somebody has written to what it depends on: an old transaction is no conflict by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::reads::{POINT_BYTES, Reads};
use super::{Conflict, Inner, Isolation};
use crate::base::durability::Durability;
use crate::base::entry::Cursor;
use crate::base::error::{Error, Result};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::planted::{Bug, hold_open, planted};
use crate::db::iterator::Iter;
use crate::merge::Contained;
use crate::store::condition::{Condition, Preconditions, WatchOf};
use crate::store::operation::check_sizes;
use crate::store::read;
use crate::store::snapshots::{Reader, SnapshotGuard};
use crate::store::state::KeyspaceState;
use crate::store::store::OpenStore;
use crate::store::transaction_locks::{NotLocked, Owner};
use crate::store::tries::Tries;
use crate::store::watch::{Range, Watch};

/// More keys of a keyspace are a watch: they would be compared with the memtables while they are locked.
const CONDITIONS_MAX: usize = 32;

/// What a transaction depends on, by the places of keyspaces.
struct Dependencies {
    points: Vec<(usize, Vec<u8>)>,
    watches: Vec<(usize, Watch)>,
}

impl Inner {
    /// Commits all writes.
    pub(super) fn commit(&mut self, owner: Owner, durability: Durability) -> Result<()> {
        self.check()?;
        if self.writes.len() == 0 {
            return match durability {
                Durability::Sync => self.store.sync(),
                Durability::Buffered => Ok(()),
            };
        }
        Contained::refuse_inside("the commit of a transaction")?;
        self.store.check_writable()?;
        let mut tries = Tries::default();
        let result = self.commit_unless_changed(owner, durability, &mut tries);
        if let Some((keyspace, key)) = tries.into_circle() {
            self.note_conflict(keyspace, key);
        }
        let Some((place, key)) = result? else { return Ok(()) };
        Err(self.conflict_at(place, key))
    }

    /// Notes that another try may not meet the conflict at this key.
    fn note_conflict(&mut self, keyspace: KeyspaceId, key: Vec<u8>) {
        let keyspace = self.keyspaces.iter().find(|known| known.id == keyspace);
        self.conflict = keyspace.map(|keyspace| Conflict { keyspace: Arc::clone(keyspace), key });
    }

    /// The error of a transaction that depends on a key which somebody else has written to.
    fn conflict_at(&mut self, place: usize, key: Vec<u8>) -> Error {
        let keyspace = &self.keyspaces[place];
        let what = format!(
            "key \"{}\" of keyspace {:?} has been written to since the transaction read it; nothing was written: begin \
             it anew (Database::transact does so)",
            key.escape_ascii(),
            keyspace.name
        );
        self.conflict = Some(Conflict { keyspace: Arc::clone(keyspace), key });
        Error::Conflict { what }
    }

    /// What the transaction depends on: few keys of a keyspace, or a watch. Its reads are forgotten.
    fn take_dependencies(&mut self) -> Result<Dependencies> {
        let (mut points, mut watches) = (Vec::new(), Vec::new());
        match self.isolation {
            Isolation::Snapshot => {
                let (mut count, mut bytes) = (0, 0);
                self.writes.overwritten().for_each(|(_, key)| {
                    count += 1;
                    bytes += (key.len() + POINT_BYTES) as u64;
                });
                if count > CONDITIONS_MAX {
                    self.charge(bytes)?;
                }
                let keys = self.writes.overwritten().map(|(place, key)| (place, key.to_vec()));
                points.extend(keys.filter(|_| !planted(Bug::TransactionWritesNotKept)));
                let ranges: Vec<(usize, Range)> = self.writes.deleted_ranges().collect();
                let ranges_bytes = ranges
                    .iter()
                    .map(|(_, (lower, upper))| Reads::bytes_of_range(lower, upper.as_deref()));
                self.charge(ranges_bytes.sum())?;
                if count > CONDITIONS_MAX || !ranges.is_empty() {
                    watches = watches_of(std::mem::take(&mut points), ranges);
                }
            }
            Isolation::Serializable => {
                let places: Vec<usize> = self.reads.places().collect();
                for place in places {
                    let watch = self.reads.take_watch(place);
                    match watch.ranges.is_empty() && watch.points.len() <= CONDITIONS_MAX {
                        true => points.extend(watch.points.into_iter().map(|key| (place, key))),
                        false => watches.push((place, watch)),
                    }
                }
            }
        }
        if planted(Bug::TransactionReadsNotKept) && self.isolation == Isolation::Serializable {
            points.clear();
        }
        if planted(Bug::TransactionRangesNotKept) {
            watches.clear();
        }
        Ok(Dependencies { points, watches })
    }

    /// Commits, or returns the key that somebody has written to.
    fn commit_unless_changed(
        &mut self,
        owner: Owner,
        durability: Durability,
        tries: &mut Tries,
    ) -> Result<Option<(usize, Vec<u8>)>> {
        let (store, since) = (Arc::clone(&self.store), self.snapshot.seqno());
        let Dependencies { points, watches: watched } = self.take_dependencies()?;
        let of_points = points.iter().map(|(place, _)| *place);
        let of_watches = watched.iter().map(|(place, _)| *place);
        for place in self.writes.places().chain(of_points).chain(of_watches) {
            store.guard(&self.keyspaces[place])?;
        }
        let mut watches = Vec::with_capacity(watched.len());
        let mut places = Vec::with_capacity(watched.len());
        for (place, watch) in watched {
            let keyspace = &self.keyspaces[place];
            keyspace.check_exists()?;
            let published = keyspace.watches.publish(watch);
            let now = Arc::new(register(&store));
            if let Some(key) = changed(&store, keyspace, &published.watch, &self.snapshot, &now)? {
                return Ok(Some((place, key)));
            }
            watches.push(WatchOf { keyspace, published });
            places.push(place);
        }
        let mut conditions = Vec::with_capacity(points.len());
        for (place, key) in &points {
            conditions.push(Condition { keyspace: &self.keyspaces[*place], key, since });
        }
        loop {
            for (condition, (place, key)) in conditions.iter_mut().zip(&points) {
                if condition.holds() {
                    continue;
                }
                let keyspace = condition.keyspace;
                let (is_changed, read_at) = has_changed(&store, keyspace, key, since, None)?;
                if is_changed {
                    return Ok(Some((*place, key.to_vec())));
                }
                condition.since = read_at;
            }
            hold_open(Bug::TransactionReadsNotKept, 4);
            let operations = || self.writes.operations(&self.keyspaces);
            let wanted =
                Preconditions { conditions: &conditions, watches: &watches, owner: Some(owner) };
            if store.commit_if(operations, durability, &wanted, tries)? {
                return Ok(None);
            }
            for (watch, place) in watches.iter().zip(&places) {
                if let Some(key) = watch.published.watch.hit() {
                    return Ok(Some((*place, key.to_vec())));
                }
            }
        }
    }

    /// Locks a key for the transaction, and sees to it that the snapshot has its newest value.
    pub(super) fn lock(
        &mut self,
        place: usize,
        key: &[u8],
        owner: Owner,
        timeout: Duration,
    ) -> Result<()> {
        Contained::refuse_inside("a lock of a key")?;
        let (store, keyspace) = (Arc::clone(&self.store), Arc::clone(&self.keyspaces[place]));
        store.check_writable()?;
        keyspace.check_exists()?;
        check_sizes(key, &[])?;
        store.guard(&keyspace)?;
        self.charge((2 * key.len() + 256) as u64)?;
        match store.lock_for(owner, &keyspace, key, timeout) {
            Ok(true) => self.locked.push((keyspace.id, key.to_vec())),
            Ok(false) => {}
            Err(NotLocked { error, circle_at }) => {
                if let Some(at) = circle_at {
                    let (keyspace, key) = *at;
                    self.note_conflict(keyspace, key);
                }
                return Err(error);
            }
        }
        let since = self.snapshot.seqno();
        match has_changed(&store, &keyspace, key, since, None)? {
            (true, _) => self.move_snapshot(place, key),
            (false, _) => Ok(()),
        }
    }

    /// Takes the snapshot anew, in which `key` has been written to. What has been read must be unchanged there.
    fn move_snapshot(&mut self, place: usize, key: &[u8]) -> Result<()> {
        let now = Arc::new(register(&self.store));
        if planted(Bug::TransactionSnapshotMoves) {
            self.snapshot = now;
            return Ok(());
        }
        if self.isolation == Isolation::Snapshot && self.has_read {
            return Err(self.conflict_at(place, key.to_vec()));
        }
        let read: Vec<usize> = self.reads.places().collect();
        for read in read {
            let (watch, keyspace) = (self.reads.watch(read, true), &self.keyspaces[read]);
            let found = changed(&self.store, keyspace, &watch, &self.snapshot, &now)?;
            if let Some(key) = found {
                return Err(self.conflict_at(read, key));
            }
        }
        self.snapshot = now;
        Ok(())
    }
}

fn register(store: &Arc<OpenStore>) -> SnapshotGuard {
    store.snapshots.register(Reader::Snapshot, || store.committer.visible())
}

/// Keys and ranges by their places, as watches.
fn watches_of(points: Vec<(usize, Vec<u8>)>, ranges: Vec<(usize, Range)>) -> Vec<(usize, Watch)> {
    let mut by_place: BTreeMap<usize, (BTreeSet<Vec<u8>>, Vec<Range>)> = BTreeMap::new();
    for (place, key) in points {
        by_place.entry(place).or_default().0.insert(key);
    }
    for (place, range) in ranges {
        by_place.entry(place).or_default().1.push(range);
    }
    let watches = by_place.into_iter();
    watches.map(|(place, (keys, ranges))| (place, Watch::new(keys, ranges))).collect()
}

/// Whether somebody has written to a key after `since`, at which it is readable, and up to `until`; and up to which number that
/// was found.
fn has_changed(
    store: &OpenStore,
    keyspace: &KeyspaceState,
    key: &[u8],
    since: Seqno,
    until: Option<Seqno>,
) -> Result<(bool, Seqno)> {
    let (newest, until) = read::newest_version(store, keyspace, key, until)?;
    let is_changed = match newest {
        Some(newest) => newest > since,
        // A tree need not keep the tombstone of a key that it knows to be absent.
        None => read::contains(store, keyspace, key, Some(since))?,
    };
    Ok((is_changed, until))
}

/// A key of the watch that somebody has written to between `then` and `now`, if there is one.
fn changed(
    store: &Arc<OpenStore>,
    keyspace: &Arc<KeyspaceState>,
    watch: &Watch,
    then: &Arc<SnapshotGuard>,
    now: &Arc<SnapshotGuard>,
) -> Result<Option<Vec<u8>>> {
    let since = then.seqno();
    // Loaded after the number: it has all versions that are visible at it.
    let read = keyspace.read.load_full();
    keyspace.check_exists()?;
    if read.version.flushed() <= since || planted(Bug::TransactionFlushMissed) {
        for memtable in read.memtables() {
            let range_deletes = &memtable.range_deletes;
            let memtable = &memtable.memtable;
            if memtable.seqno_bounds().is_none_or(|(_, newest)| newest <= since) {
                continue;
            }
            if range_deletes.are_there()
                && let Some(key) =
                    watch.key_that(|lower, upper| range_deletes.overlaps(lower, upper, since))
            {
                return Ok(Some(key));
            }
            for key in &watch.points {
                let newest = memtable.get(key, Seqno::MAX);
                if newest.is_some_and(|newest| newest.seqno > since) {
                    return Ok(Some(key.clone()));
                }
            }
            let mut cursor = memtable.cursor();
            for (lower, upper) in &watch.ranges {
                cursor.seek(lower)?;
                while let Some(entry) = cursor.entry() {
                    if upper.as_ref().is_some_and(|upper| *entry.key >= **upper) {
                        break;
                    }
                    if entry.seqno > since {
                        return Ok(Some(entry.key.to_vec()));
                    }
                    cursor.next()?;
                }
            }
        }
        return Ok(None);
    }
    drop(read);
    for key in &watch.points {
        if has_changed(store, keyspace, key, since, Some(now.seqno()))?.0 {
            return Ok(Some(key.clone()));
        }
    }
    for (lower, upper) in &watch.ranges {
        let bounds = || (Some(lower.clone()), upper.clone());
        let mut before = Iter::new(store, keyspace, Some(then), bounds()).keys();
        let mut after = Iter::new(store, keyspace, Some(now), bounds()).keys();
        loop {
            let pair = (before.next_version().transpose()?, after.next_version().transpose()?);
            match pair {
                (None, None) => break,
                (Some(before), Some(after)) if before == after => {}
                (Some((before, _)), Some((after, _))) => {
                    return Ok(Some(before.min(after).to_vec()));
                }
                (Some((key, _)), None) | (None, Some((key, _))) => return Ok(Some(key.to_vec())),
            }
        }
    }
    Ok(None)
}
