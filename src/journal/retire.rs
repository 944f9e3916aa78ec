//! Which segments go, and which are made ahead of their use.
//!
//! Invariants:
//! 1. A segment goes only when every record in it is at or below a floor that the manifest holds.
//! 2. Between two syncs of the directory at most one segment per shard is removed, the oldest.
//! 3. A removed segment may be back after a power loss until the directory has been synced. Until then
//!    whoever syncs what follows it syncs it too; if the sync of the directory fails, nobody knows
//!    whether a later one removes it, and it is synced at once.
//! 4. Spares are made outside the shard's lock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Journal;
use super::format::SegmentId;
use super::shard::{Shard, ShardState, maintained_parts};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::panics::caught;
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::Ordering;

/// A segment of an older epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldSegment {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// The last sequence number in it that counts, or in those before it in its shard.
    pub(crate) last: Seqno,
}

/// The segment of a shard that is being removed. If that fails, by a panic too, it is again the oldest that there is:
/// whoever is next would else remove the one behind it, and a journal with a gap is not read.
struct StillThere<'a>(Option<&'a Shard>);

impl Drop for StillThere<'_> {
    fn drop(&mut self) {
        let Some(shard) = self.0 else { return };
        let mut state = shard.state.lock();
        if let Some(oldest) = state.removed.pop() {
            state.rolled.push_front(oldest);
        }
    }
}

impl Journal {
    /// Removes the segments whose every record is at or below `floor`, which the manifest must hold
    /// durably. Returns the bytes freed. A half-full current segment goes too if a spare can take its
    /// place.
    pub(crate) fn retire(&self, floor: Seqno) -> Result<u64> {
        let mut dir_changed = self.retiring.lock();
        self.retire_logs(floor);
        for shard in &self.shards {
            let mut state = shard.state.lock();
            let last = state.last;
            let worth_it = state.current.as_ref().is_some_and(|current| {
                current.first != Seqno(0)
                    && last <= floor
                    && current.offset >= current.segment.len / 2
            });
            if worth_it && let Some(spare) = state.spares.pop_front() {
                state.roll_to(spare);
                // Before anybody is acknowledged who appends behind the mark.
                self.check_mark(&state)?;
                let unsealed = state.take_unsealed();
                drop(state);
                self.seal(unsealed)?;
            }
        }
        let mut freed = 0;
        loop {
            // Also after a round that failed half-way, now or in an earlier call.
            if *dir_changed {
                if let Err(error) = self.vfs.sync_dir(&self.dir) {
                    self.sync_removed()?;
                    return Err(error);
                }
                *dir_changed = false;
                for shard in &self.shards {
                    shard.state.lock().removed.clear();
                }
            }
            let bytes = self.retire_round(floor, &mut dir_changed)?;
            if bytes == 0 {
                return Ok(freed);
            }
            freed += bytes;
        }
    }

    /// Removes at most the oldest segment of each shard; returns the bytes freed.
    fn retire_round(&self, floor: Seqno, dir_changed: &mut bool) -> Result<u64> {
        let mut bytes = 0;
        let mut remove = |path: &Path, len: u64| -> Result<()> {
            *dir_changed = true;
            self.vfs.remove(path)?;
            self.segments_removed.fetch_add(1, Ordering::Relaxed);
            bytes += len;
            Ok(())
        };
        for segment in self.oldest_of_old_shards() {
            if segment.last <= floor {
                remove(&segment.path, segment.bytes)?;
                self.old.lock().retain(|old| old.id != segment.id);
            }
        }
        for (index, shard) in self.shards.iter().enumerate() {
            let mut state = shard.state.lock();
            let oldest = state
                .rolled
                .pop_front_if(|oldest| oldest.last <= floor || planted(Bug::JournalRetiredEarly));
            let Some(oldest) = oldest else { continue };
            let (number, len) = (oldest.number, oldest.len);
            state.removed.push(oldest);
            drop(state);
            let mut still_there = StillThere(Some(shard));
            remove(&self.segment_path(index, number), len)?;
            still_there.0 = None;
        }
        Ok(bytes)
    }

    /// Makes the segments durable whose names have been removed. Only who retires adds to them.
    fn sync_removed(&self) -> Result<()> {
        for shard in &self.shards {
            let files: Vec<_> = {
                let state = shard.state.lock();
                state.removed.iter().filter_map(|removed| removed.unsynced.clone()).collect()
            };
            for file in files {
                let synced = file.sync().map_err(|error| error.not_refused("sync"));
                synced.inspect_err(|error| self.poison.set(error))?;
            }
            shard.state.lock().removed.clear();
        }
        Ok(())
    }

    /// The first segment of each shard of the older epochs.
    fn oldest_of_old_shards(&self) -> Vec<OldSegment> {
        let mut oldest = self.old.lock().clone();
        oldest.sort_by_key(|segment| segment.id);
        oldest.dedup_by_key(|segment| (segment.id.epoch, segment.id.shard));
        oldest
    }

    /// Whether a shard has come to a point since the last `maintain` where something is to be done.
    #[inline]
    pub(crate) fn maintenance_due(&self) -> bool {
        self.maintenance_due.load(Ordering::Relaxed)
    }

    /// The same, once: whoever gets true notifies a thread.
    #[inline]
    pub(crate) fn take_maintenance_notice(&self) -> bool {
        self.maintenance_due() && !self.maintenance_notified.swap(true, Ordering::Relaxed)
    }

    /// Makes the next segments of each shard that will soon need them and releases the memory of those that are
    /// full, so that no writer has to. A failure to make one is reported but harms nothing: the writer
    /// tries again.
    pub(crate) fn maintain(&self) -> Result<()> {
        self.maintenance_due.store(false, Ordering::Relaxed);
        self.maintenance_notified.store(false, Ordering::Relaxed);
        for (index, shard) in self.shards.iter().enumerate() {
            warm_ahead(shard);
            while self.prepare_spare(index, shard)? {}
            let unsealed = shard.state.lock().take_unsealed();
            self.seal(unsealed)?;
        }
        Ok(())
    }

    /// Makes one more spare, if the shard should have one and nobody else makes it.
    fn prepare_spare(&self, index: usize, shard: &Shard) -> Result<bool> {
        self.check_open()?;
        let (number, is_worth_warming) = {
            let mut state = shard.state.lock();
            if state.preparing || state.spares.len() >= state.spares_wanted() {
                return Ok(false);
            }
            if !self.leaves_free(self.options.segment_bytes) {
                // Who then needs one will be told.
                return Ok(false);
            }
            state.preparing = true;
            (state.next_number + state.spares.len() as u32, state.is_worth_warming())
        };
        let make = || {
            let mut spare = self.create_segment(index, number, self.options.segment_bytes)?;
            if is_worth_warming {
                spare.warm_upto = spare.len / maintained_parts(spare.len);
                spare.file.warm(0..spare.warm_upto);
            }
            Ok(spare)
        };
        // Writers wait for `preparing` to end.
        let made = caught(make).unwrap_or_else(|message| {
            let reason = format!("making a journal segment panicked: {message}");
            let error = Error::Poisoned { reason };
            self.poison.set(&error);
            Err(error)
        });
        let mut state = shard.state.lock();
        state.preparing = false;
        shard.prepared.notify_all();
        state.spares.push_back(made?);
        Ok(true)
    }

    /// Bytes of the disk that the journal takes, all epochs together.
    pub(crate) fn bytes_live(&self) -> u64 {
        let old: u64 = self.old.lock().iter().map(|segment| segment.bytes).sum();
        let live = |shard: &Mutex<ShardState>| {
            let state = shard.lock();
            state.rolled.iter().map(|rolled| rolled.len).sum::<u64>()
                + state.current.as_ref().map_or(0, |current| current.segment.len)
                + state.spares.iter().map(|spare| spare.len).sum::<u64>()
        };
        old + self.shards.iter().map(|shard| live(&shard.state)).sum::<u64>()
    }

    /// Bytes of records in this epoch that a replay would have to read.
    pub(crate) fn bytes_used(&self) -> u64 {
        let used = |shard: &Mutex<ShardState>| {
            let state = shard.lock();
            state.rolled.iter().map(|rolled| rolled.end).sum::<u64>()
                + state.current.as_ref().map_or(0, |current| current.offset)
        };
        self.shards.iter().map(|shard| used(&shard.state)).sum()
    }

    /// The lowest floor at which `retire` would remove something, if there is one yet: the last
    /// sequence number of the segment that can go first.
    pub(crate) fn oldest_retirable(&self) -> Option<Seqno> {
        let old = self.old.lock().iter().map(|segment| segment.last).min();
        let rolled =
            |shard: &Mutex<ShardState>| shard.lock().rolled.front().map(|rolled| rolled.last);
        let rolled = self.shards.iter().filter_map(|shard| rolled(&shard.state)).min();
        [old, rolled].into_iter().flatten().min()
    }

    /// The older epochs that still have segments, ascending: the manifest must keep their limits.
    #[cfg(test)]
    pub(crate) fn old_epochs(&self) -> Vec<u32> {
        let mut epochs: Vec<u32> = self.old.lock().iter().map(|segment| segment.id.epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs
    }
}

/// Warms the current segment, up to the end of the part behind the one that is being written.
fn warm_ahead(shard: &Shard) {
    let (file, range) = {
        let mut state = shard.state.lock();
        if !state.is_worth_warming() {
            return;
        }
        let Some(current) = &mut state.current else { return };
        let part = current.segment.len / maintained_parts(current.segment.len);
        let upto = current.segment.len.min((current.offset / part + 2) * part);
        let from = current.offset.max(current.segment.warm_upto);
        if from >= upto {
            return;
        }
        current.segment.warm_upto = upto;
        (Arc::clone(&current.segment.file), from..upto)
    };
    file.warm(range);
}
