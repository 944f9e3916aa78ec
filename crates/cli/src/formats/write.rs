//! From stored pairs to text.

use std::io::{self, Write};

use super::{Format, csv, jsonl};
use crate::spelling::Spelling;

/// How pairs become text.
pub(crate) struct PairWriter {
    pub(crate) format: Format,
    pub(crate) spelling: Spelling,
    pub(crate) delimiter: u8,
    /// Write keys and values even where the format could hold the value alone.
    pub(crate) pairs: bool,
}

impl PairWriter {
    /// Writes the text before the first pair.
    pub(crate) fn begin(&self, header: Option<&[u8]>, out: &mut dyn Write) -> io::Result<()> {
        match (self.format, header) {
            (Format::Csv, _) if self.pairs => {
                out.write_all(&[b"key".as_slice(), &[self.delimiter], b"value\n"].concat())
            }
            (Format::Csv, Some(header)) => {
                out.write_all(header)?;
                end_with(header, b"\n", out)
            }
            _ => Ok(()),
        }
    }

    /// Writes a pair; `line` is room to build it in.
    pub(crate) fn write(
        &self,
        key: &[u8],
        value: &[u8],
        line: &mut Vec<u8>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        line.clear();
        match self.format {
            Format::Tsv => {
                self.spelling.encode(key, line);
                line.push(b'\t');
                self.spelling.encode(value, line);
                line.push(b'\n');
            }
            Format::Csv if self.pairs => csv::write_fields(&[key, value], self.delimiter, line)?,
            Format::Jsonl if self.pairs || !jsonl::is_json_line(value) => {
                jsonl::write_pair(key, value, line);
                line.push(b'\n');
            }
            Format::Raw => return out.write_all(value),
            Format::Csv | Format::Jsonl | Format::Lines => {
                out.write_all(value)?;
                return end_with(value, b"\n", out);
            }
            Format::Deb822 => {
                out.write_all(value)?;
                if value.ends_with(b"\n\n") {
                    return Ok(());
                }
                end_with(value, b"\n", out)?;
                return out.write_all(b"\n");
            }
        }
        out.write_all(line)
    }

    /// Why this pair cannot be told from others once it is text, if so.
    pub(crate) fn objection(&self, key: &[u8], value: &[u8]) -> Option<String> {
        if self.format != Format::Tsv || self.spelling != Spelling::Plain {
            return None;
        }
        let ambiguous =
            key.iter().any(|byte| matches!(byte, b'\t' | b'\n')) || value.contains(&b'\n');
        ambiguous.then(|| {
            format!(
                "the pair with key {:?} holds a tab or newline, which tsv cannot: try --escape or --hex",
                crate::spelling::readable(key, 60)
            )
        })
    }
}

fn end_with(text: &[u8], end: &[u8], out: &mut dyn Write) -> io::Result<()> {
    if text.ends_with(end) { Ok(()) } else { out.write_all(end) }
}
