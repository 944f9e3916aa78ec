//! Point reads: the bundles on the way to a key, and which of their branches their indexes name.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::node::{Bundle, Node};
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::cache::ReadContext;
use crate::tree::TreeCounters;

/// Calls `f` with the versions of a key, newest first, until it breaks: see `TreeVersion::get`.
#[allow(clippy::too_many_arguments)]
#[inline]
pub(super) fn get(
    root: &Arc<Node>,
    counters: &TreeCounters,
    key: &[u8],
    hash: u64,
    snapshot: Seqno,
    context: &ReadContext,
    f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let mut probes = 0;
    let mut false_positives = 0;
    let mut node = root;
    let mut position = node.pivot_of(key);
    prefetch_places(node.live_bundles(position), hash);
    let result = loop {
        // What the child will be asked is fetched while this node is.
        let below = node.pivots[position].child.as_ref().map(|child| {
            let position = child.pivot_of(key);
            prefetch_places(child.live_bundles(position), hash);
            (child, position)
        });
        let found = get_in_node(
            node,
            position,
            key,
            hash,
            snapshot,
            context,
            &mut |entry| f(entry),
            &mut probes,
            &mut false_positives,
        );
        match found {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break Ok(()),
            Err(error) => break Err(error),
        }
        match below {
            Some(below) => (node, position) = below,
            None => break Ok(()),
        }
    };
    counters.count_filters(probes, false_positives);
    result
}

#[inline]
fn prefetch_places(bundles: &[Arc<Bundle>], hash: u64) {
    bundles.iter().for_each(|bundle| bundle.prefetch_place(hash));
}

#[allow(clippy::too_many_arguments)]
#[inline]
fn get_in_node(
    node: &Node,
    position: usize,
    key: &[u8],
    hash: u64,
    snapshot: Seqno,
    context: &ReadContext,
    f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    probes: &mut u64,
    false_positives: &mut u64,
) -> Result<ControlFlow<()>> {
    let live = node.live_bundles(position);
    live.iter().for_each(|bundle| bundle.prefetch_bytes(hash));
    for bundle in live.iter().rev() {
        if !bundle.may_hold(hash) {
            continue;
        }
        *probes += 1;
        let mut named = bundle.index.probe(hash, context)?;
        while let Some(ordinal) = named.pop_newest() {
            let Some(table) = bundle.branches.get(usize::from(ordinal)) else {
                return Err(Error::corruption(
                    &bundle.index.file().path(),
                    0,
                    "branch number in an index",
                    format_args!("below {}", bundle.branches.len()),
                    ordinal,
                ));
            };
            let mut flow = ControlFlow::Continue(());
            let mut held = false;
            let is_read = table.get_hashed(key, hash, snapshot, context, |entry| {
                held = true;
                flow = f(entry);
                flow
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
            *false_positives += u64::from(is_read && !held);
        }
    }
    Ok(ControlFlow::Continue(()))
}
