//! Cuts a stream into records, and parses no more than that needs.
//!
//! Invariants:
//! 1. The raw bytes of all records, one after another, are the input.
//! 2. Memory is bounded by the longest record, which is bounded by `RECORD_BYTES_MAX`.

use std::io::{self, BufRead, Read};
use std::ops::Range;

use super::Format;

/// The longest accepted record: longer than any real one, shorter than the memory.
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

/// The state of a CSV parser between two bytes.
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
            // A record of no bytes is the end of the input; any other has ended inside quotes.
            return match raw.len() {
                0 => Ok(0..0),
                bytes => Err(unclosed_quote(raw, bytes)),
            };
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

/// The error of an input that ends inside quotes. Everything after the quote was misread.
fn unclosed_quote(raw: &[u8], bytes: usize) -> io::Error {
    let lines = raw.iter().filter(|byte| **byte == b'\n').count();
    let head = raw.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let head = String::from_utf8_lossy(head.get(..60).unwrap_or(head)).into_owned();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "a quote in it is never closed: the {bytes} bytes and {lines} line ends up to the end of the file would \
             be one field; it begins {head:?}. Close or double the quote, or try --format lines"
        ),
    )
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
    use fastrand::Rng;

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
    }

    /// A quote that is never closed took the rest of the file for one field, and the import succeeded.
    #[test]
    fn a_quote_that_is_never_closed_is_an_error() {
        let csv = Splitter::Csv { delimiter: b',' };
        for text in [&b"a,\"open\nend"[..], b"1,x\n2,\"open\n3,y\n", b"\""] {
            let (mut input, mut raw) = (text, Vec::new());
            let error = loop {
                match csv.next(&mut input, &mut raw) {
                    Ok(record) => assert!(record.is_some(), "the input has ended well"),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains("never closed"), "{error}");
        }
        assert_eq!(bodies(csv, b"a,\"closed\"\n\"x\"\"\""), [&b"a,\"closed\""[..], b"\"x\"\"\""]);
    }

    #[test]
    fn whatever_the_input_the_raw_bytes_are_all_of_it() {
        let mut random = Rng::with_seed(3);
        for _ in 0..3000 {
            let length = random.usize(..30);
            let text: Vec<u8> = (0..length).map(|_| b"a,\"\n\r\t :"[random.usize(..8)]).collect();
            bodies(Splitter::Lines, &text);
            bodies(Splitter::Stanzas, &text);
            // With a quote at the end, all are closed: of the two, one is.
            let csv = Splitter::Csv { delimiter: b',' };
            let is_whole = |text: &[u8]| {
                let (mut input, mut raw) = (text, Vec::new());
                loop {
                    match csv.next(&mut input, &mut raw) {
                        Ok(Some(_)) => {}
                        Ok(None) => break true,
                        Err(_) => break false,
                    }
                }
            };
            let closed = [&text[..], b"\""].concat();
            let whole = [text, closed].into_iter().filter(|text| is_whole(text));
            whole.for_each(|text| drop(bodies(csv, &text)));
        }
    }
}
