//! Opening a store and a keyspace as the global options say.

use std::path::Path;

use clap::{Args, ValueEnum};
use spinney::{Builder, Compression, Database, Durability, Keyspace, KeyspaceOptions, TreeKind};

use crate::failure::{Failure, Outcome};
use spinney_bench::quantity::{grouped, parse_bytes};

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreOptions {
    /// The keyspace to work on
    #[arg(long, global = true, default_value = "default", value_name = "NAME")]
    pub(crate) keyspace: String,
    /// Memory the store may use: 128MiB, 2GiB, …
    #[arg(long, global = true, default_value = "256MiB", value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: u64,
    /// Open a store whose journal is damaged, dropping what lies behind the damage
    #[arg(long, global = true)]
    pub(crate) salvage_journal: bool,
}

/// Options of commands that may create a keyspace.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreationOptions {
    /// The tree that holds a new keyspace
    #[arg(long, default_value = "stb", value_parser = parse_kind)]
    pub(crate) kind: TreeKind,
    /// How a new keyspace compresses its pages
    #[arg(long, default_value = "none", value_name = "METHOD")]
    pub(crate) compression: CompressionChoice,
    /// Tables that may lie one over the other in a guard of a new `flsm` keyspace; 0: its own choice
    #[arg(long, default_value_t = 0, value_name = "TABLES")]
    pub(crate) tables_per_guard: u32,
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

impl CreationOptions {
    pub(crate) fn keyspace_options(&self) -> KeyspaceOptions {
        let compression = match self.compression {
            CompressionChoice::None => Compression::None,
            CompressionChoice::Lz4 => Compression::Lz4,
        };
        let options = KeyspaceOptions::new(self.kind).compression(compression);
        options.tables_per_guard_max(self.tables_per_guard)
    }
}

fn parse_kind(name: &str) -> Result<TreeKind, String> {
    TreeKind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = TreeKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("no tree kind {name:?}: try {}", names.join(" or "))
    })
}

impl StoreOptions {
    /// Opens the store; only `create` makes a missing one.
    pub(crate) fn open(&self, path: &Path, create: bool) -> Outcome<Database> {
        let database = self.builder(path, create).open()?;
        let recovery = database.recovery();
        if recovery.records_dropped > 0 {
            eprintln!(
                "spinney: note: the journal was damaged ({}); {} records behind the damage were dropped",
                recovery.stopped.as_deref().unwrap_or("cause unknown"),
                grouped(recovery.records_dropped),
            );
        }
        Ok(database)
    }

    fn builder(&self, path: &Path, create: bool) -> Builder {
        Database::builder(path)
            .memory_budget(self.memory)
            .create_if_missing(create)
            .salvage_journal(self.salvage_journal)
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
                Ok(database.keyspace(&self.keyspace, creation.keyspace_options())?)
            }
            result => Ok(result?),
        }
    }
}
