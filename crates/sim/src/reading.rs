//! The content of a store, read in every way.

use std::collections::BTreeMap;

use spinney::{CheckLevel, Database, Error, Keyspace, Slice, Snapshot};

use crate::random::fingerprint;

/// The keyspaces, and the sums of their pairs' fingerprints.
pub type Contents = BTreeMap<String, u64>;

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All pairs, forward.
    Once,
    /// That, and everything is checked.
    Checked,
    /// That, and backward, without values, key by key, many keys at once and through a snapshot it is the same.
    EveryWay,
}

/// What is there.
///
/// # Errors
/// What fails, what the check finds, or where two ways differ.
pub fn read_all(db: &Database, reading: Reading) -> Result<Contents, String> {
    let failed = |error: Error| format!("read: {error}");
    let mut found = Contents::new();
    let snapshot = (reading == Reading::EveryWay).then(|| db.snapshot());
    for name in db.keyspaces() {
        let keyspace = db.existing_keyspace(&name).map_err(failed)?;
        let pairs: Vec<Pair> = keyspace.iter().collect::<Result<_, _>>().map_err(failed)?;
        if let Some(snapshot) = &snapshot {
            match differs(&keyspace, snapshot, &pairs).map_err(failed)? {
                None => {}
                Some(way) => return Err(format!("read: {name} is not the same {way}")),
            }
        }
        let sums = pairs.iter().map(|(key, value)| fingerprint(key, value));
        found.insert(name, sums.fold(0, u64::wrapping_add));
    }
    if reading == Reading::Once {
        return Ok(found);
    }
    let report = db.check(CheckLevel::Full).map_err(failed)?;
    match report.problems.is_empty() {
        true => Ok(found),
        false => Err(format!("check: {:?}", report.problems)),
    }
}

type Pair = (Slice, Slice);

/// A key that comes before all others, and that nobody puts.
const ABSENT: &[u8] = b"absent";

/// The way in which reading does not give `pairs`.
fn differs(
    keyspace: &Keyspace,
    snapshot: &Snapshot,
    pairs: &[Pair],
) -> spinney::Result<Option<String>> {
    let is = |found: &[Pair]| {
        let mut both = found.iter().zip(pairs);
        found.len() == pairs.len() && both.all(|(a, b)| *a.0 == *b.0 && *a.1 == *b.1)
    };
    let mut backward: Vec<Pair> = keyspace.iter().rev().collect::<Result<_, _>>()?;
    backward.reverse();
    if !is(&backward) {
        return Ok(Some("backward".to_string()));
    }
    let seen: Vec<Pair> = snapshot.iter(keyspace).collect::<Result<_, _>>()?;
    if !is(&seen) {
        return Ok(Some("through a snapshot".to_string()));
    }
    let mut ascending = keyspace.iter().keys();
    let mut descending = snapshot.iter(keyspace).keys().rev();
    for (low, high) in pairs.iter().zip(pairs.iter().rev()) {
        if ascending.next().transpose()?.as_deref() != Some(&*low.0)
            || descending.next().transpose()?.as_deref() != Some(&*high.0)
        {
            return Ok(Some("without values".to_string()));
        }
    }
    if ascending.next().is_some() || descending.next().is_some() {
        return Ok(Some("without values: there are more keys".to_string()));
    }
    let keys = || pairs.iter().map(|(key, _)| &**key).chain([ABSENT]);
    let at_once = keyspace.multi_get(keys())?;
    let at_once_then = snapshot.multi_get(keyspace, keys())?;
    let values = pairs.iter().map(|(_, value)| Some(&**value)).chain([None]);
    for (number, (key, value)) in keys().zip(values).enumerate() {
        let way = |way: &str| Some(format!("{way}: key \"{}\"", key.escape_ascii()));
        if at_once[number].as_deref() != value {
            return Ok(way("many keys at once"));
        }
        if at_once_then[number].as_deref() != value {
            return Ok(way("many keys of a snapshot at once"));
        }
        if keyspace.contains_key(key)? != value.is_some() {
            return Ok(way("whether it is there"));
        }
        // Of many, some: it is the same code for all.
        if (number % 8 == 0 || pairs.len() < 32) && keyspace.get(key)?.as_deref() != value {
            return Ok(way("key by key"));
        }
    }
    Ok(None)
}
