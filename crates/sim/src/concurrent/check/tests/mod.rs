//! The checker, on histories that somebody has made up, on all small ones, and on real ones that
//! were changed afterwards.

mod hand_made;
mod long;
mod mutations;
mod small;

use super::{Kind, Verdict, judge};
use crate::concurrent::history::History;

/// What a history is, for short: nothing if it holds, or else in what ways it is wrong.
fn kinds(text: &str) -> Vec<Kind> {
    let history: History = text.parse().unwrap_or_else(|what| panic!("{what} in\n{text}"));
    match judge(&history) {
        Verdict::Holds(_) => Vec::new(),
        Verdict::Broken(violations) => violations.iter().map(|violation| violation.kind).collect(),
        Verdict::Undecided(why) => panic!("undecided: {why}\n{text}"),
    }
}

/// The bad history is found out in just this way; its good twin holds.
fn told_apart(bad: &str, kind: Kind, good: &str) {
    assert_eq!(kinds(bad), [kind], "{bad}");
    assert_eq!(kinds(good), [], "{good}");
}
