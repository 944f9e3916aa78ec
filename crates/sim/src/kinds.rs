//! The tree kinds of a run's keyspaces.

use std::fmt;
use std::str::FromStr;

use spinney::{KeyspaceOptions, TreeKind};

/// What a kind for tests alone gets of the time that another kind has.
const TESTS_SHARE: f64 = 0.1;

/// Every kind, those for tests too.
fn every() -> impl Iterator<Item = TreeKind> {
    TreeKind::ALL.into_iter().chain(TreeKind::FOR_TESTS.iter().copied())
}

/// Options with so many children of a node at most, where the kind has nodes with children.
pub fn with_fanout(options: KeyspaceOptions, fanout: u32) -> KeyspaceOptions {
    with_own(options, "fanout_max", fanout)
}

/// Options with a value of an option that only some kinds have, where the kind is one of them.
pub fn with_own(options: KeyspaceOptions, name: &str, value: u32) -> KeyspaceOptions {
    let with = options.clone().kind_option(name, value);
    with.unwrap_or(options)
}

/// The trees of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// All keyspaces are of this kind. If it is for tests alone, every other one is, and the rest are of the next
    /// product kind: they have to get along with the numbers that its trees keep themselves.
    One(TreeKind),
    /// Each keyspace is of the next kind, in one store: of those that are not for tests alone.
    Mixed,
    /// Each kind by itself, those for tests too, one after the other, and all mixed.
    All,
}

impl Kinds {
    /// The runs of [`Kinds::All`] without the kinds that are for tests alone.
    pub fn of_products() -> Vec<Kinds> {
        let mut runs: Vec<Kinds> = TreeKind::ALL.into_iter().map(Kinds::One).collect();
        if runs.len() > 1 {
            runs.push(Kinds::Mixed);
        }
        runs
    }

    /// Whether all keyspaces are of a kind for tests alone, which promises nothing of space.
    pub fn is_for_tests(self) -> bool {
        matches!(self, Kinds::One(kind) if TreeKind::FOR_TESTS.contains(&kind))
    }

    /// What part of a limit of [`Kinds::All`] this one of its runs gets.
    pub fn share(self) -> f64 {
        if self.is_for_tests() { TESTS_SHARE } else { 1.0 }
    }

    /// The runs that this means, none of which is [`Kinds::All`].
    pub fn runs(self) -> Vec<Kinds> {
        match self {
            Kinds::All => {
                let mut runs = Kinds::of_products();
                runs.extend(TreeKind::FOR_TESTS.iter().copied().map(Kinds::One));
                runs
            }
            one => vec![one],
        }
    }

    /// The kind of a run's keyspace of that number.
    pub fn of(self, keyspace: usize) -> TreeKind {
        match self {
            Kinds::One(_) if self.is_for_tests() && keyspace % 2 == 1 => {
                TreeKind::ALL[keyspace / 2 % TreeKind::ALL.len()]
            }
            Kinds::One(kind) => kind,
            Kinds::Mixed | Kinds::All => TreeKind::ALL[keyspace % TreeKind::ALL.len()],
        }
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kinds::One(kind) => write!(f, "{kind}"),
            Kinds::Mixed => f.write_str("mixed"),
            Kinds::All => f.write_str("all"),
        }
    }
}

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Kinds, String> {
        match text {
            "mixed" => Ok(Kinds::Mixed),
            "all" => Ok(Kinds::All),
            name => TreeKind::from_name(name).map(Kinds::One).ok_or_else(|| {
                let names: Vec<&str> = every().map(TreeKind::name).collect();
                format!("no tree kind {name:?}: try {}, mixed or all", names.join(", "))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let all = every().map(Kinds::One).chain([Kinds::Mixed, Kinds::All]);
        for kinds in all {
            assert_eq!(kinds.to_string().parse(), Ok(kinds));
            assert!(!kinds.runs().is_empty() && !kinds.runs().contains(&Kinds::All));
        }
        assert!("oak".parse::<Kinds>().unwrap_err().contains("mixed"));
    }

    #[test]
    fn mixed_keyspaces_are_of_every_kind() {
        let some: Vec<TreeKind> = (0..TreeKind::ALL.len()).map(|n| Kinds::Mixed.of(n)).collect();
        assert_eq!(some, TreeKind::ALL);
    }
}
