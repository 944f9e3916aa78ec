//! `spinney inspect`: a tree as a person would want to see it, as text or as one HTML page.

mod page;
mod picture;
mod svg;
mod text;
mod trunk;

#[cfg(test)]
mod sample;

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;

use crate::commands::StorePath;
use crate::failure::{Failure, Outcome};
use crate::store::StoreOptions;
use trunk::Trunk;

/// Show the tree that holds a keyspace: nodes, pivots, bundles, branches, maplets; levels, guards, tables
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney inspect my.store                     the tree as text
  spinney inspect my.store --branches          with each branch
  spinney inspect my.store --html tree.html    a page to open in a browser
  spinney inspect my.store --svg tree.svg      a picture for a document")]
pub(crate) struct InspectOptions {
    #[command(flatten)]
    store: StorePath,
    /// Write a self-contained HTML page instead of text
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the drawing of that page alone, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// List each branch (text)
    #[arg(long)]
    branches: bool,
    /// Show at most so many nodes of each level (text); 0 shows all
    #[arg(long, default_value_t = 24, value_name = "NODES")]
    nodes: usize,
}

/// Describes and draws the tree.
pub(crate) fn run(store: &StoreOptions, options: &InspectOptions) -> Outcome {
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let description = keyspace.describe()?;
    drop(keyspace);
    database.close()?;
    let trunk = Trunk::new(&description);
    let title = format!("{} · {}", options.store.path.display(), store.keyspace);
    let write = |path: &PathBuf, contents: String| {
        fs::write(path, contents)
            .map_err(|e| Failure::other(format!("cannot write {}: {e}", path.display())))
    };
    if let Some(path) = &options.html {
        write(path, page::page(&trunk, &title))?;
    }
    if let Some(path) = &options.svg {
        write(path, picture::picture(&trunk, &title))?;
    }
    if options.html.is_some() || options.svg.is_some() {
        return Ok(());
    }
    let style = text::Style {
        branches: options.branches,
        nodes_max: if options.nodes == 0 { usize::MAX } else { options.nodes },
        colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    out.write_all(text::text(&trunk, &title, style).as_bytes())?;
    Ok(out.flush()?)
}
