//! Collects all answers of a store, whether right, wrong or an error.

use std::collections::BTreeSet;

use spinney::{DamagedRange, Database, Error, Iter, Keyspace, Slice};

use crate::image::{Contents, Image};
use crate::model::Pairs;

/// In which order a walk asks for pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Forward,
    Backward,
    /// From both ends in turn.
    Both,
}

/// What a walk over all pairs has given, which goes on behind what cannot be read.
#[derive(Debug)]
struct Walk {
    order: Order,
    /// From the front.
    front: Vec<(Slice, Slice)>,
    /// From the back, descending.
    back: Vec<(Slice, Slice)>,
    /// What could not be read.
    holes: Vec<DamagedRange>,
    /// Each hole's, and the one that it ended with, if any.
    errors: Vec<Error>,
}

impl Walk {
    fn of(mut pairs: Iter, order: Order) -> Walk {
        let (front, back) = (Vec::new(), Vec::new());
        let mut walk = Walk { order, front, back, holes: Vec::new(), errors: Vec::new() };
        for step in 0.. {
            let is_back = order == Order::Backward || order == Order::Both && step % 2 == 1;
            let pair = if is_back { pairs.next_back() } else { pairs.next() };
            match pair {
                None => break,
                Some(Ok(pair)) if is_back => walk.back.push(pair),
                Some(Ok(pair)) => walk.front.push(pair),
                Some(Err(error)) => {
                    walk.errors.push(error);
                    walk.holes.extend(pairs.damaged_range().cloned());
                }
            }
        }
        walk
    }

    /// Whether it got to its end.
    fn is_whole(&self) -> bool {
        self.errors.len() == self.holes.len()
    }

    /// Whether it has shown what there is, but for what lies in holes; else a key that is wrong.
    fn agree(&self, pairs: &Pairs) -> Result<(), Vec<u8>> {
        let is_lost = |key: &[u8]| self.holes.iter().any(|hole| hole.contains(key));
        let shown = self.front.iter().chain(self.back.iter().rev());
        let mut there = pairs.iter().peekable();
        for (number, (key, value)) in shown.enumerate() {
            if is_lost(key) {
                return Err(key.to_vec());
            }
            while let Some((next, _)) = there.peek()
                && ***next < **key
            {
                // Without an end, what lies between the passes has not been asked for.
                let is_between = !self.is_whole() && number == self.front.len();
                if !is_lost(next) && !is_between {
                    return Err(next.to_vec());
                }
                there.next();
            }
            if there.next().is_none_or(|(k, v)| **k != **key || **v != **value) {
                return Err(key.to_vec());
            }
        }
        match there.find(|(key, _)| !is_lost(key)) {
            Some((key, _)) if self.is_whole() || self.order == Order::Backward => Err(key.clone()),
            _ => Ok(()),
        }
    }
}

/// What a read of one key has given.
type Got = Result<Option<Slice>, Error>;

/// What a keyspace answers.
#[derive(Debug)]
struct KeyspaceAnswers {
    name: String,
    walks: [Walk; 3],
    /// For each key that was ever written.
    gets: Vec<(Vec<u8>, Got)>,
    /// The same keys at once.
    batch: Result<Vec<Option<Slice>>, Error>,
}

/// What a store answers when it is asked for everything, in all ways.
#[derive(Debug)]
pub struct Answers {
    names: Vec<String>,
    keyspaces: Vec<KeyspaceAnswers>,
    other: Option<Error>,
    /// How many questions were asked.
    pub operations: u64,
}

impl Answers {
    /// Asks a store for all that `image` has ever held.
    pub fn read(db: &Database, image: &Image) -> Answers {
        let names = db.keyspaces();
        let mut answers = Answers { names, keyspaces: Vec::new(), other: None, operations: 0 };
        for name in answers.names.clone() {
            match db.existing_keyspace(&name) {
                Ok(keyspace) => answers.ask(&keyspace, image),
                Err(error) => answers.other = Some(error),
            }
        }
        answers
    }

    fn ask(&mut self, keyspace: &Keyspace, image: &Image) {
        let keys = image.keys(keyspace.name());
        let walks = [Order::Forward, Order::Backward, Order::Both]
            .map(|order| Walk::of(keyspace.iter(), order));
        let batch = keyspace.multi_get(keys);
        let gets = keys.iter().map(|key| (key.clone(), keyspace.get(key))).collect();
        let shown: usize = walks.iter().map(|walk| walk.front.len() + walk.back.len()).sum();
        self.operations += (shown + 2 * keys.len()) as u64;
        let name = keyspace.name().to_string();
        self.keyspaces.push(KeyspaceAnswers { name, walks, gets, batch });
    }

    /// The same without some keyspaces, of which none has a pair.
    pub fn without(mut self, empty: &BTreeSet<String>) -> Answers {
        let has_pairs = |keyspace: &KeyspaceAnswers| {
            keyspace.walks.iter().any(|walk| !walk.front.is_empty() || !walk.back.is_empty())
        };
        self.names.retain(|name| {
            let found = self.keyspaces.iter().find(|keyspace| keyspace.name == *name);
            !empty.contains(name) || found.is_none_or(has_pairs)
        });
        self
    }

    /// All errors met.
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        let keyspaces = self.keyspaces.iter().flat_map(|keyspace| {
            let walks = keyspace.walks.iter().flat_map(|walk| &walk.errors);
            let gets = keyspace.gets.iter().map(|(_, got)| got.as_ref().err());
            walks.chain(gets.chain([keyspace.batch.as_ref().err()]).flatten())
        });
        keyspaces.chain(&self.other)
    }

    /// The first error, if there is any.
    pub fn error(&self) -> Option<&Error> {
        self.errors().next()
    }

    /// Whether all that was answered is so in `contents`; else what is not.
    ///
    /// # Errors
    /// The first wrong answer.
    pub fn agree(&self, contents: &Contents) -> Result<(), String> {
        if !self.names.iter().eq(contents.keys()) {
            return Err(format!("has the keyspaces {:?}", self.names));
        }
        self.agree_in(&self.names, contents)
    }

    /// Whether all that was answered of these keyspaces is so in `contents`; else what is not.
    ///
    /// # Errors
    /// The first wrong answer.
    pub fn agree_in(&self, names: &[String], contents: &Contents) -> Result<(), String> {
        let mut keyspaces = self.keyspaces.iter().filter(|keyspace| names.contains(&keyspace.name));
        keyspaces.try_for_each(|keyspace| match contents.get(&keyspace.name) {
            Some(pairs) => keyspace.agree(pairs),
            None => Ok(()),
        })
    }
}

impl KeyspaceAnswers {
    fn agree(&self, pairs: &Pairs) -> Result<(), String> {
        let wrong = |how: &str, key: &[u8]| {
            Err(format!("{how} at \"{}\" in {}", key.escape_ascii(), self.name))
        };
        for walk in &self.walks {
            walk.agree(pairs).or_else(|key| {
                wrong(&format!("{:?} walk (errors: {:?})", walk.order, walk.errors), &key)
            })?;
        }
        for (key, got) in &self.gets {
            let Ok(got) = got else { continue };
            if got.as_deref() != pairs.get(key).map(Vec::as_slice) {
                return wrong("get", key);
            }
        }
        let Ok(batch) = &self.batch else { return Ok(()) };
        for ((key, _), got) in self.gets.iter().zip(batch) {
            if got.as_deref() != pairs.get(key).map(Vec::as_slice) {
                return wrong("multi_get", key);
            }
        }
        Ok(())
    }
}
