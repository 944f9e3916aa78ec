//! What failing disks have found, each told as the shortest story that shows it.

use std::sync::Arc;
use std::time::Duration;

use spinney::{Builder, Database, Durability, Error, KeyspaceOptions, TreeKind};
use spinney_sim::disk::{Disk, Policy};
use spinney_sim::fault::{Fault, Plan};
use spinney_sim::faults::{self, Case, Extent};
use spinney_sim::kinds::Kinds;
use spinney_sim::vfs::CrashVfs;

fn builder(vfs: &CrashVfs) -> Builder {
    Database::builder("/data/store")
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(1024)
        .journal_shards(1)
        .deterministic(1)
}

fn once(fault: Fault, first: u64) -> Option<Plan> {
    Some(Plan { fault, first, times: 1 })
}

fn commit(db: &Database, key: &str, durability: Durability) -> Result<(), Error> {
    let mut batch = db.batch().durability(durability);
    batch.put(&db.existing_keyspace("k")?, key, key);
    batch.commit()
}

/// A sync of the journal failed, and the system took what it had not stored for stored. The process
/// died; the next one read the journal from the system's memory, synced it, was told that all is
/// well, and built on it. Then power failed, and a part of the journal had never been on the disk.
#[test]
fn what_a_failed_sync_has_left_is_written_again_before_anything_builds_on_it() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs).open().unwrap();
    db.keyspace("k", KeyspaceOptions::stb()).unwrap();
    commit(&db, "synced", Durability::Sync).unwrap();
    vfs.plan(once(Fault::SyncForgets, 1));
    commit(&db, "forgotten", Durability::Sync).unwrap_err();
    assert!(matches!(db.sync(), Err(Error::Poisoned { .. })));
    // The process dies.
    let disk = Disk::with_a_directory().after(&vfs.log());
    let next = CrashVfs::new(&disk);
    let db = builder(&next).open().unwrap();
    let found = db.existing_keyspace("k").unwrap().get("forgotten").unwrap();
    commit(&db, "later", Durability::Sync).unwrap();
    let disk = disk.after(&next.log());
    let left = disk.crash(Policy::PowerNothing, 1, None);
    let db = builder(&CrashVfs::new(&left)).open().unwrap();
    let keyspace = db.existing_keyspace("k").unwrap();
    assert_eq!(keyspace.get("forgotten").unwrap(), found);
    assert!(keyspace.get("later").unwrap().is_some());
}

/// The manifest could not grow since the disk was full, and from then on the store took no more
/// writes, though there was room again a moment later.
#[test]
fn a_manifest_without_room_refuses_the_change_and_nothing_else() {
    for fault in [Fault::Full, Fault::ShortFull] {
        for first in 1..12 {
            let vfs = CrashVfs::new(&Disk::with_a_directory());
            let db = builder(&vfs).open().unwrap();
            let keyspace = db.keyspace("k", KeyspaceOptions::stb()).unwrap();
            keyspace.put("key", "value").unwrap();
            vfs.plan(once(fault, first));
            let _ = keyspace.flush();
            let _ = db.keyspace("other", KeyspaceOptions::stb());
            if vfs.strikes().iter().all(|strike| !strike.path.ends_with("manifest-00000001"))
                || vfs.strikes().iter().any(|strike| strike.op == "sync")
            {
                continue;
            }
            vfs.plan(None);
            commit(&db, "after", Durability::Sync).unwrap();
            keyspace.flush().unwrap();
            drop(keyspace);
            db.close().unwrap();
            let db = builder(&vfs).open().unwrap();
            assert_eq!(db.recovery().orphans_removed, 0);
            assert_eq!(db.existing_keyspace("k").unwrap().iter().count(), 2);
        }
    }
}

/// A copy failed half way. Its links stayed, and with them the room of files that the store removed
/// later.
#[test]
fn a_copy_that_fails_leaves_nothing_behind() {
    for first in 1.. {
        let vfs = CrashVfs::new(&Disk::with_a_directory());
        let db = builder(&vfs).open().unwrap();
        db.keyspace("k", KeyspaceOptions::stb()).unwrap().put("key", "value").unwrap();
        vfs.plan(once(Fault::Full, first));
        let copied = db.checkpoint("/data/copy");
        if vfs.strikes().is_empty() {
            assert!(first > 5);
            break;
        }
        assert!(copied.is_ok() || vfs.names_below("/data/copy") == 0, "{first}: {copied:?}");
    }
}

/// A store that could not sync its journal any more was closed, and closing said that all was well.
#[test]
fn closing_a_store_that_could_not_be_made_durable_is_no_success() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs).open().unwrap();
    db.keyspace("k", KeyspaceOptions::stb()).unwrap();
    commit(&db, "buffered", Durability::Buffered).unwrap();
    vfs.plan(once(Fault::Eio, 1));
    db.sync().unwrap_err();
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
}

/// A step of background work failed once. With no threads and no time that passes, `wait_idle`
/// returned that failure every time, and never tried again.
#[test]
fn waiting_tries_again_what_has_failed() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::stb()).unwrap();
    for number in 0..20 {
        keyspace.put([number], [number; 100]).unwrap();
    }
    vfs.plan(once(Fault::Full, 1));
    while db.step().is_ok_and(|did| did) {}
    assert!(!vfs.strikes().is_empty());
    vfs.plan(None);
    db.wait_idle().unwrap();
    assert_eq!(keyspace.iter().count(), 20);
}

/// The disk said that it had stored and synced a record of the journal, and had not. Another
/// keyspace's tree, which relied on it, was ahead; when power failed, the one had lost what the
/// other had kept.
#[test]
fn a_tree_is_not_ahead_of_a_journal_that_has_lost_what_it_relied_on() {
    let mut found = 0;
    for first in 1..40 {
        let vfs = CrashVfs::new(&Disk::with_a_directory());
        let db = builder(&vfs).open().unwrap();
        let ahead = db.keyspace("ahead", KeyspaceOptions::stb()).unwrap();
        let behind = db.keyspace("behind", KeyspaceOptions::stb()).unwrap();
        vfs.plan(once(Fault::LostWrite, first));
        for number in 0..6u8 {
            let mut batch = db.batch();
            batch.put(&ahead, [number], [number]);
            batch.put(&behind, [number], [number]);
            batch.commit().unwrap();
        }
        let _ = ahead.flush();
        let journal = |path: &std::path::Path| path.to_string_lossy().contains("journal-");
        if !vfs.strikes().iter().any(|strike| journal(&strike.path)) {
            continue;
        }
        let disk = Disk::with_a_directory().after(&vfs.log());
        let left = disk.crash(Policy::PowerNothing, 1, None);
        match builder(&CrashVfs::new(&left)).open() {
            Err(Error::Corruption { .. }) => found += 1,
            Err(error) => panic!("{first}: {error}"),
            Ok(db) => {
                let counts = ["ahead", "behind"]
                    .map(|name| db.existing_keyspace(name).unwrap().iter().count());
                assert_eq!(counts[0], counts[1], "{first}");
            }
        }
    }
    assert!(found > 0);
}

/// A store had no room to be opened in: its journal was replayed, a table was to be written for
/// want of memory, and the disk was full in the middle of it. The half table stayed. Who made room
/// and tried again had that eaten too, and so on.
#[test]
fn an_open_that_finds_no_room_takes_none() {
    let vfs = CrashVfs::new(&Disk::with_a_directory());
    let large = builder(&vfs).memory_budget(64 << 20).memtable_bytes(8 << 20);
    let db = large.open().unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::stb()).unwrap();
    for number in 0..1000u32 {
        keyspace.put(number.to_be_bytes(), [number as u8; 1500]).unwrap();
    }
    // The process dies.
    let disk = Disk::with_a_directory().after(&vfs.log());
    let mut refused = 0;
    let small = |vfs: &CrashVfs| builder(vfs).memtable_bytes(128 << 10).open();
    for first in (1..).step_by(13) {
        let vfs = CrashVfs::new(&disk);
        vfs.plan(Some(Plan { fault: Fault::ShortFull, first, times: u64::MAX }));
        match small(&vfs) {
            Err(Error::Full { .. }) => refused += 1,
            Err(error) => panic!("{first}: {error}"),
            Ok(_) => break,
        }
        vfs.plan(None);
        let db = small(&vfs).unwrap();
        assert_eq!(db.recovery().orphans_removed, 0, "{first}");
        assert_eq!(db.existing_keyspace("k").unwrap().iter().count(), 1000, "{first}");
    }
    assert!(refused > 1, "{refused}");
}

/// The journal removed a segment that trees no longer needed, and the sync of the directory failed.
/// What followed went to the next segment and was synced. Then power failed: the removed segment
/// was back, but not the mark at its end that says that another follows, since nobody syncs what
/// has been removed. The replay ended there, and commits were lost that had been durable. (The same
/// could happen without a failure, if power failed between the removal and the sync of the
/// directory, and a commit was synced meanwhile.)
///
/// The runs that have shown it, as the regime draws them; they say nothing once it draws others.
#[test]
fn a_removed_segment_that_comes_back_hides_nothing_that_follows_it() {
    for (fault, first) in [(Fault::SyncForgets, 103), (Fault::SyncDrops, 103), (Fault::Eio, 211)] {
        let extent = Extent { shrink: Duration::ZERO, ..Extent::default() };
        let only = Some(Case::Struck(Plan { fault, first, times: 1 }));
        for (number, kinds) in Kinds::All.runs().into_iter().enumerate() {
            let outcome = faults::run(20018, kinds, extent, only);
            assert_eq!(outcome.violations, []);
            // The runs are of the first kind; what strikes it need not strike another.
            assert!(outcome.state_count() > 1 || number > 0, "{fault} strikes nothing");
        }
    }
}

/// A keyspace was dropped, and the disk lost the record that said so, the manifest's last; another
/// of its name was about to be made when power failed. The older one was back, whole. That was
/// taken for data that nobody had written: it was held against the younger one alone. No store can
/// tell what its disk has lost at the end of a file, so the judge lets it be either.
///
/// The run that has shown it, as the regime draws it; it says nothing once it draws others.
#[test]
fn a_keyspace_whose_drop_the_disk_has_lost_is_back() {
    let extent = Extent { shrink: Duration::ZERO, ..Extent::default() };
    let only = Some(Case::Struck(Plan { fault: Fault::LostWrite, first: 16, times: 1 }));
    let keep = "19-23,26-27".parse().unwrap();
    let kinds = Kinds::One(TreeKind::Flsm);
    let outcome = faults::run_while(9005, kinds, extent, only, Some(&keep), || true);
    assert_eq!(outcome.violations, []);
    assert!(outcome.state_count() > 0, "nothing was struck");
}
