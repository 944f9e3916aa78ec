//! Real threads that put and delete the same few keys, while others iterate over what is mostly deleted.
//!
//! Iterators remember ranges in which they found nothing (gaps), and skip them later. Reads of single keys know nothing
//! of gaps. So a snapshot's iterator must yield exactly the keys that its single reads find, however old it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spinney::{Database, Keyspace, KeyspaceOptions, Snapshot};

use super::{Judged, builder, plain};
use crate::kinds::Kinds;
use crate::random::Random;

/// Operations of a writer.
const OPERATIONS: usize = 120;
const WRITERS: usize = 2;
const READERS: u64 = 2;

struct Queue {
    db: Database,
    space: Keyspace,
    keys: Vec<String>,
    is_over: AtomicBool,
}

pub(super) fn queues(seed: u64, kinds: Kinds) -> Judged {
    let mut random = Random::new(&[seed, 54]);
    let builder = builder(&mut random)
        .memtable_bytes([2048, 8192][random.below(2)])
        .journal_shards(1 + random.below(2))
        .gap_entries_min(1 + random.below(3) as u32);
    let db = plain("open", builder.open())?;
    let space = plain("create", db.keyspace("queue", KeyspaceOptions::new(kinds.of(0))))?;
    let keys = (0..[6, 20, 60][random.below(3)]).map(|number| format!("{number:02}")).collect();
    let queue = Queue { db, space, keys, is_over: AtomicBool::new(false) };
    for key in &queue.keys {
        plain("put", queue.space.put(key, ""))?;
        plain("delete", queue.space.delete(key))?;
    }
    std::thread::scope(|scope| {
        let queue = &queue;
        let readers: Vec<_> = (0..READERS)
            .map(|n| scope.spawn(move || queue.read(Random::new(&[seed, 55, n]))))
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| scope.spawn(move || queue.write(n, Random::new(&[seed, 56, n as u64]))))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Judged>| {
            thread.join().unwrap_or(Err("a panic".to_string()))
        };
        let written = writers.into_iter().map(join).fold(Ok(()), Result::and);
        queue.is_over.store(true, Ordering::SeqCst);
        readers.into_iter().map(join).fold(written, Result::and)
    })
}

impl Queue {
    /// Puts and deletes keys that no other thread writes.
    fn write(&self, number: usize, mut random: Random) -> Judged {
        let own = || self.keys.iter().skip(number).step_by(WRITERS);
        let count = own().count();
        for _ in 0..OPERATIONS {
            let key = own().nth(random.below(count)).map_or("", |key| key);
            match random.below(8) {
                0 | 1 => plain("put", self.space.put(key, ""))?,
                2 => {
                    let mut batch = self.db.batch();
                    own().for_each(|key| batch.delete(&self.space, key));
                    batch.put(&self.space, key, "");
                    plain("commit", batch.commit())?;
                }
                3 => plain("flush", self.space.flush())?,
                _ => plain("delete", self.space.delete(key))?,
            }
            if random.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(300) as u64));
            }
        }
        Ok(())
    }

    fn read(&self, mut random: Random) -> Judged {
        let mut old = self.db.snapshot();
        while !self.is_over.load(Ordering::SeqCst) {
            let snapshot = self.db.snapshot();
            self.look(&snapshot, &mut random)?;
            self.look(&old, &mut random)?;
            if random.below(4) == 0 {
                old = snapshot;
            }
        }
        self.look(&self.db.snapshot(), &mut random)
    }

    /// Compares an iterator over a range with single reads.
    fn look(&self, snapshot: &Snapshot, random: &mut Random) -> Judged {
        let lower = random.below(2) * random.below(self.keys.len());
        let upper = self.keys.len() - random.below(2) * random.below(self.keys.len() - lower);
        let mut expected = Vec::new();
        for key in &self.keys[lower..upper] {
            if plain("contains_key", snapshot.contains_key(&self.space, key))? {
                expected.push(key.as_bytes().to_vec());
            }
        }
        let keys = self.keys[lower].as_str()..=self.keys[upper - 1].as_str();
        let mut iterator = snapshot.range(&self.space, keys);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        let backward = [0, 1, 2][random.below(3)];
        loop {
            let is_backward = random.below(2) < backward;
            let pair = match is_backward {
                true => iterator.next_back(),
                false => iterator.next(),
            };
            let Some(pair) = pair else { break };
            let key = plain("scan", pair)?.0.to_vec();
            if is_backward { back.push(key) } else { front.push(key) }
        }
        front.extend(back.into_iter().rev());
        if front != expected {
            let shown = |keys: &[Vec<u8>]| -> Vec<String> {
                keys.iter().map(|key| key.escape_ascii().to_string()).collect()
            };
            let (expected, found) = (shown(&expected), shown(&front));
            return Err(format!(
                "a snapshot's iterator over keys {lower}..{upper}: {found:?}, but single reads find {expected:?}"
            ));
        }
        Ok(())
    }
}
