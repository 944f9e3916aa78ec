//! Compactions are small, so that background threads share the work by taking different ones.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use spinney::{Database, Event, Keyspace, KeyspaceOptions, MIB, TreeKind};

/// A compaction: when it ran, in seconds, and what it read.
#[derive(Clone, Copy)]
struct Ran {
    from: f64,
    to: f64,
    read_bytes: u64,
}

struct Store {
    db: Database,
    keyspace: Keyspace,
    began: Instant,
    ran: Arc<Mutex<Vec<Ran>>>,
    _dir: tempfile::TempDir,
}

impl Store {
    fn new(kind: TreeKind, memory: u64, memtable: Option<u64>) -> Store {
        let dir = tempfile::tempdir().expect("a directory");
        let began = Instant::now();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&ran);
        let listener = move |event: &Event| {
            if let Event::Compaction { read_bytes, elapsed, .. } = event {
                let to = began.elapsed().as_secs_f64();
                let from = to - elapsed.as_secs_f64();
                noted.lock().expect("the list").push(Ran { from, to, read_bytes: *read_bytes });
            }
        };
        let mut builder = Database::builder(dir.path())
            .memory_budget(memory)
            .background_threads(2)
            .events(Arc::new(listener));
        if let Some(memtable) = memtable {
            builder = builder.memtable_bytes(memtable);
        }
        let db = builder.open().expect("a store");
        let keyspace = db.keyspace("k", KeyspaceOptions::new(kind)).expect("a keyspace");
        Store { db, keyspace, began, ran, _dir: dir }
    }

    /// Writes pairs of 24 + 100 bytes in random order, with two threads.
    fn load(&self, records: u64) {
        std::thread::scope(|scope| {
            for first in 0..2 {
                scope.spawn(move || {
                    for number in (first..records).step_by(2) {
                        let key =
                            format!("{:024}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8);
                        self.keyspace.put(key, [7; 100]).expect("a put");
                    }
                });
            }
        });
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The compactions that ran between two times.
    fn between(&self, from: f64, to: f64) -> Vec<Ran> {
        // Events are delivered a moment later.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let ran = self.ran.lock().expect("the list");
        ran.iter().copied().filter(|ran| ran.to > from && ran.from < to).collect()
    }

    /// Prints for how long one compaction ran alone and for how long several ran at once.
    fn report(&self, what: &str, from: f64) {
        let to = self.seconds();
        let ran = self.between(from, to);
        let mut changes: Vec<(f64, i32)> = Vec::new();
        for ran in &ran {
            changes.extend([(ran.from.max(from), 1), (ran.to.min(to), -1)]);
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut alone, mut several, mut at, mut running) = (0.0, 0.0, from, 0);
        for (time, change) in changes {
            match running {
                0 => {}
                1 => alone += time - at,
                _ => several += time - at,
            }
            (at, running) = (time, running + change);
        }
        let longest =
            ran.iter().copied().max_by(|a, b| (a.to - a.from).total_cmp(&(b.to - b.from)));
        let (seconds, mebibytes) =
            longest.map_or((0.0, 0), |ran| (ran.to - ran.from, ran.read_bytes / MIB));
        let (count, seconds_all) = (ran.len(), to - from);
        println!("{what}: {seconds_all:.1} s; alone {alone:.2} s, several {several:.2} s");
        println!("  {count} compactions, the longest took {seconds:.2} s and read {mebibytes} MiB");
    }
}

/// A thread that has taken a compaction keeps it to its end. While it does, others must find something else to do.
#[test]
fn no_compaction_is_large() {
    const MEMTABLE: u64 = MIB / 2;
    for kind in TreeKind::ALL {
        let store = Store::new(kind, 16 * MIB, Some(MEMTABLE));
        store.load(400_000);
        store.db.wait_idle().expect("rest");
        store.keyspace.compact(..).expect("a compaction");
        let ran = store.between(0.0, store.seconds());
        let most = ran.iter().map(|ran| ran.read_bytes).max().unwrap_or(0);
        println!(
            "{kind}: {} compactions, the largest read {:.1} memtables",
            ran.len(),
            most as f64 / MEMTABLE as f64
        );
        assert!(ran.len() > 8, "{kind}: {} compactions", ran.len());
        assert!(most <= 16 * MEMTABLE, "{kind}: a compaction of {most} bytes");
    }
}

/// The figures of docs/decisions/0024: `SPINNEY_COMPACTIONS=long cargo test --release --test compaction_share --
/// --nocapture` measures them at full size.
#[test]
fn how_much_of_the_time_one_thread_works_alone() {
    let is_long = std::env::var("SPINNEY_COMPACTIONS").is_ok_and(|size| size == "long");
    let (records, memory) = if is_long { (8_000_000, 128) } else { (50_000, 16) };
    let mut settings: Vec<(TreeKind, u64, u64)> =
        TreeKind::ALL.into_iter().map(|kind| (kind, records, memory)).collect();
    if is_long {
        settings.push((TreeKind::ALL[0], 2 * records, 8 * memory));
    }
    for (kind, records, memory) in settings {
        let store = Store::new(kind, memory * MIB, None);
        println!("{kind}, {records} records, {memory} MiB");
        store.load(records);
        store.report("load", 0.0);
        let loaded = store.seconds();
        store.db.wait_idle().expect("rest");
        store.report("until idle", loaded);
        let settled = store.seconds();
        store.keyspace.compact(..).expect("a compaction");
        store.report("compact", settled);
    }
}
