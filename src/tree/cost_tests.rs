//! What a change of a tree costs, in visits of nodes and tables, not in time: as much in a tree of many tables as in one of
//! few. And what is done while the change lock is held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::kinds::{self, TreeKind};
use super::test_support::{Puts, Reader, context, key_of, with_first_option};
use super::{Tree, TreeObserver, TreeOptions, TreeVersion};
use crate::base::ids::Seqno;
use crate::base::{held, visits};
use crate::jobs::Step;

/// A tree, and the visits of its latest changes.
struct Costs {
    tree: Arc<dyn Tree>,
    _observer: Arc<dyn TreeObserver>,
    random: u64,
    /// Keys are drawn below this.
    keys: u64,
    commits: u64,
    /// By what was done: how often, and the visits.
    visits: BTreeMap<&'static str, (u64, u64)>,
}

impl Costs {
    fn new(kind: TreeKind, keys: u64, space_percent: u64) -> Costs {
        let observer = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
        Costs::with(observer, kind, keys, space_percent)
    }

    fn with(
        observer: Arc<dyn TreeObserver>,
        kind: TreeKind,
        keys: u64,
        space_percent: u64,
    ) -> Costs {
        let context = context(kind.name(), &observer);
        let own = with_first_option(kind, 4).own;
        context.options.store(Arc::new(TreeOptions {
            own,
            space_amplification_max_percent: space_percent,
            ..(*context.options()).clone()
        }));
        // Pages are not cached for long.
        context.files.cache.set_capacity(64 << 10);
        let tree = kinds::open(kind, context, &[], Seqno(0)).unwrap();
        Costs { tree, _observer: observer, random: 1, keys, commits: 0, visits: BTreeMap::new() }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 16) % self.keys
    }

    fn count<T>(&mut self, what: &'static str, f: impl FnOnce(&Arc<dyn Tree>) -> T) -> T {
        let (visits, result) = visits::of(|| f(&self.tree));
        let (times, sum) = self.visits.entry(what).or_default();
        (*times, *sum) = (*times + 1, *sum + visits);
        result
    }

    /// Writes a memtable, and does all that is due after it.
    fn change(&mut self) {
        self.write();
        while let Some(mut job) = self.count("choose", |tree| Arc::clone(tree).next_job()) {
            while self.count("step", |_| job.step().unwrap()) == Step::Again {}
            self.count("state", |tree| tree.state());
        }
    }

    /// Writes a memtable.
    fn write(&mut self) {
        let mut keys: Vec<_> = (0..8).map(|_| key_of(self.draw() << 20)).collect();
        keys.sort();
        keys.dedup();
        self.commits += 1;
        let seqno = self.commits;
        let packed = Arc::clone(&self.tree).pack(&mut Puts { seqno, keys, at: 1 }).unwrap();
        self.count("incorporate", |_| packed.incorporate(Seqno(seqno)).unwrap());
        self.count("state", |tree| tree.state());
    }

    /// The mean visits of the changes that follow after so many.
    fn at(&mut self, commits: u64) -> At {
        while self.commits < commits {
            self.change();
        }
        self.visits.clear();
        while self.commits < commits + 100 {
            self.change();
        }
        let all = self.visits.iter();
        let visits = all.map(|(what, (times, visits))| (*what, visits / times)).collect();
        let nodes = self.tree.version().describe().unwrap().nodes;
        let levels = nodes.iter().map(|node| u64::from(node.height) + 1).max().unwrap();
        At { tables: self.tree.state().tables, levels, visits }
    }
}

/// What changes of a tree of some size cost.
#[derive(Debug)]
struct At {
    tables: u64,
    levels: u64,
    /// By what was done.
    visits: BTreeMap<&'static str, u64>,
}

impl At {
    /// A change goes through the levels, of which a large tree has more.
    fn assert_like(&self, large: &At) {
        for (what, visits) in &self.visits {
            let most = visits * large.levels * 2 / self.levels + 64;
            assert!(large.visits[what] <= most, "{what}: {self:?}, {large:?}");
        }
    }
}

/// Each commit walked all nodes, bundles, tables and blob files to sum them up, and so did the choice of each job: an
/// insert into 160 million records cost nearly twice as much as one into 8 million.
#[test]
fn a_change_costs_as_much_in_a_large_tree_as_in_a_small_one() {
    for kind in TreeKind::ALL {
        let mut costs = Costs::new(kind, 1 << 40, 1_000_000);
        let [small, large] = [100, 1500].map(|commits| costs.at(commits));
        println!("{kind}: {small:?}, {large:?}");
        assert!(large.tables > small.tables * 6, "{kind}: {} tables", large.tables);
        small.assert_like(&large);
    }
}

/// Changes were made with the change lock held: index pages were read to see what of a table lies where, the directory was
/// synced, and the manifest's record was appended and synced. Each takes milliseconds on a busy disk, and held up all who had
/// another change. A sync with the lock held is refused ([`held::refuse`]); reads are listed here.
#[test]
fn no_page_is_read_and_nothing_is_synced_while_a_change_lock_is_held() {
    for kind in TreeKind::ALL {
        let mut costs = Costs::new(kind, 1 << 20, 130);
        held::take();
        (0..150).for_each(|_| costs.change());
        let found = held::take();
        assert!(found.is_empty(), "{kind}: {} times, as in {:?}", found.len(), &found[..1]);
    }
}

/// Does what a store does when it is told of a version, with the change lock held: it asks how far behind the tree is. Keeps
/// how many nodes of each version are new.
#[derive(Default)]
struct StoreLike {
    tree: OnceLock<Weak<dyn Tree>>,
    nodes: Mutex<BTreeSet<u64>>,
    new_nodes: Mutex<Vec<usize>>,
}

impl TreeObserver for StoreLike {
    fn installed(&self, version: Arc<dyn TreeVersion>) {
        if let Some(tree) = self.tree.get().and_then(Weak::upgrade) {
            tree.backlog(0);
        }
        // The description reads pages, which is not the tree's doing.
        let nodes = held::without(|| version.describe().unwrap().nodes);
        let nodes: BTreeSet<u64> = nodes.iter().map(|node| node.id).collect();
        let mut before = self.nodes.lock().unwrap();
        self.new_nodes.lock().unwrap().push(nodes.difference(&before).count());
        *before = nodes;
    }
    fn compacted(&self, _read_bytes: u64, _written_bytes: u64, _nanos: u64) {}
    fn snapshots(&self) -> Vec<Seqno> {
        vec![Seqno(u64::MAX >> 8)]
    }
    fn is_dropped(&self) -> bool {
        false
    }
}

impl StoreLike {
    /// A tree that jobs are behind of.
    fn costs(self: &Arc<Self>, kind: TreeKind) -> Costs {
        let observer: Arc<dyn TreeObserver> = Arc::clone(self) as Arc<dyn TreeObserver>;
        let mut costs = Costs::with(observer, kind, 1 << 20, 1_000_000);
        assert!(self.tree.set(Arc::downgrade(&costs.tree)).is_ok());
        (0..200).for_each(|_| costs.change());
        (0..100).for_each(|_| costs.write());
        costs
    }
}

/// With other options, all that follows from them was derived by the first who asked: with the change lock held, and the
/// pages of all leaves read once more.
#[test]
fn options_are_changed_without_a_read_under_the_change_lock() {
    for kind in TreeKind::ALL {
        let mut costs = Arc::new(StoreLike::default()).costs(kind);
        held::take();
        let options = TreeOptions {
            kind,
            own: with_first_option(kind, 5).own,
            space_amplification_max_percent: 1_000_001,
            origin: Arc::default(),
            compression: crate::cache::Compression::None,
            memtable_bytes: 1024,
            seek_compaction: true,
            merges_for_reads_max: 1,
            blob_bytes_min: 4096,
            job_bytes_max: 1 << 20,
            fold_bytes_max: 1 << 20,
        };
        costs.count("set_options", |tree| tree.set_options(options));
        let found = held::take();
        assert!(found.is_empty(), "{kind}: {} times, as in {:?}", found.len(), &found[..1]);
    }
}

/// Moving a whole trunk's data down to the leaves was one change: it took longer than the time between two memtables, so it was
/// overtaken until it was made under the change lock, and everybody waited.
#[test]
fn what_compacts_a_whole_trunk_changes_few_nodes_at_a_time() {
    let observer = Arc::new(StoreLike::default());
    let costs = observer.costs(TreeKind::Stb);
    let nodes = observer.nodes.lock().unwrap().len();
    assert!(nodes > 100, "{nodes} nodes");
    observer.new_nodes.lock().unwrap().clear();
    Arc::clone(&costs.tree).compact(&[], None, &|| Ok(())).unwrap();
    let most = observer.new_nodes.lock().unwrap().iter().copied().max();
    assert!(most.is_some_and(|most| most < 30), "{most:?} nodes of {nodes} are new");
}
