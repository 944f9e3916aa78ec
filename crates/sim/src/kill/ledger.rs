//! The parent's knowledge of a store: the issued, acknowledged and found steps, in order. It is a
//! file beside the store. A child reads from it where to continue, and it reproduces a violation.
//!
//! Invariants:
//! 1. A step is in the store if it was acknowledged or found, and not if it was refused. A step
//!    that was only issued may or may not be there until it has been looked up.
//! 2. Of two writes to a shared key, one is earlier if it was acknowledged before the other was
//!    issued.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::frames::Frame;
use super::script::{Script, Step, WriterState};
use crate::kinds::Kinds;

/// What is known of one writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriterRecord {
    /// Steps that must be there.
    pub least: u64,
    /// Steps that may be there.
    pub most: u64,
    /// From which step on which life counts, ascending.
    pub lives: Vec<(u64, u32)>,
}

impl WriterRecord {
    fn issue(&mut self, step: u64, life: u32) {
        self.lives.retain(|(from, _)| *from < step);
        if self.lives.last().is_none_or(|(_, last)| *last != life) {
            self.lives.push((step, life));
        }
        self.most = step;
    }

    /// The life in which a step was done.
    pub fn life_of(&self, step: u64) -> u32 {
        let at = self.lives.partition_point(|(from, _)| *from <= step);
        at.checked_sub(1).map_or(0, |at| self.lives[at].1)
    }

    /// Does the step after `state`, as it was done.
    pub fn advance(&self, script: &Script, state: &mut WriterState) -> Step {
        let step = state.next(script, self.life_of(state.steps + 1));
        state.apply(&step);
        step
    }

    /// What the writer's keys hold after so many steps.
    pub fn after(&self, script: &Script, writer: usize, steps: u64) -> WriterState {
        let mut state = WriterState::new(writer);
        while state.steps < steps {
            self.advance(script, &mut state);
        }
        state
    }
}

/// A write of a shared key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedWrite {
    /// The key.
    pub key: usize,
    /// Who wrote it.
    pub writer: usize,
    /// In which step.
    pub step: u64,
    /// In which life.
    pub life: u32,
    /// When it was issued.
    pub issued: u64,
    /// When it was acknowledged, if it was.
    pub acknowledged: Option<u64>,
}

/// A copy that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Its directory's name.
    pub number: u64,
    /// Of each writer, the steps it must hold.
    pub least: Vec<u64>,
    /// Of each writer, the steps it may hold; none while it is being made.
    pub most: Option<Vec<u64>>,
}

/// What is known of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// The script's seed.
    pub seed: u64,
    /// The script's trees.
    pub kinds: Kinds,
    /// Whether the script fills the store.
    pub fills: bool,
    /// Whether it goes without io_uring.
    pub blocking: bool,
    /// Children so far.
    pub round: u32,
    /// Whether the store exists for certain.
    pub opened: bool,
    /// Whether the shared keyspaces exist for certain.
    pub ready: bool,
    /// The writers.
    pub writers: Vec<WriterRecord>,
    /// The writes of shared keys that may be seen.
    pub shared: Vec<SharedWrite>,
    /// Copies of the last round.
    pub copies: Vec<Copy>,
    /// A number for each thing that happens.
    pub now: u64,
}

/// What a store was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The steps of each writer.
    pub steps: Vec<u64>,
    /// Key, writer and step of each shared key that is there.
    pub shared: Vec<(usize, usize, u64)>,
}

impl Ledger {
    /// Of a store that is not there yet.
    pub fn new(script: &Script) -> Ledger {
        Ledger {
            seed: script.seed,
            kinds: script.kinds,
            fills: script.fills,
            blocking: script.blocking,
            round: 0,
            opened: false,
            ready: false,
            writers: vec![WriterRecord::default(); script.writers],
            shared: Vec::new(),
            copies: Vec::new(),
            now: 0,
        }
    }

    /// The script it is of.
    pub fn script(&self) -> Script {
        let mut script = Script::new(self.seed, self.kinds);
        (script.fills, script.blocking) = (self.fills, self.blocking);
        script
    }

    /// Learns what a child says. `states` are the writers' states after their last step
    /// that was acknowledged.
    pub fn note(&mut self, frame: &Frame, script: &Script, states: &mut [WriterState]) {
        self.now += 1;
        match *frame {
            Frame::Found { writer, steps } => {
                // Found by a store that opened, and so there.
                self.opened = true;
                self.writers[writer].least = steps;
                self.writers[writer].most = steps;
                states[writer] = self.writers[writer].after(script, writer, steps);
                self.forget_beyond(writer, steps);
            }
            Frame::SharedFound { key, writer, step } => self.settle_shared(key, writer, step),
            Frame::Ready => self.ready = true,
            Frame::Issued { writer, life, step } => {
                let record = &mut self.writers[writer];
                record.issue(step, life);
                let begun = states[writer].next(script, life);
                if let Step::Batch { shared: Some(key), .. } = begun {
                    let issued = self.now;
                    let write = SharedWrite { key, writer, step, life, issued, acknowledged: None };
                    self.shared.push(write);
                }
            }
            Frame::Acknowledged { writer, step, .. } => {
                self.writers[writer].least = step;
                self.writers[writer].advance(script, &mut states[writer]);
                let now = self.now;
                let mut own = self.shared.iter_mut().rev();
                if let Some(write) = own.find(|w| w.writer == writer && w.step == step) {
                    write.acknowledged = Some(now);
                }
            }
            Frame::Refused { writer, step } => {
                self.writers[writer].most = step - 1;
                self.forget_beyond(writer, step - 1);
            }
            Frame::CopyIssued(number) => {
                let least = self.writers.iter().map(|record| record.least).collect();
                self.copies.push(Copy { number, least, most: None });
            }
            Frame::CopyDone(number) => {
                let most: Vec<u64> = self.writers.iter().map(|record| record.most).collect();
                if let Some(copy) = self.copies.iter_mut().find(|copy| copy.number == number) {
                    copy.most = Some(most);
                }
            }
            _ => {}
        }
    }

    fn forget_beyond(&mut self, writer: usize, steps: u64) {
        let now = self.now;
        self.shared.retain(|write| write.writer != writer || write.step <= steps);
        for write in self.shared.iter_mut().filter(|write| write.writer == writer) {
            write.acknowledged.get_or_insert(now);
        }
    }

    fn settle_shared(&mut self, key: usize, writer: usize, step: u64) {
        self.shared
            .retain(|write| write.key != key || (write.writer, write.step) == (writer, step));
    }

    /// Learns what was found when the store was opened.
    pub fn settle(&mut self, findings: &Findings) {
        self.now += 1;
        for (writer, &steps) in findings.steps.iter().enumerate() {
            self.writers[writer].least = steps;
            self.writers[writer].most = steps;
            self.forget_beyond(writer, steps);
        }
        for &(key, writer, step) in &findings.shared {
            self.settle_shared(key, writer, step);
        }
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// As the file system says.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let writers: Vec<Value> = self
            .writers
            .iter()
            .map(|writer| json!([writer.least, writer.most, writer.lives]))
            .collect();
        let shared: Vec<Value> = self
            .shared
            .iter()
            .map(|w| json!([w.key, w.writer, w.step, w.life, w.issued, w.acknowledged]))
            .collect();
        let copies: Vec<Value> =
            self.copies.iter().map(|copy| json!([copy.number, copy.least, copy.most])).collect();
        let all = json!({
            "seed": self.seed, "kinds": self.kinds.to_string(), "fills": self.fills,
            "blocking": self.blocking, "round": self.round, "opened": self.opened,
            "ready": self.ready, "now": self.now, "writers": writers, "shared": shared,
            "copies": copies,
        });
        fs::write(path, all.to_string())
    }

    /// Reads what [`Ledger::save`] has written.
    ///
    /// # Errors
    /// As the file system says, or if it is no ledger.
    pub fn load(path: &Path) -> io::Result<Ledger> {
        let wrong = || io::Error::other(format!("{} is no ledger", path.display()));
        let all: Value = serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)?;
        Ledger::parse(&all).ok_or_else(wrong)
    }

    fn parse(all: &Value) -> Option<Ledger> {
        let list = |value: &Value| value.as_array().cloned();
        let numbers = |value: &Value| -> Option<Vec<u64>> {
            value.as_array()?.iter().map(Value::as_u64).collect()
        };
        let small = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let place = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let writers = list(&all["writers"])?.into_iter().map(|writer| {
            let lives = list(&writer[2])?.into_iter();
            let lives = lives.map(|life| Some((life[0].as_u64()?, small(&life[1])?)));
            Some(WriterRecord {
                least: writer[0].as_u64()?,
                most: writer[1].as_u64()?,
                lives: lives.collect::<Option<_>>()?,
            })
        });
        let shared = list(&all["shared"])?.into_iter().map(|w| {
            Some(SharedWrite {
                key: place(&w[0])?,
                writer: place(&w[1])?,
                step: w[2].as_u64()?,
                life: small(&w[3])?,
                issued: w[4].as_u64()?,
                acknowledged: w[5].as_u64(),
            })
        });
        let copies = list(&all["copies"])?.into_iter().map(|copy| {
            let most = if copy[2].is_null() { None } else { Some(numbers(&copy[2])?) };
            Some(Copy { number: copy[0].as_u64()?, least: numbers(&copy[1])?, most })
        });
        Some(Ledger {
            seed: all["seed"].as_u64()?,
            kinds: all["kinds"].as_str()?.parse().ok()?,
            fills: all["fills"].as_bool()?,
            blocking: all["blocking"].as_bool()?,
            round: small(&all["round"])?,
            opened: all["opened"].as_bool()?,
            ready: all["ready"].as_bool()?,
            writers: writers.collect::<Option<_>>()?,
            shared: shared.collect::<Option<_>>()?,
            copies: copies.collect::<Option<_>>()?,
            now: all["now"].as_u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_writers() -> Script {
        let seeds = (1..).map(|seed| Script::new(seed, Kinds::Mixed));
        seeds.into_iter().find(|script| script.writers == 2).unwrap()
    }

    fn ledger() -> (Script, Ledger, Vec<WriterState>) {
        let script = two_writers();
        let mut ledger = Ledger::new(&script);
        let mut states: Vec<WriterState> = (0..2).map(WriterState::new).collect();
        for step in 1..=40 {
            for writer in 0..2 {
                ledger.note(&Frame::Issued { writer, life: 1, step }, &script, &mut states);
                let sync = false;
                ledger.note(&Frame::Acknowledged { writer, sync, step }, &script, &mut states);
            }
        }
        (script, ledger, states)
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let (script, mut ledger, mut states) = ledger();
        ledger.note(&Frame::CopyIssued(3), &script, &mut states);
        ledger.note(&Frame::CopyDone(3), &script, &mut states);
        ledger.note(&Frame::CopyIssued(4), &script, &mut states);
        assert!(!ledger.shared.is_empty());
        let path = std::env::temp_dir().join(format!("spinney-ledger-{}", std::process::id()));
        ledger.save(&path).unwrap();
        assert_eq!(Ledger::load(&path).unwrap(), ledger);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_step_that_was_lost_is_done_again_in_another_life() {
        let (script, mut ledger, mut states) = ledger();
        ledger.note(&Frame::Issued { writer: 0, life: 1, step: 41 }, &script, &mut states);
        assert_eq!((ledger.writers[0].least, ledger.writers[0].most), (40, 41));
        let lost = ledger.writers[0].after(&script, 0, 41);
        ledger.note(&Frame::Found { writer: 0, steps: 40 }, &script, &mut states);
        assert_eq!((ledger.writers[0].least, ledger.writers[0].most), (40, 40));
        ledger.note(&Frame::Issued { writer: 0, life: 2, step: 41 }, &script, &mut states);
        let done = Frame::Acknowledged { writer: 0, sync: false, step: 41 };
        ledger.note(&done, &script, &mut states);
        assert_ne!(states[0], lost);
        assert_eq!(ledger.writers[0].after(&script, 0, 41), states[0]);
        assert_eq!(ledger.writers[0].lives, [(1, 1), (41, 2)]);
    }

    #[test]
    fn a_refused_step_may_not_be_there() {
        let (script, mut ledger, mut states) = ledger();
        ledger.note(&Frame::Issued { writer: 1, life: 1, step: 41 }, &script, &mut states);
        ledger.note(&Frame::Refused { writer: 1, step: 41 }, &script, &mut states);
        assert_eq!((ledger.writers[1].least, ledger.writers[1].most), (40, 40));
        assert!(ledger.shared.iter().all(|write| write.writer == 0 || write.step <= 40));
    }
}
