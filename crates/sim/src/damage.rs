//! Opens a damaged store, reads it in every way, and judges the answers.
//!
//! The contract: every answer is right, or is an error that names the damage. Damage to the journal
//! alone may remove commits from the end, and recovery must then report it. The exception is a
//! journal file whose end is missing or outdated: that looks as if it had never been written. Even
//! then, no commit is lost that the undamaged manifest knows to be durable. The result is always
//! the state after some commit, in all keyspaces at once, but that a dropped keyspace may be back,
//! empty, where both the manifest and `DURABLE` are damaged. There is no panic, and no store opens
//! empty.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use spinney::{CheckLevel, Database, Error, RecoveryReport};

use crate::answers::Answers;
use crate::image::{Files, Image};
use crate::outcome::panic_text;
use crate::vfs::CrashVfs;

/// The longest structure with one checksum in these stores, but for a large value: how far before
/// the damage an error's offset may lie.
const STRUCTURE_BYTES_MAX: u64 = 32 << 10;
/// How far behind the damage: a checksum may stand after what it covers.
const HEADER_BYTES_MAX: u64 = 64;

/// What a file is for, told by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileClass {
    /// The superblock.
    Superblock,
    /// The lock.
    Lock,
    /// What says how far the manifest is durable.
    Durable,
    /// A manifest.
    Manifest,
    /// A segment of the journal.
    Journal,
    /// A data file.
    Data,
}

impl FileClass {
    /// That of a file with this name.
    pub fn of(path: &Path) -> FileClass {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match &*name {
            "SPINNEY" | "SPINNEY.new" => FileClass::Superblock,
            "LOCK" => FileClass::Lock,
            "DURABLE" => FileClass::Durable,
            name if name.starts_with("manifest") => FileClass::Manifest,
            name if name.starts_with("journal") => FileClass::Journal,
            // What a tree keeps itself of what others have in the journal.
            name if name.ends_with(".operations") => FileClass::Journal,
            _ => FileClass::Data,
        }
    }
}

/// What kind of file it is, for counting.
pub fn kind_of(path: &Path) -> String {
    let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    match FileClass::of(path) {
        FileClass::Data => extension,
        class => format!("{class:?}").to_lowercase(),
    }
}

/// Where a file has been changed.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Which bytes.
    pub bytes: Range<u64>,
    /// Whether the file is there and has its length, so that an error has to name the very place.
    pub in_place: bool,
}

/// How damage showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// The store did not open.
    AtOpen,
    /// An answer was an error.
    AtRead,
    /// Only the full check found it.
    AtCheck,
    /// Recovery told of it; the answers are right.
    ByRecovery,
    /// Recovery told of it, and of commits that are gone.
    Shortened,
    /// Not at all: a segment of the journal is gone, cut or of another time, and so is what it
    /// held, of which the manifest does not know.
    Replaced,
    /// Not at all; the answers are right.
    Harmless,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shown::AtOpen => "at open",
            Shown::AtRead => "at read",
            Shown::AtCheck => "by check",
            Shown::ByRecovery => "by recovery",
            Shown::Shortened => "by recovery, with commits lost",
            Shown::Replaced => "not at all, with commits lost",
            Shown::Harmless => "harmless",
        })
    }
}

/// What was judged.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// How the damage showed.
    pub shown: Shown,
    /// How many questions were asked.
    pub operations: u64,
}

/// Judges `files`, which are those of `image` with some `damages`.
///
/// # Errors
/// What the store did that it must not do.
pub fn judge(image: &Image, files: &Files, damages: &[Damage]) -> Result<Verdict, String> {
    let judged = catch_unwind(AssertUnwindSafe(|| open_and_ask(image, files, damages)));
    judged.unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

fn open_and_ask(image: &Image, files: &Files, damages: &[Damage]) -> Result<Verdict, String> {
    let vfs = files.vfs();
    let db = match image.builder(&vfs).open() {
        Ok(db) => db,
        Err(error) => {
            check_error(&error, image, damages).map_err(|what| format!("open: {what}"))?;
            return Ok(Verdict { shown: Shown::AtOpen, operations: 1 });
        }
    };
    let mut answers = Answers::read(&db, image);
    let is_damaged = |class| damages.iter().any(|damage| FileClass::of(&damage.path) == class);
    if is_damaged(FileClass::Manifest) && is_damaged(FileClass::Durable) {
        answers = answers.without(&image.dropped);
    }
    let report = db.check(CheckLevel::Full).map_err(|error| format!("check: {error}"))?;
    let operations = answers.operations + report.entries;
    for error in answers.errors().chain(&report.problems) {
        check_error(error, image, damages)?;
    }
    let recovery = db.recovery();
    let told = differs(&recovery, &image.recovery);
    let closed = &recovery.keyspaces_not_opened;
    if !closed.is_empty() && damages.iter().all(Damage::is_in_data) {
        judge_repaired(image, &vfs, db, damages)
            .map_err(|what| format!("once repaired: {what}"))?;
    }
    let verdict = |shown| Ok(Verdict { shown, operations });
    if let Err(wrong) = answers.agree(&image.states[image.expected]) {
        let in_journal = |damage: &&Damage| FileClass::of(&damage.path) == FileClass::Journal;
        let journal: Vec<&Damage> = damages.iter().filter(in_journal).collect();
        let knows =
            !damages.iter().any(|damage| FileClass::of(&damage.path) == FileClass::Manifest);
        let is_replaced = journal.iter().any(|damage| !damage.in_place);
        let states = image.states.iter().enumerate().rev();
        let mut others = states.filter(|(k, _)| *k < image.expected || is_replaced);
        let Some((k, state)) = others.find(|(_, state)| answers.agree(state).is_ok()) else {
            return Err(format!("wrong answers: {wrong}; {recovery:?}"));
        };
        let lost = format!("holds {k} commits of {} ({} synced)", image.expected, image.synced);
        return match () {
            () if state.values().all(|pairs| pairs.is_empty()) => Err(format!("empty; {lost}")),
            () if journal.is_empty() => Err(format!("{lost}: {wrong}; {recovery:?}")),
            () if told => verdict(Shown::Shortened),
            () if is_replaced && (k >= image.recorded || !knows) => verdict(Shown::Replaced),
            () => Err(format!("{lost} and does not say so: {wrong}; {recovery:?}")),
        };
    }
    match (answers.error(), report.problems.is_empty()) {
        (Some(error), true) => Err(format!("the check finds nothing, but a read: {error}")),
        (Some(_), false) => verdict(Shown::AtRead),
        (None, false) => verdict(Shown::AtCheck),
        (None, true) if told || skips(&recovery, &image.recovery) => verdict(Shown::ByRecovery),
        (None, true) => verdict(Shown::Harmless),
    }
}

/// Keyspaces that could not be opened must have kept all that they had: once the damage is gone
/// they are what they were, whatever has been done to the others meanwhile.
fn judge_repaired(
    image: &Image,
    vfs: &CrashVfs,
    db: Database,
    damages: &[Damage],
) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    let closed = db.recovery().keyspaces_not_opened;
    for name in db.keyspaces().iter().filter(|name| !closed.contains(name)) {
        let keyspace = db.existing_keyspace(name).map_err(said)?;
        // Enough for the journal and the manifest to be cut back, were it not for the closed ones.
        // Those that are open may be damaged too.
        let write = || {
            for number in 0..60u32 {
                keyspace.put(number.to_be_bytes(), [7; 300])?;
            }
            keyspace.flush()
        };
        write().or_else(|error| check_error(&error, image, damages))?;
    }
    db.wait_idle().or_else(|error| check_error(&error, image, damages))?;
    db.close().or_else(|error| check_error(&error, image, damages))?;
    let mut files = Files::of(vfs);
    for damage in damages {
        let whole = image.files.content(&damage.path);
        match (files.content_mut(&damage.path), whole) {
            (Some(damaged), Some(whole)) => *damaged = whole.clone(),
            _ => return Err(format!("{} is gone", damage.path.display())),
        }
    }
    let db = image.builder(&files.vfs()).open().map_err(said)?;
    let answers = Answers::read(&db, image);
    match answers.error() {
        Some(error) => Err(error.to_string()),
        None => answers.agree_in(&closed, &image.states[image.expected]),
    }
}

impl Damage {
    /// Whether what one keyspace alone needs has been changed, and can be put back.
    fn is_in_data(&self) -> bool {
        self.in_place && FileClass::of(&self.path) == FileClass::Data
    }
}

/// Whether recovery tells of more than it does without damage.
fn differs(damaged: &RecoveryReport, undamaged: &RecoveryReport) -> bool {
    damaged.stopped.is_some() && damaged.stopped != undamaged.stopped
        || damaged.manifest_bytes_dropped > undamaged.manifest_bytes_dropped
}

/// Whether recovery tells of more damage that takes nothing.
fn skips(damaged: &RecoveryReport, undamaged: &RecoveryReport) -> bool {
    damaged.journal_damage_skipped.len() > undamaged.journal_damage_skipped.len()
}

/// The places in a damaged file that an error's text names, as `NAME at byte NUMBER`.
fn offsets_of<'a>(text: &'a str, damage: &Damage) -> impl Iterator<Item = u64> + 'a {
    let name = damage.path.file_name().unwrap_or_default().to_string_lossy();
    let lead = format!("{name} at byte ");
    let starts: Vec<usize> = text.match_indices(&lead).map(|(at, _)| at + lead.len()).collect();
    starts.into_iter().filter_map(move |at| {
        let rest = text.get(at..)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest.get(..digits)?.parse().ok()
    })
}

/// Whether an error is one that names the damage.
fn check_error(error: &Error, image: &Image, damages: &[Damage]) -> Result<(), String> {
    let of = |file: &Path| -> Vec<&Damage> {
        damages.iter().filter(|damage| file.file_name() == damage.path.file_name()).collect()
    };
    let in_place = damages.iter().all(|damage| damage.in_place);
    let near = |damage: &Damage, offset: u64| {
        offset <= damage.bytes.end.saturating_add(HEADER_BYTES_MAX)
            && damage.bytes.start < offset + STRUCTURE_BYTES_MAX + image.value_bytes_max
    };
    match error {
        Error::Corruption { file, offset, .. } => {
            let here = of(file);
            if here.is_empty() {
                // Where any of several files may be the damaged one, the error names them all.
                let text = error.to_string();
                let named = |damage: &Damage| offsets_of(&text, damage).any(|at| near(damage, at));
                if damages.iter().any(named) {
                    return Ok(());
                }
                // What is missing or of another time is found out by what contradicts it.
                return if in_place { Err(format!("names another file: {error}")) } else { Ok(()) };
            }
            match here.iter().any(|damage| near(damage, *offset)) || !in_place {
                true => Ok(()),
                false => {
                    let places: Vec<_> = here.iter().map(|damage| &damage.bytes).collect();
                    Err(format!("damage at {places:?}, but: {error}"))
                }
            }
        }
        Error::UnsupportedVersion { file, .. } if !of(file).is_empty() => Ok(()),
        Error::NotAStore { .. } if !in_place => Ok(()),
        error => Err(format!("not an error that names the damage: {error}")),
    }
}
