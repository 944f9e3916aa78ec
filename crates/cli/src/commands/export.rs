//! `spinney export`: a keyspace as text, in key order.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use spinney::Database;

use super::StorePath;
use super::import::{HEADER_KEY, header_keyspace, parse_delimiter};
use crate::damaged::{DamagedOptions, Skipped};
use crate::failure::{Failure, Outcome};
use crate::formats::Format;
use crate::formats::write::PairWriter;
use crate::spelling::SpellingOptions;
use crate::store::StoreOptions;
use spinney_quantity::grouped;

/// Write a keyspace as text, in key order
///
/// With the format of the import, `export` writes the imported records in the order of their keys.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney export my.store --format tsv --escape     any pairs, binary ones too
  spinney export my.store --format csv -o out.csv   records imported as csv, with their header
  spinney export my.store --format jsonl --pairs    {\"key\":…,\"value\":…} lines
  spinney export my.store -f tsv --skip-damaged     all that can be read of a damaged store
  spinney export my.store --format raw              values back to back (after import --key line)")]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    store: StorePath,
    /// The format of the text. jsonl: JSON values unchanged, others as key and value;
    /// csv, deb822, lines: the values; tsv: keys and values
    #[arg(long, short)]
    format: Format,
    /// Write keys and values (csv, jsonl); `import --pairs` reads that
    #[arg(long)]
    pairs: bool,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The CSV delimiter, one byte
    #[arg(long, default_value = ",", value_name = "BYTE", value_parser = parse_delimiter)]
    delimiter: u8,
    /// Write this header line (csv) instead of the one that was imported
    #[arg(long, value_name = "LINE", conflicts_with = "no_header")]
    header: Option<String>,
    /// Write no header line (csv)
    #[arg(long)]
    no_header: bool,
    #[command(flatten)]
    damaged: DamagedOptions,
    #[command(flatten)]
    spelling: SpellingOptions,
}

pub(super) fn run(store: &StoreOptions, options: &ExportOptions) -> Outcome {
    if options.format != Format::Tsv && (options.spelling.hex || options.spelling.escape) {
        return Err(Failure::usage("--hex and --escape go with --format tsv; try --pairs"));
    }
    if options.pairs && !matches!(options.format, Format::Csv | Format::Jsonl) {
        return Err(Failure::usage(
            "--pairs goes with --format csv and jsonl; tsv always has both",
        ));
    }
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let header = header(&database, store, options)?;
    let writer = PairWriter {
        format: options.format,
        spelling: options.spelling.spelling(),
        delimiter: options.delimiter,
        pairs: options.pairs,
    };
    let mut out: Box<dyn Write> = match &options.output {
        Some(path) => Box::new(create(path)?),
        None => Box::new(super::output()),
    };
    let mut records = 0;
    let unwritten = |records: u64, error: io::Error| unwritten(options, records, error);
    writer.begin(header.as_deref(), &mut out).map_err(|error| unwritten(records, error))?;
    let mut line = Vec::new();
    let (mut pairs, mut skipped) = (keyspace.iter(), Skipped::new(options.damaged));
    while let Some((key, value)) = skipped.next(&mut pairs, false)? {
        if let Some(objection) = writer.objection(&key, &value) {
            return Err(Failure::other(objection));
        }
        writer
            .write(&key, &value, &mut line, &mut out)
            .map_err(|error| unwritten(records, error))?;
        records += 1;
    }
    out.flush().map_err(|error| unwritten(records, error))?;
    drop((pairs, keyspace));
    database.close()?;
    skipped.end()
}

fn header(
    database: &Database,
    store: &StoreOptions,
    options: &ExportOptions,
) -> Outcome<Option<Vec<u8>>> {
    if options.format != Format::Csv || options.no_header {
        return Ok(None);
    }
    if let Some(header) = &options.header {
        return Ok(Some(header.clone().into_bytes()));
    }
    match database.existing_keyspace(&header_keyspace(&store.keyspace)) {
        Err(spinney::Error::NotFound { .. }) => Ok(None),
        result => Ok(result?.get(HEADER_KEY)?.map(|header| header.to_vec())),
    }
}

/// The failure of writing a record. It is no failure that the output's reader has ended.
fn unwritten(options: &ExportOptions, records: u64, error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::OutputClosed;
    }
    let output = options.output.as_deref().map_or("standard output".into(), Path::to_string_lossy);
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room, or write elsewhere, and"
        }
        _ => "remove the cause and",
    };
    Failure::other(format!(
        "cannot write {output}: {error}; what is there is incomplete (it ends at or before record {}): {advice} \
         export again",
        grouped(records + 1)
    ))
}

fn create(path: &Path) -> Outcome<BufWriter<File>> {
    let file = File::create(path);
    let file = file
        .map_err(|e: io::Error| Failure::other(format!("cannot write {}: {e}", path.display())))?;
    Ok(BufWriter::with_capacity(256 << 10, file))
}
