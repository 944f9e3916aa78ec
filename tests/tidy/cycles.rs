//! Which files of a module import one another in a circle.
//!
//! `cargo test --test tidy -- cycles --nocapture` prints them. A file and the `mod.rs` (or the file of the same name)
//! beside or above it belong together, and so do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, is_word};

/// The circles that there are. One that has been cut is taken off this list; none is added.
const KNOWN: [&[&str]; 8] = [
    &["cache/fetch", "cache/page_file", "cache/page_scan"],
    &["cache/index", "cache/page_cache", "cache/pool", "cache/stripe"],
    &["filter/geometry", "filter/page"],
    &["filter/maplet", "filter/reader"],
    &["manifest/durable", "manifest/log"],
    // A keyspace's state tells the store when its tree changes.
    &["store/retired", "store/state", "store/store"],
    &["table/filter", "table/reader"],
    &["vfs/descriptors", "vfs/posix_file"],
];

/// Reads one path, or all of a tree of them, from `at` on; returns where it ends.
fn read_paths(
    code: &[char],
    mut at: usize,
    prefix: &[String],
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        while code.get(at).is_some_and(|c| c.is_whitespace()) {
            at += 1;
        }
        if code.get(at) == Some(&'{') {
            at += 1;
            while code.get(at).is_some_and(|c| *c != '}') {
                let end = read_paths(code, at, &path, paths);
                at = if code.get(end) == Some(&',') { end + 1 } else { end.max(at + 1) };
            }
            return at + 1;
        }
        let start = at;
        while code.get(at).copied().is_some_and(is_word) {
            at += 1;
        }
        path.push(code[start..at].iter().collect());
        if code.get(at) == Some(&':') && code.get(at + 1) == Some(&':') {
            at += 2;
            continue;
        }
        paths.push(path);
        // What a name is imported as.
        while code.get(at).is_some_and(|c| !",;{}()<>".contains(*c)) && prefix.len() > 1 {
            at += 1;
        }
        return at;
    }
}

/// The paths from `crate`, `super` or `self` that product code names.
fn paths(source: &Source) -> Vec<Vec<String>> {
    let lines: Vec<&str> = source.product_lines().map(|(_, line)| line).collect();
    let code: Vec<char> = lines.join("\n").chars().collect();
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < code.len() {
        let begins = at == 0 || !(is_word(code[at - 1]) || code[at - 1] == ':');
        let is_root = |root: &str| {
            root.chars().chain("::".chars()).eq(code.iter().skip(at).take(root.len() + 2).copied())
        };
        let roots = ["crate", "super", "self"];
        at = match begins && roots.iter().any(|root| is_root(root)) {
            true => read_paths(&code, at, &[], &mut paths).max(at + 1),
            false => at + 1,
        };
    }
    paths
}

/// The module that a file of the engine is, without its test files.
fn module(source: &Source) -> Option<Vec<String>> {
    let stem = source.path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    (stem != "lib" && !source.test.iter().all(|test| *test))
        .then(|| stem.split('/').map(str::to_string).collect())
}

/// Which files import which.
fn imports(sources: &[Source]) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = sources.iter().filter_map(module).collect();
    let mut imports = BTreeMap::new();
    for source in sources {
        let Some(own) = module(source) else { continue };
        let mut used = BTreeSet::new();
        for path in paths(source) {
            let mut full = own.clone();
            let mut rest = &path[..];
            while let [first, behind @ ..] = rest {
                match first.as_str() {
                    "crate" => full.clear(),
                    "super" => drop(full.pop()),
                    "self" => {}
                    _ => break,
                }
                rest = behind;
            }
            full.extend(rest.iter().cloned());
            let known = (1..=full.len()).rev().map(|n| &full[..n]).find(|it| modules.contains(*it));
            let Some(known) = known else { continue };
            let is_kin =
                known == own || known == &own[..own.len() - 1] || known[..known.len() - 1] == own;
            if !is_kin {
                used.insert(known.to_vec());
            }
        }
        imports.insert(own, used);
    }
    imports
}

/// All that can be reached from a file.
fn reached(
    from: &[String],
    imports: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
) -> BTreeSet<Vec<String>> {
    let (mut reached, mut to_do) = (BTreeSet::new(), vec![from.to_vec()]);
    while let Some(next) = to_do.pop() {
        for used in imports.get(&next).into_iter().flatten() {
            if reached.insert(used.clone()) {
                to_do.push(used.clone());
            }
        }
    }
    reached
}

/// The circles: sets of files each of which imports every other, by way of others.
pub(super) fn cycles(sources: &[Source]) -> Vec<Vec<String>> {
    let imports = imports(sources);
    let all: BTreeMap<_, _> = imports.keys().map(|file| (file, reached(file, &imports))).collect();
    let mut found = BTreeSet::new();
    for (file, reached) in &all {
        if reached.contains(*file) {
            let back = |other: &&Vec<String>| all.get(other).is_some_and(|its| its.contains(*file));
            found
                .insert(reached.iter().filter(back).map(|file| file.join("/")).collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

/// Circles that are not known, and known ones that are no more.
pub(super) fn check_cycles(sources: &[Source]) -> Vec<String> {
    let known: BTreeSet<Vec<String>> =
        KNOWN.iter().map(|files| files.iter().map(ToString::to_string).collect()).collect();
    let found: BTreeSet<Vec<String>> = cycles(sources).into_iter().collect();
    let new =
        found.difference(&known).map(|files| format!("import one another: {}", files.join(", ")));
    let gone =
        known.difference(&found).map(|files| format!("no circle any more: {}", files.join(", ")));
    new.chain(gone).collect()
}
