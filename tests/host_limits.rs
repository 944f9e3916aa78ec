//! What the system may refuse a process: descriptors, long files, io_uring. Each test runs in a process of its
//! own, which is this program once more.
#![cfg(target_os = "linux")]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spinney::vfs::{PosixOptions, PosixVfs};
use spinney::{Database, Error, KeyspaceOptions, TreeKind};

const MARK: &str = "SPINNEY_LIMITED";

/// Whether this is the process for the test. If not, it is started, and `confine` called in it first.
fn is_apart(
    test: &str,
    confine: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
) -> bool {
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(MARK, "1");
    // SAFETY: what tests confine their processes by are system calls.
    let output = unsafe { command.pre_exec(confine) }.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status.signal());
    false
}

fn set_limit(resource: Resource, most: u64) {
    let limit = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(most), maximum: limit.maximum }).unwrap();
}

/// Puts a pair after a shortage. Memtables that could not be written are tried again each second, and writes that
/// need their room are refused until then.
fn put_once_retried(items: &spinney::Keyspace) {
    let started = Instant::now();
    while let Err(error) = items.put("last", "one") {
        assert!(is_of_shortage(&error) && started.elapsed().as_secs() < 5, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_of_shortage(error: &Error) -> bool {
    matches!(error, Error::Full { .. } | Error::TooManyFiles { .. })
}

/// What was refused for want of descriptors once poisoned the store: to make a name durable it opened the
/// directory each time.
#[test]
fn without_descriptors_writes_are_refused_and_the_store_stays_whole() {
    let test = "without_descriptors_writes_are_refused_and_the_store_stays_whole";
    if !is_apart(test, || Ok(())) {
        return;
    }
    for kind in TreeKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let vfs = PosixOptions { open_files_max: 8, ..PosixOptions::default() };
        let open = || {
            Database::builder(dir.path().join("store"))
                .vfs(Arc::new(PosixVfs::with(vfs)))
                .memory_budget(1 << 20)
                .memtable_bytes(64 << 10)
                .open()
        };
        let db = open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        let key = |number: u64| (number * 7919 % 100_003).to_be_bytes();
        let mut written = 0u64;
        while written < 20_000 {
            items.put(key(written), [7; 100]).unwrap();
            written += 1;
        }
        items.flush().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        // Somebody in the process takes every descriptor that there is, as soon as it is free.
        let open_now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        set_limit(Resource::Nofile, open_now + 20);
        let greedy = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                let mut taken = Vec::new();
                while !ended.load(Ordering::SeqCst) {
                    match std::fs::File::open("/dev/null") {
                        Ok(file) => taken.push(file),
                        Err(_) => std::thread::sleep(Duration::from_micros(200)),
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let refused = std::cell::Cell::new(0);
        let refuse = |result: spinney::Result<()>| match result {
            Ok(()) => {}
            Err(Error::TooManyFiles { .. }) => refused.set(refused.get() + 1),
            Err(error) => panic!("{error}"),
        };
        let start = written;
        while written < start + 60_000 {
            match items.put(key(written), [8; 100]) {
                Ok(()) => written += 1,
                result => {
                    refuse(result);
                    std::thread::sleep(Duration::from_millis(1));
                    if refused.get() >= 50 {
                        break;
                    }
                }
            }
        }
        for _ in 0..5 {
            refuse(items.flush());
            refuse(items.compact(..));
            refuse(db.wait_idle());
            refuse(db.checkpoint(dir.path().join("copy")));
            refuse(db.keyspace("another", KeyspaceOptions::new(kind)).map(drop));
            refuse(items.get(key(3)).map(|value| assert!(value.is_some())));
            // What has been written is durable all the same.
            db.sync().unwrap();
            let _ = std::fs::remove_dir_all(dir.path().join("copy"));
        }
        ended.store(true, Ordering::SeqCst);
        greedy.join().unwrap();
        set_limit(Resource::Nofile, before);
        eprintln!("{kind}: {} refused, {written} written", refused.get());
        assert!(refused.get() > 0, "nothing was refused");
        put_once_retried(&items);
        items.compact(..).unwrap();
        db.wait_idle().unwrap();
        let stats = db.stats();
        assert!(stats.open_files <= 8 && stats.open_files_max == 8 && stats.files_reopened > 0);
        let check = |items: &spinney::Keyspace| {
            for number in 0..written {
                assert!(items.get(key(number)).unwrap().is_some(), "{number}");
            }
        };
        check(&items);
        drop(items);
        db.close().unwrap();
        let db = open().unwrap();
        check(&db.existing_keyspace("items").unwrap());
    }
}

/// A file that grows beyond `RLIMIT_FSIZE` ends the process by a signal, unless somebody ignores that.
#[test]
fn beyond_the_limit_on_file_sizes_writes_are_refused_and_the_process_lives() {
    let test = "beyond_the_limit_on_file_sizes_writes_are_refused_and_the_process_lives";
    if !is_apart(test, || Ok(())) {
        return;
    }
    for (kind, io_uring) in TreeKind::ALL.into_iter().flat_map(|kind| [(kind, true), (kind, false)])
    {
        let dir = tempfile::tempdir().unwrap();
        let before = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let vfs = PosixOptions { io_uring, ..PosixOptions::default() };
        let db = Database::builder(dir.path().join("store"))
            .vfs(Arc::new(PosixVfs::with(vfs)))
            .memory_budget(16 << 20)
            .open()
            .unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        items.put("first", "one").unwrap();
        set_limit(Resource::Fsize, 256 << 10);
        let mut written = 0u64;
        let refused = loop {
            match items.put(written.to_be_bytes(), [9; 1000]) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 1_000_000);
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        let flushed = items.flush();
        // What is short enough still gets through.
        assert!(matches!(flushed, Ok(()) | Err(Error::Full { .. })), "{flushed:?}");
        db.sync().unwrap();
        match before {
            u64::MAX => {
                let maximum = getrlimit(Resource::Fsize).maximum;
                setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
            }
            before => set_limit(Resource::Fsize, before),
        }
        put_once_retried(&items);
        items.flush().unwrap();
        db.wait_idle().unwrap();
        assert_eq!(items.iter().filter(Result::is_ok).count() as u64, written + 2);
    }
}

/// As containers do it: the calls are there, and refused.
#[test]
fn where_io_uring_is_forbidden_all_goes_on() {
    unsafe extern "C" {
        fn prctl(option: i32, ...) -> i32;
    }
    #[repr(C)]
    struct Instruction {
        code: u16,
        if_true: u8,
        if_false: u8,
        value: u32,
    }
    #[repr(C)]
    struct Program {
        len: u16,
        instructions: *const Instruction,
    }
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const REFUSE: u32 = 0x0005_0000 | 1; // EPERM
    const ALLOW: u32 = 0x7fff_0000;
    const IO_URING_SETUP: u32 = 425;
    let forbid = || {
        let step = |code, if_true, value| Instruction { code, if_true, if_false: 0, value };
        let instructions = [
            step(LOAD, 0, 0),
            step(JUMP_IF_EQUAL, 1, IO_URING_SETUP),
            step(RETURN, 0, ALLOW),
            step(RETURN, 0, REFUSE),
        ];
        let program = Program { len: 4, instructions: instructions.as_ptr() };
        // SAFETY: PR_SET_NO_NEW_PRIVS takes numbers; PR_SET_SECCOMP a program, which it copies.
        let result = unsafe {
            match prctl(38, 1usize, 0usize, 0usize, 0usize) {
                0 => prctl(22, 2usize, &raw const program),
                refused => refused,
            }
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    if !is_apart("where_io_uring_is_forbidden_all_goes_on", forbid) {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.lines().any(|line| line == "Seccomp:\t2"), "a filter is in place");
    for kind in TreeKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let open = || Database::builder(dir.path()).memory_budget(1 << 20).open().unwrap();
        let db = open();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        for number in 0..20_000u64 {
            items.put((number * 7919 % 20_011).to_be_bytes(), [7; 100]).unwrap();
        }
        items.compact(..).unwrap();
        drop(items);
        db.close().unwrap();
        let items = open().existing_keyspace("items").unwrap();
        let keys = (0..64u64).map(|number| (number * 7919 % 20_011).to_be_bytes());
        assert!(items.multi_get(keys).unwrap().iter().all(Option::is_some));
        assert_eq!(items.iter().filter(Result::is_ok).count(), 20_000);
    }
}
