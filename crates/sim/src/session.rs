//! Applies actions to a store and to the model, and compares each read.
//!
//! Invariants:
//! 1. The same actions with the same sizes do the same operations on the same disk.
//! 2. An action is in the history before the store is called: a failed action has been issued and
//!    has not returned.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney::vfs::Vfs;
use spinney::{CheckLevel, Database, Durability, Error, Iter, Keyspace, Slice, Snapshot, Swap};

use crate::action::{
    self, Action, Change, KeyspaceNumber, Options, Range, Slot, View, key_bytes, keyspace_name,
};
use crate::model::{Checkpoint, Effect, History, Incarnation, Pairs, Span, Write};
use crate::sizes::Sizes;

mod conditions;
mod reads;

use reads::HeldIterator;

/// Places for snapshots, and as many for iterators.
const SLOTS: usize = 8;
/// Values that were read and are kept, to be looked at once more: no more at once, and no shorter ones.
const KEPT_VALUES: usize = 16;
const KEPT_VALUE_BYTES_MIN: usize = 1024;

/// A store did not do what it should.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The number of the action, unless it was the opening or the end.
    pub action: Option<usize>,
    /// What happened, and what should have.
    pub what: String,
    /// The error, if the store gave one.
    pub error: Option<Box<Error>>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.action {
            Some(number) => write!(f, "action {number}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Failure {
    /// Something was read that should not have been.
    fn mismatch(what: String) -> Failure {
        Failure { action: None, what, error: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure {
            action: None,
            what: format!("the store failed: {error}"),
            error: Some(Box::new(error)),
        }
    }
}

type Done<T = ()> = Result<T, Failure>;

/// Where a session's store is, and how its moments are told.
pub struct World {
    /// The files.
    pub vfs: Arc<dyn Vfs>,
    /// How many operations there have been.
    pub moment: Box<dyn Fn() -> usize>,
    /// The store.
    pub dir: PathBuf,
    /// Copies are here, with a number behind it.
    pub copies: String,
    /// Whether copies are kept; else they are removed when they have been compared.
    pub keep_copies: bool,
}

/// What a store holds when a session begins.
#[derive(Debug, Clone)]
pub struct Inherited {
    /// A keyspace.
    pub number: KeyspaceNumber,
    /// What it was created with.
    pub options: Options,
    /// What it holds.
    pub pairs: Pairs,
}

struct OpenKeyspace {
    number: KeyspaceNumber,
    /// In the history.
    place: usize,
    keyspace: Keyspace,
}

struct HeldSnapshot {
    snapshot: Snapshot,
    commits: usize,
}

/// A store that is worked on, and its model.
pub struct Session {
    sizes: Sizes,
    world: World,
    db: Option<Database>,
    /// By number.
    keyspaces: Vec<OpenKeyspace>,
    snapshots: [Option<HeldSnapshot>; SLOTS],
    iterators: [Option<HeldIterator>; SLOTS],
    /// Values that were read, with what they were then.
    kept_values: VecDeque<(Slice, Vec<u8>)>,
    history: History,
    copies: usize,
}

impl Session {
    /// Opens the store, which holds what is `inherited` and is created if that is `None`. Copies
    /// that were made before stay in the history.
    ///
    /// # Errors
    /// Of the store.
    pub fn open(
        sizes: Sizes,
        world: World,
        inherited: Option<Vec<Inherited>>,
        checkpoints: Vec<Checkpoint>,
    ) -> Done<Session> {
        let mut session = Session::closed(sizes, world, inherited.as_deref(), checkpoints);
        session.open_store(inherited.is_none())?;
        Ok(session)
    }

    /// As [`Session::open`], but nothing is opened yet: [`Session::open_store`] does that.
    pub fn closed(
        sizes: Sizes,
        world: World,
        inherited: Option<&[Inherited]>,
        checkpoints: Vec<Checkpoint>,
    ) -> Session {
        let mut history = History { checkpoints, ..History::default() };
        for Inherited { number, options, pairs } in inherited.unwrap_or_default() {
            let span = Span::default();
            let incarnation = Incarnation::new(*number, *options, pairs.clone(), 0, span);
            history.keyspaces.push(incarnation);
        }
        Session {
            sizes,
            world,
            db: None,
            keyspaces: Vec::new(),
            snapshots: Default::default(),
            iterators: Default::default(),
            kept_values: VecDeque::new(),
            history,
            copies: 0,
        }
    }

    /// What has been done.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The store, if it is open.
    pub fn database(&self) -> Option<&Database> {
        self.db.as_ref()
    }

    /// Gives up the store without closing it, and what has been done.
    pub fn into_history(mut self) -> History {
        self.let_go();
        self.db = None;
        self.history
    }

    /// Carries out all of `actions`. Those before a failure have been carried out.
    ///
    /// # Errors
    /// The first failure.
    pub fn run(&mut self, actions: &[Action]) -> Done {
        for (number, action) in actions.iter().enumerate() {
            self.apply(number, action)?;
        }
        Ok(())
    }

    /// Carries out the action of that number.
    ///
    /// # Errors
    /// Of the store, or what it should have read.
    pub fn apply(&mut self, number: usize, action: &Action) -> Done {
        let issued = self.moment();
        self.history.trace.push((issued, number));
        self.act(action).map_err(|failure| Failure { action: Some(number), ..failure })
    }

    fn act(&mut self, action: &Action) -> Done {
        match action {
            Action::Write(write) => self.write(write),
            Action::Batch { writes, sync } => self.batch(writes, *sync),
            Action::WriteIf(conditional) => self.write_if(conditional),
            Action::BatchIf { requires, writes } => self.batch_if(requires, writes),
            Action::Sync => {
                self.db()?.sync()?;
                self.all_durable();
                Ok(())
            }
            Action::Step(count) => {
                for _ in 0..*count {
                    self.db()?.step()?;
                }
                Ok(())
            }
            Action::WaitIdle => Ok(self.db()?.wait_idle()?),
            Action::Flush(number) => match self.find(*number) {
                Some(open) => Ok(open.keyspace.flush()?),
                None => Ok(()),
            },
            Action::Compact(number, range) => self.compact(*number, *range),
            Action::TakeSnapshot(slot) => {
                let held = HeldSnapshot {
                    snapshot: self.db()?.snapshot(),
                    commits: self.history.issued(),
                };
                self.snapshots[place(*slot)] = Some(held);
                Ok(())
            }
            Action::DropSnapshot(slot) => {
                self.snapshots[place(*slot)] = None;
                Ok(())
            }
            Action::OpenIterator { slot, keyspace, view, range } => {
                self.iterators[place(*slot)] = self.open_iterator(*keyspace, *view, *range);
                Ok(())
            }
            Action::AdvanceIterator { slot, direction, count } => {
                match &mut self.iterators[place(*slot)] {
                    Some(held) => held.advance(&self.history, *direction, usize::from(*count)),
                    None => Ok(()),
                }
            }
            Action::DropIterator(slot) => {
                self.iterators[place(*slot)] = None;
                Ok(())
            }
            Action::Get { keyspace, key, view } => self.get(*keyspace, *key, *view),
            Action::MultiGet { keyspace, keys, view } => self.multi_get(*keyspace, keys, *view),
            Action::Scan { keyspace, range, view, direction, count } => {
                match self.open_iterator(*keyspace, *view, *range) {
                    Some(mut iterator) => {
                        iterator.advance(&self.history, *direction, usize::from(*count))
                    }
                    None => Ok(()),
                }
            }
            Action::CompareAll => {
                self.compare_kept_values()?;
                self.compare_all()
            }
            Action::Checkpoint { compare } => self.checkpoint(*compare),
            Action::CreateKeyspace(number, options) => self.create(*number, *options),
            Action::Alter(number, options) => self.alter(*number, *options),
            Action::DropKeyspace(number) => self.drop_keyspace(*number),
            Action::Reopen { close } => {
                self.shut(*close)?;
                // They outlive the store.
                self.compare_kept_values()?;
                self.open_store(false)
            }
        }
    }

    fn moment(&self) -> usize {
        (self.world.moment)()
    }

    fn db(&self) -> Done<&Database> {
        self.db.as_ref().ok_or_else(|| Failure::mismatch("the store is not open".to_string()))
    }

    /// The keyspace of that number, or another one in its place.
    fn find(&self, number: KeyspaceNumber) -> Option<&OpenKeyspace> {
        match self.keyspaces.binary_search_by_key(&number, |open| open.number) {
            Ok(index) => self.keyspaces.get(index),
            Err(_) => self.keyspaces.get(usize::from(number) % self.keyspaces.len().max(1)),
        }
    }

    fn keep(&mut self, open: OpenKeyspace) {
        let index = self.keyspaces.partition_point(|other| other.number < open.number);
        self.keyspaces.insert(index, open);
    }

    /// From now on all commits are durable.
    fn all_durable(&mut self) {
        self.history.durable.push((self.moment(), self.history.issued()));
    }

    /// Opens the store; it has the keyspaces it should have.
    ///
    /// # Errors
    /// Of the store, or what is missing.
    pub fn open_store(&mut self, create: bool) -> Done {
        let vfs = Arc::clone(&self.world.vfs);
        let db = self.sizes.builder_on(vfs, &self.world.dir).create_if_missing(create).open()?;
        let mut expected: Vec<&str> = self.history.alive().map(|(_, k)| &*k.name).collect();
        expected.sort_unstable();
        let found = db.keyspaces();
        if found != expected {
            let what = format!("the keyspaces are {found:?} and should be {expected:?}");
            return Err(Failure::mismatch(what));
        }
        let alive: Vec<(usize, KeyspaceNumber, Options)> =
            self.history.alive().map(|(place, k)| (place, k.number, k.options)).collect();
        for (place, number, options) in alive {
            let options = options.keyspace_options(self.sizes.kinds.of(usize::from(number)));
            let keyspace = db.keyspace(&keyspace_name(number), options)?;
            self.keep(OpenKeyspace { number, place, keyspace });
        }
        self.db = Some(db);
        if self.history.trace.is_empty() {
            self.history.opened = self.moment();
        }
        Ok(())
    }

    /// Drops all handles but that on the store.
    pub fn let_go(&mut self) {
        self.iterators = Default::default();
        self.snapshots = Default::default();
        self.keyspaces.clear();
    }

    fn shut(&mut self, close: bool) -> Done {
        self.let_go();
        match self.db.take() {
            Some(db) if close => db.close()?,
            // The last handle closes it too.
            db => drop(db),
        }
        self.all_durable();
        Ok(())
    }

    /// Closes the store; the session has ended.
    ///
    /// # Errors
    /// Of the store.
    pub fn close(&mut self) -> Done {
        self.shut(true)
    }

    fn create(&mut self, number: KeyspaceNumber, options: Options) -> Done {
        if self.keyspaces.iter().any(|open| open.number == number) {
            return Ok(());
        }
        let (issued, place) = (self.moment(), self.history.keyspaces.len());
        let commits = self.history.issued();
        let made = Incarnation::new(number, options, Pairs::new(), commits, Span::begun(issued));
        self.history.keyspaces.push(made);
        let wanted = options.keyspace_options(self.sizes.kinds.of(usize::from(number)));
        let keyspace = self.db()?.keyspace(&keyspace_name(number), wanted)?;
        self.history.keyspaces[place].created.returned = self.moment();
        self.keep(OpenKeyspace { number, place, keyspace });
        Ok(())
    }

    fn alter(&mut self, number: KeyspaceNumber, options: Options) -> Done {
        let issued = self.moment();
        let Some(open) = self.find(number) else { return Ok(()) };
        let (keyspace, place) = (open.keyspace.clone(), open.place);
        let kind = self.sizes.kinds.of(usize::from(open.number));
        let incarnation = &mut self.history.keyspaces[place];
        let options = Options { operator: incarnation.options.operator, ..options };
        incarnation.alter(options, issued);
        keyspace.alter(|_| options.keyspace_options(kind))?;
        let returned = self.moment();
        self.history.keyspaces[place].altered(returned);
        Ok(())
    }

    fn drop_keyspace(&mut self, number: KeyspaceNumber) -> Done {
        let Some(index) = self.keyspaces.iter().position(|open| open.number == number) else {
            return Ok(());
        };
        let OpenKeyspace { place, keyspace, .. } = self.keyspaces.remove(index);
        self.history.keyspaces[place].dropped = Some(Span::begun(self.moment()));
        self.db()?.drop_keyspace(keyspace.name())?;
        let returned = self.moment();
        if let Some(dropped) = &mut self.history.keyspaces[place].dropped {
            dropped.returned = returned;
        }
        // A drop makes everything before it durable.
        self.all_durable();
        Ok(())
    }

    /// What a write means where it ends up.
    fn resolve(&self, write: &action::Write) -> Option<(Keyspace, Write)> {
        let open = self.find(write.keyspace)?;
        let operator = self.history.keyspaces[open.place].options.operator;
        let mut key = key_bytes(write.key);
        let effect = match write.change {
            Change::DeleteRange(to) => {
                let (from, to) = Range { from: Some(write.key), to }.bytes();
                key = from.unwrap_or_default();
                Effect::DeleteRange(to)
            }
            Change::Put(value) => Effect::Put(operator.value(value)),
            Change::Delete => Effect::Delete,
            Change::Merge(value) if operator == action::Operator::None => {
                Effect::Put(value.bytes())
            }
            Change::Merge(value) => Effect::Merge(operator.value(value)),
        };
        Some((open.keyspace.clone(), Write { place: open.place, key, effect }))
    }

    fn write(&mut self, write: &action::Write) -> Done {
        let Some((keyspace, write)) = self.resolve(write) else { return Ok(()) };
        let issued = self.moment();
        self.history.commit(std::slice::from_ref(&write), issued);
        match &write.effect {
            Effect::Put(value) => keyspace.put(&write.key, value),
            Effect::Delete => keyspace.delete(&write.key),
            Effect::Merge(value) => keyspace.merge(&write.key, value),
            Effect::DeleteRange(Some(to)) => keyspace.delete_range(&write.key..to),
            Effect::DeleteRange(None) => keyspace.delete_range(&write.key..),
        }?;
        let at = self.moment();
        self.history.returned(at);
        Ok(())
    }

    fn batch(&mut self, writes: &[action::Write], sync: bool) -> Done {
        let resolved: Vec<(Keyspace, Write)> =
            writes.iter().filter_map(|write| self.resolve(write)).collect();
        if resolved.is_empty() {
            return Ok(());
        }
        let mut batch = self.db()?.batch();
        if sync {
            batch = batch.durability(Durability::Sync);
        }
        let (keyspaces, writes): (Vec<Keyspace>, Vec<Write>) = resolved.into_iter().unzip();
        for (keyspace, write) in keyspaces.iter().zip(&writes) {
            add(&mut batch, keyspace, write);
        }
        let issued = self.moment();
        self.history.commit(&writes, issued);
        batch.commit()?;
        let at = self.moment();
        self.history.returned(at);
        if sync {
            self.all_durable();
        }
        Ok(())
    }

    fn compact(&mut self, number: KeyspaceNumber, range: Range) -> Done {
        let Some(open) = self.find(number) else { return Ok(()) };
        match range.bytes() {
            (None, None) => open.keyspace.compact(..)?,
            (Some(from), None) => open.keyspace.compact(from..)?,
            (None, Some(to)) => open.keyspace.compact(..to)?,
            (Some(from), Some(to)) => open.keyspace.compact(from..to)?,
        }
        Ok(())
    }

    fn checkpoint(&mut self, compare: bool) -> Done {
        let dir = format!("{}-{}", self.world.copies, self.copies);
        self.copies += 1;
        let commits = self.history.issued();
        let sums = self.history.alive().map(|(_, k)| (k.name.clone(), k.fingerprint(commits)));
        let keyspaces = sums.collect();
        let number = self.history.checkpoints.len();
        if self.world.keep_copies {
            let span = Span::begun(self.moment());
            self.history.checkpoints.push(Checkpoint { dir: dir.clone(), span, keyspaces });
        }
        self.db()?.checkpoint(&dir)?;
        let returned = self.moment();
        if let Some(made) = self.history.checkpoints.get_mut(number) {
            made.span.returned = returned;
        }
        if compare {
            let builder = self.sizes.builder_on(Arc::clone(&self.world.vfs), &dir);
            let copy = builder.create_if_missing(false).open()?;
            let compared = self.compare_with(&copy);
            compared.map_err(|failure| Failure {
                what: format!("copy {dir}: {}", failure.what),
                ..failure
            })?;
        }
        match self.world.keep_copies {
            true => Ok(()),
            false => Ok(remove_dir(&*self.world.vfs, Path::new(&dir))?),
        }
    }
}

/// Adds a write to a batch.
fn add(batch: &mut spinney::Batch, keyspace: &Keyspace, write: &Write) {
    match &write.effect {
        Effect::Put(value) => batch.put(keyspace, &write.key, value),
        Effect::Delete => batch.delete(keyspace, &write.key),
        Effect::Merge(value) => batch.merge(keyspace, &write.key, value),
        Effect::DeleteRange(Some(to)) => batch.delete_range(keyspace, &write.key..to),
        Effect::DeleteRange(None) => batch.delete_range(keyspace, &write.key..),
    }
}

fn place(slot: Slot) -> usize {
    usize::from(slot) % SLOTS
}

fn remove_dir(vfs: &dyn Vfs, dir: &Path) -> spinney::Result<()> {
    for entry in vfs.read_dir(dir)? {
        vfs.remove(&dir.join(entry.name))?;
    }
    vfs.remove_dir(dir)
}
