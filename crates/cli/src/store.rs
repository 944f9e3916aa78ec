//! Opens a store and a keyspace according to the global options.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use spinney::{
    Builder, Compression, Database, Durability, Keyspace, KeyspaceOptions, PersistentMemory,
    RecoveryReport, TreeKind,
};

use crate::failure::{Failure, Outcome};
use spinney_quantity::{bytes, grouped, parse_bytes};

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreOptions {
    /// The keyspace to work on
    #[arg(long, global = true, default_value = "default", value_name = "NAME")]
    pub(crate) keyspace: String,
    /// Memory the store may use: 128MiB, 2GiB, …
    #[arg(long, global = true, default_value = "256MiB", value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: u64,
    /// Open a store with a damaged journal, without the records after the damage
    #[arg(long, global = true)]
    pub(crate) salvage_journal: bool,
    /// Where the store's journal and indexes are to be, or have been moved to, on persistent memory
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub(crate) persistent_memory: Option<PathBuf>,
}

/// Options of commands that may create a keyspace.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreationOptions {
    /// The tree that holds a new keyspace; docs/choosing.md says which one is for what [default: stb]
    #[arg(long, value_parser = kinds())]
    pub(crate) kind: Option<TreeKind>,
    /// How a new keyspace compresses its pages [default: none]
    #[arg(long, value_name = "METHOD")]
    pub(crate) compression: Option<CompressionChoice>,
    /// An option of a new keyspace that only some kinds of tree have; --help lists them
    #[arg(
        long = "option",
        value_name = "NAME=NUMBER",
        value_parser = parse_option,
        long_help = kind_options_help()
    )]
    pub(crate) options: Vec<(String, u32)>,
}

/// `--compression`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionChoice {
    /// A point read is one 4 KiB read
    None,
    /// LZ4, in pages of up to 16 KiB
    Lz4,
}

/// `--durability`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityChoice {
    /// A write that returned survives the death of the process
    Buffered,
    /// A write that returned survives power loss
    Sync,
}

impl From<DurabilityChoice> for Durability {
    fn from(choice: DurabilityChoice) -> Durability {
        match choice {
            DurabilityChoice::Buffered => Durability::Buffered,
            DurabilityChoice::Sync => Durability::Sync,
        }
    }
}

impl From<CompressionChoice> for Compression {
    fn from(choice: CompressionChoice) -> Compression {
        match choice {
            CompressionChoice::None => Compression::None,
            CompressionChoice::Lz4 => Compression::Lz4,
        }
    }
}

impl CreationOptions {
    /// The options of a keyspace that is created.
    pub(crate) fn keyspace_options(&self) -> Outcome<KeyspaceOptions> {
        self.applied_to(KeyspaceOptions::new(self.kind.unwrap_or_default()))
    }

    /// Those options, replaced by those of the command line except for the kind.
    fn applied_to(&self, mut options: KeyspaceOptions) -> Outcome<KeyspaceOptions> {
        if let Some(choice) = self.compression {
            options = options.compression(choice.into());
        }
        for (name, value) in &self.options {
            let with = options.kind_option(name, *value);
            options = with.map_err(|error| Failure::usage(format!("--option: {error}")))?;
        }
        Ok(options)
    }

    /// Refuses a command line with other options than those of an existing keyspace.
    fn check_existing(&self, keyspace: &Keyspace) -> Outcome {
        let options = keyspace.options();
        let wanted = match self.kind.filter(|kind| *kind != options.kind()) {
            Some(kind) => KeyspaceOptions::new(kind),
            None => self.applied_to(options.clone())?,
        };
        let Some((option, has, wanted)) = options.difference(&wanted) else { return Ok(()) };
        let (option, alternative) = match option {
            "kind" => ("--kind".to_string(), "choose a new keyspace with --keyspace"),
            "compression" => ("--compression".to_string(), "change it with `spinney alter`"),
            option => (format!("--option {option}"), "change it with `spinney alter`"),
        };
        Err(Failure::usage(format!(
            "keyspace {:?} exists with {option} {has}, not {wanted}; leave {option} out, or {alternative}",
            keyspace.name()
        )))
    }
}

/// Reads `NAME=NUMBER`.
pub(crate) fn parse_option(text: &str) -> Result<(String, u32), String> {
    let (name, number) = text.split_once('=').ok_or("write NAME=NUMBER")?;
    let number = number.parse().map_err(|_| format!("{number:?} is not a number below 2^32"))?;
    Ok((name.to_string(), number))
}

/// The options of each kind, for `--help`.
pub(crate) fn kind_options_help() -> String {
    let kind = |kind: TreeKind| {
        let option = |(name, about)| format!("\n  {kind}: {name}: {about}");
        kind.options().map(option).collect::<String>()
    };
    let options: String = TreeKind::ALL.into_iter().map(kind).collect();
    format!("An option that only some kinds of tree have:{options}")
}

/// The kinds of trees, for `--kind` and its help.
fn kinds() -> impl TypedValueParser<Value = TreeKind> {
    PossibleValuesParser::new(TreeKind::ALL.iter().map(|kind| kind.name()))
        .map(|name| TreeKind::from_name(&name).unwrap_or_default())
}

impl StoreOptions {
    /// Opens the store; only `create` makes a missing one.
    pub(crate) fn open(&self, path: &Path, create: bool) -> Outcome<Database> {
        let database = self.builder(path, create).open()?;
        note_dropped(&database);
        Ok(database)
    }

    /// Opens the store for reading: nothing in its directory changes.
    pub(crate) fn open_for_reading(&self, path: &Path) -> Outcome<Database> {
        let database = self.open_quietly(path)?;
        note_dropped(&database);
        Ok(database)
    }

    /// Like `open_for_reading`, for a command that itself reports the problems of opening.
    pub(crate) fn open_quietly(&self, path: &Path) -> Outcome<Database> {
        self.builder(path, false).open_read_only().map_err(|error| match error {
            spinney::Error::JournalOverBudget { sufficient, .. } => Failure::other(format!(
                "the journal of {} does not fit in {}; say --memory {}, or run `spinney flush` once",
                path.display(),
                bytes(self.memory),
                quantity_of(sufficient),
            )),
            error => error.into(),
        })
    }

    fn builder(&self, path: &Path, create: bool) -> Builder {
        let builder = Database::builder(path)
            .memory_budget(self.memory)
            .create_if_missing(create)
            .salvage_journal(self.salvage_journal);
        match self.persistent_memory() {
            Some(memory) => builder.persistent_memory(memory),
            None => builder,
        }
    }

    /// The persistent memory that is named.
    pub(crate) fn persistent_memory(&self) -> Option<PersistentMemory> {
        self.persistent_memory.as_ref().map(PersistentMemory::at)
    }

    /// The keyspace, which must be there.
    pub(crate) fn existing(&self, database: &Database) -> Outcome<Keyspace> {
        match database.existing_keyspace(&self.keyspace) {
            Err(spinney::Error::NotFound { .. }) => Err(Failure::other(format!(
                "no keyspace {:?} in the store; `spinney keyspaces` lists those there are, \
                 --keyspace chooses one",
                self.keyspace
            ))),
            result => Ok(result?),
        }
    }

    /// The keyspace with the options it has, or a new one.
    pub(crate) fn existing_or_new(
        &self,
        database: &Database,
        creation: &CreationOptions,
    ) -> Outcome<Keyspace> {
        match database.existing_keyspace(&self.keyspace) {
            Err(spinney::Error::NotFound { .. }) => {
                Ok(database.keyspace(&self.keyspace, creation.keyspace_options()?)?)
            }
            result => {
                let keyspace = result?;
                creation.check_existing(&keyspace)?;
                Ok(keyspace)
            }
        }
    }
}

/// Says so if opening found a part of the journal that it could not use.
fn note_dropped(database: &Database) {
    let recovery = database.recovery();
    if let Some(lost) = journal_lost(&recovery) {
        eprintln!("spinney: note: {lost}");
    }
    for name in &recovery.keyspaces_not_opened {
        eprintln!(
            "spinney: note: keyspace {name:?} could not be opened, the others could; `spinney check` says why"
        );
    }
}

/// A message about the lost part of the journal, if there is one.
pub(crate) fn journal_lost(recovery: &RecoveryReport) -> Option<String> {
    if recovery.records_dropped == 0 && recovery.journal_damage.is_empty() {
        return None;
    }
    let reason = recovery.stopped.as_deref().unwrap_or("cause unknown");
    let behind = match recovery.records_dropped {
        0 => "what lay behind the damage was dropped".to_string(),
        1 => "1 whole record behind the damage was dropped".to_string(),
        records => format!("{} whole records behind the damage were dropped", grouped(records)),
    };
    Some(format!("the journal was damaged ({reason}); {behind}"))
}

/// A value of `--memory` of at least this many bytes.
fn quantity_of(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}
