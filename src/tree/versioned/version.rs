//! One immutable state of a versioned tree. How it is read is the kind's.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use super::VersionedKind;
use super::node::walk;
use super::refs::{NodeRefs, count};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::tree::dead_blobs::BlobUse;
use crate::tree::description::{NamedCount, NodeDescription, TreeDescription};
use crate::tree::files::FileTotals;
use crate::tree::live::{Live, LiveShares};
use crate::tree::space::Space;
use crate::tree::{TreeCounters, TreeOptions, wrong_node};

/// A version.
pub(in crate::tree) struct Version<K: VersionedKind> {
    pub(in crate::tree) root: Arc<K::Node>,
    pub(in crate::tree) flushed: Seqno,
    pub(in crate::tree) files: FileTotals,
    /// The estimate of what is live.
    pub(in crate::tree) live: Live,
    pub(in crate::tree) counters: Arc<TreeCounters>,
    pub(in crate::tree) parameters: K::Parameters,
    /// What the kind knows of the version beyond that.
    pub(in crate::tree) own: K::Summary,
    memtable_bytes: u64,
    space_amplification_max_percent: u64,
    /// The blob files worth collecting, the deadest first.
    pub(in crate::tree) dead_blobs: Arc<[BlobUse]>,
}

impl<K: VersionedKind> Version<K> {
    pub(super) fn new(
        (root, flushed): (Arc<K::Node>, Seqno),
        (files, dead_blobs, own): (FileTotals, Arc<[BlobUse]>, K::Summary),
        shares: LiveShares,
        counters: &Arc<TreeCounters>,
        parameters: K::Parameters,
        options: &TreeOptions,
    ) -> Version<K> {
        Version {
            root,
            flushed,
            files,
            live: shares.of(files.stored()),
            counters: Arc::clone(counters),
            parameters,
            own,
            memtable_bytes: options.memtable_bytes.max(1024),
            space_amplification_max_percent: options.space_amplification_max_percent,
            dead_blobs,
        }
    }

    /// The disk space that the tree uses, and the live part of it.
    pub(in crate::tree) fn space(&self) -> Space {
        let Version { files, live, .. } = self;
        Space {
            disk_bytes: files.disk_bytes(),
            table_bytes: files.table_bytes,
            tables: files.tables,
            entry_bytes: files.entry_bytes,
            live_entry_bytes: live.entry_bytes,
            live_blob_bytes: live.blob_bytes,
            filter_bytes: files.filter_bytes,
            list_bytes: files.list_bytes,
            entries: files.entries,
            live_keys: live.keys,
            memtable_bytes: self.memtable_bytes,
            merged_memtables: K::MERGED_MEMTABLES,
            amplification_max_percent: self.space_amplification_max_percent,
            index_entry_bytes: K::index_entry_bytes(&self.parameters),
            load_share: K::LOAD_SHARE * live.new_share,
            shared_memtables: K::shared_memtables(&self.parameters),
        }
    }

    /// The bytes that the data files would have if they held live pairs alone.
    pub(in crate::tree) fn live_bytes(&self) -> u64 {
        self.space().live_bytes() + K::index_bytes(self).1
    }

    /// The bytes of all data files.
    pub(in crate::tree) fn disk_bytes(&self) -> u64 {
        self.files.disk_bytes() + K::index_bytes(self).0
    }

    /// The disk space beyond the allowed, as a share of the live bytes.
    #[cfg(test)]
    pub(in crate::tree) fn space_excess(&self) -> f64 {
        self.space().excess()
    }

    /// Memory that samples of keys use.
    pub(in crate::tree) fn sample_bytes(&self) -> u64 {
        self.files.sample_bytes + self.live.memory_bytes
    }

    /// Describes the version: its nodes level by level, each as `describe` says.
    pub(in crate::tree) fn described(
        &self,
        kind: &str,
        parameters: Vec<NamedCount>,
        describe: impl Fn(&Arc<K::Node>) -> Result<NodeDescription>,
    ) -> Result<TreeDescription> {
        let mut nodes = Vec::new();
        walk(&self.root, &mut |node| nodes.push(node));
        nodes.sort_by_key(|node| Reverse(node.height));
        Ok(TreeDescription {
            kind: kind.to_string(),
            nodes: nodes.into_iter().map(describe).collect::<Result<_>>()?,
            disk_bytes: self.disk_bytes(),
            live_bytes: self.live_bytes(),
            parameters,
        })
    }

    /// Reports sums over the version's files that are not those of the files that its nodes refer to.
    pub(in crate::tree) fn check_totals(&self, manifest: &Path, problem: &mut dyn FnMut(Error)) {
        let refs: K::Refs = count(&self.root);
        let whole = refs.files();
        if self.files != whole.totals || !whole.dead_blobs().eq(self.dead_blobs.iter().copied()) {
            let expected = format_args!("{:?}", whole.totals);
            let found = format_args!("{:?}", self.files);
            problem(wrong_node(manifest, self.root.id.0, "sums over files", expected, found));
        }
    }
}
