//! Compares an open store with its ledger.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use spinney::{CheckLevel, Database, Error, Keyspace};

use super::ledger::{Copy, Findings, Ledger, WriterRecord};
use super::script::{
    PASSING, Pairs, SHARED, SHARED_KEYS, Script, WriterState, own_prefix, passing_name, shared_key,
};

/// What was found, or what was promised and is not so.
pub type Verdict<T> = Result<T, String>;

/// All pairs of a keyspace, read from both ends.
fn read(keyspace: &Keyspace) -> Verdict<Pairs> {
    let failed = |error: Error| format!("reading {}: {error}", keyspace.name());
    let mut pairs = Pairs::new();
    for pair in keyspace.iter() {
        let (key, value) = pair.map_err(failed)?;
        pairs.insert(key.to_vec(), value.to_vec());
    }
    let mut backwards = pairs.iter().rev();
    for pair in keyspace.iter().rev() {
        let (key, value) = pair.map_err(failed)?;
        if backwards.next().is_none_or(|(k, v)| k[..] != *key || v[..] != *value) {
            let key = key.escape_ascii();
            return Err(format!("{}: backwards there is another {key:?}", keyspace.name()));
        }
    }
    match backwards.next() {
        Some((key, _)) => {
            Err(format!("{}: backwards there is no {:?}", keyspace.name(), key.escape_ascii()))
        }
        None => Ok(pairs),
    }
}

/// What a store holds, sorted by whose it is.
struct Contents {
    writers: Vec<WriterState>,
    /// By keyspace.
    shared: [Pairs; 2],
}

impl Contents {
    fn read(db: &Database, script: &Script) -> Verdict<Contents> {
        let mut writers: Vec<WriterState> = (0..script.writers).map(WriterState::new).collect();
        let mut shared = [Pairs::new(), Pairs::new()];
        for name in db.keyspaces() {
            let keyspace = db.existing_keyspace(&name).map_err(|error| format!("{error}"))?;
            let pairs = read(&keyspace)?;
            let owner = (0..script.writers).find(|writer| passing_name(*writer) == name);
            let place = SHARED.iter().position(|known| *known == name);
            if let Some(owner) = owner {
                writers[owner].passing = true;
            }
            let place = match (place, owner) {
                (Some(place), None) => place,
                (None, Some(_)) => PASSING,
                _ => return Err(format!("keyspace {name:?} should not be there")),
            };
            for (key, value) in pairs {
                let whose = (0..script.writers).find(|writer| {
                    key.starts_with(own_prefix(*writer).as_bytes())
                        && owner.is_none_or(|owner| owner == *writer)
                });
                if let Some(writer) = whose {
                    writers[writer].pairs[place].insert(key, value);
                } else if place < 2 && key.starts_with(b"shared/") {
                    shared[place].insert(key, value);
                } else {
                    return Err(format!("{name}: nobody wrote {:?}", key.escape_ascii()));
                }
            }
        }
        Ok(Contents { writers, shared })
    }
}

/// Where two states of a writer part.
fn difference(found: &WriterState, expected: &WriterState) -> String {
    if found.passing != expected.passing {
        return format!(
            "its passing keyspace {}",
            if found.passing { "exists" } else { "is missing" }
        );
    }
    for (place, (found, expected)) in found.pairs.iter().zip(&expected.pairs).enumerate() {
        let name = SHARED.get(place).copied().unwrap_or("passing");
        let show = |value: &Vec<u8>| {
            let start = value[..value.len().min(8)].escape_ascii();
            format!("{} bytes \"{start}\"", value.len())
        };
        let keys: std::collections::BTreeSet<&Vec<u8>> =
            found.keys().chain(expected.keys()).collect();
        for key in keys {
            let (found, expected) = (found.get(key), expected.get(key));
            if found != expected {
                let say = |value: Option<&Vec<u8>>| value.map_or("nothing".to_string(), show);
                let key = key.escape_ascii();
                return format!("{name} has {} at {key}, not {}", say(found), say(expected));
            }
        }
    }
    "nothing".to_string()
}

/// The number of steps after which a writer's state is the one found.
fn steps_of(
    script: &Script,
    record: &WriterRecord,
    found: &WriterState,
    least: u64,
    most: u64,
) -> Verdict<u64> {
    let same = |state: &WriterState| state.passing == found.passing && state.pairs == found.pairs;
    let mut state = record.after(script, found.writer, least);
    let at_least = difference(found, &state);
    while !same(&state) {
        if state.steps >= most {
            let mut earlier = WriterState::new(found.writer);
            while !same(&earlier) && earlier.steps < least {
                record.advance(script, &mut earlier);
            }
            let where_else = match same(&earlier) && earlier.steps < least {
                true => format!("but its state after {}", earlier.steps),
                false => "nor any earlier one".to_string(),
            };
            return Err(format!(
                "writer {}: no state after {least} to {most} steps, {where_else}; after {least}, \
                 {at_least}; after {most}, {}",
                found.writer,
                difference(found, &state)
            ));
        }
        record.advance(script, &mut state);
    }
    Ok(state.steps)
}

fn judge_shared(
    script: &Script,
    ledger: &Ledger,
    found: &[Pairs; 2],
    steps: &[u64],
) -> Verdict<Vec<(usize, usize, u64)>> {
    if found[0] != found[1] {
        return Err(format!(
            "a batch in halves: {} holds {:?}, {} holds {:?}",
            SHARED[0],
            summary(&found[0]),
            SHARED[1],
            summary(&found[1])
        ));
    }
    let mut seen = Vec::new();
    let mut others = found[0].clone();
    for key in 0..SHARED_KEYS {
        let there = |write: &&super::ledger::SharedWrite| {
            write.key == key && write.step <= steps[write.writer]
        };
        let writes: Vec<_> = ledger.shared.iter().filter(there).collect();
        let Some(value) = others.remove(&shared_key(key)) else {
            match writes.first() {
                None => continue,
                Some(write) => return Err(format!("shared key {key} is missing: {write:?}")),
            }
        };
        let by =
            writes.iter().find(|w| script.shared_value(key, w.writer, w.step, w.life) == value);
        let Some(by) = by else {
            let start = value[..value.len().min(16)].escape_ascii();
            return Err(format!("shared key {key} has \"{start}\", of none of {writes:?}"));
        };
        let later = writes.iter().find(|w| {
            w.writer == by.writer && w.step > by.step
                || by.acknowledged.is_some_and(|acknowledged| acknowledged < w.issued)
        });
        if let Some(later) = later {
            return Err(format!("shared key {key} is as of {by:?}, before {later:?}"));
        }
        seen.push((key, by.writer, by.step));
    }
    match others.first_key_value() {
        Some((key, _)) => Err(format!("nobody wrote {:?}", key.escape_ascii())),
        None => Ok(seen),
    }
}

fn summary(pairs: &Pairs) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| bytes[..bytes.len().min(12)].escape_ascii().to_string();
    pairs.iter().map(|(key, value)| (text(key), text(value))).collect()
}

/// Judges an open store.
///
/// # Errors
/// What was promised and is not so.
pub fn judge(db: &Database, ledger: &Ledger) -> Verdict<Findings> {
    let bounds: Vec<(u64, u64)> = ledger.writers.iter().map(|w| (w.least, w.most)).collect();
    judge_within(db, ledger, &bounds, ledger.ready)
}

fn judge_within(
    db: &Database,
    ledger: &Ledger,
    bounds: &[(u64, u64)],
    ready: bool,
) -> Verdict<Findings> {
    let script = ledger.script();
    let names = db.keyspaces();
    if let Some(missing) = SHARED.iter().find(|name| ready && !names.iter().any(|n| n == *name)) {
        return Err(format!("keyspace {missing:?} is missing"));
    }
    let contents = Contents::read(db, &script)?;
    let mut steps = Vec::new();
    for ((found, record), &(least, most)) in
        contents.writers.iter().zip(&ledger.writers).zip(bounds)
    {
        steps.push(steps_of(&script, record, found, least, most)?);
    }
    let shared = judge_shared(&script, ledger, &contents.shared, &steps)?;
    let report = db.check(CheckLevel::Full).map_err(|error| format!("check: {error}"))?;
    match report.problems.is_empty() {
        true => Ok(Findings { steps, shared }),
        false => Err(format!("check: {:?}", report.problems)),
    }
}

/// Opens the store in `dir` and judges it; twice, as the second open must find nothing to clear
/// away. None if there is no store and none need be.
///
/// # Errors
/// What was promised and is not so.
pub fn judge_store(dir: &Path, ledger: &Ledger) -> Verdict<Option<Findings>> {
    let script = ledger.script();
    let open = || script.builder(dir).create_if_missing(false).open();
    let db = match open() {
        Err(Error::NotAStore { .. }) if !ledger.opened => return Ok(None),
        opened => opened.map_err(|error| format!("open: {error}"))?,
    };
    let findings = judge(&db, ledger)?;
    if findings.steps.iter().sum::<u64>() % 2 == 0 {
        db.close().map_err(|error| format!("close: {error}"))?;
    } else {
        drop(db);
    }
    let again = open().map_err(|error| format!("open again: {error}"))?;
    let mut settled = ledger.clone();
    settled.settle(&findings);
    let same = judge(&again, &settled).map_err(|what| format!("opened again: {what}"))?;
    if same != findings {
        return Err(format!("opened again it holds {same:?}, not {findings:?}"));
    }
    if findings.steps.iter().sum::<u64>() % 4 < 2 {
        judge_orphans(&again, dir, script.fills)?;
    }
    again.close().map_err(|error| format!("close again: {error}"))?;
    judge_names(dir)?;
    Ok(Some(findings))
}

/// Once all is in the trees and nothing is left to do, each data file is one that a tree refers to.
fn judge_orphans(db: &Database, dir: &Path, fills: bool) -> Verdict<()> {
    let failed = |error: Error| format!("flushing what was found: {error}");
    for name in db.keyspaces() {
        match db.existing_keyspace(&name).and_then(|keyspace| keyspace.flush()) {
            Ok(()) => {}
            // A small disk: what waits to be written is no orphan.
            Err(Error::Full { .. }) if fills => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
    }
    let started = Instant::now();
    loop {
        db.wait_idle().map_err(failed)?;
        let referred = db.check(CheckLevel::Structure).map_err(failed)?.files;
        let names = names_in(dir)?;
        let there = names.iter().filter(|name| is_data(name)).count() as u64;
        // Large values of one batch share a file, which each of their keyspaces refers to.
        if there <= referred {
            return Ok(());
        }
        // A file goes a moment after the last reader of it.
        if started.elapsed() > Duration::from_secs(5) {
            return Err(format!(
                "{there} data files, of which trees refer to {referred}: {names:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_data(name: &str) -> bool {
    [".table", ".maplet", ".head", ".blob", ".index", ".pool", ".operations"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn names_in(dir: &Path) -> Verdict<Vec<String>> {
    let failed = |error: std::io::Error| format!("list: {error}");
    let entries = fs::read_dir(dir).map_err(failed)?;
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// The directory of a closed store holds what `docs/format` lists, and one manifest.
fn judge_names(dir: &Path) -> Verdict<()> {
    let mut manifests = 0;
    for name in names_in(dir)? {
        let journal = name.starts_with("journal-") && name.ends_with(".log");
        let manifest = name.starts_with("manifest-");
        manifests += usize::from(manifest);
        let one = ["SPINNEY", "LOCK", "DURABLE"].contains(&&*name);
        if !(is_data(&name) || journal || manifest || one) {
            return Err(format!("{name} was left in the store's directory"));
        }
    }
    match manifests {
        1 => Ok(()),
        n => Err(format!("{n} manifests")),
    }
}

/// Judges a copy that a child has made, or had begun when it was killed.
///
/// # Errors
/// What was promised and is not so.
pub fn judge_copy(dir: &Path, copy: &Copy, ledger: &Ledger) -> Verdict<()> {
    let in_copy = |what: String| format!("copy {}: {what}", copy.number);
    let script = ledger.script();
    let now = || ledger.writers.iter().map(|record| record.most).collect();
    let most: Vec<u64> = copy.most.clone().unwrap_or_else(now);
    let bounds: Vec<(u64, u64)> = copy.least.iter().copied().zip(most).collect();
    let db = match script.builder(dir).create_if_missing(false).open() {
        Err(Error::NotAStore { .. }) if copy.most.is_none() => return Ok(()),
        opened => opened.map_err(|error| in_copy(format!("open: {error}")))?,
    };
    judge_within(&db, ledger, &bounds, true).map_err(in_copy)?;
    db.close().map_err(|error| in_copy(format!("close: {error}")))
}
