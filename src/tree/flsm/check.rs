//! Verifies a version: the guards' shape, the order in which keys' versions lie in them, and every file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;

use super::guard::{Fragment, Guard, tables};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::table::TableScan;
use crate::tree::range::table_overlaps;
use crate::tree::versioned::check_shape;
use crate::tree::{CheckCounts, files, wrong_node};

/// Bytes read at once of each table.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) fn check(
    root: &Arc<Guard>,
    manifest: &Path,
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    check_shape(root, manifest, problem);
    let problem = &mut Problems { manifest, problem };
    check_guard(root, &mut Vec::new(), full, problem);
    files::check(&tables(root), full, problem.problem)
}

/// Where problems go, and the file that guards' problems name.
struct Problems<'a> {
    manifest: &'a Path,
    problem: &'a mut dyn FnMut(Error),
}

fn wrong(
    guard: &Guard,
    what: &'static str,
    expected: &str,
    found: String,
    problems: &mut Problems<'_>,
) {
    (problems.problem)(wrong_node(problems.manifest, guard.id.0, what, expected, found));
}

/// The invariants of fragments; `above` are the fragments of the guards above, the oldest last. The order of
/// versions is only looked at with `full`.
fn check_guard<'a>(
    guard: &'a Arc<Guard>,
    above: &mut Vec<&'a Fragment>,
    full: bool,
    problem: &mut Problems<'_>,
) {
    let (lower, upper) = guard.range();
    let before = above.len();
    for fragment in guard.fragments.iter().rev() {
        if !table_overlaps(&fragment.table, lower, upper) {
            let found = format!("table {}", fragment.table.id());
            wrong(guard, "fragment", "a table that reaches into its guard", found, problem);
            continue;
        }
        above.push(fragment);
    }
    guard.children.iter().for_each(|child| check_guard(child, above, full, problem));
    if full && guard.children.is_empty() {
        check_age(guard, above, problem);
    }
    above.truncate(before);
}

/// Of each key that several of the tables hold (the youngest first), the versions in younger ones are
/// younger. Age holds per key, not per table: a merge in place may take a small old fragment along with
/// young ones, and what it makes then has older entries than fragments whose keys lie beside that one's.
/// So the entries themselves must be read. What cannot be read has been reported as such.
fn check_age(guard: &Guard, path: &[&Fragment], problem: &mut Problems<'_>) {
    if path.len() > 1
        && let Ok(Some(found)) = find_out_of_order(guard, path)
    {
        wrong(guard, "age of a key's versions", "younger ones in younger tables", found, problem);
    }
}

fn find_out_of_order(guard: &Guard, path: &[&Fragment]) -> Result<Option<String>> {
    let (lower, upper) = guard.range();
    let mut scans: Vec<TableScan> = (path.iter())
        .map(|fragment| fragment.table.scan(Some(lower), upper, CHUNK_BYTES))
        .collect::<Result<_>>()?;
    let key_of = |scan: &TableScan| scan.entry().map(|entry| entry.key.to_vec());
    // The least key comes first, and of the tables that are at it the youngest.
    let mut next: BinaryHeap<Reverse<(Vec<u8>, usize)>> = (scans.iter().enumerate())
        .filter_map(|(age, scan)| Some(Reverse((key_of(scan)?, age))))
        .collect();
    let mut last: Option<(Vec<u8>, Seqno, usize)> = None;
    while let Some(Reverse((key, age))) = next.pop() {
        let Some(scan) = scans.get_mut(age) else { continue };
        let Some(seqno) = scan.entry().map(|entry| entry.seqno) else { continue };
        if let Some((before, younger, from)) = &last
            && *before == key
            && *younger <= seqno
        {
            let table = |age: usize| path.get(age).map_or(FileId(0), |it| it.table.id());
            return Ok(Some(format!(
                "key \"{}\" at {younger} in table {} and at {seqno} in table {}, which is the older one",
                key.escape_ascii(),
                table(*from),
                table(age),
            )));
        }
        scan.next()?;
        next.extend(key_of(scan).map(|key| Reverse((key, age))));
        last = Some((key, seqno, age));
    }
    Ok(None)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
