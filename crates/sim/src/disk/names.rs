//! The directory tree: names and the files that they refer to.
//!
//! Invariants:
//! 1. Paths are relative to the root and normalized; the root is not among them. They are ordered
//!    bytewise, so the content of a directory follows `directory/`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileNumber, NameChange, Node};

/// What each name stands for. Copies share the names themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<Arc<OsStr>, Node>);

impl Names {
    /// What a name stands for.
    pub fn get(&self, path: &Path) -> Option<Node> {
        self.0.get(path.as_os_str()).copied()
    }

    /// Whether it is there.
    pub fn contains(&self, path: &Path) -> bool {
        self.0.contains_key(path.as_os_str())
    }

    /// Changes names.
    pub fn change(&mut self, changes: &[NameChange]) {
        for (path, node) in changes {
            match node {
                Some(node) => self.0.insert(Arc::from(path.as_os_str()), *node),
                None => self.0.remove(path.as_os_str()),
            };
        }
    }

    /// All names.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, Node)> {
        self.0.iter().map(|(path, node)| (Path::new(&**path), *node))
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = FileNumber> {
        self.0.values().filter_map(|node| node.file())
    }

    /// What is below a directory, at any depth.
    pub fn below(&self, dir: &Path) -> impl Iterator<Item = (&Path, Node)> {
        let mut start = OsString::from(dir);
        if !start.is_empty() {
            start.push("/");
        }
        let start: Arc<OsStr> = Arc::from(start);
        let prefix = Arc::clone(&start);
        self.0
            .range(start..)
            .take_while(move |(path, _)| {
                path.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            })
            .map(|(path, node)| (Path::new(&**path), *node))
    }

    /// What stands in a directory that is not there goes too.
    pub fn remove_lost(&mut self) {
        let is_lost = |path: &Path| {
            path.ancestors().skip(1).any(|dir| dir != Path::new("") && !self.contains(dir))
        };
        let lost = self.iter().map(|(path, _)| path).filter(|path| is_lost(path));
        let lost: Vec<PathBuf> = lost.map(Path::to_path_buf).collect();
        lost.iter().for_each(|path| {
            self.0.remove(path.as_os_str());
        });
    }
}
