//! How a command fails: an exit code and one line that says what went wrong and what to try.
//!
//! Invariants:
//! 1. Every failure ends the process with one of the documented exit codes.
//! 2. A reader that went away (`spinney scan … | head`) is no failure: exit 0, nothing printed.

use std::io;

/// Exit code for "the thing asked for is not there" (a key, any result at all).
pub(crate) const EXIT_NOT_FOUND: u8 = 1;
/// Exit code for a request that makes no sense; `clap` uses the same.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code for a damaged store.
pub(crate) const EXIT_DAMAGED: u8 = 3;
/// Exit code for every other error.
pub(crate) const EXIT_OTHER: u8 = 4;

/// The result of every command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Whoever read our output has had enough.
    OutputClosed,
    /// An answer without a message: the exit code says it all.
    Silent(u8),
    /// A message for standard error and an exit code.
    Message(u8, String),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::Message(EXIT_USAGE, message.into())
    }

    pub(crate) fn other(message: impl Into<String>) -> Failure {
        Failure::Message(EXIT_OTHER, message.into())
    }

    /// The exit code, and the line for standard error if there is one.
    pub(crate) fn into_parts(self) -> (u8, Option<String>) {
        match self {
            Failure::OutputClosed => (0, None),
            Failure::Silent(code) => (code, None),
            Failure::Message(code, message) => (code, Some(one_line(&message))),
        }
    }
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line of the paragraphs in which `clap` says what is wrong with a command line: what is wrong, its tips,
/// and where the help is.
pub(crate) fn usage_line(message: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut help = "see --help".to_string();
    for paragraph in message.split("\n\n").map(one_line) {
        let paragraph = paragraph.strip_prefix("error: ").unwrap_or(&paragraph);
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            // The words up to the first argument are the command.
            let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
            let command: Vec<&str> = usage.split(' ').take_while(is_word).collect();
            help = format!("see `{} --help`", command.join(" "));
        } else if !paragraph.is_empty() && !paragraph.starts_with("For more information") {
            parts.push(paragraph.to_string());
        }
    }
    parts.push(help);
    parts.join("; ")
}

impl From<spinney::Error> for Failure {
    fn from(error: spinney::Error) -> Failure {
        let code = if error.is_corruption() { EXIT_DAMAGED } else { EXIT_OTHER };
        let advice = match &error {
            spinney::Error::NotAStore { .. } => {
                "; check the path (`import` and `put` create a store)"
            }
            _ => "",
        };
        Failure::Message(code, format!("{error}{advice}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::OutputClosed
        } else {
            Failure::other(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_ends_quietly() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.into_parts(), (0, None));
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_one_line() {
        let message = "error: unexpected argument '--memry' found\n\n  tip: a similar argument exists: \
                       '--memory'\n\nUsage: spinney get --memory <SIZE> <STORE> <KEY>\n\nFor more information, \
                       try '--help'.\n";
        assert_eq!(
            usage_line(message),
            "unexpected argument '--memry' found; tip: a similar argument exists: '--memory'; see `spinney get \
             --help`"
        );
        assert_eq!(usage_line("error: odd"), "odd; see --help");
    }

    #[test]
    fn messages_are_one_line() {
        let (code, message) = Failure::other("two\nlines \t here").into_parts();
        assert_eq!((code, message.as_deref()), (EXIT_OTHER, Some("two lines here")));
    }

    #[test]
    fn corruption_has_its_own_exit_code() {
        let error = spinney::Error::corruption("f".as_ref(), 7, "page", 1, 2);
        assert_eq!(Failure::from(error).into_parts().0, EXIT_DAMAGED);
        let error = spinney::Error::invalid("key too long");
        assert_eq!(Failure::from(error).into_parts().0, EXIT_OTHER);
    }
}
