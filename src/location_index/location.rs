//! [`Location`]: where a table has the versions of a key.

use super::word::{CONTENT_BITS, seal, unseal};

const UNIT_BITS: u32 = 20;
const UNITS_BITS: u32 = 4;
const TABLE_BITS: u32 = 22;
const UNITS_SHIFT: u32 = UNIT_BITS;
const TABLE_SHIFT: u32 = UNITS_SHIFT + UNITS_BITS;
const SPLIT_SHIFT: u32 = TABLE_SHIFT + TABLE_BITS;
const OPERAND_SHIFT: u32 = SPLIT_SHIFT + 1;
const _: () = assert!(OPERAND_SHIFT < CONTENT_BITS);

/// The greatest number of a table.
pub(crate) const TABLE_MAX: u32 = (1 << TABLE_BITS) - 1;

/// A leaf of a table, and whether the first version of the key goes on in the next leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafPlace {
    /// The first unit of the leaf.
    pub(crate) unit: u32,
    /// The number of units.
    pub(crate) units: u16,
    pub(crate) is_split: bool,
}

/// Where a table has the versions of a key, which are neighbours. One word in persistent memory, so it changes
/// atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Location {
    /// The table's number among those of its tree, at most [`TABLE_MAX`].
    pub(crate) table: u32,
    /// The leaf with the newest of the versions; `None` if the table's own index has to be asked.
    pub(crate) leaf: Option<LeafPlace>,
    /// All of the versions are merge operands: older ones are needed to compute the value.
    pub(crate) is_operand: bool,
}

impl Location {
    /// Of a leaf that is too large, or too far from the start of its file, only the table is noted.
    pub(crate) fn new(table: u32, leaf: LeafPlace, is_operand: bool) -> Location {
        let fits = leaf.unit < 1 << UNIT_BITS && (1..1 << UNITS_BITS).contains(&leaf.units);
        Location { table, leaf: fits.then_some(leaf), is_operand }
    }

    pub(super) fn to_word(self) -> u64 {
        assert!(self.table <= TABLE_MAX, "{self:?}");
        let leaf = self.leaf.map_or(0, |leaf| {
            assert!(leaf.unit < 1 << UNIT_BITS && (1..1 << UNITS_BITS).contains(&leaf.units));
            let split = u64::from(leaf.is_split) << SPLIT_SHIFT;
            split | u64::from(leaf.units) << UNITS_SHIFT | u64::from(leaf.unit)
        });
        let operand = u64::from(self.is_operand) << OPERAND_SHIFT;
        seal(operand | u64::from(self.table) << TABLE_SHIFT | leaf)
    }

    pub(super) fn from_word(word: u64) -> Option<Location> {
        let content = unseal(word)?;
        let field = |shift: u32, bits: u32| (content >> shift) as u32 & ((1 << bits) - 1);
        let units = field(UNITS_SHIFT, UNITS_BITS) as u16;
        let leaf =
            LeafPlace { unit: field(0, UNIT_BITS), units, is_split: field(SPLIT_SHIFT, 1) == 1 };
        let location = Location {
            table: field(TABLE_SHIFT, TABLE_BITS),
            leaf: (units > 0).then_some(leaf),
            is_operand: field(OPERAND_SHIFT, 1) == 1,
        };
        // A word has one meaning.
        (location.to_word() == word).then_some(location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_survive_their_word() {
        for table in [0, 1, 77, TABLE_MAX] {
            for (unit, units) in [(0, 1), (1, 8), (99, 15), ((1 << UNIT_BITS) - 1, 1)] {
                for (is_split, is_operand) in [(false, false), (true, false), (false, true)] {
                    let leaf = LeafPlace { unit, units, is_split };
                    let location = Location::new(table, leaf, is_operand);
                    assert_eq!(location.leaf, Some(leaf));
                    assert_eq!(Location::from_word(location.to_word()), Some(location));
                }
            }
        }
        assert_eq!(Location::from_word(seal(5)), None, "a unit of a leaf without units");
    }

    #[test]
    fn of_what_does_not_fit_only_the_table_is_noted() {
        for (unit, units) in [(0, 16), (1 << UNIT_BITS, 1)] {
            let location = Location::new(3, LeafPlace { unit, units, is_split: true }, true);
            assert_eq!(location, Location { table: 3, leaf: None, is_operand: true });
            assert_eq!(Location::from_word(location.to_word()), Some(location));
        }
    }
}
