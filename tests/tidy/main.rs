//! The rules of the source code that Clippy cannot express: which module may use which, where threads' primitives come
//! from, and what every file owes its reader. Each rule has a test that plants what it must find. Who may use the
//! operating system is in clippy.toml.

mod cycles;
mod named_files;
mod the_rules;

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

const LINES_MAX: usize = 800;
/// The modules that meet the operating system.
const OUTER_MODULES: [&str; 2] = ["vfs", "jobs"];

/// What stands before items that only test builds have.
const TEST_MARKS: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];
/// Where the threads' primitives come from, and the only place that may name their makers.
const SYNC_MODULE: &str = "src/base/sync";
/// Those makers (`parking_lot`'s locks do not survive a fork): crates, and what of `std::sync`, `std::thread` and `std::hint` is theirs.
const SYNC_CRATES: [&str; 6] =
    ["parking_lot", "arc_swap", "crossbeam_utils", "crossbeam_epoch", "loom", "shuttle"];
const SYNC_NAMES: [&str; 8] =
    ["atomic", "Mutex", "RwLock", "Condvar", "Barrier", "mpsc", "yield_now", "spin_loop"];

/// A file of Rust, as the rules look at it.
struct Source {
    /// Relative to the repository, with `/`.
    path: String,
    raw: String,
    /// `raw` with comments and literals blanked, character for character.
    code: String,
    /// Which lines are only compiled for tests.
    test: Vec<bool>,
}

impl Source {
    fn new(path: &str, raw: &str) -> Source {
        let code = blank(raw);
        let test = test_lines(&code);
        Source { path: path.to_string(), raw: raw.to_string(), code, test }
    }

    /// The module of the engine that the file belongs to.
    fn module(&self) -> Option<&str> {
        let rest = self.path.strip_prefix("src/")?;
        let first = rest.split('/').next()?;
        let module = first.strip_suffix(".rs").unwrap_or(first);
        (module != "lib").then_some(module)
    }

    /// The lines of code that are not only for tests, numbered from 1.
    fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(i, _)| !self.test[*i]).map(|(i, line)| (i + 1, line))
    }

    fn says(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Replaces comments and literals other than numbers by spaces.
fn blank(raw: &str) -> String {
    let tokens: TokenStream = raw.parse().expect("a file that compiles has tokens");
    let mut kept = vec![false; raw.len()];
    keep_tokens(tokens, raw, &mut kept);
    let shown = |(at, c): (usize, char)| if kept[at] || c == '\n' { c } else { ' ' };
    raw.char_indices().map(shown).collect()
}

/// Marks the bytes of tokens. A documentation comment is made of tokens that are not in the text.
fn keep_tokens(tokens: TokenStream, raw: &str, kept: &mut [bool]) {
    let mut keep = |range: Range<usize>, token: &str| {
        if raw.get(range.clone()) == Some(token) {
            kept[range].fill(true);
        }
    };
    let mut inner = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => continue,
                };
                keep(group.span_open().byte_range(), open);
                keep(group.span_close().byte_range(), close);
                inner.push(group.stream());
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(|c: char| c.is_ascii_digit()) {
                    keep(literal.span().byte_range(), &text);
                }
            }
            other => keep(other.span().byte_range(), &other.to_string()),
        }
    }
    for tokens in inner {
        keep_tokens(tokens, raw, kept);
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Marks the lines of items under one of `TEST_MARKS`.
fn test_lines(code: &str) -> Vec<bool> {
    let lines: Vec<&str> = code.lines().collect();
    let mut marks = vec![false; lines.len()];
    let mut i = 0;
    while i < lines.len() {
        let line = lines[i].trim_start();
        if !TEST_MARKS.iter().any(|mark| line.starts_with(mark)) {
            i += 1;
            continue;
        }
        let mut depth = 0;
        while i < lines.len() {
            marks[i] = true;
            let line = lines[i];
            depth += line.matches('{').count() as i64 - line.matches('}').count() as i64;
            i += 1;
            if depth == 0 && (line.contains('}') || line.trim_end().ends_with(';')) {
                break;
            }
        }
    }
    marks
}

/// Marks whole files that their parent declares under one of `TEST_MARKS`.
fn mark_test_files(sources: &mut [Source]) {
    let mut prefixes = Vec::new();
    for source in sources.iter() {
        let Some(stem) = source.path.strip_suffix(".rs") else { continue };
        let dir = stem.strip_suffix("/mod").or(stem.strip_suffix("/lib")).unwrap_or(stem);
        let parent = stem.rsplit_once('/').map_or("", |(parent, _)| parent);
        let lines = source.code.lines().zip(source.raw.lines()).zip(&source.test);
        for ((line, raw), test) in lines {
            if let (true, Some(name)) = (test, declared_module(line)) {
                prefixes.push(format!("{dir}/{name}.rs"));
                prefixes.push(format!("{dir}/{name}/"));
            }
            if let (true, Some(path)) = (test, raw.trim().strip_prefix("#[path = \"")) {
                prefixes.push(format!("{parent}/{}", path.trim_end_matches("\"]")));
            }
        }
    }
    for source in sources {
        if prefixes.iter().any(|prefix| source.path.starts_with(prefix)) {
            source.test.fill(true);
        }
    }
}

/// The name in `mod name;`.
fn declared_module(line: &str) -> Option<&str> {
    let before = line.trim().strip_suffix(';')?;
    let (_, name) = before.split_once("mod ")?;
    name.chars().all(is_word).then_some(name)
}

/// Where `word` stands alone in `line`.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The first names of what follows a `::`: one name, or those of a `{…}` group.
fn names_after(text: &str) -> Vec<&str> {
    let name = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let Some(group) = text.strip_prefix('{') else { return vec![&text[..name(text)]] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let part = group[start..at].trim_start();
                names.push(&part[..name(part)]);
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// The names that product code uses through `path` (`"crate::"`, `"std::"`), with their lines.
fn uses<'a>(source: &'a Source, path: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let starts = source.code.match_indices(path);
    starts.flat_map(move |(at, _)| {
        let line = source.code[..at].matches('\n').count();
        let whole = !source.code[..at].chars().next_back().is_some_and(is_word);
        let counts = whole && !source.test[line];
        let names = if counts { names_after(&source.code[at + path.len()..]) } else { Vec::new() };
        names.into_iter().map(move |name| (line + 1, name))
    })
}

fn check_order(sources: &[Source]) -> Vec<String> {
    let Some(lib) = sources.iter().find(|source| source.path == "src/lib.rs") else {
        return vec!["src/lib.rs is missing".to_string()];
    };
    let order: Vec<&str> =
        lib.product_lines().filter_map(|(_, line)| declared_module(line)).collect();
    let place = |module: &str| order.iter().position(|name| *name == module);
    let mut found = Vec::new();
    for source in sources {
        let Some(module) = source.module() else { continue };
        let Some(own) = place(module) else {
            found.push(source.says(1, format_args!("{module} is not declared in src/lib.rs")));
            continue;
        };
        for (line, used) in uses(source, "crate::") {
            if place(used).is_some_and(|used| used < own) {
                found
                    .push(source.says(line, format_args!("{module} may not call {used} above it")));
            }
        }
    }
    found
}

/// The kinds of tree: each is a folder.
fn tree_kinds() -> Vec<String> {
    let folders = fs::read_dir(repository().join("src/tree")).unwrap().map(|entry| entry.unwrap());
    // `versioned` is what kinds have in common, and `trunk` what two of them have.
    let is_kind = |entry: &fs::DirEntry| {
        let is_common = ["versioned", "trunk"].iter().any(|name| entry.file_name() == *name);
        entry.path().is_dir() && !is_common
    };
    let folders = folders.filter(is_kind);
    folders.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// A kind names no other, and nobody else names one: what there is to know of it is in its folder.
fn check_tree_kinds(sources: &[Source]) -> Vec<String> {
    let kinds = tree_kinds();
    let mut found = Vec::new();
    for source in sources {
        let path = source.path.as_str();
        let tree = path.strip_prefix("src/tree/");
        let own = tree.and_then(|rest| rest.split(['/', '.']).next()).unwrap_or_default();
        let is_kind = kinds.iter().any(|kind| kind == own);
        for prefix in ["tree::", "super::"].iter().filter(|_| is_kind) {
            for (line, used) in uses(source, prefix) {
                if used != own && kinds.iter().any(|kind| kind == used) {
                    found.push(source.says(line, format_args!("{own} may not name {used}")));
                }
            }
        }
        let is_product = ["src/", "crates/cli/src/"].iter().any(|root| path.starts_with(root));
        if is_kind || path == "src/tree/kinds.rs" || !is_product || is_for_tests(path) {
            continue;
        }
        for (i, (code, raw)) in source.code.lines().zip(source.raw.lines()).enumerate() {
            if source.test.get(i).copied().unwrap_or_default() {
                continue;
            }
            let named = kinds.iter().find(|kind| {
                let capital = kind.chars().next().unwrap_or_default().to_ascii_uppercase();
                let variant = format!("TreeKind::{capital}{}", &kind[1..]);
                let literal = format!("{kind:?}");
                // A comment, or an attribute that says which builds have something.
                let is_apart =
                    |at: usize| raw[..at].contains("//") || raw[..at].ends_with("feature = ");
                code.contains(&variant) || raw.find(&literal).is_some_and(|at| !is_apart(at))
            });
            if let Some(kind) = named {
                found.push(source.says(i + 1, format_args!("names the kind {kind}")));
            }
        }
    }
    found
}

/// A file that only test builds have.
fn is_for_tests(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.contains("test")
        || name == "fuzz.rs"
        || path.contains("/tests")
        || path.contains("/schedules/")
}

fn check_length(sources: &[Source]) -> Vec<String> {
    let long = |source: &&Source| source.raw.lines().count() > LINES_MAX;
    let say = |source: &Source| source.says(LINES_MAX, "longer than that; split it along a seam");
    sources.iter().filter(long).map(say).collect()
}

/// Clippy says who uses the operating system, where nobody tells it to be silent.
fn check_allowances(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let lints = ["clippy::disallowed_methods", "clippy::disallowed_types"];
        for (i, line) in source.code.lines().enumerate() {
            let modules = ["mod jobs;", "mod vfs;", "mod sync;"];
            let next = source.code.lines().nth(i + 1).unwrap_or_default();
            let known = ["src/lib.rs", "src/base/mod.rs"].contains(&source.path.as_str())
                && (line.contains("not(test), warn(")
                    || modules.iter().any(|module| next.ends_with(module)));
            if !known && lints.iter().any(|lint| line.contains(lint)) {
                found.push(source.says(i + 1, "this is for vfs, jobs and base::sync"));
            }
        }
    }
    let told = |source: &Source| {
        source.code.contains("cfg_attr(not(test), warn(clippy::disallowed_methods")
    };
    if !sources.iter().any(|source| source.path == "src/lib.rs" && told(source)) {
        found.push("src/lib.rs:1: does not turn clippy::disallowed_methods on".to_string());
    }
    found
}

/// Test builds put other primitives in the place of the ordinary ones, and must find all of them.
fn check_sync(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        if source.module().is_none() || source.path.starts_with(SYNC_MODULE) {
            continue;
        }
        for path in ["std::sync::", "std::thread::", "std::hint::"] {
            for (line, used) in uses(source, path) {
                if SYNC_NAMES.contains(&used) {
                    found.push(source.says(line, format_args!("{path}{used}: see base::sync")));
                }
            }
        }
        for (number, line) in source.product_lines() {
            for name in SYNC_CRATES {
                let named = |at: usize| line[at + name.len()..].starts_with("::");
                // The collector of grace periods has the epochs for itself.
                let own = name == "crossbeam_epoch" && source.path.starts_with("src/cache/grace/");
                let model = name == "loom" && line.contains("loom::lazy_static!");
                if words(line, name).any(named) && !own && !model {
                    found.push(source.says(number, format_args!("{name}: see base::sync")));
                }
            }
        }
    }
    found
}

/// Random hashers make runs differ; here test code counts too.
fn check_hashers(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        if source.module().is_some_and(|module| OUTER_MODULES.contains(&module)) {
            continue;
        }
        for (i, line) in source.code.lines().enumerate() {
            let random = words(line, "RandomState").next().is_some()
                || [("HashMap", 3), ("HashSet", 2)].into_iter().any(|(name, parameters)| {
                    words(line, name)
                        .any(|at| has_random_hasher(&line[at + name.len()..], parameters))
                });
            if random {
                let say = "a random hasher: use BTreeMap or a fixed one";
                found.push(source.says(i + 1, say));
            }
        }
    }
    found
}

/// Whether what follows a map's name leaves its hasher to the default.
fn has_random_hasher(after: &str, parameters: usize) -> bool {
    let makers = ["::new(", "::with_capacity(", "::from(", "::from_iter("];
    if makers.iter().any(|maker| after.starts_with(maker)) {
        return true;
    }
    let generics = after.strip_prefix("::").unwrap_or(after);
    let Some(generics) = generics.strip_prefix('<') else { return false };
    let (mut depth, mut commas) = (0, 0);
    for c in generics.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if depth == 0 => return commas + 1 < parameters,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => commas += 1,
            _ => {}
        }
    }
    false
}

fn check_leftovers(sources: &[Source]) -> Vec<String> {
    // Put together here so that this file passes its own rule.
    let in_code = [concat!("to", "do!"), concat!("unimpl", "emented!"), concat!("#[ig", "nore")];
    let anywhere = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];
    let mut found = Vec::new();
    for source in sources {
        for (i, (raw, code)) in source.raw.lines().zip(source.code.lines()).enumerate() {
            let left = in_code.iter().find(|left| code.contains(**left));
            let left = left.or(anywhere.iter().find(|left| words(raw, left).next().is_some()));
            if let Some(left) = left {
                found.push(source.says(i + 1, format_args!("{left} is left over")));
            }
        }
    }
    found
}

fn check_unsafe(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let raw: Vec<&str> = source.raw.lines().collect();
        let code: Vec<&str> = source.code.lines().collect();
        for (i, line) in code.iter().enumerate() {
            let dangerous = words(line, "unsafe").any(|at| {
                let after = line[at + "unsafe".len()..].trim_start();
                after.starts_with('{') || words(after, "impl").next() == Some(0) || after.is_empty()
            });
            if dangerous && !has_safety_comment(&raw, i) {
                found.push(source.says(i + 1, "unsafe without a SAFETY comment above it"));
            }
        }
    }
    found
}

/// Whether the comment that ends within the three lines above says SAFETY.
fn has_safety_comment(raw: &[&str], line: usize) -> bool {
    let is_comment = |at: &usize| raw[*at].trim_start().starts_with("//");
    let Some(last) = (line.saturating_sub(3)..line).rev().find(is_comment) else { return false };
    (0..=last).rev().take_while(is_comment).any(|at| raw[at].contains("SAFETY:"))
}

fn check_module_comments(sources: &[Source]) -> Vec<String> {
    let bare = |source: &&Source| source.path.starts_with("src/") && !source.raw.starts_with("//!");
    sources
        .iter()
        .filter(bare)
        .map(|source| source.says(1, "begin with what it is, `//!`"))
        .collect()
}

/// `pages` are names and texts of `docs/format`.
fn check_format_pages(sources: &[Source], pages: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in pages {
        let path = format!("docs/format/{name}");
        if !text.contains("```hex\n") {
            found.push(format!("{path}: has no worked example in a ```hex block"));
        }
        let read = |source: &Source| {
            source.path.starts_with("src/")
                && source.raw.match_indices(&path).any(|(at, _)| {
                    let before =
                        source.raw[..at].trim_end_matches(['.', '/']).trim_end_matches('"');
                    before.trim_end().ends_with("include_str!(")
                })
        };
        if !sources.iter().any(read) {
            found.push(format!("{path}: no test in src reads it with include_str!"));
        }
    }
    found
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn collect(dir: &Path, sources: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, sources);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name =
                path.strip_prefix(repository()).unwrap().to_string_lossy().replace('\\', "/");
            sources.push(Source::new(&name, &fs::read_to_string(&path).unwrap()));
        }
    }
}

/// All sources, read once.
static REPOSITORY: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let mut sources = Vec::new();
    for dir in ["src", "crates", "tests"] {
        collect(&repository().join(dir), &mut sources);
    }
    mark_test_files(&mut sources);
    sources
});

fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

mod the_repository {
    use super::*;

    #[test]
    fn modules_call_only_downward() {
        assert_none(check_order(&REPOSITORY));
    }

    #[test]
    fn files_import_one_another_in_no_new_cycles() {
        for files in cycles::cycles(&REPOSITORY) {
            println!("{}", files.join(" "));
        }
        assert_none(cycles::check_cycles(&REPOSITORY));
    }

    #[test]
    fn tree_kinds_do_not_know_each_other() {
        assert_none(check_tree_kinds(&REPOSITORY));
    }

    #[test]
    fn files_are_short() {
        assert_none(check_length(&REPOSITORY));
    }

    #[test]
    fn only_vfs_jobs_and_sync_are_excepted_from_clippy() {
        assert_none(check_allowances(&REPOSITORY));
    }

    #[test]
    fn threads_meet_through_base_sync() {
        assert_none(check_sync(&REPOSITORY));
    }

    #[test]
    fn damage_is_of_files_that_exist() {
        assert_none(named_files::check_named_files(&REPOSITORY));
    }

    #[test]
    fn nothing_hashes_at_random() {
        assert_none(check_hashers(&REPOSITORY));
    }

    #[test]
    fn nothing_is_left_over() {
        assert_none(check_leftovers(&REPOSITORY));
    }

    #[test]
    fn unsafe_says_why_it_is_safe() {
        assert_none(check_unsafe(&REPOSITORY));
    }

    #[test]
    fn modules_say_what_they_are() {
        assert_none(check_module_comments(&REPOSITORY));
    }

    #[test]
    fn format_pages_have_examples_that_tests_read() {
        let mut pages = Vec::new();
        for entry in fs::read_dir(repository().join("docs/format")).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                pages.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
        assert!(!pages.is_empty());
        assert_none(check_format_pages(&REPOSITORY, &pages));
    }
}
