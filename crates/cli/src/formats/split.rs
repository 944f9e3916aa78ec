//! Cuts a stream into records without understanding more of it than that takes.
//!
//! Invariants:
//! 1. The raw bytes of all records, one after another, are the input.
//! 2. Memory is bounded by the longest record, which is bounded by `RECORD_BYTES_MAX`.

use std::io::{self, BufRead, Read};
use std::ops::Range;

use super::Format;

/// The longest record that is taken: longer than any real one, shorter than what memory holds.
pub(crate) const RECORD_BYTES_MAX: usize = 1 << 30;

/// How records end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splitter {
    /// At each newline.
    Lines,
    /// At each newline outside quotes.
    Csv { delimiter: u8 },
    /// At each empty line.
    Stanzas,
}

impl Splitter {
    pub(crate) fn new(format: Format, delimiter: u8) -> Splitter {
        match format {
            Format::Csv => Splitter::Csv { delimiter },
            Format::Deb822 => Splitter::Stanzas,
            Format::Tsv | Format::Jsonl | Format::Lines | Format::Raw => Splitter::Lines,
        }
    }

    /// Puts the next record with its terminators into `raw` and gives the range of the record
    /// proper, or `None` at the end of the input.
    pub(crate) fn next(
        self,
        input: &mut dyn BufRead,
        raw: &mut Vec<u8>,
    ) -> io::Result<Option<Range<usize>>> {
        raw.clear();
        let body = match self {
            Splitter::Lines => {
                let line = read_line(input, raw)?;
                0..line.end
            }
            Splitter::Csv { delimiter } => csv_record(input, raw, delimiter)?,
            Splitter::Stanzas => stanza(input, raw)?,
        };
        Ok((!raw.is_empty()).then_some(body))
    }
}

/// Appends one line; gives its range without the newline. Nothing is appended at the end.
fn read_line(input: &mut dyn BufRead, raw: &mut Vec<u8>) -> io::Result<Range<usize>> {
    let start = raw.len();
    let room = (RECORD_BYTES_MAX + 1).saturating_sub(start);
    input.take(room as u64).read_until(b'\n', raw)?;
    if raw.len() > RECORD_BYTES_MAX {
        return Err(io::Error::other(format!(
            "a record is longer than {RECORD_BYTES_MAX} bytes; is --format right?"
        )));
    }
    let newline = usize::from(raw.len() > start && raw.ends_with(b"\n"));
    Ok(start..raw.len() - newline)
}

/// Where a CSV parser stands between two bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CsvState {
    FieldStart,
    Unquoted,
    Quoted,
    QuoteInQuoted,
}

fn csv_record(
    input: &mut dyn BufRead,
    raw: &mut Vec<u8>,
    delimiter: u8,
) -> io::Result<Range<usize>> {
    let mut state = CsvState::FieldStart;
    loop {
        let line = read_line(input, raw)?;
        if line.start == raw.len() {
            return Ok(0..raw.len()); // the input ended inside quotes
        }
        for &byte in &raw[line.clone()] {
            state = match (state, byte) {
                (CsvState::Quoted, b'"') => CsvState::QuoteInQuoted,
                (CsvState::Quoted, _) => CsvState::Quoted,
                (CsvState::FieldStart, b'"') | (CsvState::QuoteInQuoted, b'"') => CsvState::Quoted,
                (_, byte) if byte == delimiter => CsvState::FieldStart,
                _ => CsvState::Unquoted,
            };
        }
        if state != CsvState::Quoted {
            return Ok(0..line.end);
        }
    }
}

/// Empty lines before a stanza and the one after it are part of its raw bytes.
fn stanza(input: &mut dyn BufRead, raw: &mut Vec<u8>) -> io::Result<Range<usize>> {
    let mut body: Option<Range<usize>> = None;
    loop {
        let line = read_line(input, raw)?;
        let empty = matches!(&raw[line.clone()], b"" | b"\r");
        let ended = line.start == raw.len();
        match &mut body {
            Some(body) if empty || ended => return Ok(body.clone()),
            Some(body) => body.end = line.end,
            None if ended => return Ok(raw.len()..raw.len()),
            None if empty => {}
            None => body = Some(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinney_bench::data::random::Random;

    fn bodies(splitter: Splitter, text: &[u8]) -> Vec<Vec<u8>> {
        let mut input = io::BufReader::with_capacity(3, text);
        let (mut raw, mut whole, mut out) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(body) = splitter.next(&mut input, &mut raw).unwrap() {
            whole.extend_from_slice(&raw);
            out.push(raw[body].to_vec());
        }
        assert_eq!(whole, text, "raw bytes are the input");
        out
    }

    #[test]
    fn lines_keep_all_but_the_newline() {
        assert_eq!(bodies(Splitter::Lines, b"a\n\nb\r\nc"), [&b"a"[..], b"", b"b\r", b"c"]);
        assert!(bodies(Splitter::Lines, b"").is_empty());
    }

    #[test]
    fn stanzas_end_at_empty_lines() {
        let text = b"\n\nA: 1\nB:\n x\n .\n\n\n\nA: 2\n\nA: 3";
        assert_eq!(bodies(Splitter::Stanzas, text), [&b"A: 1\nB:\n x\n ."[..], b"A: 2", b"A: 3"]);
        assert_eq!(bodies(Splitter::Stanzas, b"A: 1\n\n\n"), [&b"A: 1"[..], b""]);
    }

    #[test]
    fn csv_records_end_outside_quotes() {
        let csv = Splitter::Csv { delimiter: b',' };
        let text = b"a,b\n\"x\ny\",2\n5\" disk,\"q\"\"\n\"\r\nlast";
        assert_eq!(
            bodies(csv, text),
            [&b"a,b"[..], b"\"x\ny\",2", b"5\" disk,\"q\"\"\n\"\r", b"last"]
        );
        assert_eq!(bodies(csv, b"a,\"open\nend"), [&b"a,\"open\nend"[..]]);
    }

    #[test]
    fn whatever_the_input_the_raw_bytes_are_all_of_it() {
        let mut random = Random::new(3);
        for _ in 0..3000 {
            let length = random.below(30) as usize;
            let text: Vec<u8> =
                (0..length).map(|_| b"a,\"\n\r\t :"[random.below(8) as usize]).collect();
            for splitter in [Splitter::Lines, Splitter::Csv { delimiter: b',' }, Splitter::Stanzas]
            {
                bodies(splitter, &text);
            }
        }
    }
}
