//! The reference for space: the size of the files of live pairs that are freshly loaded and
//! compacted.
//!
//! It is measured on a few MB of the same pairs, for each type of values and kind of tree in the
//! script, as a multiple of the bytes of keys and values.

use std::fs;
use std::io;
use std::path::Path;

use spinney::TreeKind;

use super::ledger::Ledger;
use super::script::{Content, Script};
use crate::random::Random;

/// Bytes that are loaded for each measurement.
const SAMPLE_BYTES: u64 = 12 << 20;

/// Bytes of files for each byte of keys and values, by keyspace.
#[derive(Debug, Clone)]
pub struct Fresh(Vec<f64>);

impl Fresh {
    /// Measures, in the directory `dir`, which is removed.
    ///
    /// # Errors
    /// What fails.
    pub fn measure(script: &Script, dir: &Path) -> Result<Fresh, String> {
        let mut known: Vec<((Content, TreeKind), f64)> = Vec::new();
        let mut ratios = Vec::new();
        for (number, space) in script.spaces.iter().enumerate() {
            let sort = (space.content, space.kind);
            // Large keyspaces come first: they have enough keys.
            let ratio = match known.iter().find(|(known, _)| *known == sort) {
                Some((_, ratio)) => *ratio,
                None => {
                    let ratio = ratio_of(script, number, dir).map_err(|error| {
                        format!("measuring the files of {:?}: {error}", space.content)
                    })?;
                    known.push((sort, ratio));
                    ratio
                }
            };
            ratios.push(ratio);
        }
        Ok(Fresh(ratios))
    }

    /// Of all live pairs.
    pub fn bytes(&self, ledger: &Ledger) -> u64 {
        let of = |(space, ratio): (&super::ledger::SpaceLedger, &f64)| {
            (space.live_bytes as f64 * ratio) as u64
        };
        ledger.spaces.iter().zip(&self.0).map(of).sum()
    }
}

fn ratio_of(script: &Script, number: usize, dir: &Path) -> spinney::Result<f64> {
    let _ = fs::remove_dir_all(dir);
    let db = script.builder(dir, 32 << 20).open()?;
    let space = db.keyspace("fresh", script.options(number))?;
    let mut random = Random::new(&[script.seed, 35, number as u64]);
    let (mut bytes, mut value) = (0, Vec::new());
    // Keys in random order, each once, though of a keyspace with fewer keys than that some twice.
    let keys = script.spaces[number].keys;
    let from = random.below(keys as usize) as u32;
    let mut seen = std::collections::BTreeSet::new();
    let mut index = from;
    while bytes < SAMPLE_BYTES && seen.insert(index) {
        let key = script.key(number, index);
        value.clear();
        // In each content a put of the first step is of a base value.
        script.write(number, index, 1, &mut value);
        bytes += (key.len() + value.len()) as u64;
        space.put(&key, &value)?;
        index = (index + 1) % keys;
    }
    space.flush()?;
    space.compact(..)?;
    db.wait_idle()?;
    drop(space);
    db.close()?;
    let files = data_bytes(dir).unwrap_or(0);
    let _ = fs::remove_dir_all(dir);
    Ok(files as f64 / bytes as f64)
}

/// The bytes of the data files in a store's directory.
///
/// # Errors
/// If it cannot be read.
pub fn data_bytes(dir: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if [".table", ".maplet", ".head", ".blob"].iter().any(|end| name.ends_with(end)) {
            // It may have gone since the directory was read.
            sum += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    Ok(sum)
}
