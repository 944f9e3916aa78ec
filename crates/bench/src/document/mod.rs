//! `spinney-bench document`: makes the tables and pictures of README.md, docs/benchmarks.md and docs/choosing.md
//! from the results that are kept in docs/benchmarks.
//!
//! Invariants:
//! 1. A table is made from one file, so all its figures are of one command, and a row's of one run. The line below
//!    has that command.
//! 2. Everything between a marker and its end is replaced. Nothing else in a document changes.
//! 3. The same results give the same bytes.

mod marker;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::compare::Failure;
use crate::plot::summary;
use marker::{Kind, Marker, Part};

/// The documents with markers.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/benchmarks.md", "docs/choosing.md"];
/// Where results are kept.
const RESULTS: &str = "docs/benchmarks";
/// Fields of a result that no table shows: single measurements, which are most of a file.
const LEFT_OUT: [&str; 2] = ["rounds", "device_rounds"];

/// Make the tables and pictures of README.md, docs/benchmarks.md and docs/choosing.md from docs/benchmarks
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  spinney-bench document                          rewrite tables and pictures
  spinney-bench document --keep runs/*.json       first take over new results, by their file names
  spinney-bench document --commands               the commands that make all kept results anew")]
pub struct DocumentOptions {
    /// Results of `compare --json` to keep, in place of those with the same file name
    #[arg(long, num_args = 1.., value_name = "FILES")]
    keep: Vec<PathBuf>,
    /// Print the command of each kept result, and change nothing
    #[arg(long, conflicts_with = "keep")]
    commands: bool,
    /// The root of the repository
    #[arg(long, default_value = ".", value_name = "DIR")]
    root: PathBuf,
}

/// A file and what it should hold.
pub type Made = (PathBuf, String);

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, and invalid markers.
pub fn run(options: &DocumentOptions) -> Result<(), Failure> {
    if options.commands {
        print!("{}", commands(&options.root).map_err(Failure::Other)?);
        return Ok(());
    }
    for file in &options.keep {
        keep(file, &options.root).map_err(Failure::Other)?;
    }
    for (path, text) in made(&options.root).map_err(Failure::Other)? {
        let said = |error: std::io::Error| Failure::Other(format!("{}: {error}", path.display()));
        if fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(said)?;
            fs::write(&path, text).map_err(said)?;
            eprintln!("{} rewritten", path.display());
        }
    }
    Ok(())
}

/// Every document and picture, as the kept results make them.
///
/// # Errors
/// Files that cannot be read, and invalid markers.
pub fn made(root: &Path) -> Result<Vec<Made>, String> {
    let mut out = Vec::new();
    for name in DOCUMENTS {
        let path = root.join(name);
        let text = read(&path)?;
        let said = |error: String| format!("{name}: {error}");
        let mut document = String::with_capacity(text.len());
        for part in marker::parts(&text).map_err(said)? {
            match part {
                Part::Text(text) => document.push_str(text),
                Part::Marked { head, marker } => {
                    let results = results(root, &marker.results).map_err(said)?;
                    let body = body(&results, &marker, root, &mut out).map_err(said)?;
                    document += &format!("{head}\n\n{body}\n\n{}", marker::END);
                }
            }
        }
        out.push((path, document));
    }
    Ok(out)
}

/// The text that a marker produces. Its picture is added to `out`.
fn body(
    results: &Value,
    marker: &Marker,
    root: &Path,
    out: &mut Vec<Made>,
) -> Result<String, String> {
    match &marker.kind {
        Kind::Table | Kind::Choice => table::table(results, marker),
        Kind::Picture(file) => {
            let workloads: Vec<String> =
                marker.rows.iter().map(|row| row.workload.clone()).collect();
            let figure = summary::summary(results, &marker.columns, &workloads);
            let figure = figure.ok_or_else(|| format!("nothing to draw for {file}"))?;
            out.push((root.join(file), figure.svg + "\n"));
            Ok(format!("![{}]({file})\n\n{}", figure.title, table::caption(results, marker)))
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn parsed(path: &Path) -> Result<Value, String> {
    serde_json::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Kept results, with everything that a table needs.
fn results(root: &Path, name: &str) -> Result<Value, String> {
    let path = root.join(RESULTS).join(name);
    let document = parsed(&path)?;
    let is_run = |run: &&Value| run["results"].is_array() && run["command"].is_string();
    let runs = table::runs(&document);
    match !runs.is_empty() && runs.iter().all(is_run) {
        true => Ok(document),
        false => Err(format!("{}: no results of a run with its command", path.display())),
    }
}

/// Copies results into the repository.
fn keep(file: &Path, root: &Path) -> Result<(), String> {
    let mut document = parsed(file)?;
    let shorten = |run: &mut Value| {
        for field in LEFT_OUT {
            run.as_object_mut().map(|fields| fields.shift_remove(field));
        }
    };
    // Not by indexing, which would add the field.
    match document.get_mut("runs").and_then(Value::as_array_mut) {
        Some(runs) => runs.iter_mut().for_each(shorten),
        None => shorten(&mut document),
    }
    let name = file.file_name().ok_or_else(|| format!("{}: not a file", file.display()))?;
    let path = root.join(RESULTS).join(name);
    fs::write(&path, format!("{document:#}\n"))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The commands that make all kept results anew, one per line.
fn commands(root: &Path) -> Result<String, String> {
    let dir = root.join(RESULTS);
    let said = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).map_err(said)? {
        let name = entry.map_err(said)?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(".json")));
    }
    names.sort();
    let mut out = String::new();
    for name in names {
        let results = results(root, &name)?;
        let command = table::runs(&results)[0]["command"].as_str().unwrap_or_default();
        out += &format!("{command} --json {name}\n");
    }
    Ok(out)
}
