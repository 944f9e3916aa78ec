//! A file system of a given size.

use std::path::Path;
use std::process::Command;

/// A tmpfs, if this process may mount one.
pub(super) struct Mount(tempfile::TempDir);

impl Mount {
    pub(super) fn new(options: &str) -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mount(dir)),
            _ => {
                println!("skipped: mounting a tmpfs needs privileges that this process lacks");
                None
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}
