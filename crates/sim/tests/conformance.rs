//! The simulated file system is as the real ones.

use std::path::Path;

use spinney::vfs::Vfs;
use spinney::vfs::conformance::PROMISES;
use spinney_sim::disk::Disk;
use spinney_sim::vfs::CrashVfs;

#[test]
fn the_simulated_file_system_keeps_what_all_promise() {
    assert!(PROMISES.len() > 10);
    for (name, promise) in PROMISES {
        eprintln!("{name}");
        let vfs = CrashVfs::new(&Disk::default());
        vfs.create_dir_all(Path::new("/some/store")).unwrap();
        promise(&vfs, Path::new("/some/store"));
    }
}

/// What was done is what the disk then holds: the record tells all of it.
#[test]
fn the_record_of_what_was_done_does_it_again() {
    for (name, promise) in PROMISES {
        let mut disk = Disk::default();
        let vfs = CrashVfs::new(&disk);
        vfs.create_dir_all(Path::new("/some/store")).unwrap();
        promise(&vfs, Path::new("/some/store"));
        let held = vfs.fingerprint();
        vfs.take_log().iter().for_each(|op| disk.apply(op));
        assert_eq!(disk.fingerprint(), held, "{name}");
    }
}
