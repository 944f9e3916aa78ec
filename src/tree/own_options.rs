//! Options that only some kinds of tree have: numbers with a tag, a name and a range.

use std::collections::BTreeMap;

/// An option that only some kinds of tree have. Its default is always 0, which is not stored.
#[derive(Debug)]
pub(crate) struct OwnOption {
    /// What it is stored under: never given to another option of the same kind.
    pub(super) tag: u32,
    pub(super) name: &'static str,
    /// One line for `--help`.
    pub(super) about: &'static str,
    /// The nearest number that it may have.
    pub(super) nearest: fn(u32) -> u32,
    /// How a value is shown.
    pub(super) show: fn(u32) -> String,
}

/// Shows 0 as the choice that it leaves to the tree.
pub(super) fn show_choice(value: u32) -> String {
    match value {
        0 => "the tree's own choice".to_string(),
        value => value.to_string(),
    }
}

/// The most children of a node or guard, for kinds that have them.
pub(super) const FANOUT_MAX: OwnOption = OwnOption {
    tag: 1,
    name: "fanout_max",
    about: "most children of a node or guard; 0: the tree's own choice",
    nearest: |fanout| if fanout == 0 { 0 } else { fanout.max(2) },
    show: show_choice,
};

/// Whether what iterators read too much of is left as it is, for kinds that merge it.
pub(super) const WITHOUT_SEEK_COMPACTION: OwnOption = OwnOption {
    tag: 4,
    name: "without_seek_compaction",
    about: "1: key ranges that iterators read from many tables are not merged for that",
    nearest: |without| without.min(1),
    show: |without| (without != 0).to_string(),
};

/// The most large pieces of a TPH of the last level. There may be a small one between each two.
pub(super) const PIECES_MAX: OwnOption = OwnOption {
    tag: 5,
    name: "pieces_max",
    about: "most large pieces of a TPH before all that lives in it is merged; 0: the tree's own choice",
    // With a merged table between each two, a head still tells them apart.
    nearest: |pieces| pieces.min(127),
    show: show_choice,
};

/// Which perfect hash functions new indexes have.
pub(super) const DISPLACEMENT: OwnOption = OwnOption {
    tag: 6,
    name: "displacement",
    about: "1: new indexes have the perfect hash functions of CPHash, not those with pilots",
    nearest: |displacement| displacement.min(1),
    show: |displacement| (displacement != 0).to_string(),
};

/// Whether memtables are merged straight into the leaves, and pieces are copied as rarely as the space target lets them.
pub(super) const ONE_LEVEL: OwnOption = OwnOption {
    tag: 8,
    name: "one_level",
    about: "1: many memtables are merged straight into the leaves, which writes least and makes scans slower",
    nearest: |one_level| one_level.min(1),
    show: |one_level| (one_level != 0).to_string(),
};

/// The values of options that only some kinds have, by name. What is not in it is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnValues(BTreeMap<&'static str, u32>);

impl OwnValues {
    /// The options that are not 0.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    pub(super) fn get(&self, option: &OwnOption) -> u32 {
        self.0.get(option.name).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, option: &OwnOption, value: u32) {
        match (option.nearest)(value) {
            0 => self.0.remove(option.name),
            value => self.0.insert(option.name, value),
        };
    }
}
