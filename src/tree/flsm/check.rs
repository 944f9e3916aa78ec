//! Verifies a version: the guards' shape, the order of their fragments, and every file.

use std::path::Path;
use std::sync::Arc;

use super::guard::{Fragment, Guard, table_meets};
use super::version::{Version, tables};
use crate::base::error::Error;
use crate::tree::{CheckCounts, files};

pub(super) fn check(version: &Version, full: bool, problem: &mut dyn FnMut(Error)) -> CheckCounts {
    let root = &version.root;
    if !root.lower.is_empty() || root.upper.is_some() {
        wrong(root, "range of the root", "all keys", format!("{:?}", root.range()), problem);
    }
    check_guard(root, &mut Vec::new(), problem);
    files::check(&tables(root), full, problem)
}

fn wrong(
    guard: &Guard,
    what: &'static str,
    expected: &str,
    found: String,
    problem: &mut dyn FnMut(Error),
) {
    problem(Error::corruption(Path::new("guards"), guard.id.0, what, expected, found));
}

/// The invariants of `guard`; `above` are the fragments of the guards above, the oldest last.
fn check_guard<'a>(
    guard: &'a Arc<Guard>,
    above: &mut Vec<&'a Fragment>,
    problem: &mut dyn FnMut(Error),
) {
    let (lower, upper) = guard.range();
    if upper.is_some_and(|upper| upper <= lower) {
        wrong(
            guard,
            "range of a guard",
            "ascending bounds",
            format!("{:?}", guard.range()),
            problem,
        );
    }
    if (guard.height == 0) != guard.children.is_empty() {
        let found = format!("{} at height {}", guard.children.len(), guard.height);
        wrong(guard, "children of a guard", "some above the last level alone", found, problem);
    }
    let before = above.len();
    for fragment in guard.fragments.iter().rev() {
        if !table_meets(&fragment.table, lower, upper) {
            let found = format!("table {}", fragment.table.id());
            wrong(guard, "fragment", "a table that reaches into its guard", found, problem);
            continue;
        }
        check_age(guard, fragment, above, problem);
        above.push(fragment);
    }
    let mut next = Some(&guard.lower);
    for child in &guard.children {
        if next != Some(&child.lower) || child.height + 1 != guard.height {
            let found = format!("{:?} at height {}", child.range(), child.height);
            wrong(
                guard,
                "child",
                "the range that the one before left, one level down",
                found,
                problem,
            );
        }
        next = child.upper.as_ref();
        check_guard(child, above, problem);
    }
    if !guard.children.is_empty() && next != guard.upper.as_ref() {
        wrong(guard, "last child", "up to the guard's end", format!("{next:?}"), problem);
    }
    above.truncate(before);
}

/// What may hold versions of the same keys is in order of age, which the sequence numbers tell.
fn check_age(
    guard: &Guard,
    fragment: &Fragment,
    younger: &[&Fragment],
    problem: &mut dyn FnMut(Error),
) {
    let (lower, upper) = guard.range();
    let (table, properties) = (&fragment.table, fragment.table.properties());
    for other in younger.iter().map(|fragment| &fragment.table) {
        let first = table.first_key().max(other.first_key()).max(lower);
        let meets = first <= table.last_key().min(other.last_key())
            && upper.is_none_or(|upper| first < upper);
        if meets && other.properties().seqno_min <= properties.seqno_max {
            let found = format!("tables {} and {}", other.id(), table.id());
            wrong(guard, "age of fragments", "younger ones after older ones", found, problem);
            return;
        }
    }
}
