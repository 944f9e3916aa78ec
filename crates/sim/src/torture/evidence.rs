//! The evidence of a violation, and its repeated judgement.

use std::fs;
use std::io;
use std::path::Path;

use super::frames::Told;
use super::fresh::{Fresh, data_bytes};
use super::ledger::{Ledger, Verdict};
use super::look::{Extent, look};
use super::promise;

/// What a child has left, before anybody opened it.
pub const LEFT: &str = "left";

/// Makes `to` a directory with the files of `from`: those that never change by hard links.
///
/// # Errors
/// As the file system says.
pub fn link_dir(from: &Path, to: &Path) -> io::Result<()> {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_data = name.to_string_lossy().ends_with(".table")
            || name.to_string_lossy().ends_with(".maplet")
            || name.to_string_lossy().ends_with(".head")
            || name.to_string_lossy().ends_with(".blob");
        match is_data {
            true => fs::hard_link(path, to.join(name))?,
            false => drop(fs::copy(path, to.join(name))?),
        }
    }
    Ok(())
}

/// Judges again what [`Lives`](super::life::Lives) has kept in `dir`: reads and checks everything,
/// and looks at space after ten idle seconds.
///
/// # Errors
/// What was promised and is not so; or it cannot be read.
pub fn judge_again(dir: &Path) -> Verdict<()> {
    let failed = |error: io::Error| format!("{}: {error}", dir.display());
    let mut ledger = Ledger::load(dir).map_err(failed)?;
    let again = dir.join("again");
    link_dir(&dir.join(LEFT), &again).map_err(failed)?;
    let script = ledger.script.clone();
    let opened = script.builder(&again, 64 << 20).create_if_missing(!ledger.created).open();
    let db = opened.map_err(|error| format!("open: {error}"))?;
    let extent = Extent {
        under_way: ledger.writers.iter().map(|writer| writer.under_way()).collect(),
        created: ledger.created,
        sample: 5000,
        full: true,
        draw: 0,
    };
    let spaces = look(&db, &script, &extent, &mut |told| match told {
        Told::Read { space, index, seen } => ledger.read(space, index, seen),
        Told::Settled { writer } => {
            ledger.settle(writer);
            Ok(())
        }
        Told::ScanBegun { space } => {
            ledger.scan_begun(space);
            Ok(())
        }
        Told::ScanEnded { space } => ledger.scan_ended(space),
        _ => Ok(()),
    })?;
    std::thread::sleep(promise::IDLE);
    let files = data_bytes(&again).map_err(failed)?;
    let fresh = Fresh::measure(&script, &dir.join("fresh"))?.bytes(&ledger);
    eprintln!(
        "{} pairs; data files take {:.1} MB, freshly loaded {:.1} (× {:.2})",
        ledger.spaces.iter().map(|space| space.live_keys).sum::<u64>(),
        files as f64 / 1e6,
        fresh as f64 / 1e6,
        files as f64 / fresh as f64
    );
    drop(spaces);
    db.close().map_err(|error| format!("close: {error}"))?;
    let allowed = promise::space_allowance(64 << 20, script.spaces.len() as u64);
    match files as f64 <= fresh as f64 * promise::SPACE_IDLE + allowed as f64 {
        true => Ok(()),
        false => Err(format!("space: × {} is promised", promise::SPACE_IDLE)),
    }
}
