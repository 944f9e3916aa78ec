//! What every [`Vfs`] promises, tested alike on all of them: here on those of this crate, and with
//! the feature `conformance` ([`PROMISES`]) on others that tests use.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
#[cfg(test)]
use std::path::PathBuf;
use std::sync::Arc;

use super::{
    Access, AlignedBuf, DirEntry, File, IoTicket, MappedFile, MemoryVfs, ReadRequest, Vfs,
};
use crate::base::error::{Error, Result};
use crate::base::random::SplitMix;

pub(super) fn kind<T>(result: Result<T>) -> io::ErrorKind {
    match result.map(|_| ()) {
        Err(Error::Io { source, .. }) => source.kind(),
        other => panic!("an I/O error was expected, not {other:?}"),
    }
}

fn entry(name: &str, len: u64) -> DirEntry {
    DirEntry { name: name.to_string(), len, is_dir: false }
}

const STEPS: usize = if cfg!(miri) { 10 } else { 300 };

fn created_names_are_listed_and_unique(vfs: &dyn Vfs, dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    assert_eq!(kind(vfs.open(&a, Access::Buffered, true)), io::ErrorKind::NotFound);
    vfs.create(&b, Access::Buffered).unwrap().write_at(0, b"xyz").unwrap();
    vfs.create(&a, Access::Direct).unwrap();
    assert_eq!(kind(vfs.create(&a, Access::Buffered)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(vfs.create_mapped(&a, 4096)), io::ErrorKind::AlreadyExists);
    vfs.sync_dir(dir).unwrap();
    assert!(vfs.exists(&a).unwrap() && !vfs.exists(&dir.join("c")).unwrap());
    assert_eq!(vfs.read_dir(dir).unwrap(), [entry("a", 0), entry("b", 3)]);
    assert_eq!(vfs.read_names(dir).unwrap(), ["a", "b"]);
    assert_eq!(vfs.open(&a, Access::Buffered, false).unwrap().path(), a);

    vfs.remove(&a).unwrap();
    assert_eq!(kind(vfs.remove(&a)), io::ErrorKind::NotFound);
    assert_eq!(vfs.read_dir(dir).unwrap(), [entry("b", 3)]);
    assert_eq!(kind(vfs.create(&b.join("x"), Access::Buffered)), io::ErrorKind::NotADirectory);
}

fn directories_nest(vfs: &dyn Vfs, dir: &Path) {
    let deep = dir.join("one/two");
    assert_eq!(kind(vfs.create(&deep.join("f"), Access::Buffered)), io::ErrorKind::NotFound);
    assert_eq!(kind(vfs.read_dir(&deep)), io::ErrorKind::NotFound);
    assert_eq!(kind(vfs.read_names(&deep)), io::ErrorKind::NotFound);
    assert_eq!(kind(vfs.sync_dir(&deep)), io::ErrorKind::NotFound);
    vfs.create_dir_all(&deep).unwrap();
    vfs.create_dir_all(&deep).unwrap();
    vfs.create(&deep.join("f"), Access::Buffered).unwrap();
    // A name that continues the directory's must not be taken for a child of it.
    vfs.create(&dir.join("one-more"), Access::Buffered).unwrap();
    let one = DirEntry { name: "one".to_string(), len: 0, is_dir: true };
    assert_eq!(vfs.read_dir(dir).unwrap(), [one, entry("one-more", 0)]);
    assert_eq!(vfs.read_names(dir).unwrap(), ["one", "one-more"]);
    assert_eq!(vfs.read_dir(&deep).unwrap(), [entry("f", 0)]);
    assert_eq!(kind(vfs.remove_dir(&deep)), io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(vfs.remove(&deep)), io::ErrorKind::IsADirectory);
    assert_eq!(kind(vfs.remove_dir(&deep.join("f"))), io::ErrorKind::NotADirectory);
    let file_in_the_way = deep.join("f/g");
    assert_eq!(kind(vfs.create_dir_all(&file_in_the_way)), io::ErrorKind::NotADirectory);

    // A directory moves with what is in it.
    vfs.rename(&dir.join("one"), &dir.join("three")).unwrap();
    assert!(vfs.exists(&dir.join("three/two/f")).unwrap());
    assert!(!vfs.exists(&deep).unwrap());
    vfs.remove(&dir.join("three/two/f")).unwrap();
    vfs.remove_dir(&dir.join("three/two")).unwrap();
    vfs.remove_dir(&dir.join("three")).unwrap();
    assert_eq!(vfs.read_dir(dir).unwrap(), [entry("one-more", 0)]);
}

fn read(vfs: &dyn Vfs, path: &Path) -> Vec<u8> {
    let file = vfs.open(path, Access::Buffered, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn names_are_exchanged_or_stay(vfs: &dyn Vfs, dir: &Path) {
    let [a, b] = ["a", "b"].map(|name| dir.join(name));
    for (dir, file) in [(&a, "first"), (&b, "second")] {
        vfs.create_dir_all(dir).unwrap();
        vfs.create(&dir.join(file), Access::Buffered).unwrap();
    }
    let names = |dir: &Path| vfs.read_names(dir).unwrap();
    match vfs.exchange(&a, &b) {
        Ok(()) => assert_eq!((names(&a), names(&b)), (vec!["second".into()], vec!["first".into()])),
        Err(error) => {
            assert_eq!(kind(Err::<(), _>(error)), io::ErrorKind::Unsupported);
            assert_eq!((names(&a), names(&b)), (vec!["first".into()], vec!["second".into()]));
            return;
        }
    }
    // A file and a directory.
    vfs.exchange(&a.join("second"), &b).unwrap();
    assert_eq!(names(&a.join("second")), ["first"]);
    assert_eq!(kind(vfs.exchange(&a, &dir.join("c"))), io::ErrorKind::NotFound);
}

fn renames_replace_and_links_share(vfs: &dyn Vfs, dir: &Path) {
    let [a, b, c] = ["a", "b", "c"].map(|name| dir.join(name));
    let first = vfs.create(&a, Access::Buffered).unwrap();
    first.write_at(0, b"first").unwrap();
    let second = vfs.create(&b, Access::Buffered).unwrap();
    second.write_at(0, b"second").unwrap();

    vfs.rename(&a, &b).unwrap();
    assert!(!vfs.exists(&a).unwrap());
    assert_eq!(read(vfs, &b), b"first");
    // The replaced file lives on in its handle, and takes writes.
    second.write_at(6, b"!").unwrap();
    let mut bytes = [0; 7];
    second.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"second!");

    assert_eq!(kind(vfs.hard_link(&a, &c)), io::ErrorKind::NotFound);
    vfs.hard_link(&b, &c).unwrap();
    assert_eq!(kind(vfs.hard_link(&b, &c)), io::ErrorKind::AlreadyExists);
    first.write_at(0, b"FIRST").unwrap();
    assert_eq!(read(vfs, &c), b"FIRST");
    // Two names of one file: POSIX has the rename do nothing.
    vfs.rename(&b, &c).unwrap();
    assert!(vfs.exists(&b).unwrap() && vfs.exists(&c).unwrap());
    vfs.remove(&b).unwrap();
    assert_eq!(read(vfs, &c), b"FIRST");

    assert_eq!(kind(vfs.rename(&a, &b)), io::ErrorKind::NotFound);
    vfs.create_dir_all(&dir.join("d")).unwrap();
    assert_eq!(kind(vfs.rename(&c, &dir.join("d"))), io::ErrorKind::IsADirectory);
    assert_eq!(kind(vfs.rename(&dir.join("d"), &c)), io::ErrorKind::NotADirectory);
}

fn a_removed_file_lives_while_it_is_open(vfs: &dyn Vfs, dir: &Path) {
    let path = dir.join("a");
    let file = vfs.create(&path, Access::Buffered).unwrap();
    file.write_at(0, b"old").unwrap();
    vfs.remove(&path).unwrap();
    let new = vfs.create(&path, Access::Buffered).unwrap();
    new.write_at(0, b"newer").unwrap();
    let mut bytes = [0; 3];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!((&bytes, file.len().unwrap()), (b"old", 3));
    assert_eq!(read(vfs, &path), b"newer");
}

fn short_reads_are_errors(vfs: &dyn Vfs, dir: &Path) {
    let path = dir.join("a");
    let file = vfs.create(&path, Access::Buffered).unwrap();
    file.write_at(0, &[7; 6000]).unwrap();
    file.sync().unwrap();
    assert!(!file.is_empty().unwrap());
    file.read_at(6000, &mut []).unwrap();
    for (offset, len) in [(0, 6001), (6000, 1), (5999, 2), (1 << 30, 10)] {
        let result = file.read_at(offset, &mut vec![0; len]);
        assert!(
            matches!(&result, Err(Error::Io { op: "read", path: p, offset: Some(o), .. })
                if *p == path && *o == offset),
            "{result:?}"
        );
        assert_eq!(kind(result), io::ErrorKind::UnexpectedEof);
    }
    // Also where the file ends inside a direct read's last unit.
    let direct = vfs.open(&path, Access::Direct, false).unwrap();
    let mut buf = AlignedBuf::new(8192);
    assert_eq!(kind(direct.read_at(0, &mut buf)), io::ErrorKind::UnexpectedEof);
    assert_eq!(kind(direct.read_at(4096, &mut buf[..4096])), io::ErrorKind::UnexpectedEof);
    direct.read_at(0, &mut buf[..4096]).unwrap();
    assert!(buf[..4096] == [7; 4096]);

    assert!(vfs.open(&path, Access::Buffered, false).unwrap().write_at(0, b"x").is_err());
    assert!(vfs.open(&path, Access::Buffered, false).unwrap().truncate(1).is_err());
}

fn random_writes_match_a_model(vfs: &dyn Vfs, dir: &Path) {
    let span = if cfg!(miri) { 16 * 1024 } else { 200 * 1024 };
    for (name, access, unit) in [("b", Access::Buffered, 1), ("d", Access::Direct, 4096)] {
        let mut random = SplitMix::new(1);
        let file = vfs.create(&dir.join(name), access).unwrap();
        let mut model: Vec<u8> = Vec::new();
        let mut buf = AlignedBuf::new(span / 3);
        for _ in 0..STEPS {
            let offset = random.index(span) / unit * unit;
            let len = (random.index(buf.len()) / unit).max(1) * unit;
            match random.index(8) {
                0..4 => {
                    random.fill(&mut buf[..len]);
                    file.write_at(offset as u64, &buf[..len]).unwrap();
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&buf[..len]);
                }
                4 => {
                    file.truncate(offset as u64).unwrap();
                    model.resize(offset, 0);
                }
                _ => {
                    let result = file.read_at(offset as u64, &mut buf[..len]);
                    match model.get(offset..offset + len) {
                        Some(bytes) => {
                            result.unwrap();
                            assert!(bytes == &buf[..len], "{len} bytes at {offset}");
                        }
                        None => assert_eq!(kind(result), io::ErrorKind::UnexpectedEof),
                    }
                }
            }
            assert_eq!(file.len().unwrap(), model.len() as u64);
        }
        file.sync().unwrap();
        assert!(read(vfs, &dir.join(name)) == model);
    }
}

/// A file of `units` units, each filled with its number.
fn numbered_file(vfs: &dyn Vfs, path: &Path, units: usize) -> Arc<dyn File> {
    let file = vfs.create(path, Access::Direct).unwrap();
    let mut buf = AlignedBuf::new(units * 4096);
    for (unit, bytes) in buf.chunks_mut(4096).enumerate() {
        bytes.fill(unit as u8);
    }
    file.write_at(0, &buf).unwrap();
    file
}

fn batches_answer_each_request(vfs: &dyn Vfs, dir: &Path) {
    let mut random = SplitMix::new(2);
    let (path, in_memory) = (dir.join("a"), MemoryVfs::new());
    let disk = numbered_file(vfs, &path, 64);
    let buffered = vfs.open(&path, Access::Buffered, false).unwrap();
    let memory = numbered_file(&in_memory, Path::new("m"), 64);
    let counts: &[usize] = if cfg!(miri) { &[0, 1, 5] } else { &[0, 1, 2, 3, 63, 64, 65, 500] };
    for &count in counts {
        let places: Vec<(usize, usize)> = (0..count)
            .map(|_| (random.index(70), if random.index(4) == 0 { 3 } else { 1 }))
            .collect();
        let mut bufs: Vec<AlignedBuf> =
            places.iter().map(|&(_, units)| AlignedBuf::new(units * 4096)).collect();
        let mut requests: Vec<ReadRequest<'_>> = bufs
            .iter_mut()
            .zip(&places)
            .map(|(buf, &(unit, _))| ReadRequest {
                file: match unit % 3 {
                    0 => &*memory,
                    1 => &*buffered,
                    _ => &*disk,
                },
                offset: unit as u64 * 4096,
                buf: &mut buf[..],
                result: Ok(()),
            })
            .collect();
        vfs.read_batch(&mut requests);
        let results: Vec<Result<()>> = requests.into_iter().map(|r| r.result).collect();
        for (((unit, units), buf), result) in places.into_iter().zip(&bufs).zip(results) {
            if unit + units <= 64 {
                result.unwrap();
                for (i, bytes) in buf.chunks(4096).enumerate() {
                    assert!(*bytes == [(unit + i) as u8; 4096]);
                }
            } else {
                let at = (unit * 4096) as u64;
                assert!(
                    matches!(&result, Err(Error::Io { offset: Some(o), .. }) if *o == at),
                    "{result:?}"
                );
                assert_eq!(kind(result), io::ErrorKind::UnexpectedEof);
            }
        }
    }
}

fn queues_move_the_right_bytes(vfs: &dyn Vfs, dir: &Path) {
    let mut random = SplitMix::new(3);
    let in_memory = MemoryVfs::new();
    let files: [Arc<dyn File>; 3] = [
        vfs.create(&dir.join("d"), Access::Direct).unwrap(),
        vfs.create(&dir.join("b"), Access::Buffered).unwrap(),
        in_memory.create(Path::new("m"), Access::Direct).unwrap(),
    ];
    const SLOTS: usize = 24;
    const SLOT_BYTES: usize = 12 * 1024;
    for file in &files {
        file.truncate((SLOTS * SLOT_BYTES) as u64).unwrap();
    }
    let mut model = vec![vec![0u8; SLOT_BYTES]; SLOTS * files.len()];
    // What each slot has in flight: the ticket and what a read must find.
    let mut busy: Vec<Option<(IoTicket, Option<Vec<u8>>)>> = vec![None; model.len()];
    let mut queue = vfs.io_queue(7);
    for _ in 0..STEPS * 3 {
        let slot = random.index(model.len());
        if let Some((ticket, expected)) = busy[slot].take() {
            let (buf, result) = queue.wait(ticket);
            result.unwrap();
            assert_eq!(buf.len(), SLOT_BYTES);
            assert!(expected.is_none_or(|bytes| bytes == buf[..]), "slot {slot}");
            continue;
        }
        let file = &files[slot % files.len()];
        let offset = (slot / files.len() * SLOT_BYTES) as u64;
        let mut buf = AlignedBuf::new(SLOT_BYTES);
        busy[slot] = Some(if random.index(2) == 0 {
            (queue.submit_read(file, offset, buf), Some(model[slot].clone()))
        } else {
            random.fill(&mut buf);
            let len = 4096 * (1 + random.index(3));
            model[slot][..len].copy_from_slice(&buf[..len]);
            (queue.submit_write(file, offset, buf, len), None)
        });
    }
    // What is in flight when the queue goes has been carried out by then.
    drop(queue);
    for (slot, expected) in model.iter().enumerate() {
        let mut buf = AlignedBuf::new(SLOT_BYTES);
        let offset = (slot / files.len() * SLOT_BYTES) as u64;
        files[slot % files.len()].read_at(offset, &mut buf).unwrap();
        assert!(expected[..] == buf[..], "slot {slot}");
    }
}

fn queues_report_errors_and_move_between_threads(vfs: &dyn Vfs, dir: &Path) {
    let path = dir.join("a");
    let file = numbered_file(vfs, &path, 4);
    let mut queue = vfs.io_queue(2);
    let good = queue.submit_read(&file, 8192, AlignedBuf::new(8192));
    let short = queue.submit_read(&file, 12288, AlignedBuf::new(8192));
    let read_only = vfs.open(&path, Access::Direct, false).unwrap();
    let refused = queue.submit_write(&read_only, 4096, AlignedBuf::new(4096), 4096);
    let later = queue.submit_read(&file, 4096, AlignedBuf::new(4096));
    let waiter = std::thread::spawn(move || {
        let (_, result) = queue.wait(refused);
        assert!(matches!(&result, Err(Error::Io { op: "write", .. })), "{result:?}");
        let (buf, result) = queue.wait(short);
        assert!(
            matches!(&result, Err(Error::Io { op: "read", offset: Some(12288), path: p, .. })
                if *p == path),
            "{result:?}"
        );
        assert_eq!(kind(result), io::ErrorKind::UnexpectedEof);
        assert_eq!(buf.len(), 8192);
        let (buf, result) = queue.wait(good);
        result.unwrap();
        assert!(buf[..4096] == [2; 4096] && buf[4096..] == [3; 4096]);
        let again = catch_unwind(AssertUnwindSafe(|| queue.wait(good)));
        assert!(again.is_err(), "a ticket is good for one wait");
        queue.wait(later).1.unwrap();
    });
    waiter.join().unwrap();
}

fn locks_exclude(vfs: &dyn Vfs, dir: &Path) {
    let path = dir.join("LOCK");
    let held = vfs.lock(&path).unwrap();
    let refused = vfs.lock(&path).map(|_| ());
    let here = format!(" by process {}", std::process::id());
    assert!(
        matches!(&refused, Err(Error::Locked { path: p, holder: Some(h) })
            if *p == path && *h == here),
        "{refused:?}"
    );
    let refused = vfs.lock_shared(&path).map(|_| ());
    assert!(
        matches!(&refused, Err(Error::Locked { path: p, holder: Some(h) })
            if *p == path && *h == here),
        "{refused:?}"
    );
    drop(held);
    drop(vfs.lock(&path).unwrap());
    let shared = [vfs.lock_shared(&path).unwrap(), vfs.lock_shared(&path).unwrap()];
    for held in shared {
        let refused = vfs.lock(&path).map(|_| ());
        assert!(
            matches!(&refused, Err(Error::Locked { path: p, holder: Some(h) })
                if *p == path && h == " for reading"),
            "{refused:?}"
        );
        drop(held);
    }
    drop(vfs.lock(&path).unwrap());
    // Without the file too, which sharing does not make.
    let other = dir.join("other/LOCK");
    vfs.create_dir_all(&dir.join("other")).unwrap();
    let shared = vfs.lock_shared(&other).unwrap();
    assert!(!vfs.exists(&other).unwrap());
    let refused = vfs.lock(&other).map(|_| ());
    assert!(matches!(&refused, Err(Error::Locked { .. })), "{refused:?}");
    drop(shared);
    drop(vfs.lock(&other).unwrap());
    assert_eq!(kind(vfs.lock_shared(&dir.join("missing/LOCK"))), io::ErrorKind::NotFound);
    assert_eq!(kind(vfs.lock(&dir.join("missing/LOCK"))), io::ErrorKind::NotFound);
}

fn mapped_files_keep_what_is_written(vfs: &dyn Vfs, dir: &Path) {
    const LEN: usize = if cfg!(miri) { 4000 } else { 100 * 1000 };
    let path = dir.join("segment");
    let invalid = vfs.create_mapped(&path, 0);
    assert!(matches!(invalid, Err(Error::InvalidArgument { .. })), "{invalid:?}");
    let mapped: Arc<dyn MappedFile> = vfs.create_mapped(&path, LEN as u64).unwrap();
    assert_eq!((mapped.len(), mapped.is_empty(), mapped.path()), (LEN as u64, false, &*path));
    assert!(read(vfs, &path) == [0; LEN]);

    // Four writers, each in its own quarter, as shards of a journal.
    let mut model = vec![0u8; LEN];
    std::thread::scope(|scope| {
        for (writer, quarter) in model.chunks_mut(LEN / 4).enumerate() {
            let mapped = &mapped;
            scope.spawn(move || {
                let mut random = SplitMix::new(writer as u64);
                let mut at = 0;
                while at < quarter.len() {
                    let len = (1 + random.index(600)).min(quarter.len() - at);
                    random.fill(&mut quarter[at..at + len]);
                    mapped.write((writer * LEN / 4 + at) as u64, &quarter[at..at + len]);
                    at += len;
                }
            });
        }
    });
    // Another handle sees it before it is synced.
    assert!(read(vfs, &path) == model);
    mapped.check().unwrap();
    mapped.sync().unwrap();
    mapped.write(LEN as u64, &[]);
    for (offset, len) in [(LEN as u64, 1), (LEN as u64 - 1, 2), (u64::MAX, 2)] {
        let outside = catch_unwind(AssertUnwindSafe(|| mapped.write(offset, &vec![0; len])));
        assert!(outside.is_err(), "{len} bytes at {offset}");
    }
    mapped.write(LEN as u64 - 1, b"\xff");
    mapped.seal().unwrap();
    mapped.seal().unwrap();
    mapped.sync().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| mapped.write(0, b"late"))).is_err());
    drop(mapped);
    model[LEN - 1] = 0xff;
    assert!(read(vfs, &path) == model);
}

/// `room` is about how much the file system still takes.
#[cfg(test)]
pub(super) fn a_full_disk_is_an_error(vfs: &dyn Vfs, dir: &Path, room: u64) {
    let path = dir.join("large");
    let refused = vfs.create_mapped(&path, room * 2).map(|_| ());
    assert!(
        matches!(&refused, Err(Error::Full { path: p, needed }) if *p == path && *needed == room * 2),
        "{refused:?}"
    );
    assert_eq!(vfs.read_dir(dir).unwrap(), [], "nothing is left behind");
    for access in [Access::Buffered, Access::Direct] {
        let file = vfs.create(&path, access).unwrap();
        let mut queue = vfs.io_queue(4);
        let mut offset = 0;
        let (full, queued) = loop {
            let chunk = AlignedBuf::new(64 * 1024);
            if let Err(e) = file.write_at(offset, &chunk) {
                let ticket = queue.submit_write(&file, offset, chunk, 64 * 1024);
                break (e, queue.wait(ticket).1);
            }
            offset += 64 * 1024;
            assert!(offset <= room * 2, "the disk never fills up");
        };
        for e in [Some(full), queued.err()] {
            assert!(
                matches!(&e, Some(Error::Full { path: p, needed: 65536 }) if *p == path),
                "{e:?}"
            );
        }
        drop(file);
        vfs.remove(&path).unwrap();
    }
    // There is room again, and a reservation takes it from everybody else.
    let mapped = vfs.create_mapped(&path, room - room / 8).unwrap();
    let other = vfs.create(&dir.join("other"), Access::Buffered).unwrap();
    let refused = other.write_at(0, &vec![1; (room / 4) as usize]);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    let bytes = vec![2; (room - room / 8) as usize];
    mapped.write(0, &bytes);
    mapped.sync().unwrap();
    assert!(read(vfs, &path) == bytes);
}

/// Tests a promise on a file system, in a directory of it that is empty.
pub type Promise = fn(&dyn Vfs, &Path);

/// Names all promises to `$then!`.
macro_rules! each_promise {
    ($then:ident $given:tt) => {
        $then! {
            $given
            created_names_are_listed_and_unique,
            directories_nest,
            renames_replace_and_links_share,
            names_are_exchanged_or_stay,
            a_removed_file_lives_while_it_is_open,
            short_reads_are_errors,
            random_writes_match_a_model,
            batches_answer_each_request,
            queues_move_the_right_bytes,
            queues_report_errors_and_move_between_threads,
            locks_exclude,
            mapped_files_keep_what_is_written,
        }
    };
}

macro_rules! table {
    (() $($promise:ident,)*) => {
        /// All promises, with their names.
        pub const PROMISES: &[(&str, Promise)] = &[$((stringify!($promise), $promise),)*];
    };
}

each_promise!(table());

#[cfg(test)]
macro_rules! tests {
    (($start:expr) $($promise:ident,)*) => {
        $(#[test]
        fn $promise() {
            let (vfs, dir, _guard) = $start;
            super::$promise(&vfs, &dir);
        })*
    };
}

#[cfg(test)]
macro_rules! conformance {
    ($($(#[$attribute:meta])* mod $place:ident = $start:expr;)*) => {
        $($(#[$attribute])* mod $place {
            each_promise!(tests($start));
        })*
    };
}

#[cfg(test)]
fn in_memory() -> (MemoryVfs, PathBuf, ()) {
    let (vfs, dir) = (MemoryVfs::new(), PathBuf::from("/some/store"));
    vfs.create_dir_all(&dir).unwrap();
    (vfs, dir, ())
}

#[cfg(all(test, not(miri)))]
fn on_disk(direct: bool, io_uring: bool) -> (super::PosixVfs, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let vfs = super::PosixVfs::with(super::PosixOptions { direct, io_uring, open_files_max: 2 });
    (vfs, dir.path().to_path_buf(), dir)
}

#[cfg(test)]
conformance! {
    mod memory = super::in_memory();
    #[cfg(not(miri))]
    mod posix_direct_ring = super::on_disk(true, true);
    #[cfg(not(miri))]
    mod posix_direct = super::on_disk(true, false);
    #[cfg(not(miri))]
    mod posix_buffered_ring = super::on_disk(false, true);
    #[cfg(not(miri))]
    mod posix_buffered = super::on_disk(false, false);
}

#[test]
fn memory_of_a_given_capacity_fills_up() {
    let room = 1 << 20;
    let vfs = MemoryVfs::with_capacity(room);
    a_full_disk_is_an_error(&vfs, Path::new("/"), room);
    assert!(vfs.used_bytes() > 0);
    for entry in vfs.read_dir(Path::new("/")).unwrap() {
        vfs.remove(Path::new(&entry.name)).unwrap();
    }
    assert_eq!(vfs.used_bytes(), 0);
}

#[test]
#[cfg(debug_assertions)]
fn a_direct_file_insists_on_aligned_units() {
    let (vfs, dir, _guard) = in_memory();
    let file = vfs.create(&dir.join("a"), Access::Direct).unwrap();
    let mut buf = AlignedBuf::new(8192);
    file.write_at(0, &buf).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| file.write_at(1, &buf[..4096]))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| file.write_at(0, &buf[..100]))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| file.read_at(0, &mut buf[1..4097]))).is_err());
    file.read_at(4096, &mut buf[..4096]).unwrap();
}
