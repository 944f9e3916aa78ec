//! All answers that a store gives, whether right, wrong or an error.

use spinney::{Database, Error, Keyspace, Slice};

use crate::image::{Contents, Image};
use crate::model::Pairs;

/// What a walk over all pairs has given.
#[derive(Debug, Default)]
struct Walk {
    pairs: Vec<(Slice, Slice)>,
    error: Option<Error>,
}

impl Walk {
    fn of(pairs: impl Iterator<Item = Result<(Slice, Slice), Error>>) -> Walk {
        let mut walk = Walk::default();
        for pair in pairs {
            match pair {
                Ok(pair) => walk.pairs.push(pair),
                Err(error) => {
                    walk.error = Some(error);
                    break;
                }
            }
        }
        walk
    }
}

/// What a read of one key has given.
type Got = Result<Option<Slice>, Error>;

/// What a keyspace answers.
#[derive(Debug)]
struct KeyspaceAnswers {
    name: String,
    forward: Walk,
    backward: Walk,
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
        let forward = Walk::of(keyspace.iter());
        let backward = Walk::of(keyspace.iter().rev());
        let batch = keyspace.multi_get(keys);
        let gets = keys.iter().map(|key| (key.clone(), keyspace.get(key))).collect();
        self.operations += (forward.pairs.len() + backward.pairs.len() + 2 * keys.len()) as u64;
        let name = keyspace.name().to_string();
        self.keyspaces.push(KeyspaceAnswers { name, forward, backward, gets, batch });
    }

    /// All errors met.
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        let keyspaces = self.keyspaces.iter().flat_map(|keyspace| {
            let walks = [keyspace.forward.error.as_ref(), keyspace.backward.error.as_ref()];
            let gets = keyspace.gets.iter().map(|(_, got)| got.as_ref().err());
            walks.into_iter().chain(gets).chain([keyspace.batch.as_ref().err()]).flatten()
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
        let walks = [("forward", &self.forward, false), ("backward", &self.backward, true)];
        for (how, walk, is_backward) in walks {
            let mut there = pairs.iter();
            for (key, value) in &walk.pairs {
                let expected = if is_backward { there.next_back() } else { there.next() };
                if expected.is_none_or(|(k, v)| **k != **key || **v != **value) {
                    return wrong(how, key);
                }
            }
            if walk.error.is_none() && there.next().is_some() {
                return wrong(how, b"the end");
            }
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
