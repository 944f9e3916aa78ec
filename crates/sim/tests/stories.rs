//! What simulated crashes have found, each told as the shortest story that shows it.

use std::path::Path;
use std::sync::Arc;

use spinney::vfs::Vfs;
use spinney::{Builder, Database, Durability, KeyspaceOptions};
use spinney_sim::disk::{Disk, Policy};
use spinney_sim::vfs::CrashVfs;

fn builder(vfs: &CrashVfs, dir: &str) -> Builder {
    Database::builder(dir)
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(1024)
        .deterministic(1)
}

fn after_power_loss(disk: &Disk) -> CrashVfs {
    CrashVfs::new(&disk.crash(Policy::PowerNothing, 1, None))
}

/// A store was created in a directory that did not exist and a commit was synced. Then power
/// failed, and the directory was gone with all that was in it: nobody had synced its parent,
/// neither who made it nor, had that one died, who found it empty.
#[test]
fn a_new_store_survives_with_the_directories_above_it() {
    for made_before in ["/data", "/data/a/b"] {
        let vfs = CrashVfs::new(&Disk::with_a_directory());
        vfs.create_dir_all(Path::new(made_before)).unwrap();
        if made_before == "/data/a/b" {
            vfs.sync_dir(Path::new("/data")).unwrap();
        }
        let db = builder(&vfs, "/data/a/b").open().unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::stb()).unwrap();
        let mut batch = db.batch().durability(Durability::Sync);
        batch.put(&keyspace, "key", "value");
        batch.commit().unwrap();
        let vfs = after_power_loss(&Disk::with_a_directory().after(&vfs.take_log()));
        let db = builder(&vfs, "/data/a/b").create_if_missing(false).open().unwrap();
        let found = db.existing_keyspace("k").unwrap().get("key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
    }
}

/// A store whose keyspaces had not been created in the order of their names could not be copied:
/// the copy's manifest was told of them by name, and refused the second as made before the first.
#[test]
fn a_copy_takes_keyspaces_that_were_created_in_any_order() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs, "/data/store").open().unwrap();
    for name in ["b", "c", "a"] {
        db.keyspace(name, KeyspaceOptions::stb()).unwrap().put(name, name).unwrap();
    }
    db.checkpoint("/data/copy").unwrap();
    let copy = builder(&vfs, "/data/copy").create_if_missing(false).open().unwrap();
    for name in ["a", "b", "c"] {
        let found = copy.existing_keyspace(name).unwrap().get(name).unwrap();
        assert_eq!(found.as_deref(), Some(name.as_bytes()));
    }
}

/// A keyspace was dropped while a compaction of it was under way. When that ended, the manifest
/// knew no such keyspace, and the step failed; had it been a memtable's turn, the store would have
/// taken no more writes.
#[test]
fn a_job_outlives_the_keyspace_that_it_works_on() {
    for steps in 0..40 {
        let vfs = CrashVfs::new(&Disk::with_a_directory());
        let db = builder(&vfs, "/data/store").open().unwrap();
        let doomed = db.keyspace("doomed", KeyspaceOptions::stb().fanout_max(2)).unwrap();
        let other = db.keyspace("other", KeyspaceOptions::stb()).unwrap();
        for i in 0..200 {
            doomed.put(format!("{:03}", i * 7 % 50), vec![i as u8; 100]).unwrap();
        }
        for _ in 0..steps {
            db.step().unwrap();
        }
        db.drop_keyspace("doomed").unwrap();
        while db.step().unwrap() {}
        other.put("key", "value").unwrap();
        other.flush().unwrap();
        drop((doomed, other));
        db.close().unwrap();
        let db = builder(&vfs, "/data/store").open().unwrap();
        assert_eq!(db.keyspaces(), ["other"]);
    }
}

/// A process died, and power failed while the next one recovered. The journal had been in the page
/// cache alone when its replay filled the memtables and one of them became part of a tree: that
/// keyspace kept what all others had lost.
#[test]
fn what_recovery_moves_into_a_tree_is_durable_for_all_keyspaces() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let names = ["a", "b", "c", "d"];
    let db = builder(&vfs, "/data/store").open().unwrap();
    for name in names {
        db.keyspace(name, KeyspaceOptions::stb()).unwrap();
    }
    for i in 0..8 {
        let mut batch = db.batch();
        for name in names {
            batch.put(&db.existing_keyspace(name).unwrap(), [i], [i]);
        }
        batch.commit().unwrap();
    }
    let disk = Disk::with_a_directory().after(&vfs.take_log());
    // The process has died; nothing is lost with it.
    let recovery = CrashVfs::new(&disk);
    let db = builder(&recovery, "/data/store").open().unwrap();
    drop(db);
    let log = recovery.take_log();
    for at in 0..=log.len() {
        let vfs = after_power_loss(&disk.after(&log[..at]));
        let db = builder(&vfs, "/data/store").create_if_missing(false).open().unwrap();
        let counts = names.map(|name| db.existing_keyspace(name).unwrap().iter().count());
        assert!(counts.iter().all(|&count| count == counts[0]), "crash at op {at}: {counts:?}");
    }
}

/// A process was killed when it had written a new manifest, or a new store's superblock, and had
/// not synced it. The next one read it from the page cache and built on it: it removed the older
/// manifest, or committed to the new store's. Then power failed, and what had been built on was
/// gone.
#[test]
fn what_a_dead_process_had_not_synced_is_synced_before_anything_builds_on_it() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs, "/data/store").open().unwrap();
    // Until there is a new manifest.
    let mut rounds = 0;
    while !vfs.exists(Path::new("/data/store/manifest-00000002")).unwrap() {
        db.keyspace("passing", KeyspaceOptions::stb()).unwrap().put("key", "value").unwrap();
        db.drop_keyspace("passing").unwrap();
        db.wait_idle().unwrap();
        rounds += 1;
        assert!(rounds < 1000);
    }
    drop(db);
    let log = vfs.take_log();
    let mut killed = Disk::with_a_directory();
    for (at, op) in log.iter().enumerate() {
        killed.apply(op);
        // The first manifest comes at the beginning, the second at the end.
        if at > 40 && at + 40 < log.len() {
            continue;
        }
        let next = CrashVfs::new(&killed);
        let db = builder(&next, "/data/store").open().unwrap();
        let keyspace = db.keyspace("kept", KeyspaceOptions::stb()).unwrap();
        let mut batch = db.batch().durability(Durability::Sync);
        batch.put(&keyspace, "key", "value");
        batch.commit().unwrap();
        let left = after_power_loss(&killed.after(&next.take_log()));
        let db = builder(&left, "/data/store").create_if_missing(false).open();
        let db = db.unwrap_or_else(|error| panic!("killed after op {at}: {error}"));
        let found = db.existing_keyspace("kept").and_then(|kept| kept.get("key"));
        assert_eq!(found.unwrap().as_deref(), Some(&b"value"[..]), "killed after op {at}");
    }
}

/// A keyspace's `disk_bytes` left out a page of each maplet, its header.
#[test]
fn the_bytes_of_a_keyspace_are_those_of_its_files() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs, "/data/store").open().unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::stb()).unwrap();
    for i in 0..200 {
        keyspace.put(format!("{:03}", i * 7 % 50), vec![i as u8; 100]).unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let files = vfs.read_dir(Path::new("/data/store")).unwrap();
    let is_data = |name: &str| [".table", ".maplet", ".blob"].iter().any(|end| name.ends_with(end));
    let bytes: u64 = files.iter().filter(|f| is_data(&f.name)).map(|file| file.len).sum();
    assert!(bytes > 0);
    assert_eq!(db.stats().keyspaces[0].disk_bytes, bytes);
}
