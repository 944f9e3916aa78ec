//! The way of a change from the change lock to the readers: it is submitted, decided, and shown.
//!
//! Under the change lock a change is only submitted: the manifest takes its edit, which fixes its place in the order, and
//! the next change builds on its tree. The lock is let go, and whoever made the change waits for the manifest. Changes that
//! are submitted meanwhile share one record and one sync. With the lock held again, all that has been decided is
//! settled: what is durable is shown, and what was refused is gone.
//!
//! Invariants:
//! 1. Changes are shown in the order in which they were submitted, each when the manifest has it durably. So no version
//!    is shown that a crash could lose, and no version comes back.
//! 2. A refused change has no effect, and neither has one that builds on it: the manifest refuses both. The next change
//!    builds on the tree of the newest version again. The numbers of the refused nodes are not used again.
//! 3. The decision on a change is taken from the manifest with the change lock held, oldest first. Until then the manifest
//!    remembers a refusal, and accepts no edit that names the refused one as the one it builds on.
//! 4. `refs` counts the references of the newest submitted tree. The estimate of what is live is that of the newest
//!    version: it cannot be taken back.
//! 5. No disk is waited for with the change lock held. The files that refused changes have brought are deleted without it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::node::{NEW, number_nodes};
use super::refs::{NodeRefs, count, follow, is_counted};
use super::{NewTables, Version, VersionedKind, VersionedTree};
use crate::base::error::{Error, Result};
use crate::base::held::Held;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::MutexGuard;
use crate::manifest::Ticket;
use crate::table::Table;
use crate::tree::context::{submit_edit, wait_for_edit};
use crate::tree::dead_blobs::BlobUse;
use crate::tree::files::FileTotals;
use crate::tree::live::LiveKeys;
use crate::tree::{ChangeLock, TreeContext, TreeOptions};

/// A tree that changes build on.
pub(super) struct Base<K: VersionedKind> {
    pub(super) root: Arc<K::Node>,
    pub(super) flushed: Seqno,
    pub(super) options: Arc<TreeOptions>,
    /// What follows from the options.
    pub(super) parameters: K::Parameters,
}

impl<K: VersionedKind> Clone for Base<K> {
    fn clone(&self) -> Base<K> {
        Base {
            root: Arc::clone(&self.root),
            flushed: self.flushed,
            options: Arc::clone(&self.options),
            parameters: self.parameters.clone(),
        }
    }
}

/// The newest submitted tree, as a change is made of it.
pub(super) struct Found<K: VersionedKind> {
    pub(super) base: Base<K>,
    /// The last edit that it needs, if its decision has not been taken.
    pub(super) ticket: Option<Ticket>,
    /// See [`Changes::refusals`].
    pub(super) refusals: u64,
}

/// A change that has been submitted.
#[derive(Clone, Copy)]
pub(super) struct Submitted {
    turn: u64,
    ticket: Ticket,
}

/// A change that has been submitted and not yet been settled.
struct Pending<K: VersionedKind> {
    submitted: Submitted,
    base: Base<K>,
    summary: Summary<K>,
    tables: Tables,
}

/// What follows from the references of a tree's nodes.
struct Summary<K: VersionedKind> {
    totals: FileTotals,
    dead_blobs: Arc<[BlobUse]>,
    own: K::Summary,
}

/// The tables that a pending change brings: see [`NewTables`].
enum Tables {
    None,
    Younger(Vec<Arc<Table>>),
    Merged(Vec<Arc<Table>>),
}

/// Guarded by the change lock.
pub(in crate::tree) struct Changes<K: VersionedKind> {
    pub(super) next_node: u64,
    /// The tree of the newest version.
    shown: Base<K>,
    /// The newest submitted tree.
    newest: Base<K>,
    /// What has been submitted since the newest version, oldest first.
    pending: VecDeque<Pending<K>>,
    next_turn: u64,
    /// Why changes were refused that their callers do not know of yet, by turn.
    refused: BTreeMap<u64, Error>,
    /// How often changes have been refused.
    refusals: u64,
    pub(super) live: LiveKeys,
    /// While `live` is being made anew: the younger tables that have come meanwhile.
    pub(super) younger: Option<Vec<Arc<Table>>>,
    /// `live` was made anew since the newest version.
    is_renewed: bool,
    /// What the newest submitted tree refers to.
    pub(super) refs: K::Refs,
    dead_blobs: Arc<[BlobUse]>,
}

impl<K: VersionedKind> Changes<K> {
    pub(super) fn new(
        context: &TreeContext,
        (root, flushed): (Arc<K::Node>, Seqno),
        next_node: u64,
        live: LiveKeys,
    ) -> Changes<K> {
        let options = context.options();
        let parameters = K::parameters(context, &options);
        let shown = Base { root, flushed, options, parameters };
        Changes {
            next_node,
            newest: shown.clone(),
            refs: count(&shown.root),
            shown,
            pending: VecDeque::new(),
            next_turn: 0,
            refused: BTreeMap::new(),
            refusals: 0,
            live,
            younger: None,
            is_renewed: false,
            dead_blobs: Arc::new([]),
        }
    }

    /// The newest submitted tree.
    pub(super) fn find(&self) -> Found<K> {
        let ticket = self.pending.back().map(|pending| pending.submitted.ticket);
        Found { base: self.newest.clone(), ticket, refusals: self.refusals }
    }

    /// Whether the newest submitted tree is this one. With the change lock held, that stays so.
    pub(super) fn is_newest(&self, base: &Base<K>) -> bool {
        Arc::ptr_eq(&base.root, &self.newest.root)
    }

    /// The tree of the newest version.
    pub(super) fn shown_root(&self) -> &Arc<K::Node> {
        &self.shown.root
    }

    /// What follows from the references, for the newest submitted tree.
    fn summarize(&mut self, own: &K) -> Summary<K> {
        let Base { root, parameters, .. } = &self.newest;
        let files = self.refs.files();
        if !files.dead_blobs().eq(self.dead_blobs.iter().copied()) {
            self.dead_blobs = files.dead_blobs().collect();
        }
        Summary {
            totals: files.totals,
            dead_blobs: Arc::clone(&self.dead_blobs),
            own: own.summarize(root, &self.refs, parameters),
        }
    }

    /// A version of the newest submitted tree.
    pub(super) fn newest_version(&mut self, context: &TreeContext, own: &K) -> Version<K> {
        let summary = self.summarize(own);
        let base = self.newest.clone();
        self.make_version(context, base, summary)
    }

    /// A version, with the estimate of what is live as it is now.
    fn make_version(
        &mut self,
        context: &TreeContext,
        base: Base<K>,
        summary: Summary<K>,
    ) -> Version<K> {
        let Summary { totals, dead_blobs, own } = summary;
        let tables = || self.refs.files().tables().collect();
        let shares = self.live.shares(totals.tables, totals.stored(), tables);
        context.count_tables(totals.tables, self.live.sample_times());
        self.is_renewed = false;
        let Base { root, flushed, options, parameters } = base;
        let summary = (totals, dead_blobs, own);
        let counters = &context.counters;
        Version::new((root, flushed), summary, shares, counters, parameters, &options)
    }

    /// What is live, after the tables of a change have come.
    fn follow_tables(&mut self, tables: &Tables, sample_share: f64) {
        match tables {
            Tables::None => {}
            Tables::Younger(tables) => {
                tables.iter().for_each(|table| self.live.apply(&table.properties().sample));
                if let Some(younger) = &mut self.younger {
                    younger.extend_from_slice(tables);
                }
            }
            Tables::Merged(tables) => {
                tables.iter().for_each(|table| self.live.learn(&table.properties().sample));
            }
        }
        self.live.limit(sample_share);
    }

    /// Shows a tree that no edit has defined.
    #[cfg(test)]
    pub(super) fn replace(&mut self, root: Arc<K::Node>, flushed: Seqno) {
        self.refs = count(&root);
        self.newest = Base { root, flushed, ..self.newest.clone() };
        self.shown = self.newest.clone();
    }
}

/// What is left after changes have been settled: to be dropped without the change lock.
#[must_use]
pub(super) struct Settled<K: VersionedKind> {
    /// The estimate of what is live should be made anew.
    pub(super) is_outgrown: bool,
    /// The last references to new files may be here.
    _refused: Vec<Pending<K>>,
    _refs: Option<K::Refs>,
}

impl<K: VersionedKind> VersionedTree<K> {
    pub(super) fn lock(&self) -> Locked<'_, K> {
        Locked { changes: self.changes.lock(), _held: Held::begin() }
    }

    /// Submits `root`, which was made of the newest submitted tree, as the next one. Returns `None` if that tree turns out
    /// to be refused: then it has to be settled.
    pub(super) fn submit(
        &self,
        changes: &mut Changes<K>,
        mut root: Arc<K::Node>,
        flushed: Seqno,
        tables: NewTables<'_>,
    ) -> Result<Option<Submitted>> {
        let first_new = changes.next_node;
        number_nodes(&mut root, &mut changes.next_node);
        let flushed = flushed.max(changes.newest.flushed);
        let payload = K::encode(&root, first_new, Some(&changes.refs));
        let after = changes.pending.back().map(|pending| pending.submitted.ticket);
        let Some(ticket) = submit_edit(&self.context, payload, flushed, after)? else {
            return Ok(None);
        };
        follow(&mut changes.refs, &changes.newest.root, &root, first_new);
        debug_assert!(
            planted(Bug::RefsOfGoneNodes) || is_counted(&changes.refs, &root, first_new),
            "what the nodes refer to, as changes were followed, is not what they refer to"
        );
        let tables = match tables {
            NewTables::None => Tables::None,
            NewTables::Younger(tables) => Tables::Younger(tables.to_vec()),
            NewTables::Merged(tables) => Tables::Merged(tables.to_vec()),
        };
        changes.newest = Base { root, flushed, ..changes.newest.clone() };
        let submitted = self.append(changes, ticket, tables);
        if planted(Bug::VersionShownBeforeDurable) {
            changes.shown = changes.newest.clone();
            let version = changes.newest_version(&self.context, &self.own);
            self.install(version);
        }
        Ok(Some(submitted))
    }

    /// Makes the newest submitted tree the last of those that wait for `ticket`.
    fn append(&self, changes: &mut Changes<K>, ticket: Ticket, tables: Tables) -> Submitted {
        let summary = changes.summarize(&self.own);
        let submitted = Submitted { turn: changes.next_turn, ticket };
        changes.next_turn += 1;
        let base = changes.newest.clone();
        changes.pending.push_back(Pending { submitted, base, summary, tables });
        submitted
    }

    /// Submits the newest tree once more, as `root` has it: with other options. There is no edit, so it is decided with
    /// the change before it. Returns `None` if there is none to wait for: then it is shown.
    pub(super) fn submit_altered(
        &self,
        changes: &mut Changes<K>,
        root: Arc<K::Node>,
        options: Arc<TreeOptions>,
        parameters: K::Parameters,
    ) -> Option<Submitted> {
        let flushed = changes.newest.flushed;
        changes.newest = Base { root, flushed, options, parameters };
        if let Some(last) = changes.pending.back() {
            let ticket = last.submitted.ticket;
            return Some(self.append(changes, ticket, Tables::None));
        }
        changes.shown = changes.newest.clone();
        let version = changes.newest_version(&self.context, &self.own);
        self.install(version);
        None
    }

    /// Waits until a submitted change is decided, and settles it with all before it: it is shown then.
    ///
    /// # Errors
    /// The refusal: the tree is as if the change, and all that built on it, had never been. Any other error has poisoned
    /// the store.
    pub(super) fn finish(&self, submitted: Submitted) -> Result<()> {
        wait_for_edit(&self.context, submitted.ticket)?;
        let (mut settled, mut refused) = (None, None);
        self.settle_locked(|changes, left| {
            settled = Some(left.is_outgrown);
            refused = changes.refused.remove(&submitted.turn);
        });
        if settled.unwrap_or(false) {
            self.gather_live_keys();
        }
        refused.map_or(Ok(()), Err)
    }

    /// Waits until readers see a tree that was found, or a later one. Returns false if it was refused.
    pub(super) fn wait_until_shown(&self, found: &Found<K>) -> Result<bool> {
        let Some(ticket) = found.ticket else { return Ok(true) };
        wait_for_edit(&self.context, ticket)?;
        let mut is_shown = false;
        self.settle_locked(|changes, _| is_shown = changes.refusals == found.refusals);
        Ok(is_shown)
    }

    /// Settles what has been decided, and calls `f` before the change lock is let go.
    pub(super) fn settle_locked(&self, f: impl FnOnce(&mut Changes<K>, &Settled<K>)) {
        let mut changes = self.lock();
        let settled = self.settle(&mut changes);
        f(&mut changes, &settled);
        drop(changes);
        drop(settled);
    }

    /// Shows what is durable, oldest first, and takes back what was refused.
    pub(super) fn settle(&self, changes: &mut Changes<K>) -> Settled<K> {
        let (mut is_outgrown, mut refused) = (false, Vec::new());
        // A tree with other options waits for the ticket of the one before it.
        let mut decided: Option<(Ticket, Result<()>)> = None;
        while let Some(Pending { submitted: Submitted { turn, ticket }, .. }) =
            changes.pending.front()
        {
            let (turn, ticket) = (*turn, *ticket);
            if decided.as_ref().is_none_or(|(of, _)| *of != ticket) {
                let Some(decision) = self.context.manifest.take_decision(ticket) else { break };
                decided = Some((ticket, decision));
            }
            let Some(pending) = changes.pending.pop_front() else { break };
            match &decided {
                Some((_, Err(error))) => {
                    changes.refused.insert(turn, error.clone());
                    refused.push(pending);
                }
                _ => {
                    let Pending { base, summary, tables, .. } = pending;
                    changes.follow_tables(&tables, self.context.sample_share());
                    changes.shown = base.clone();
                    let version = changes.make_version(&self.context, base, summary);
                    self.install(version);
                    let threshold = changes.refs.files().sample_threshold();
                    is_outgrown |= changes.live.is_outgrown(threshold);
                }
            }
        }
        let refs = (!refused.is_empty()).then(|| self.take_back(changes));
        Settled { is_outgrown, _refused: refused, _refs: refs }
    }

    /// After a refusal: the next change builds on the tree of the newest version. Returns the references of the refused
    /// tree.
    #[cold]
    fn take_back(&self, changes: &mut Changes<K>) -> K::Refs {
        // A refusal refuses all that is not durable, and nothing that builds on it is accepted before this.
        debug_assert!(changes.pending.is_empty(), "a change waits that builds on a refused one");
        changes.refusals += 1;
        if planted(Bug::RefusedChangeKept) {
            return K::Refs::default();
        }
        changes.newest = changes.shown.clone();
        let refs = std::mem::replace(&mut changes.refs, count(&changes.shown.root));
        if changes.is_renewed {
            let version = changes.newest_version(&self.context, &self.own);
            self.install(version);
        }
        refs
    }

    /// Shows the tree of the newest version with the estimate of what is live as it was made anew. If changes wait to be
    /// shown, the next of them shows it.
    pub(super) fn show_renewed(&self, changes: &mut Changes<K>) {
        changes.is_renewed = true;
        if changes.pending.is_empty() {
            let version = changes.newest_version(&self.context, &self.own);
            self.install(version);
        }
    }

    fn install(&self, version: Version<K>) {
        let version = Arc::new(version);
        self.version.store(Arc::clone(&version));
        self.context.installed(K::as_version(version));
    }

    /// Locks the tree for [`crate::tree::Tree::lock_changes`].
    pub(super) fn guard(&self) -> ChangeGuard<'_, K> {
        let mut changes = self.lock();
        let settled = self.settle(&mut changes);
        ChangeGuard { changes, _settled: settled }
    }
}

/// The change lock.
pub(super) struct Locked<'a, K: VersionedKind> {
    changes: MutexGuard<'a, Changes<K>>,
    _held: Held,
}

impl<K: VersionedKind> Deref for Locked<'_, K> {
    type Target = Changes<K>;

    fn deref(&self) -> &Changes<K> {
        &self.changes
    }
}

impl<K: VersionedKind> DerefMut for Locked<'_, K> {
    fn deref_mut(&mut self) -> &mut Changes<K> {
        &mut self.changes
    }
}

/// Holds a tree's change lock for others.
pub(super) struct ChangeGuard<'a, K: VersionedKind> {
    changes: Locked<'a, K>,
    /// Dropped when the lock has been let go.
    _settled: Settled<K>,
}

fn snapshot<K: VersionedKind>(root: &Arc<K::Node>) -> Option<Vec<u8>> {
    (root.id != NEW).then(|| K::encode(root, 0, None))
}

impl<K: VersionedKind> ChangeLock for ChangeGuard<'_, K> {
    fn snapshot(&self) -> Option<Vec<u8>> {
        snapshot::<K>(&self.changes.newest.root)
    }

    fn shown(&self) -> Option<Vec<u8>> {
        snapshot::<K>(&self.changes.shown.root)
    }
}
