//! The quarantine: places where a compaction failed, for damage, because the disk was full, or because a file was not read.
//!
//! Invariants:
//! 1. A quarantined place is skipped for a while, so that other places are compacted. Writers do not wait for it. On a
//!    full disk, the other compactions may be those that make room.
//! 2. Where a place says nothing of what can be merged, the tables that were not read are quarantined, and no place.

use std::mem;

use super::node::Place;
use crate::base::error::Error;
use crate::base::ids::FileId;

/// How long a damaged place is quarantined.
const DAMAGED_NANOS: u64 = 60_000_000_000;
/// The same of a place that there was no room for.
const REFUSED_NANOS: u64 = 1_000_000_000;
/// The same of a place where a read failed, which may succeed when it is tried again. A write that fails says nothing of the
/// place.
const UNREAD_NANOS: u64 = 10_000_000_000;

/// What prevents the compaction of places of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    None,
    /// Reads that may succeed soon, or tables beside which all others can be merged.
    FailedReads,
    DamageOrRoom,
}

/// The quarantined places of a tree.
#[derive(Default)]
pub(in crate::tree) struct Quarantine {
    places: Vec<Quarantined>,
}

struct Quarantined {
    place: Place,
    /// If there are any, these tables are quarantined, and the rest of the place is not.
    tables: Vec<FileId>,
    until: u64,
    error: Error,
    /// The damage has been reported.
    told: bool,
}

impl Quarantined {
    /// Whether it is for damage, not for a full disk or a failure.
    fn is_damaged(&self) -> bool {
        self.error.is_corruption()
    }

    fn overlaps(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        now < self.until && self.tables.is_empty() && self.place.overlaps(height, range)
    }
}

impl Quarantine {
    /// Whether a place of this level overlaps a range.
    pub(in crate::tree) fn overlaps(
        &self,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        now: u64,
    ) -> bool {
        self.places.iter().any(|it| it.overlaps(height, range, now))
    }

    /// The same, but for places that there was no room for: there may be room for a merge of more.
    pub(in crate::tree) fn overlaps_but_for_room(
        &self,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        now: u64,
    ) -> bool {
        let overlaps = |it: &Quarantined| it.overlaps(height, range, now);
        self.places.iter().any(|it| !matches!(it.error, Error::Full { .. }) && overlaps(it))
    }

    /// The places that are quarantined as a whole.
    pub(super) fn places(&self, now: u64) -> impl Iterator<Item = &Place> {
        let whole = move |it: &&Quarantined| now < it.until && it.tables.is_empty();
        self.places.iter().filter(whole).map(|it| &it.place)
    }

    /// Whether a table is quarantined by itself.
    pub(in crate::tree) fn has_table(&self, table: FileId, now: u64) -> bool {
        self.places.iter().any(|it| now < it.until && it.tables.contains(&table))
    }

    /// Quarantines a place, if the error tells of damage, of a full disk, or of a failed read.
    pub(super) fn note(&mut self, error: &Error, place: &Place, now: u64) {
        self.note_tables(error, place, Vec::new(), now);
    }

    /// The same, but only of these tables, if there are any.
    pub(super) fn note_tables(
        &mut self,
        error: &Error,
        place: &Place,
        tables: Vec<FileId>,
        now: u64,
    ) {
        let nanos = match error {
            error if error.is_corruption() => DAMAGED_NANOS,
            Error::Full { .. } => REFUSED_NANOS,
            error if error.is_failed_read() => UNREAD_NANOS,
            _ => return,
        };
        self.places.retain(|it| now < it.until);
        let (place, until) = (place.clone(), now.saturating_add(nanos));
        self.places.push(Quarantined { place, tables, until, error: error.clone(), told: false });
    }

    /// Ends the quarantine of places that are not damaged. Returns the last of their errors.
    pub(super) fn retry_refused(&mut self) -> Option<Error> {
        let refused = self.places.extract_if(.., |it| !it.is_damaged());
        refused.last().map(|it| it.error)
    }

    /// Ends the quarantine of damaged places.
    pub(super) fn retry_damaged(&mut self) {
        self.places.retain(|it| !it.is_damaged());
    }

    /// Returns true, once for each place, if a place is quarantined for this damage.
    pub(super) fn tell(&mut self, error: &Error) -> bool {
        let said = error.to_string();
        let is_this =
            |it: &&mut Quarantined| it.is_damaged() && !it.told && it.error.to_string() == said;
        self.places.iter_mut().find(is_this).is_some_and(|it| !mem::replace(&mut it.told, true))
    }

    /// What prevents the compaction of places.
    pub(super) fn obstacle(&self, now: u64) -> Obstacle {
        let mut obstacle = Obstacle::None;
        for it in self.places.iter().filter(|it| now < it.until) {
            match it.error.is_failed_read() || !it.tables.is_empty() {
                true => obstacle = Obstacle::FailedReads,
                false => return Obstacle::DamageOrRoom,
            }
        }
        obstacle
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tree::range::Key;

    #[test]
    fn what_failed_for_damage_or_room_is_quarantined_for_a_while() {
        let mut damaged = Quarantine::default();
        let place = |height| Place {
            height,
            lower: Key::from(&b"b"[..]),
            upper: Some(Key::from(&b"d"[..])),
        };
        let range = (&b"b"[..], Some(&b"d"[..]));
        damaged.note(&Error::NotResident, &place(0), 5);
        assert_eq!(damaged.obstacle(5), Obstacle::None);
        damaged.note(&Error::corruption(Path::new("t"), 0, "page", 1, 2), &place(0), 5);
        assert_eq!(damaged.obstacle(5), Obstacle::DamageOrRoom);
        assert!(damaged.overlaps(0, (b"c", None), 5));
        assert!(!damaged.overlaps(1, (b"c", None), 5), "another level");
        assert!(!damaged.overlaps(0, (b"d", None), 5), "behind it");
        let full = Error::Full { path: "t".into(), needed: 1 };
        damaged.note(&full, &place(2), 5);
        assert!(damaged.overlaps(2, range, 5) && !damaged.overlaps(2, range, 5 + REFUSED_NANOS));
        assert!(
            damaged.overlaps_but_for_room(0, range, 5)
                && !damaged.overlaps_but_for_room(2, range, 5)
        );
        assert!(matches!(damaged.retry_refused(), Some(Error::Full { .. })));
        assert!(damaged.retry_refused().is_none() && !damaged.overlaps(2, range, 5));
        assert!(damaged.overlaps_but_for_room(0, range, 5));
        // A place that cannot be read was chosen again each second, and no other one was compacted.
        let failure = Error::io("read", Path::new("t"), None, std::io::ErrorKind::Other.into());
        damaged.note(&failure, &place(3), 5);
        assert!(damaged.overlaps(3, range, 5) && damaged.overlaps_but_for_room(3, range, 5));
        assert!(!damaged.overlaps(3, range, 5 + UNREAD_NANOS));
        assert!(matches!(damaged.retry_refused(), Some(Error::Io { .. })));
        let mut unread = Quarantine::default();
        let write = Error::io("write", Path::new("t"), None, std::io::ErrorKind::Other.into());
        unread.note(&write, &place(3), 5);
        assert_eq!(unread.obstacle(5), Obstacle::None);
        unread.note(&failure, &place(3), 5);
        assert_eq!(unread.obstacle(5), Obstacle::FailedReads);
        let mut again = Quarantine::default();
        again.note(&Error::corruption(Path::new("t"), 0, "page", 1, 2), &place(0), 5);
        again.note(&full, &place(2), 5);
        let damage = Error::corruption(Path::new("t"), 0, "page", 1, 2);
        let other = Error::corruption(Path::new("t"), 4096, "page", 1, 2);
        assert!(!again.tell(&other) && again.tell(&damage) && !again.tell(&damage));
        again.retry_damaged();
        assert!(!again.overlaps(0, range, 5) && again.overlaps(2, range, 5));
        // The rest of the place of a damaged table can be merged, and writers may have to wait for that.
        let mut of_table = Quarantine::default();
        of_table.note_tables(&damage, &place(0), vec![FileId(7)], 5);
        assert!(!of_table.overlaps(0, range, 5) && of_table.obstacle(5) == Obstacle::FailedReads);
        assert!(of_table.has_table(FileId(7), 5) && !of_table.has_table(FileId(8), 5));
        assert!(!of_table.has_table(FileId(7), 5 + DAMAGED_NANOS));
        assert!(of_table.tell(&damage) && !of_table.tell(&damage));
        let later = 5 + DAMAGED_NANOS;
        assert_eq!(damaged.obstacle(later), Obstacle::None);
        assert!(!damaged.overlaps(0, (b"c", None), later));
    }
}
