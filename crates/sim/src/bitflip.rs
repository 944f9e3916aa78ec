//! Flips bits in all files of small stores, one at a time.
//!
//! After each flip the store must answer rightly or name the damage ([`crate::damage`]). A flip in
//! needed bytes with a checksum must be detected, at the latest by a full check.

use std::collections::BTreeMap;
use std::path::Path;

use crate::damage::{self, Damage, FileClass, Shown};
use crate::image::{Form, Image};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};
use crate::random::Random;

/// Bytes without a place in a page of the file that was ever written are looked at so much less
/// often.
const BLANK_STRIDE: u64 = 61;

/// Which flips a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Every so manieth byte.
    pub every: u64,
    /// All eight bits of each, not one of them.
    pub all_bits: bool,
    /// The store's form; drawn from the seed if none.
    pub form: Option<Form>,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { every: 97, all_bits: false, form: None }
    }
}

/// One flip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flip {
    /// The file's name.
    pub file: String,
    /// Which byte.
    pub offset: u64,
    /// Which bit of it.
    pub bit: u8,
}

impl std::str::FromStr for Flip {
    type Err = String;

    fn from_str(text: &str) -> Result<Flip, String> {
        let wrong = || format!("{text:?} is not `FILE:OFFSET:BIT`");
        let mut parts = text.rsplitn(3, ':');
        let bit = parts.next().and_then(|bit| bit.parse().ok()).filter(|bit| *bit < 8);
        let offset = parts.next().and_then(|offset| offset.parse().ok());
        let file = parts.next().map(str::to_string);
        let ((Some(file), Some(offset)), Some(bit)) = ((file, offset), bit) else {
            return Err(wrong());
        };
        Ok(Flip { file, offset, bit })
    }
}

/// The form of a run's store.
fn form_of(seed: u64, extent: Extent) -> Form {
    let drawn = Form::ALL[(seed % Form::ALL.len() as u64) as usize];
    extent.form.unwrap_or(drawn)
}

/// Judges the flips of the run `seed`, or only one of them, calling `told` now and then with the
/// number of flips judged; a false answer ends the run.
pub fn run(
    seed: u64,
    kinds: Kinds,
    extent: Extent,
    only: Option<&Flip>,
    told: &mut dyn FnMut(u64) -> bool,
) -> Outcome {
    let mut outcome = Outcome::default();
    let form = form_of(seed, extent);
    let again = format!("spinney-sim bitflip --kind {kinds} --seed {seed} --runs 1 --form {form}");
    let image = match Image::build(kinds, form, seed) {
        Ok(image) => image,
        Err(what) => {
            outcome.violations.push(Violation { what, command: again });
            return outcome;
        }
    };
    let mut judged = 0;
    for flip in flips(&image, extent, only) {
        let path = image.dir.join(&flip.file);
        let result = judge(&image, &path, &flip, &mut outcome);
        if let Err(what) = result {
            let Flip { file, offset, bit } = &flip;
            let command = format!("{again} --only {file}:{offset}:{bit}");
            let what = format!("{form} store, bit {bit} of byte {offset} of {file}: {what}");
            outcome.violations.push(Violation { what, command });
            if outcome.violations.len() >= 20 {
                break;
            }
        }
        judged += 1;
        if judged % 64 == 0 && !told(judged) {
            break;
        }
    }
    outcome
}

/// The flips of a run, spread so that any first part of them is spread over all files.
fn flips(image: &Image, extent: Extent, only: Option<&Flip>) -> Vec<Flip> {
    if let Some(only) = only {
        return vec![only.clone()];
    }
    let mut random = Random::new(&[image.seed, 21]);
    let mut found = Vec::new();
    for path in image.files.list(&image.dir) {
        let Some(content) = image.files.content(&path) else { continue };
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let every = extent.every.max(1);
        let mut offset = random.below(every as usize) as u64;
        while offset < content.len() {
            let bits = if extent.all_bits { 0..8 } else { 0..1 };
            for bit in bits {
                let bit = if extent.all_bits { bit } else { random.below(8) as u8 };
                found.push((random.draw(), Flip { file: file.clone(), offset, bit }));
            }
            let blank = content.is_blank(offset);
            offset += every * if blank { BLANK_STRIDE } else { 1 };
        }
    }
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, flip)| flip).collect()
}

fn judge(image: &Image, path: &Path, flip: &Flip, outcome: &mut Outcome) -> Result<(), String> {
    let mut files = image.files.clone();
    let content = files.content_mut(path).ok_or("there is no such file")?;
    let mut byte = [0];
    if !content.read(flip.offset, &mut byte) {
        return Err("the file is not that long".to_string());
    }
    content.write(flip.offset, &[byte[0] ^ 1 << flip.bit]);
    let bytes = flip.offset..flip.offset + 1;
    let damage = Damage { path: path.to_path_buf(), bytes, in_place: true };
    let kind = match image.unneeded.contains(path) {
        true => format!("{} (left over)", damage::kind_of(path)),
        false => damage::kind_of(path),
    };
    let verdict = match damage::judge(image, &files, &[damage]) {
        Ok(verdict) => verdict,
        Err(what) => {
            outcome.count(format!("{kind}: wrong"));
            return Err(what);
        }
    };
    outcome.operations += verdict.operations;
    outcome.count(format!("{kind}: {}", verdict.shown));
    // A file that changes in place has parts that do not count: the unit tests of its kind flip those that do.
    let in_place = path.extension().is_some_and(|extension| extension == "pool");
    let needed = !image.unneeded.contains(path) && !in_place;
    let covered = match FileClass::of(path) {
        FileClass::Superblock | FileClass::Manifest | FileClass::Data => needed,
        // What a journal once held may be in trees by now, and where it ends there is nothing. What
        // is durable of the manifest is told twice.
        FileClass::Journal | FileClass::Lock | FileClass::Durable => false,
    };
    match covered && verdict.shown == Shown::Harmless {
        true => Err("nothing has noticed it".to_string()),
        false => Ok(()),
    }
}

/// The states of an outcome by kind of file and how the damage showed.
pub fn tally(outcome: &Outcome) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut tally: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (made_by, count) in &outcome.states {
        if let Some((kind, shown)) = made_by.split_once(": ") {
            tally.entry(kind.to_string()).or_default().insert(shown.to_string(), *count);
        }
    }
    tally
}
