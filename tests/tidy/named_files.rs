//! Who reports damage names one of the store's files: users are told to restore it. A path that is written out in the code
//! is none.

use super::{OUTER_MODULES, Source};

/// Places where a path is written out in the code, or damage is reported of one.
pub(super) fn check_named_files(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let corruption = "Error::corruption(";
    for source in sources {
        let Some(module) = source.module() else { continue };
        let mut say = |at: usize, what: &str| {
            let line = source.code[..at].matches('\n').count();
            if !source.test[line] {
                found.push(source.says(line + 1, what));
            }
        };
        // What is written in `raw` from a place in `code` on, which need not have as many bytes as `raw`.
        let begins_literal = |at: usize| {
            let chars = source.code[..at].chars().count();
            source.raw.chars().skip(chars).find(|c| !c.is_whitespace()) == Some('"')
        };
        for (at, path) in source.code.match_indices("Path::new(") {
            if begins_literal(at + path.len()) && !OUTER_MODULES.contains(&module) {
                say(at, "a path in the code: ask who has the file");
            }
        }
        for (at, _) in source.code.match_indices(corruption) {
            let first = at + corruption.len();
            let argument = source.code[first..].split(',').next().unwrap_or_default();
            if begins_literal(first) || argument.contains("Path::new(") {
                say(at, "damage of a file that the code has made up: ask who has the file");
            }
        }
    }
    found
}
