//! `spinney import`: records of text files into a keyspace, in batches, with constant memory.
//!
//! Invariants:
//! 1. A batch is acknowledged (`--ack`) only after its commit has returned.
//! 2. The stored value is the record's own bytes (see `formats`), unless `--value` picks a field.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use spinney::{Batch, Database, Keyspace};

use super::StorePath;
use crate::failure::{Failure, Outcome};
use crate::formats::extract::Extractor;
use crate::formats::split::Splitter;
use crate::formats::{Format, KeySource, detect};
use crate::input::Source;
use crate::spelling::SpellingOptions;
use crate::store::{CreationOptions, DurabilityChoice, StoreOptions};
use spinney_quantity::{bytes, grouped, parse_count, whole};

/// A batch of this size is committed even if it has few records.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// `--format` of `import`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ImportFormat {
    /// By the file's name, otherwise by its first bytes
    Auto,
    /// key TAB value, one pair per line
    Tsv,
    /// RFC 4180, with a header line
    Csv,
    /// One JSON text per line
    Jsonl,
    /// Debian control stanzas: Packages, Sources, dpkg's status
    Deb822,
    /// Any lines, keyed by their number
    Lines,
}

impl ImportFormat {
    fn known(self) -> Option<Format> {
        match self {
            ImportFormat::Auto => None,
            ImportFormat::Tsv => Some(Format::Tsv),
            ImportFormat::Csv => Some(Format::Csv),
            ImportFormat::Jsonl => Some(Format::Jsonl),
            ImportFormat::Deb822 => Some(Format::Deb822),
            ImportFormat::Lines => Some(Format::Lines),
        }
    }
}

/// Store the records of text files in a keyspace
///
/// The value is the record exactly as in the input, so `export` returns what was imported. Files may be plain text or
/// LZ4 frames. The store and the keyspace are created if they do not exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney import my.store pairs.tsv                     key TAB value lines
  spinney import my.store - --format tsv --escape       standard input, with \\t \\n \\xNN escapes
  spinney import my.store people.csv --key id           the key is the column `id`
  spinney import my.store log.jsonl --key /user/name    the key is a member, by JSON pointer
  spinney import my.store /var/lib/apt/lists/*_Packages.lz4
                                                        keys are Package/Version/Architecture
  spinney import my.store book.txt --format lines       keyed by line; `export --format raw`
                                                        gives the file back byte for byte
  spinney import my.store pairs.tsv --skip 1200         continue a failed import")]
pub(crate) struct ImportOptions {
    #[command(flatten)]
    store: StorePath,
    /// Files to read; `-` or none is standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The format of the files
    #[arg(long, short, default_value = "auto")]
    format: ImportFormat,
    /// The field or fields (A,B,…) that form the key; `line` is the record's number, which keeps the
    /// order. Default: for tsv the text before the tab, for csv the first column, for jsonl `key`, for deb822
    /// Package,Version,Architecture
    #[arg(long, short, value_name = "FIELD")]
    key: Option<String>,
    /// Store this field's contents instead of the whole record
    #[arg(long, value_name = "FIELD")]
    value: Option<String>,
    /// The separator between the fields of a key
    #[arg(long, default_value = "/", value_name = "TEXT")]
    key_separator: String,
    /// The CSV delimiter, one byte
    #[arg(long, default_value = ",", value_name = "BYTE", value_parser = parse_delimiter)]
    delimiter: u8,
    /// The input holds pairs as `export --pairs` writes them (csv, jsonl)
    #[arg(long, conflicts_with_all = ["key", "value"])]
    pairs: bool,
    #[command(flatten)]
    spelling: SpellingOptions,
    /// What a written batch survives
    #[arg(long, default_value = "buffered")]
    durability: DurabilityChoice,
    /// The maximum number of records in a batch
    #[arg(long, default_value = "256", value_name = "RECORDS", value_parser = parse_count)]
    batch: u64,
    /// Do not check whether keys exist already (faster; overwritten keys are not counted)
    #[arg(long)]
    blind: bool,
    /// Append the number of acknowledged records to this file after each batch; `-` is standard output
    #[arg(long, value_name = "FILE")]
    ack: Option<PathBuf>,
    /// Skip the first RECORDS records, counted over all files, which an earlier import has stored
    #[arg(long, default_value = "0", value_name = "RECORDS", value_parser = parse_count)]
    skip: u64,
    /// Print a line to standard error after every RECORDS records
    #[arg(long, value_name = "RECORDS", value_parser = parse_count)]
    progress: Option<u64>,
    #[command(flatten)]
    creation: CreationOptions,
}

pub(super) fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err("a delimiter is one byte, such as , or ; or \\t".to_string()),
    }
}

/// The keyspace that keeps the header line of a CSV import for `export`.
pub(super) fn header_keyspace(keyspace: &str) -> String {
    format!("{keyspace}.header")
}

/// The one key in it.
pub(super) const HEADER_KEY: &[u8] = b"csv";

#[derive(Default)]
struct Totals {
    /// Records read, skipped ones included.
    met: u64,
    /// Skipped records among them.
    skipped: u64,
    records: u64,
    bytes: u64,
    acknowledged: u64,
    overwritten: u64,
    empty: u64,
}

struct Importer<'a> {
    options: &'a ImportOptions,
    database: &'a Database,
    keyspace: &'a Keyspace,
    creation_keyspace: &'a str,
    batch: Batch,
    batch_keys: BTreeSet<Vec<u8>>,
    batch_bytes: usize,
    count_overwritten: bool,
    header: Option<Vec<u8>>,
    ack: Option<Box<dyn Write>>,
    totals: Totals,
}

pub(super) fn run(store: &StoreOptions, options: &ImportOptions) -> Outcome {
    let sources = sources(&options.files);
    // Files that cannot be read are an error before anything is created.
    for source in &sources {
        if let Source::File(path) = source {
            File::open(path)
                .map_err(|e| Failure::other(format!("cannot read {}: {e}", source.name())))?;
        }
    }
    let ack = options.ack.as_deref().map(open_ack).transpose()?;
    let database = store.open(&options.store.path, true)?;
    let keyspace = store.existing_or_new(&database, &options.creation)?;
    let was_empty = keyspace.iter().next().transpose()?.is_none();
    let progress = progress_bar(&sources);
    let start = Instant::now();
    let mut importer = Importer {
        options,
        database: &database,
        keyspace: &keyspace,
        creation_keyspace: &store.keyspace,
        batch: database.batch(),
        batch_keys: BTreeSet::new(),
        batch_bytes: 0,
        count_overwritten: !(options.blind || was_empty && options.key.as_deref() == Some("line")),
        header: None,
        ack,
        totals: Totals::default(),
    };
    if let Err(failure) = importer.import_all(&sources, &progress) {
        progress.finish_and_clear();
        return Err(importer.kept(failure));
    }
    let totals = importer.totals;
    drop(keyspace);
    database.close()?;
    progress.finish_and_clear();
    let summary = summary(&totals, start.elapsed(), options.blind, was_empty);
    if options.ack.as_deref() == Some(Path::new("-")) {
        eprintln!("{summary}");
        return Ok(());
    }
    Ok(writeln!(io::stdout(), "{summary}")?)
}

fn sources(files: &[PathBuf]) -> Vec<Source> {
    if files.is_empty() {
        return vec![Source::Standard];
    }
    files.iter().map(|path| Source::new(path)).collect()
}

fn open_ack(path: &Path) -> Outcome<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = File::options().create(true).append(true).open(path);
    let file = file.map_err(|e| Failure::other(format!("cannot write {}: {e}", path.display())))?;
    Ok(Box::new(file))
}

fn progress_bar(sources: &[Source]) -> ProgressBar {
    let total: Option<u64> = sources.iter().map(Source::bytes).sum();
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{bar:32.green} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left  {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {bytes_per_sec}  {msg}"),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()))
}

fn summary(totals: &Totals, elapsed: Duration, blind: bool, was_empty: bool) -> String {
    let seconds = elapsed.as_secs_f64();
    let mut line = format!(
        "imported {} records, {}, in {seconds:.2} s ({} records/s)",
        grouped(totals.records),
        bytes(totals.bytes),
        whole(totals.records as f64 / seconds.max(1e-9)),
    );
    if !blind {
        line += &format!("; {} keys overwritten", grouped(totals.overwritten));
        if totals.overwritten > 0 && was_empty {
            line += " by later records with the same key (more fields in --key keep them apart)";
        }
    }
    if totals.skipped > 0 {
        line += &format!("; {} skipped", grouped(totals.skipped));
    }
    if totals.empty > 0 {
        line += &format!("; {} empty records skipped", grouped(totals.empty));
    }
    line
}

impl Importer<'_> {
    fn import_all(&mut self, sources: &[Source], progress: &ProgressBar) -> Outcome {
        let outcome = sources.iter().try_for_each(|source| self.import(source, progress));
        // What was read before a record that cannot be taken is kept as well.
        outcome.and(self.commit())
    }

    /// The failure, with how many records are kept and how to go on.
    fn kept(&self, failure: Failure) -> Failure {
        let totals = &self.totals;
        let kept = totals.skipped + totals.acknowledged;
        match failure {
            Failure::Message(code, why) if totals.met > 0 || kept > 0 => {
                let mut message = format!(
                    "{why}; {} records of this import are kept",
                    grouped(totals.acknowledged)
                );
                if kept > 0 {
                    message += &format!(": remove the cause and continue with --skip {kept}");
                }
                Failure::Message(code, message)
            }
            failure => failure,
        }
    }

    fn import(&mut self, source: &Source, progress: &ProgressBar) -> Outcome {
        let mut input = source.open(progress)?;
        let format = self.format(source, &mut *input)?;
        let options = self.options;
        if format != Format::Tsv && (options.spelling.hex || options.spelling.escape) {
            return Err(Failure::usage("--hex and --escape go with --format tsv only"));
        }
        let mut extractor = Extractor {
            format,
            key: if options.pairs && format == Format::Csv {
                KeySource::Fields(vec!["key".to_string()])
            } else {
                KeySource::new(format, options.key.as_deref())
            },
            value: options.value.clone(),
            separator: options.key_separator.clone().into_bytes(),
            delimiter: options.delimiter,
            spelling: options.spelling.spelling(),
            pairs: options.pairs,
            columns: Vec::new(),
        };
        let splitter = Splitter::new(format, options.delimiter);
        let failed = |number: u64, why: &dyn std::fmt::Display| {
            Failure::other(format!("record {number} of {}: {why}", source.name()))
        };
        let (mut raw, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
        let mut number_in_file = 0;
        loop {
            let body = splitter.next(&mut *input, &mut raw);
            let Some(body) = body.map_err(|error| failed(number_in_file + 1, &error))? else {
                break;
            };
            number_in_file += 1;
            if number_in_file == 1 && extractor.expects_header() {
                let header = &raw[body];
                extractor.set_header(header);
                if !(options.pairs || options.value.is_some()) {
                    self.keep_header(header, source)?;
                }
                continue;
            }
            // Numbers run through all files, so that the records of two files do not meet.
            let number = self.totals.met + 1;
            if number <= options.skip {
                // As below, an empty line is no record.
                if !extractor.is_empty(&raw[body]) {
                    self.totals.met += 1;
                    self.totals.skipped += 1;
                }
                continue;
            }
            let full = extractor.extract(number, &raw, body, &mut key, &mut value);
            if !full.map_err(|why| failed(number_in_file, &why))? {
                self.totals.empty += 1;
                continue;
            }
            for (what, bytes, bytes_max) in [
                ("key", key.len() as u64, spinney::KEY_BYTES_MAX as u64),
                ("value", value.len() as u64, spinney::VALUE_BYTES_MAX),
            ] {
                if bytes > bytes_max {
                    let why = format!(
                        "its {what} has {bytes} bytes, and a {what} has at most {bytes_max}"
                    );
                    return Err(failed(number_in_file, &why));
                }
            }
            self.totals.met += 1;
            self.add(&key, &value)?;
            if options
                .progress
                .is_some_and(|every| every > 0 && self.totals.records.is_multiple_of(every))
            {
                eprintln!("spinney: {} records", grouped(self.totals.records));
            }
        }
        progress.set_message(format!("{} records", grouped(self.totals.records)));
        Ok(())
    }

    fn format(&self, source: &Source, input: &mut dyn BufRead) -> Outcome<Format> {
        if let Some(format) = self.options.format.known() {
            return Ok(format);
        }
        let by_name = match source {
            Source::File(path) => detect::from_name(path),
            Source::Standard => None,
        };
        let format = match by_name {
            Some(format) => Some(format),
            None => detect::from_head(input.fill_buf()?),
        };
        format.ok_or_else(|| {
            Failure::usage(format!(
                "cannot recognize the format of {}; name it with --format",
                source.name()
            ))
        })
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        if self.count_overwritten
            && (!self.batch_keys.insert(key.to_vec()) || self.keyspace.contains_key(key)?)
        {
            self.totals.overwritten += 1;
        }
        self.batch.put(self.keyspace, key, value);
        self.batch_bytes += key.len() + value.len();
        self.totals.records += 1;
        self.totals.bytes += (key.len() + value.len()) as u64;
        if self.batch.len() as u64 >= self.options.batch || self.batch_bytes >= BATCH_BYTES_MAX {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Outcome {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.batch, self.database.batch());
        batch.durability(self.options.durability.into()).commit()?;
        self.batch_keys.clear();
        self.batch_bytes = 0;
        self.totals.acknowledged = self.totals.records;
        if let Some(ack) = &mut self.ack {
            // One write a line: whoever reads the file after a crash finds whole lines.
            ack.write_all(format!("{}\n", self.totals.acknowledged).as_bytes())?;
            ack.flush()?;
        }
        Ok(())
    }

    fn keep_header(&mut self, header: &[u8], source: &Source) -> Outcome {
        if self.header.is_none() {
            let name = header_keyspace(self.creation_keyspace);
            let keyspace = match self.database.existing_keyspace(&name) {
                Err(spinney::Error::NotFound { .. }) => {
                    self.database.keyspace(&name, self.options.creation.keyspace_options()?)?
                }
                result => result?,
            };
            match keyspace.get(HEADER_KEY)? {
                Some(kept) => self.header = Some(kept.to_vec()),
                None => {
                    keyspace.put(HEADER_KEY, header)?;
                    self.header = Some(header.to_vec());
                }
            }
        }
        if self.header.as_deref() == Some(header) {
            return Ok(());
        }
        Err(Failure::other(format!(
            "the header of {} is not the one that keyspace {:?} was filled with; import it into \
             another --keyspace",
            source.name(),
            self.creation_keyspace
        )))
    }
}
