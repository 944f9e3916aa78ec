//! Text formats: how input is cut into records, how a record gives its key, and how stored pairs
//! become text again.
//!
//! Invariants:
//! 1. A record is stored as the bytes it had in the input, without its terminator; so exporting in
//!    the same format gives back the same set of records.
//! 2. A record keyed by its number keeps its terminator too; so exporting `raw` gives back the input
//!    byte for byte.
//! 3. Nothing in the input is guessed away: a record without its key is an error that names it.

pub(crate) mod csv;
pub(crate) mod deb822;
pub(crate) mod detect;
pub(crate) mod extract;
pub(crate) mod jsonl;
pub(crate) mod split;
pub(crate) mod write;

#[cfg(test)]
mod round_trip_tests;

use clap::ValueEnum;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// key TAB value, one pair a line
    Tsv,
    /// RFC 4180, with a header line
    Csv,
    /// One JSON text a line
    Jsonl,
    /// Debian control stanzas: Packages, Sources, dpkg's status
    Deb822,
    /// Values one a line
    Lines,
    /// Values back to back, nothing added
    Raw,
}

/// Where a record's key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// The record's number in the input, from 1, as eight bytes, the greatest first.
    Number,
    /// The text before a line's first tab; the value is what follows it.
    BeforeTab,
    /// These fields, joined by the separator.
    Fields(Vec<String>),
}

impl KeySource {
    /// The value of `--key`, or the format's default.
    pub(crate) fn new(format: Format, fields: Option<&str>) -> KeySource {
        match (fields, format) {
            (Some("line"), _) => KeySource::Number,
            (Some(fields), _) => KeySource::Fields(fields.split(',').map(str::to_string).collect()),
            (None, Format::Tsv) => KeySource::BeforeTab,
            // The first column, whatever its name.
            (None, Format::Csv) => KeySource::Fields(Vec::new()),
            (None, Format::Jsonl) => KeySource::Fields(vec!["key".to_string()]),
            (None, Format::Deb822) => KeySource::Fields(
                ["Package", "Version", "Architecture"].map(str::to_string).to_vec(),
            ),
            (None, Format::Lines | Format::Raw) => KeySource::Number,
        }
    }
}
