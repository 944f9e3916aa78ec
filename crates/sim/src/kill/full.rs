//! A full disk: a file system in memory of a few MiB, mounted if the machine allows it. Writers
//! fill the store until they are refused. Refused writes do not exist, acknowledged ones do, and
//! all of them can be read. Once there is room again, writes continue.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use spinney::{CheckLevel, Database, Error};

use super::child::STORE;
use super::frames::Frame;
use super::judge::judge;
use super::rounds::{Rounds, Running};
use super::script::SHARED;

/// A mounted file system of a fixed size, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub fn mount(at: &Path, kibibytes: usize) -> Result<SmallDisk, String> {
        fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
        let size = format!("size={kibibytes}k");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("mount: {error}"))?;
        match output.status.success() {
            true => Ok(SmallDisk(at.to_path_buf())),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        }
    }

    /// Why none can be mounted here; none if one can.
    pub fn missing(at: &Path) -> Option<String> {
        let why = SmallDisk::mount(at, 1024).map(drop).err();
        // Made for this alone.
        let _ = fs::remove_dir(at);
        why
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted", self.0.display());
        }
    }
}

/// How much room is given at once.
const ROOM_KIBIBYTES: u64 = 256;

/// What is taken at first, to be given back piece by piece.
const BALLAST_KIBIBYTES: usize = 8192;

/// What must be left for a kill: the room to open a store whose journal is as large as it gets, and
/// to change its manifest.
const BALLAST_KIBIBYTES_NEEDED: u64 = 4096;

/// What takes the room that is given back.
struct Ballast(PathBuf);

impl Ballast {
    fn new(disk: &Path, kibibytes: usize) -> io::Result<Ballast> {
        let path = disk.join("ballast");
        fs::write(&path, vec![1; kibibytes << 10])?;
        Ok(Ballast(path))
    }

    fn kibibytes(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.0)?.len() >> 10)
    }

    fn shrink(&self, by_kibibytes: u64) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(&self.0)?;
        let len = file.metadata()?.len();
        file.set_len(len.saturating_sub(by_kibibytes << 10))
    }
}

/// A store's life on a small disk, in the directory `dir`, with so many kills.
///
/// # Errors
/// What was promised and is not so.
pub fn live(rounds: &mut Rounds, dir: &Path, kills: usize) -> Result<(), String> {
    let failed = |error: io::Error| format!("the small disk: {error}");
    let disk_dir = dir.join("disk");
    let kibibytes = BALLAST_KIBIBYTES + 2048 + 1024 * rounds.random.below(4);
    let _disk = SmallDisk::mount(&disk_dir, kibibytes)?;
    fs::create_dir(disk_dir.join(STORE)).map_err(failed)?;
    symlink(disk_dir.join(STORE), dir.join(STORE)).map_err(failed)?;
    let ballast = Ballast::new(&disk_dir, BALLAST_KIBIBYTES).map_err(failed)?;
    for _ in 0..kills {
        if ballast.kibibytes().map_err(failed)? < BALLAST_KIBIBYTES_NEEDED {
            break;
        }
        ballast.shrink(ROOM_KIBIBYTES).map_err(failed)?;
        let mut running = rounds.start(None)?;
        let full = until_full(rounds, &mut running)?;
        if full == Full::Refused && rounds.random.one_in(2) {
            ballast.shrink(ROOM_KIBIBYTES).map_err(failed)?;
            goes_on(rounds, &mut running)?;
        }
        let after = rounds.random.below(3000) as u64;
        std::thread::sleep(Duration::from_micros(after));
        rounds.kill(&mut running)?;
        drop(running);
        rounds.keep_what_is_left().map_err(failed)?;
        rounds.outcome.count(match full {
            Full::Refused => "killed when full",
            Full::Poisoned => "killed when full and poisoned",
            Full::NotOpened => "full while opening",
        });
        judge_full(rounds, &ballast)?;
    }
    make_room(rounds, &ballast)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Refused,
    Poisoned,
    NotOpened,
}

/// Listens until a writer is refused.
fn until_full(rounds: &mut Rounds, running: &mut Running) -> Result<Full, String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match running.frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(frame) => {
                rounds.hear(&frame, running)?;
                match frame {
                    Frame::Refused { .. } => return Ok(Full::Refused),
                    Frame::Stopped => return Ok(Full::Poisoned),
                    Frame::NotOpened(_) => return Ok(Full::NotOpened),
                    _ => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => return Err("the disk is never full".to_string()),
            Err(RecvTimeoutError::Disconnected) => return Err("the child has died".to_string()),
        }
    }
}

/// With room again, a writer that was refused is let in; unless the store is poisoned.
fn goes_on(rounds: &mut Rounds, running: &mut Running) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut refused = false;
    loop {
        match running.frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(frame) => {
                rounds.hear(&frame, running)?;
                match frame {
                    Frame::Refused { .. } => refused = true,
                    Frame::Acknowledged { .. } if refused => {
                        rounds.note("went on with room again");
                        return Ok(());
                    }
                    Frame::Stopped => return Ok(()),
                    _ => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err("with room again nobody is let in for 20 s".to_string());
            }
            Err(RecvTimeoutError::Disconnected) => return Err("the child has died".to_string()),
        }
    }
}

/// Opens what is left; if it cannot be for want of room, then with more: no more than the journal
/// has, which replay may have to write into trees, and a mebibyte.
fn open_with_room(rounds: &mut Rounds, ballast: &Ballast) -> Result<Option<Database>, String> {
    let failed = |error: io::Error| format!("the small disk: {error}");
    let journal = journal_kibibytes(&rounds.store()).map_err(failed)?;
    let mut given = 0;
    loop {
        match rounds.script.builder(&rounds.store()).create_if_missing(false).open() {
            Ok(db) => return Ok(Some(db)),
            Err(error @ Error::Full { .. }) if given > journal + 1024 => {
                return Err(format!(
                    "its journal has {journal} KiB, but {given} KiB are not room enough to open it: {error}"
                ));
            }
            Err(Error::Full { .. }) => {
                rounds.note("opened only with room");
                if ballast.kibibytes().map_err(failed)? < ROOM_KIBIBYTES {
                    return Err("the ballast is spent: the test gives too little room".to_string());
                }
                ballast.shrink(ROOM_KIBIBYTES).map_err(failed)?;
                given += ROOM_KIBIBYTES;
            }
            Err(Error::NotAStore { .. }) if !rounds.ledger.opened => return Ok(None),
            Err(error) => return Err(format!("open on a full disk: {error}")),
        }
    }
}

/// What the files of the journal take on the disk.
fn journal_kibibytes(store: &Path) -> io::Result<u64> {
    let mut sectors = 0;
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("journal-") {
            sectors += entry.metadata()?.blocks();
        }
    }
    Ok(sectors / 2)
}

/// Judges what is left.
fn judge_full(rounds: &mut Rounds, ballast: &Ballast) -> Result<(), String> {
    if let Some(db) = open_with_room(rounds, ballast)? {
        let findings = judge(&db, &rounds.ledger)?;
        rounds.ledger.settle(&findings);
        rounds.ledger.opened = true;
    }
    Ok(())
}

/// Dropping a keyspace, deleting and compacting make room, and what was refused before is taken
/// then.
fn make_room(rounds: &mut Rounds, ballast: &Ballast) -> Result<(), String> {
    let Some(db) = open_with_room(rounds, ballast)? else { return Ok(()) };
    let failed = |what: &str, error: Error| format!("making room: {what}: {error}");
    for keyspace in db.keyspaces().iter().filter(|name| *name != SHARED[0]) {
        match db.drop_keyspace(keyspace) {
            Ok(()) => {}
            // A manifest that cannot grow takes nothing more until it is opened again.
            Err(Error::Full { .. } | Error::Poisoned { .. }) => {
                rounds.note("dropped only with room");
                drop(db);
                ballast.shrink(1024).map_err(|error| format!("the small disk: {error}"))?;
                let Some(db) = open_with_room(rounds, ballast)? else { return Ok(()) };
                for keyspace in db.keyspaces().iter().filter(|name| *name != SHARED[0]) {
                    db.drop_keyspace(keyspace).map_err(|error| failed("drop", error))?;
                }
                return fill_again(rounds, db);
            }
            Err(error) => return Err(failed("drop", error)),
        }
    }
    fill_again(rounds, db)
}

fn fill_again(rounds: &mut Rounds, db: Database) -> Result<(), String> {
    let failed = |what: &str, error: Error| format!("with room made: {what}: {error}");
    let plain = db.existing_keyspace(SHARED[0]).map_err(|error| failed("keyspace", error))?;
    let keys: Vec<_> = plain.iter().filter_map(|pair| Some(pair.ok()?.0)).collect();
    let deadline = Instant::now() + Duration::from_secs(20);
    for key in keys.iter().map(|key| &key[..]).chain([&b"later"[..]]) {
        loop {
            let done = if key == b"later" { plain.put(key, "value") } else { plain.delete(key) };
            match done {
                Ok(()) => break,
                // What was dropped goes in the background.
                Err(Error::Full { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(failed("write", error)),
            }
        }
    }
    plain.compact(..).map_err(|error| failed("compact", error))?;
    let left: Vec<_> = plain.iter().collect::<Result<_, _>>().map_err(|e| failed("read", e))?;
    let report = db.check(CheckLevel::Full).map_err(|error| failed("check", error))?;
    let well = left.len() == 1 && report.problems.is_empty();
    rounds.note("made room");
    match well {
        true => db.close().map_err(|error| failed("close", error)),
        false => Err(format!("with room made: {} pairs, {:?}", left.len(), report.problems)),
    }
}
