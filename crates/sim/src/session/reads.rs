//! Reads, each compared with the model.

use std::ops::Bound;

use super::*;
use crate::action::{Direction, KeyNumber};

/// An iterator and what it should give.
pub(super) struct HeldIterator {
    iter: Iter,
    /// The keyspace's place in the history.
    place: usize,
    /// It sees so many commits.
    commits: usize,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// The last keys it has given.
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
}

impl HeldIterator {
    /// Reads on, `count` pairs at most.
    pub(super) fn advance(
        &mut self,
        history: &History,
        direction: Direction,
        count: usize,
    ) -> Done {
        let lower = match (&self.front, &self.lower) {
            (Some(last), _) => Bound::Excluded(&**last),
            (None, Some(lower)) => Bound::Included(&**lower),
            (None, None) => Bound::Unbounded,
        };
        let upper = match self.back.as_ref().or(self.upper.as_ref()) {
            Some(end) => Bound::Excluded(&**end),
            None => Bound::Unbounded,
        };
        let keyspace = &history.keyspaces[self.place];
        let mut expected = keyspace.range(lower, upper, self.commits);
        let (mut front, mut back) = (None, None);
        for number in 0..count {
            let from_back = match direction {
                Direction::Forwards => false,
                Direction::Backwards => true,
                Direction::BothEnds => number % 3 == 2,
            };
            let (found, wanted) = match from_back {
                false => (self.iter.next(), expected.next()),
                true => (self.iter.next_back(), expected.next_back()),
            };
            let found = found.transpose()?;
            let pair = found.as_ref().map(|(key, value)| (&**key, &**value));
            if pair != wanted {
                return Err(Failure::mismatch(format!(
                    "an iterator on {} at {} of {} commits, pair {number} {direction}: found {}, \
                     expected {}",
                    keyspace.name,
                    self.commits,
                    history.issued(),
                    shown_pair(pair),
                    shown_pair(wanted),
                )));
            }
            let Some((key, _)) = wanted else { break };
            *(if from_back { &mut back } else { &mut front }) = Some(key);
        }
        let (front, back) = (front.map(<[u8]>::to_vec), back.map(<[u8]>::to_vec));
        drop(expected);
        self.front = front.or(self.front.take());
        self.back = back.or(self.back.take());
        Ok(())
    }
}

impl Session {
    /// The snapshot to read at, and how many commits it sees.
    fn view(&self, view: View) -> (Option<&Snapshot>, usize) {
        let held = match view {
            View::Now => None,
            View::Snapshot(slot) => self.snapshots[place(slot)].as_ref(),
        };
        match held {
            Some(held) => (Some(&held.snapshot), held.commits),
            None => (None, self.history.issued()),
        }
    }

    pub(super) fn open_iterator(
        &self,
        number: KeyspaceNumber,
        view: View,
        range: Range,
    ) -> Option<HeldIterator> {
        let open = self.find(number)?;
        let (snapshot, commits) = self.view(view);
        let (lower, upper) = range.bytes();
        let bound = |end: &Option<Vec<u8>>, bound: fn(Vec<u8>) -> Bound<Vec<u8>>| {
            end.clone().map_or(Bound::Unbounded, bound)
        };
        let bounds = (bound(&lower, Bound::Included), bound(&upper, Bound::Excluded));
        let iter = match snapshot {
            Some(snapshot) => snapshot.range(&open.keyspace, bounds),
            None => open.keyspace.range(bounds),
        };
        let place = open.place;
        Some(HeldIterator { iter, place, commits, lower, upper, front: None, back: None })
    }

    pub(super) fn get(&mut self, number: KeyspaceNumber, key: KeyNumber, view: View) -> Done {
        let Some(open) = self.find(number) else { return Ok(()) };
        let (snapshot, commits) = self.view(view);
        let key = key_bytes(key);
        let read = || match snapshot {
            Some(snapshot) => snapshot.get(&open.keyspace, &key),
            None => open.keyspace.get(&key),
        };
        let found = read()?;
        self.same_value(open, &key, commits, found.as_deref())?;
        if found.is_none_or(|value| value.len() <= KEPT_VALUE_BYTES_MIN) {
            return Ok(());
        }
        // Now it may be in the cache.
        let found = read()?;
        self.same_value(open, &key, commits, found.as_deref())?;
        found.map_or(Ok(()), |value| self.keep_value(value))
    }

    /// Keeps a value that was read: it shares memory with the cache, which may use it for nothing else meanwhile.
    fn keep_value(&mut self, value: Slice) -> Done {
        let copy = value.to_vec();
        self.kept_values.push_back((value, copy));
        if self.kept_values.len() <= KEPT_VALUES {
            return Ok(());
        }
        self.kept_values.pop_front().map_or(Ok(()), |(value, copy)| same_kept_value(&value, &copy))
    }

    /// The values that were read and kept are still what they were.
    pub(super) fn compare_kept_values(&self) -> Done {
        self.kept_values.iter().try_for_each(|(value, copy)| same_kept_value(value, copy))
    }

    pub(super) fn multi_get(&self, number: KeyspaceNumber, keys: &[KeyNumber], view: View) -> Done {
        let Some(open) = self.find(number) else { return Ok(()) };
        let (snapshot, commits) = self.view(view);
        let keys: Vec<Vec<u8>> = keys.iter().copied().map(key_bytes).collect();
        let found = match snapshot {
            Some(snapshot) => snapshot.multi_get(&open.keyspace, &keys)?,
            None => open.keyspace.multi_get(&keys)?,
        };
        if found.len() != keys.len() {
            let what = format!("{} values for {} keys", found.len(), keys.len());
            return Err(Failure::mismatch(what));
        }
        let mut pairs = keys.iter().zip(&found);
        pairs.try_for_each(|(key, found)| self.same_value(open, key, commits, found.as_deref()))
    }

    fn same_value(
        &self,
        open: &OpenKeyspace,
        key: &[u8],
        commits: usize,
        found: Option<&[u8]>,
    ) -> Done {
        let wanted = self.history.keyspaces[open.place].get(key, commits);
        match found == wanted {
            true => Ok(()),
            false => Err(Failure::mismatch(format!(
                "k{} key \"{}\" at {commits} of {} commits: found {}, expected {}",
                open.number,
                key.escape_ascii(),
                self.history.issued(),
                shown(found),
                shown(wanted),
            ))),
        }
    }

    /// A keyspace has the options that it was given last.
    fn same_options(&self, place: usize, keyspace: &Keyspace) -> Done {
        let incarnation = &self.history.keyspaces[place];
        let kind = self.sizes.kinds.of(usize::from(incarnation.number));
        let wanted = incarnation.options.keyspace_options(kind);
        match keyspace.options().difference(&wanted) {
            None => Ok(()),
            Some((option, found, wanted)) => Err(Failure::mismatch(format!(
                "{} has {option} {found}, and should have {wanted}",
                incarnation.name
            ))),
        }
    }

    pub(super) fn compare_all(&self) -> Done {
        for open in &self.keyspaces {
            self.same_options(open.place, &open.keyspace)?;
        }
        let views = (0..SLOTS as Slot).filter(|slot| self.snapshots[place(*slot)].is_some());
        for view in views.map(View::Snapshot).chain([View::Now]) {
            for open in &self.keyspaces {
                for direction in [Direction::Forwards, Direction::Backwards] {
                    if let Some(mut all) = self.open_iterator(open.number, view, Range::ALL) {
                        all.advance(&self.history, direction, usize::MAX)?;
                    }
                }
            }
        }
        check(self.db()?)
    }

    /// `db` holds what the store does.
    pub(super) fn compare_with(&self, db: &Database) -> Done {
        let mut expected: Vec<&str> = self.history.alive().map(|(_, k)| &*k.name).collect();
        expected.sort_unstable();
        if db.keyspaces() != expected {
            let what = format!("has keyspaces {:?}, not {expected:?}", db.keyspaces());
            return Err(Failure::mismatch(what));
        }
        for (place, incarnation) in self.history.alive() {
            let keyspace = db.existing_keyspace(&incarnation.name)?;
            self.same_options(place, &keyspace)?;
            let mut all = HeldIterator {
                iter: keyspace.iter(),
                place,
                commits: self.history.issued(),
                lower: None,
                upper: None,
                front: None,
                back: None,
            };
            all.advance(&self.history, Direction::Forwards, usize::MAX)?;
        }
        check(db)
    }
}

fn check(db: &Database) -> Done {
    let report = db.check(CheckLevel::Full)?;
    match report.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::mismatch(format!("check: {:?}", report.problems))),
    }
}

fn shown_pair(pair: Option<(&[u8], &[u8])>) -> String {
    match pair {
        Some((key, value)) => format!("\"{}\" = {}", key.escape_ascii(), shown(Some(value))),
        None => "the end".to_string(),
    }
}

/// A value, shortened.
fn shown(value: Option<&[u8]>) -> String {
    match value {
        None => "no value".to_string(),
        Some(bytes) => {
            let first = &bytes[..bytes.len().min(16)];
            format!("{} bytes \"{}\"", bytes.len(), first.escape_ascii())
        }
    }
}

fn same_kept_value(value: &[u8], copy: &[u8]) -> Done {
    match value == copy {
        true => Ok(()),
        false => Err(Failure::mismatch(format!(
            "a value of {} bytes was kept, and changed: found {}, expected {}",
            copy.len(),
            shown(Some(value)),
            shown(Some(copy)),
        ))),
    }
}
