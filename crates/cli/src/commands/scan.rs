//! `spinney scan`: pairs in key order.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use clap::Args;
use spinney::{Iter, Keys};

use super::{StorePath, argument};
use crate::damaged::{DamagedOptions, Skipped};
use crate::failure::{EXIT_NOT_FOUND, Failure, Outcome};
use crate::spelling::{Spelling, SpellingOptions};
use crate::store::StoreOptions;
use spinney_quantity::parse_count;

/// Print pairs in key order, as key TAB value lines; exit with 1 if there are none
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney scan my.store --prefix user/
  spinney scan my.store --from b --to d --limit 10     keys from b to before d
  spinney scan my.store --reverse --limit 1            the last pair
  spinney scan my.store --keys-only --escape           the keys alone (`count` counts them)")]
pub(crate) struct ScanOptions {
    #[command(flatten)]
    store: StorePath,
    #[command(flatten)]
    choice: KeyChoice,
    /// The maximum number of pairs
    #[arg(long, short, value_name = "PAIRS", value_parser = parse_count)]
    limit: Option<u64>,
    /// In descending order of keys
    #[arg(long, short)]
    reverse: bool,
    /// Print keys without values
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    damaged: DamagedOptions,
    #[command(flatten)]
    spelling: SpellingOptions,
}

/// A range of keys, as the store takes it.
pub(super) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The keys from `from` to before `to`.
pub(super) fn key_range(
    spelling: Spelling,
    from: Option<&OsString>,
    to: Option<&OsString>,
) -> Outcome<KeyRange> {
    let from = from.map(|key| argument(spelling, "--from", key)).transpose()?;
    let to = to.map(|key| argument(spelling, "--to", key)).transpose()?;
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Failure::usage("--from is after --to; swap them"));
    }
    Ok((
        from.map_or(Bound::Unbounded, Bound::Included),
        to.map_or(Bound::Unbounded, Bound::Excluded),
    ))
}

/// What is scanned: keys alone need no value to be read.
enum Scan {
    Pairs(Iter),
    Keys(Keys),
}

pub(super) fn run(store: &StoreOptions, options: &ScanOptions) -> Outcome {
    let spelling = options.spelling.spelling();
    let range = options.choice.range(spelling)?;
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let mut pairs = match options.keys_only {
        false => range.map(|range| Scan::Pairs(keyspace.range(range))),
        true => range.map(|range| Scan::Keys(keyspace.range(range).keys())),
    };
    let limit = options.limit.unwrap_or(u64::MAX);
    let mut out = super::output();
    let (mut count, mut line) = (0, Vec::new());
    let mut skipped = Skipped::new(options.damaged);
    while count < limit {
        let Some(pairs) = &mut pairs else { break };
        let next = match pairs {
            Scan::Pairs(pairs) => {
                skipped.next(pairs, options.reverse)?.map(|(key, value)| (key, Some(value)))
            }
            Scan::Keys(keys) => skipped.next(keys, options.reverse)?.map(|key| (key, None)),
        };
        let Some((key, value)) = next else { break };
        count += 1;
        line.clear();
        spelling.encode(&key, &mut line);
        if let Some(value) = value {
            line.push(b'\t');
            spelling.encode(&value, &mut line);
        }
        line.push(b'\n');
        out.write_all(&line)?;
    }
    out.flush()?;
    drop((pairs, keyspace));
    database.close()?;
    skipped.end()?;
    if count == 0 { Err(Failure::Silent(EXIT_NOT_FOUND)) } else { Ok(()) }
}

/// The keys that the command line chooses.
#[derive(Debug, Args)]
pub(crate) struct KeyChoice {
    /// Only keys that start with this
    #[arg(long, value_name = "KEY")]
    prefix: Option<OsString>,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The end of the range, exclusive
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
}

impl KeyChoice {
    /// Whether there is anything but all keys.
    pub(super) fn is_limited(&self) -> bool {
        [&self.prefix, &self.from, &self.to].iter().any(|limit| limit.is_some())
    }

    /// The range; `None` if no key can be in it.
    pub(super) fn range(&self, spelling: Spelling) -> Outcome<Option<KeyRange>> {
        let mut range = key_range(spelling, self.from.as_ref(), self.to.as_ref())?;
        if let Some(prefix) = &self.prefix {
            range = narrowed(range, &argument(spelling, "--prefix", prefix)?);
        }
        Ok((!is_empty(&range)).then_some(range))
    }
}

/// The part of the range whose keys start with the prefix.
fn narrowed((from, to): KeyRange, prefix: &[u8]) -> KeyRange {
    let from = match from {
        Bound::Included(from) if from.as_slice() > prefix => Bound::Included(from),
        _ => Bound::Included(prefix.to_vec()),
    };
    let after = after_prefix(prefix);
    let to = match (to, after) {
        (Bound::Excluded(to), Some(after)) => Bound::Excluded(to.min(after)),
        (to, None) => to,
        (_, Some(after)) => Bound::Excluded(after),
    };
    (from, to)
}

/// The first key after all keys that start with the prefix, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut after = prefix[..=end].to_vec();
    after[end] += 1;
    Some(after)
}

fn is_empty(range: &KeyRange) -> bool {
    matches!(range, (Bound::Included(from), Bound::Excluded(to)) if from >= to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::ops::RangeBounds;

    #[test]
    fn a_range_narrowed_to_a_prefix_holds_what_both_hold() {
        let mut random = Rng::with_seed(4);
        let mut draw = |length_max: u64| -> Vec<u8> {
            let length = random.u64(..length_max + 1);
            (0..length).map(|_| [0, 7, 0xfe, 0xff][random.usize(..4)]).collect()
        };
        for _ in 0..5000 {
            let (a, b, prefix, key) = (draw(3), draw(3), draw(2), draw(4));
            let range = (Bound::Included(a.clone().min(b.clone())), Bound::Excluded(a.max(b)));
            let expected = RangeBounds::contains(&range, &key) && key.starts_with(&prefix);
            let narrowed = narrowed(range, &prefix);
            let found = !is_empty(&narrowed) && RangeBounds::contains(&narrowed, &key);
            assert_eq!(found, expected, "{key:?} {prefix:?} {narrowed:?}");
        }
    }

    #[test]
    fn an_unbounded_range_narrows_to_the_prefix() {
        let narrowed = narrowed((Bound::Unbounded, Bound::Unbounded), b"ab");
        assert_eq!(narrowed, (Bound::Included(b"ab".to_vec()), Bound::Excluded(b"ac".to_vec())));
        assert_eq!(after_prefix(&[0xff, 0xff]), None);
    }
}
