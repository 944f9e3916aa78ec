//! What only files on a disk can go through: other processes, full disks, refused features.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::conformance::{a_full_disk_is_an_error, kind};
use super::posix_file::PosixFile;
use super::{Access, AlignedBuf, File, PosixOptions, PosixVfs, Vfs};
use crate::base::error::Error;

/// A file system in memory of 1 MiB, gone at the end of the test.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount() -> Option<TinyDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path());
        match mount.output() {
            Ok(output) if output.status.success() => Some(TinyDisk(dir)),
            _ => {
                eprintln!("skipped: mounting a tmpfs takes root");
                None
            }
        }
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_full_file_system_is_an_error() {
    for (direct, io_uring) in [(true, true), (true, false), (false, true), (false, false)] {
        let Some(disk) = TinyDisk::mount() else { return };
        let vfs = PosixVfs::with(PosixOptions { direct, io_uring, open_files_max: 2 });
        a_full_disk_is_an_error(&vfs, disk.0.path(), 1 << 20);
    }
}

#[test]
fn more_than_the_disk_has_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let statistics = rustix::fs::statvfs(dir.path()).unwrap();
    let needed = (statistics.f_bfree * statistics.f_frsize).max(1 << 30) * 2;
    let path = dir.path().join("segment");
    let refused = PosixVfs::new().create_mapped(&path, needed).map(|_| ());
    assert!(
        matches!(&refused, Err(Error::Full { path: p, needed: n }) if *p == path && *n == needed),
        "{refused:?}"
    );
    assert!(!path.exists());
}

#[test]
fn files_that_cannot_be_direct_are_buffered() {
    // procfs knows no direct I/O.
    let file = fs::File::open("/proc/version").unwrap();
    let file = PosixFile::new(file, Path::new("/proc/version"), Access::Direct, true);
    assert!(!file.is_direct());
    let mut buf = AlignedBuf::new(4096);
    assert_eq!(kind(file.read_at(0, &mut buf)), io::ErrorKind::UnexpectedEof);
    assert!(buf.starts_with(b"Linux version"));
}

#[test]
fn direct_io_can_be_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let open = |allowed| {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        PosixFile::new(file.unwrap(), &path, Access::Direct, allowed)
    };
    assert!(!open(false).is_direct());
    let buffered = PosixFile::new(fs::File::open(&path).unwrap(), &path, Access::Buffered, true);
    assert!(!buffered.is_direct());
}

/// Two threads read a file for the first time, on a file system that takes `O_DIRECT` and refuses
/// the reads. One turned the file to buffered reads; the other, whose refusal was then of a file
/// that seemed to be buffered, failed. The same for writes, and for what a ring hands back.
#[test]
fn all_who_are_refused_at_once_go_on_buffered() {
    const THREADS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, [9; 4 * 4096]).unwrap();
    for round in 0..1000 {
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut file = PosixFile::new(file, &path, Access::Direct, true);
        file.refuses_direct = true;
        if !file.is_direct() {
            return; // nothing to refuse here
        }
        let together = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, together) = (&file, &together);
                scope.spawn(move || {
                    let mut buf = AlignedBuf::new(4096);
                    buf.fill(9);
                    together.wait();
                    match (round + thread) % 3 {
                        0 => file.write_at(thread as u64 * 4096, &buf).unwrap(),
                        _ => file.read_at(thread as u64 * 4096, &mut buf).unwrap(),
                    }
                    assert!(buf.iter().all(|byte| *byte == 9));
                });
            }
        });
        assert!(!file.is_direct());
    }
}

#[test]
fn the_holder_of_a_lock_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let vfs = PosixVfs::new();
    // Left behind by a process that died: no lock, whatever it says.
    fs::write(&path, "4000000\nand more").unwrap();
    let held = vfs.lock(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    drop(held);
    assert_eq!(fs::read_to_string(&path).unwrap(), "");

    // Held by something that does not say who it is.
    let stranger = fs::File::open(&path).unwrap();
    stranger.lock().unwrap();
    let refused = vfs.lock(&path).map(|_| ());
    assert!(matches!(&refused, Err(Error::Locked { holder: None, .. })), "{refused:?}");

    fs::write(&path, "123\n").unwrap();
    let message = vfs.lock(&path).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("is already open by process 123;"), "{message}");
}

#[test]
fn names_that_are_links_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = PosixVfs::new();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("f"), "four").unwrap();
    for (from, to) in [("d", "to_d"), ("f", "to_f"), ("nothing", "to_nothing")] {
        std::os::unix::fs::symlink(from, dir.path().join(to)).unwrap();
    }
    let entries = vfs.read_dir(dir.path()).unwrap();
    let is_dir: Vec<(&str, bool)> = entries.iter().map(|e| (&*e.name, e.is_dir)).collect();
    let expected = [("d", true), ("f", false), ("to_d", true), ("to_f", false)];
    assert_eq!(is_dir[..4], expected);
    assert_eq!(entries[3].len, 4);
    assert_eq!(is_dir[4], ("to_nothing", false));
}

#[test]
fn one_file_serves_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = PosixVfs::new();
    let file: Arc<dyn File> = vfs.create(&dir.path().join("a"), Access::Direct).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (vfs, file) = (&vfs, &file);
            scope.spawn(move || {
                let mut queue = vfs.io_queue(4);
                let tickets: Vec<_> = (0..32u64)
                    .map(|i| {
                        let mut buf = AlignedBuf::new(4096);
                        buf.fill(thread);
                        queue.submit_write(file, (i * 4 + u64::from(thread)) * 4096, buf, 4096)
                    })
                    .collect();
                for ticket in tickets.into_iter().rev() {
                    queue.wait(ticket).1.unwrap();
                }
            });
        }
    });
    let mut buf = AlignedBuf::new(128 * 4096);
    file.read_at(0, &mut buf).unwrap();
    assert!(buf.chunks(4096).enumerate().all(|(i, unit)| unit.iter().all(|&b| b == i as u8 % 4)));
}
