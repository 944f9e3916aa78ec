//! Fuzz target: the stored options of a keyspace.

use std::path::Path;

use crate::base::fuzz::{FILE, Target, named};
use crate::tree::kinds::TreeKind;
use crate::tree::options::{Compression, KeyspaceOptions};

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "keyspace-options", run: options, seeds: options_seeds }];

fn options(data: &[u8]) {
    for kind in TreeKind::registered() {
        let file = Path::new(FILE);
        let decode = |bytes: &[u8]| named(KeyspaceOptions::decode(kind, None, bytes, (file, 0)));
        if let Some(found) = decode(data) {
            assert_eq!(decode(&found.encode()).as_ref(), Some(&found));
        }
    }
}

fn options_seeds() -> Vec<Vec<u8>> {
    let plain = |kind| KeyspaceOptions::new(kind);
    let chosen = |kind| {
        let options = plain(kind).compression(Compression::Lz4).blob_bytes_min(300);
        // An option of some kinds alone, where the kind has it.
        options.clone().kind_option("fanout_max", 8).unwrap_or(options.seek_compaction(false))
    };
    TreeKind::ALL
        .into_iter()
        .flat_map(|kind| [plain(kind).encode(), chosen(kind).encode()])
        .collect()
}
