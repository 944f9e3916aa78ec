//! The fuzz target of whole stores: a sound small store is changed as the input says, opened, read
//! in every way, and judged.
//!
//! An input is the number of a store, followed by changes of eight bytes each: the kind of change,
//! the file, the offset, and the size.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use spinney::fuzz::Target;

use crate::content::Content;
use crate::damage::{self, Damage, FileClass};
use crate::disk::Node;
use crate::image::{Files, Form, Image};
use crate::kinds::Kinds;

/// The target, beside those of the decoders.
pub const TARGET: Target = Target { name: "store", run, seeds };

/// More changes than these are not looked at.
const CHANGES_MAX: usize = 6;
const CHANGE_BYTES: usize = 8;
const SECTOR_BYTES: u64 = 512;
/// The stores, of each kind and form.
const SEED: u64 = 77;

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let runs = Kinds::of_products();
        let all = runs.into_iter().flat_map(|kinds| Form::ALL.map(|form| (kinds, form)));
        let built = all.map(|(kinds, form)| Image::build(kinds, form, SEED));
        built.collect::<Result<_, _>>().unwrap_or_else(|what| panic!("{what}"))
    })
}

/// One change.
struct Change {
    what: u8,
    file: u8,
    at: u32,
    extent: u8,
    other: u8,
}

impl Change {
    fn decode(bytes: &[u8]) -> Change {
        let [what, file, a, b, c, d, extent, other] = *bytes.first_chunk().unwrap_or(&[0; 8]);
        Change { what, file, at: u32::from_le_bytes([a, b, c, d]), extent, other }
    }

    /// A place in a file of that length.
    fn place(&self, len: u64) -> u64 {
        ((u128::from(len) * u128::from(self.at)) >> 32) as u64
    }

    /// Carries the change out; says where the damage is.
    fn apply(&self, image: &Image, files: &mut Files) -> Vec<Damage> {
        let paths = files.list(&image.dir);
        let at = |number: u8| paths.get(usize::from(number) % paths.len().max(1)).cloned();
        let (Some(path), Some(other)) = (at(self.file), at(self.other)) else {
            return Vec::new();
        };
        let len = files.content(&path).map_or(0, Content::len);
        let place = self.place(len);
        let gone = |path: PathBuf| Damage { path, bytes: 0..u64::MAX, in_place: false };
        let mut in_place = true;
        let mut bytes = place..len.min(place + 1);
        match self.what % 9 {
            0 => overwrite(files, &path, place, 1, |byte| byte ^ 1 << (self.extent % 8)),
            1 => {
                let count = u64::from(self.extent) + 1;
                bytes.end = len.min(place + count);
                overwrite(files, &path, place, count, |byte| byte ^ self.other);
            }
            2 => {
                // A sector of a journal that is blank looks as if it had never arrived.
                in_place = FileClass::of(&path) != FileClass::Journal;
                bytes = place / SECTOR_BYTES * SECTOR_BYTES..place + SECTOR_BYTES;
                overwrite(files, &path, bytes.start, SECTOR_BYTES, |_| 0);
            }
            3 => {
                in_place = false;
                content(files, &path, |content| content.set_len(place));
            }
            4 => {
                in_place = false;
                let more = u64::from(self.extent) * 33;
                content(files, &path, |content| {
                    content.set_len(len + more);
                    content.write(len, &vec![self.other; more as usize]);
                });
            }
            5 => {
                let (here, there) = (files.content(&path).cloned(), files.content(&other).cloned());
                if let (Some(here), Some(there)) = (here, there) {
                    content(files, &path, |content| *content = there);
                    content(files, &other, |content| *content = here);
                }
                return vec![gone(path), gone(other)];
            }
            6 => {
                in_place = false;
                files.names.change(&[(path.clone(), None)]);
            }
            7 => {
                in_place = false;
                let earlier =
                    image.earlier.get(usize::from(self.extent) % image.earlier.len().max(1));
                if let Some(stale) = earlier.and_then(|earlier| earlier.content(&path)).cloned() {
                    content(files, &path, |content| *content = stale);
                }
            }
            _ => {
                in_place = false;
                if let Some(there) = files.content(&other).cloned() {
                    content(files, &path, |content| *content = there);
                }
            }
        }
        match in_place {
            true => vec![Damage { path, bytes, in_place }],
            false => vec![gone(path)],
        }
    }
}

/// Changes a file, and it alone: it may have another name elsewhere.
fn content(files: &mut Files, path: &Path, change: impl FnOnce(&mut Content)) {
    let Some(mut content) = files.content(path).cloned() else { return };
    change(&mut content);
    let number = files.contents.keys().next_back().map_or(1, |last| last + 1);
    files.contents.insert(number, content);
    files.names.change(&[(path.to_path_buf(), Some(Node::File(number)))]);
}

fn overwrite(files: &mut Files, path: &Path, from: u64, count: u64, new: impl Fn(u8) -> u8) {
    content(files, path, |content| {
        let count = count.min(content.len().saturating_sub(from));
        let mut bytes = vec![0; count as usize];
        if content.read(from, &mut bytes) {
            bytes.iter_mut().for_each(|byte| *byte = new(*byte));
            content.write(from, &bytes);
        }
    });
}

/// Judges what the input makes of a store.
///
/// # Panics
/// If the store does what it must not.
fn run(data: &[u8]) {
    let (number, changes) = data.split_first().unwrap_or((&0, &[]));
    let images = images();
    let image = &images[usize::from(*number) % images.len()];
    let mut files = image.files.clone();
    let mut damages = Vec::new();
    for change in changes.chunks(CHANGE_BYTES).take(CHANGES_MAX) {
        damages.extend(Change::decode(change).apply(image, &mut files));
    }
    if let Err(what) = damage::judge(image, &files, &damages) {
        let places: Vec<String> = damages
            .iter()
            .map(|damage| format!("{} {:?}", damage.path.display(), damage.bytes))
            .collect();
        panic!("{} store, damaged at {}: {what}", image.form, places.join(", "));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, image) in images().iter().enumerate() {
        let files = image.files.list(&image.dir);
        // All kinds of files come up, those of which there are few as often as those of many.
        for (file, path) in files.iter().enumerate() {
            let is_rare = FileClass::of(path) != FileClass::Data;
            for what in 0..9 {
                if is_rare || (file + what) % 5 == 0 {
                    let (at, other) = ((file as u32 + 1).wrapping_mul(0x9e37_79b9), file as u8 + 1);
                    let mut seed = vec![number as u8, what as u8, file as u8];
                    seed.extend_from_slice(&at.to_le_bytes());
                    seed.extend_from_slice(&[40, other]);
                    seeds.push(seed);
                }
            }
        }
    }
    seeds
}
