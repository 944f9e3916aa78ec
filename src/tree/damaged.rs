//! Where a compaction failed: for damage, or for want of room.
//!
//! Invariants:
//! 1. Such a place is left alone for a while, so that it does not keep the others from their turn. Nobody waits
//!    for it either. On a full disk the others may be those that make room.

use std::mem;

use super::claims::Place;
use super::extent::Key;
use crate::base::error::Error;

/// How long a place with damage is left alone.
const DAMAGED_NANOS: u64 = 60_000_000_000;
/// How long a place is that there was no room for.
const REFUSED_NANOS: u64 = 1_000_000_000;

/// What is done about damage that is met while work is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// Its place is left alone: the work is about to be done, and the failure told.
    Noted,
    /// Nothing: somebody asks whether there is work.
    NotNoted,
}

/// The places of a tree that are left alone.
#[derive(Default)]
pub(super) struct Damaged {
    places: Vec<LeftAlone>,
}

struct LeftAlone {
    place: Place,
    until: u64,
    error: Error,
    /// Somebody has been told of the damage.
    told: bool,
}

impl LeftAlone {
    /// Whether it is not for want of room.
    fn is_damaged(&self) -> bool {
        self.error.is_corruption()
    }
}

impl Damaged {
    /// Whether a range of a level is left alone.
    pub(super) fn meets(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        self.places.iter().any(|left| now < left.until && left.place.meets(height, range))
    }

    /// The same for damage alone. Where there was no room, there may be some for a merge of more.
    pub(super) fn meets_damage(
        &self,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        now: u64,
    ) -> bool {
        let meets = |left: &LeftAlone| now < left.until && left.place.meets(height, range);
        self.places.iter().any(|left| left.is_damaged() && meets(left))
    }

    /// Leaves a range of a level alone, if the error tells of damage or of a full disk.
    pub(super) fn note(
        &mut self,
        error: &Error,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        now: u64,
    ) {
        let nanos = match error {
            error if error.is_corruption() => DAMAGED_NANOS,
            Error::Full { .. } => REFUSED_NANOS,
            _ => return,
        };
        self.places.retain(|left| now < left.until);
        let place = Place { height, lower: Key::from(range.0), upper: range.1.map(Key::from) };
        self.places.push(LeftAlone {
            place,
            until: now.saturating_add(nanos),
            error: error.clone(),
            told: false,
        });
    }

    /// Leaves no place alone any more for want of room. Returns what was met at the last.
    pub(super) fn retry_refused(&mut self) -> Option<Error> {
        let refused = self.places.extract_if(.., |left| !left.is_damaged());
        refused.last().map(|left| left.error)
    }

    /// Leaves no place alone any more for damage.
    pub(super) fn retry_damaged(&mut self) {
        self.places.retain(|left| !left.is_damaged());
    }

    /// Returns true, once for each place, if a place is left alone for this damage.
    pub(super) fn tell(&mut self, error: &Error) -> bool {
        let said = error.to_string();
        let is_this = |left: &&mut LeftAlone| {
            left.is_damaged() && !left.told && left.error.to_string() == said
        };
        self.places.iter_mut().find(is_this).is_some_and(|left| !mem::replace(&mut left.told, true))
    }

    /// Whether there is such a place.
    pub(super) fn exists(&self, now: u64) -> bool {
        self.places.iter().any(|left| now < left.until)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_failed_for_damage_or_room_is_left_alone_for_a_while() {
        let mut damaged = Damaged::default();
        let range = (&b"b"[..], Some(&b"d"[..]));
        damaged.note(&Error::NotResident, 0, range, 5);
        assert!(!damaged.exists(5));
        damaged.note(&Error::corruption(Path::new("t"), 0, "page", 1, 2), 0, range, 5);
        assert!(damaged.exists(5) && damaged.meets(0, (b"c", None), 5));
        assert!(!damaged.meets(1, (b"c", None), 5), "another level");
        assert!(!damaged.meets(0, (b"d", None), 5), "behind it");
        let full = Error::Full { path: "t".into(), needed: 1 };
        damaged.note(&full, 2, range, 5);
        assert!(damaged.meets(2, range, 5) && !damaged.meets(2, range, 5 + REFUSED_NANOS));
        assert!(damaged.meets_damage(0, range, 5) && !damaged.meets_damage(2, range, 5));
        assert!(matches!(damaged.retry_refused(), Some(Error::Full { .. })));
        assert!(damaged.retry_refused().is_none() && !damaged.meets(2, range, 5));
        assert!(damaged.meets_damage(0, range, 5));
        let mut again = Damaged::default();
        again.note(&Error::corruption(Path::new("t"), 0, "page", 1, 2), 0, range, 5);
        again.note(&full, 2, range, 5);
        let damage = Error::corruption(Path::new("t"), 0, "page", 1, 2);
        let other = Error::corruption(Path::new("t"), 4096, "page", 1, 2);
        assert!(!again.tell(&other) && again.tell(&damage) && !again.tell(&damage));
        again.retry_damaged();
        assert!(!again.meets(0, range, 5) && again.meets(2, range, 5));
        let later = 5 + DAMAGED_NANOS;
        assert!(!damaged.exists(later) && !damaged.meets(0, (b"c", None), later));
    }
}
