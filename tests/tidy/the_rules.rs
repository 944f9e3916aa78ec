//! Every rule finds what is planted for it, where it is planted, and nothing else.

use super::*;

/// The lines that a rule complains of in a file.
fn lines(rule: fn(&[Source]) -> Vec<String>, path: &str, text: &str) -> Vec<usize> {
    let lib = "pub(crate) mod db;\npub(crate) mod tree;\npub mod vfs;\nmod jobs;\nmod base;\n";
    let mut sources = vec![Source::new("src/lib.rs", &format!("//! A\n{lib}"))];
    sources.push(Source::new(path, text));
    mark_test_files(&mut sources);
    let number = |found: String| {
        let rest = found.strip_prefix(path)?.strip_prefix(':')?;
        rest.split(':').next()?.parse().ok()
    };
    let found = rule(&sources).into_iter();
    let mut lines: Vec<usize> = found.map(|found| number(found).unwrap()).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn order() {
    let text =
        "use crate::base::x;\nuse crate::tree::y;\n// crate::db\nfn f() { crate::db::g() }\n";
    assert_eq!(lines(check_order, "src/vfs/a.rs", text), [2, 4]);
    assert_eq!(lines(check_order, "src/db/a.rs", text), []);
    let group = "use crate::{\n    base::{db},\n    tree::{a, b},\n};\nuse std::db;\n";
    assert_eq!(lines(check_order, "src/base.rs", group), [1]);
    let test = "#[cfg(test)]\nmod tests {\n    use crate::db;\n}\nuse crate::db;\n";
    assert_eq!(lines(check_order, "src/base.rs", test), [5]);
    assert_eq!(lines(check_order, "src/unheard_of.rs", ""), [1]);
}

#[test]
fn import_cycles() {
    let sources = [
        Source::new("src/lib.rs", "mod a;\n"),
        Source::new("src/a/mod.rs", "mod b;\nmod c;\nmod d;\nuse b::B;\n"),
        Source::new("src/a/b.rs", "use super::{A, c::{C, D as E}};\n// use super::d;\n"),
        Source::new("src/a/c.rs", "fn f() { crate::a::d::g() }\n"),
        Source::new(
            "src/a/d.rs",
            "use crate::a::b;\n#[cfg(test)]\nmod tests {\n    use super::super::c;\n}\n",
        ),
    ];
    assert_eq!(cycles::cycles(&sources), [["a/b", "a/c", "a/d"]]);
    assert_eq!(cycles::cycles(&sources[..4]), [[""; 0]; 0]);
}

#[test]
fn tree_kinds() {
    let text =
        "use super::flsm::a;\nuse crate::tree::{job, stb};\nuse crate::tree::other;\nstb();\n";
    assert_eq!(lines(check_tree_kinds, "src/tree/stb/a.rs", text), [1]);
    assert_eq!(lines(check_tree_kinds, "src/tree/flsm/mod.rs", text), [2]);
    assert_eq!(lines(check_tree_kinds, "src/tree/mod.rs", text), []);
    let named = "// \"stb\"\nlet kind = TreeKind::Flsm;\nlet name = \"flsm\";\nstb();\n";
    assert_eq!(lines(check_tree_kinds, "src/store/open.rs", named), [2, 3]);
    assert_eq!(lines(check_tree_kinds, "crates/cli/src/a.rs", named), [2, 3]);
    assert_eq!(lines(check_tree_kinds, "src/tree/kinds.rs", named), []);
    let built = "#[cfg(feature = \"flsm\")]\nlet kind = \"flsm\";\n";
    assert_eq!(lines(check_tree_kinds, "src/store/open.rs", built), [2]);
    assert_eq!(lines(check_tree_kinds, "crates/sim/src/a.rs", named), []);
}

#[test]
fn length() {
    assert_eq!(lines(check_length, "crates/a.rs", &"\n".repeat(LINES_MAX)), []);
    assert_eq!(lines(check_length, "crates/a.rs", &"\n".repeat(LINES_MAX + 1)), [LINES_MAX]);
}

#[test]
fn allowances() {
    let on =
        "#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]\n";
    let allow = "#[allow(clippy::disallowed_methods)]\n";
    let found = |path: &str, text: &str| {
        let lib = Source::new("src/lib.rs", on);
        check_allowances(&[lib, Source::new(path, text)]).len()
    };
    assert_eq!(found("src/base/mod.rs", &format!("{allow}pub(crate) mod sync;\n")), 0);
    assert_eq!(found("src/base/mod.rs", &format!("{allow}mod number;\n")), 1);
    assert_eq!(found("src/db/a.rs", &format!("{allow}fn f() {{}}\n")), 1);
    assert_eq!(check_allowances(&[Source::new("src/lib.rs", "mod a;\n")]).len(), 1);
}

#[test]
fn sync() {
    let text = "use std::sync::{Arc, Mutex};\nuse std::sync::atomic::AtomicBool;\n\
                parking_lot::Mutex::new(());\nstd::thread::yield_now();\n\
                use std::sync::{Arc, OnceLock, Weak};\nuse crate::base::sync::Mutex;\n\
                use arc_swap::ArcSwap;\nlet shuttle = 1;\ncrossbeam_epoch::pin();\n\
                #[cfg(all(test, shuttle))]\nmod a {\n    use shuttle::thread;\n}\n";
    assert_eq!(lines(check_sync, "src/db/a.rs", text), [1, 2, 3, 4, 7, 9]);
    assert_eq!(lines(check_sync, "src/cache/grace/a.rs", text), [1, 2, 3, 4, 7]);
    for path in ["src/base/sync.rs", "src/base/sync/a.rs", "crates/a.rs", "tests/a.rs"] {
        assert_eq!(lines(check_sync, path, text), []);
    }
}

#[test]
fn test_files_are_known_by_their_declaration() {
    let parent = "//! A\n#[cfg(test)]\nmod model;\nmod real;\n\
                  #[cfg(test)]\n#[path = \"far_tests.rs\"]\nmod tests;\n";
    let text = "use crate::api;\n";
    let mut sources = vec![
        Source::new("src/lib.rs", "mod api;\nmod db;\n"),
        Source::new("src/db/mod.rs", parent),
        Source::new("src/db/model.rs", text),
        Source::new("src/db/model/deep.rs", text),
        Source::new("src/db/far_tests.rs", text),
        Source::new("src/db/real.rs", text),
    ];
    mark_test_files(&mut sources);
    assert_eq!(check_order(&sources).len(), 1);
}

#[test]
fn named_files() {
    let text = "Error::corruption(Path::new(\"trunk\"), 0, what);\n\
                Error::corruption(\n    std::path::Path::new(NAME),\n    0,\n);\n\
                Error::corruption(&segment.path, 0, \"page\", 1, 2);\n\
                // Path::new(\"a\")\nError::corruption(\"é\".as_ref(), 0);\n\
                let é = map_or(Path::new(\"\"), |segment| &segment.path);\n\
                Path::new(root, key);\nPath::new(FILE);\nlet a = \"Path::new(\";\n\
                #[cfg(test)]\nmod tests {\n    fn f() { Path::new(\"manifest\"); }\n}\n";
    assert_eq!(lines(named_files::check_named_files, "src/db/a.rs", text), [1, 1, 2, 8, 9]);
    assert_eq!(lines(named_files::check_named_files, "src/vfs/a.rs", text), [1, 2, 8]);
    assert_eq!(lines(named_files::check_named_files, "crates/a.rs", text), []);
}

#[test]
fn hashers() {
    let text = "let a = HashMap::new();\nlet b: HashSet<u8>;\nlet c: HashMap<(u8, u8), Vec<u8>>;\n\
                let d: HashMap<u8, u8, Fixed>;\nlet e: HashSet<u8, Fixed> = HashSet::default();\n\
                use std::collections::HashMap;\nlet f = RandomState::new();\nMyHashMap::new();\n\
                let g = x.collect::<HashMap<_, _>>();\nlet h = HashMap::with_hasher(Fixed);\n";
    assert_eq!(lines(check_hashers, "src/db/a.rs", text), [1, 2, 3, 7, 9]);
    assert_eq!(lines(check_hashers, "src/jobs/a.rs", text), []);
}

#[test]
fn leftovers() {
    let words = [
        concat!("to", "do!()"),
        concat!("// TO", "DO later"),
        concat!("// FIX", "ME"),
        concat!("    unimpl", "emented!();"),
        concat!("#[ig", "nore = \"slow\"]"),
        "// todos are fine, ignored ones too",
    ];
    assert_eq!(lines(check_leftovers, "tests/a.rs", &words.join("\n")), [1, 2, 3, 4, 5]);
}

#[test]
fn unsafe_comments() {
    let text = "// SAFETY: fine\nunsafe { a() };\n\n\n\nunsafe { b() };\n\
                // SAFETY: long,\n// very.\nlet c =\n    unsafe { c() };\n\
                // why not\nunsafe impl Send for D {}\nunsafe fn e() {}\n\
                // unsafe { f }\nlet unsafe_g = \"unsafe {\";\n";
    assert_eq!(lines(check_unsafe, "crates/a.rs", text), [6, 12]);
}

#[test]
fn module_comments() {
    assert_eq!(lines(check_module_comments, "src/db/a.rs", "//! A\nuse b;\n"), []);
    assert_eq!(lines(check_module_comments, "src/db/a.rs", "use b;\n//! A\n"), [1]);
    assert_eq!(lines(check_module_comments, "tests/a.rs", "use b;\n"), []);
}

#[test]
fn format_pages() {
    let read = "const A: &str = include_str!(\"../../docs/format/a.md\");";
    let sources = [Source::new("src/a.rs", read), Source::new("src/b.rs", "// docs/format/b.md")];
    let page = |name: &str, text: &str| [(name.to_string(), text.to_string())];
    assert_eq!(check_format_pages(&sources, &page("a.md", "```hex\n00\n```")).len(), 0);
    assert_eq!(check_format_pages(&sources, &page("a.md", "no example")).len(), 1);
    assert_eq!(check_format_pages(&sources, &page("b.md", "```hex\n00\n```")).len(), 1);
    assert_eq!(check_format_pages(&sources, &page("c.md", "")).len(), 2);
}

#[test]
fn blanking_keeps_code_and_lines() {
    let text = "a \"x // y\\\" z\" b 'c' '\\'' 'd r#\"e \"f\"# br\"g\" /* h /* i */\n j */ k 7 // l\nm\n/// n";
    let code = blank(text);
    assert_eq!(code.lines().count(), 4);
    let left: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(left, "a b 'd k 7 m");
}
