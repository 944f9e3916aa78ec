//! The parent's knowledge of a store: for each key, the step that wrote it last.
//!
//! Invariants:
//! 1. It has exactly the steps that were acknowledged, or found when the store was opened.
//! 2. Each writer has at most one step that is issued and not known. It is in the store completely
//!    or not at all, which is determined when the store is opened.
//! 3. The store has nothing else: no other key, no other value.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::frames::Seen;
use super::script::{Change, Op, Script, digest};

/// What was found, or what was promised and is not so.
pub type Verdict<T> = Result<T, String>;

/// The step that put a key last, 0 for none, and the steps that appended to it since.
type State<'a> = (u32, &'a [u32]);

/// What is known of a keyspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceLedger {
    /// By key.
    put: Vec<u32>,
    appended: BTreeMap<u32, Vec<u32>>,
    /// Keys that are there.
    pub live_keys: u64,
    /// Their bytes and their values'.
    pub live_bytes: u64,
}

/// What is known of a writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriterLedger {
    /// The last step that is in the store.
    pub acknowledged: u32,
    /// The last step that was begun.
    pub issued: u32,
    /// Whether a step under way was seen to be there, when the store was opened.
    vote: Option<bool>,
}

impl WriterLedger {
    /// The step that may be there or not.
    pub fn under_way(&self) -> Option<u32> {
        (self.issued > self.acknowledged).then_some(self.issued)
    }
}

/// What is known of a store.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// What is done to it.
    pub script: Script,
    /// By keyspace.
    pub spaces: Vec<SpaceLedger>,
    /// By writer.
    pub writers: Vec<WriterLedger>,
    /// Whether the store exists for certain, with all its keyspaces.
    pub created: bool,
    /// The sum of bytes of keys and values that were written.
    pub written_bytes: u64,
    /// The keyspace that is being scanned, and its pairs so far.
    scan: Option<(usize, u64)>,
}

impl Ledger {
    /// Of a store that is not there yet.
    pub fn new(script: Script) -> Ledger {
        let space = |space: &super::script::Space| SpaceLedger {
            put: vec![0; space.keys as usize],
            ..SpaceLedger::default()
        };
        Ledger {
            spaces: script.spaces.iter().map(space).collect(),
            writers: vec![WriterLedger::default(); script.writers],
            created: false,
            written_bytes: 0,
            scan: None,
            script,
        }
    }

    fn state(&self, space: usize, index: u32) -> State<'_> {
        let known = &self.spaces[space];
        let put = known.put.get(index as usize).copied().unwrap_or(0);
        (put, known.appended.get(&index).map_or(&[], Vec::as_slice))
    }

    fn value_bytes(&self, space: usize, index: u32, (put, appended): State<'_>) -> Option<u64> {
        let steps = Some(put).filter(|put| *put > 0).into_iter().chain(appended.iter().copied());
        steps.map(|step| self.script.len(space, index, step)).reduce(|sum, len| sum + len)
    }

    fn seen(&self, space: usize, index: u32, (put, appended): State<'_>) -> Seen {
        let steps = Some(put).filter(|put| *put > 0).into_iter().chain(appended.iter().copied());
        let mut value = Vec::new();
        let mut is_there = false;
        for step in steps {
            is_there = true;
            self.script.write(space, index, step, &mut value);
        }
        is_there.then(|| (value.len() as u64, digest(&value)))
    }

    /// A writer begins a step.
    pub fn issued(&mut self, writer: usize, step: u32) {
        self.writers[writer].issued = step;
    }

    /// A step is in the store.
    pub fn apply(&mut self, writer: usize, step: u32) {
        for op in self.script.step(writer, step).ops {
            self.change(op, step);
        }
        self.writers[writer].acknowledged = step;
    }

    fn change(&mut self, Op { space, index, change }: Op, step: u32) {
        let key_bytes = self.script.key(space, index).len() as u64;
        let before = self.value_bytes(space, index, self.state(space, index));
        let known = &mut self.spaces[space];
        match change {
            Change::Append => known.appended.entry(index).or_default().push(step),
            Change::Put | Change::Delete => {
                known.appended.remove(&index);
                known.put[index as usize] = if change == Change::Put { step } else { 0 };
            }
        }
        let after = self.value_bytes(space, index, self.state(space, index));
        self.written_bytes += key_bytes;
        if change != Change::Delete {
            self.written_bytes += self.script.len(space, index, step);
        }
        let known = &mut self.spaces[space];
        if let Some(bytes) = before {
            known.live_keys -= 1;
            known.live_bytes -= key_bytes + bytes;
        }
        if let Some(bytes) = after {
            known.live_keys += 1;
            known.live_bytes += key_bytes + bytes;
        }
    }

    /// Judges what was read at a key.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn read(&mut self, space: usize, index: u32, seen: Seen) -> Verdict<()> {
        if let Some((scanned, pairs)) = &mut self.scan
            && *scanned == space
        {
            *pairs += 1;
        }
        let expected = self.seen(space, index, self.state(space, index));
        let writer = self.script.owner(index);
        let change = self.writers[writer].under_way().and_then(|step| {
            let ops = self.script.step(writer, step).ops;
            let op = ops.into_iter().find(|op| (op.space, op.index) == (space, index))?;
            Some((op.change, step))
        });
        let Some((change, step)) = change else {
            return self.is_as_known(space, index, seen);
        };
        let (put, appended) = self.state(space, index);
        let more: Vec<u32> = appended.iter().copied().chain([step]).collect();
        let after = match change {
            Change::Append => self.seen(space, index, (put, &more)),
            Change::Put => self.seen(space, index, (step, &[])),
            Change::Delete => None,
        };
        let is_there = match (seen == expected, seen == after) {
            (true, true) => return Ok(()),
            (false, false) => return Err(self.differs(space, index, seen)),
            (_, is_there) => is_there,
        };
        match self.writers[writer].vote.replace(is_there) {
            Some(vote) if vote != is_there => Err(format!(
                "half a batch: step {step} of writer {writer} is {} at key {index} of {} and was {} \
                 at another key",
                if is_there { "there" } else { "missing" },
                self.script.spaces[space].name,
                if vote { "there" } else { "missing" },
            )),
            _ => Ok(()),
        }
    }

    /// The last step that wrote a key that is there.
    pub fn last_step(&self, space: usize, index: u32) -> Option<u32> {
        let (put, appended) = self.state(space, index);
        appended.last().copied().or(Some(put).filter(|put| *put > 0))
    }

    /// Whether what was read at a key is what is known.
    ///
    /// # Errors
    /// If not.
    pub fn is_as_known(&self, space: usize, index: u32, seen: Seen) -> Verdict<()> {
        match seen == self.seen(space, index, self.state(space, index)) {
            true => Ok(()),
            false => Err(self.differs(space, index, seen)),
        }
    }

    fn differs(&self, space: usize, index: u32, seen: Seen) -> String {
        let state = self.state(space, index);
        let say = |seen: Seen| match seen {
            Some((len, digest)) => format!("{len} bytes ({digest:016x})"),
            None => "nothing".to_string(),
        };
        let writer = self.script.owner(index);
        format!(
            "key {index} of {} (writer {writer}, whose last step is {}) holds {} instead of {}: put in \
             step {}, appended to in steps {:?}",
            self.script.spaces[space].name,
            self.writers[writer].acknowledged,
            say(seen),
            say(self.seen(space, index, state)),
            state.0,
            state.1,
        )
    }

    /// All of the step that was under way has been looked at: it is there, or will never be.
    pub fn settle(&mut self, writer: usize) {
        let Some(step) = self.writers[writer].under_way() else { return };
        match self.writers[writer].vote.take() {
            Some(false) => self.writers[writer].issued = self.writers[writer].acknowledged,
            // Without a vote it makes no difference.
            _ => self.apply(writer, step),
        }
    }

    /// All pairs of a keyspace follow.
    pub fn scan_begun(&mut self, space: usize) {
        self.scan = Some((space, 0));
    }

    /// That was all of them.
    ///
    /// # Errors
    /// If it was not.
    pub fn scan_ended(&mut self, space: usize) -> Verdict<()> {
        let pairs = self.scan.take().map_or(0, |(_, pairs)| pairs);
        let live = self.spaces[space].live_keys;
        match pairs == live {
            true => Ok(()),
            false => Err(format!(
                "a scan of {} yields {pairs} pairs of {live}",
                self.script.spaces[space].name
            )),
        }
    }

    /// Writes it to files in a directory.
    ///
    /// # Errors
    /// As the file system says.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let writers: Vec<Value> =
            self.writers.iter().map(|w| json!([w.acknowledged, w.issued])).collect();
        let head = json!({
            "seed": self.script.seed, "kinds": self.script.kinds.to_string(),
            "bytes": self.script.bytes, "created": self.created, "writers": writers,
        });
        let mut bytes = Vec::new();
        for space in &self.spaces {
            space.put.iter().for_each(|put| bytes.extend_from_slice(&put.to_le_bytes()));
            let mut numbers = vec![space.appended.len() as u32];
            for (index, steps) in &space.appended {
                numbers.extend([*index, steps.len() as u32]);
                numbers.extend(steps);
            }
            numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        }
        fs::write(dir.join("ledger.keys"), bytes)?;
        fs::write(dir.join("ledger.json"), head.to_string())
    }

    /// Reads what [`Ledger::save`] has written.
    ///
    /// # Errors
    /// As the file system says, or if it is no ledger.
    pub fn load(dir: &Path) -> io::Result<Ledger> {
        let wrong = || io::Error::other(format!("{} holds no ledger", dir.display()));
        let head: Value = serde_json::from_slice(&fs::read(dir.join("ledger.json"))?)?;
        let bytes = fs::read(dir.join("ledger.keys"))?;
        Ledger::parse(&head, &bytes).ok_or_else(wrong)
    }

    fn parse(head: &Value, bytes: &[u8]) -> Option<Ledger> {
        let kinds = head["kinds"].as_str()?.parse().ok()?;
        let script = Script::new(head["seed"].as_u64()?, kinds, head["bytes"].as_u64()?);
        let mut ledger = Ledger::new(script);
        ledger.created = head["created"].as_bool()?;
        for (writer, numbers) in ledger.writers.iter_mut().zip(head["writers"].as_array()?) {
            let number = |at: usize| u32::try_from(numbers[at].as_u64()?).ok();
            (writer.acknowledged, writer.issued) = (number(0)?, number(1)?);
        }
        let mut words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.first_chunk().copied().unwrap_or_default()));
        for space in 0..ledger.spaces.len() {
            for put in &mut ledger.spaces[space].put {
                *put = words.next()?;
            }
            for _ in 0..words.next()? {
                let (index, count) = (words.next()?, words.next()?);
                let steps = words.by_ref().take(count as usize).collect();
                ledger.spaces[space].appended.insert(index, steps);
            }
            let (mut keys, mut sum) = (0, 0);
            for index in 0..ledger.script.spaces[space].keys {
                if let Some(bytes) = ledger.value_bytes(space, index, ledger.state(space, index)) {
                    keys += 1;
                    sum += ledger.script.key(space, index).len() as u64 + bytes;
                }
            }
            (ledger.spaces[space].live_keys, ledger.spaces[space].live_bytes) = (keys, sum);
        }
        Some(ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;

    fn ledger(seed: u64, steps: u32) -> Ledger {
        let mut ledger = Ledger::new(Script::new(seed, Kinds::Mixed, 2 << 20));
        for writer in 0..ledger.script.writers {
            for step in 1..=ledger.script.filling_steps(writer) + steps {
                ledger.issued(writer, step);
                ledger.apply(writer, step);
            }
        }
        ledger
    }

    fn all(ledger: &Ledger) -> Vec<(usize, u32, Seen)> {
        let spaces = 0..ledger.spaces.len();
        let of = |space: usize| {
            (0..ledger.script.spaces[space].keys).map(move |index| {
                (space, index, ledger.seen(space, index, ledger.state(space, index)))
            })
        };
        spaces.flat_map(of).collect()
    }

    #[test]
    fn what_is_known_passes_and_anything_else_does_not() {
        let mut ledger = ledger(5, 400);
        for (space, index, seen) in all(&ledger) {
            ledger.read(space, index, seen).unwrap();
            let other = match seen {
                Some((len, digest)) => Some((len, digest ^ 1)),
                None => Some((0, digest(b""))),
            };
            assert!(ledger.read(space, index, other).is_err());
        }
    }

    #[test]
    fn a_scan_must_yield_every_pair() {
        let mut ledger = ledger(6, 400);
        for space in 0..ledger.spaces.len() {
            let there: Vec<_> = all(&ledger)
                .into_iter()
                .filter(|(s, _, seen)| *s == space && seen.is_some())
                .collect();
            for left_out in [0, 1] {
                ledger.scan_begun(space);
                for (space, index, seen) in &there[left_out..] {
                    ledger.read(*space, *index, *seen).unwrap();
                }
                assert_eq!(ledger.scan_ended(space).is_ok(), left_out == 0);
            }
        }
    }

    #[test]
    fn a_step_under_way_is_there_as_a_whole_or_not_at_all() {
        let before = ledger(7, 50);
        let step = before.script.filling_steps(0) + 51;
        let large = (step..).find(|step| before.script.step(0, *step).ops.len() > 3).unwrap();
        let mut after = before.clone();
        after.apply(0, large);
        let ops = before.script.step(0, large).ops;
        let seen = |ledger: &Ledger, op: &Op| {
            ledger.seen(op.space, op.index, ledger.state(op.space, op.index))
        };
        for (from, there) in [(&before, false), (&after, true)] {
            let mut opened = before.clone();
            opened.issued(0, large);
            for op in &ops {
                opened.read(op.space, op.index, seen(from, op)).unwrap();
            }
            opened.settle(0);
            assert_eq!(opened.writers[0].acknowledged == large, there);
            assert_eq!(opened.writers[0].under_way(), None);
            assert_eq!(opened.spaces, from.spaces);
        }
        let mut halves = before.clone();
        halves.issued(0, large);
        let verdicts = ops.iter().enumerate().map(|(n, op)| {
            halves.read(op.space, op.index, seen(if n < 2 { &before } else { &after }, op))
        });
        let verdicts: Vec<_> = verdicts.collect();
        assert!(verdicts.iter().any(|verdict| {
            verdict.as_ref().is_err_and(|what| what.starts_with("half a batch"))
        }));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut ledger = ledger(8, 300);
        ledger.created = true;
        ledger.issued(0, ledger.writers[0].acknowledged + 1);
        let dir = std::env::temp_dir().join(format!("spinney-torture-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        ledger.save(&dir).unwrap();
        let again = Ledger::load(&dir).unwrap();
        assert_eq!((again.spaces, again.writers), (ledger.spaces, ledger.writers));
        assert!(again.created);
        fs::remove_dir_all(dir).unwrap();
    }
}
