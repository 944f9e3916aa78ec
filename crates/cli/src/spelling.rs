//! How bytes are spelt on the command line and in text files: as they are, escaped, or in hex.
//!
//! Invariants:
//! 1. `decode(encode(bytes)) == bytes` for every byte string in every spelling.
//! 2. The escaped and hex spellings contain no tab and no newline, so they fit a TSV column.

use clap::Args;

/// The spelling of keys and values in arguments, input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Spelling {
    /// The bytes as they are.
    #[default]
    Plain,
    /// `\t`, `\n`, `\r`, `\\` and `\xNN`.
    Escape,
    /// Two hex digits a byte.
    Hex,
}

/// The options that choose a spelling.
#[derive(Debug, Clone, Copy, Args, Default)]
pub(crate) struct SpellingOptions {
    /// Keys and values are spelt in hex, both in arguments and in output
    #[arg(long, conflicts_with = "escape")]
    pub(crate) hex: bool,
    /// Keys and values are spelt with escapes: \t \n \r \\ \xNN
    #[arg(long)]
    pub(crate) escape: bool,
}

impl SpellingOptions {
    pub(crate) fn spelling(self) -> Spelling {
        match (self.hex, self.escape) {
            (true, _) => Spelling::Hex,
            (_, true) => Spelling::Escape,
            _ => Spelling::Plain,
        }
    }
}

impl Spelling {
    /// Appends the spelling of `bytes`.
    pub(crate) fn encode(self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Spelling::Plain => out.extend_from_slice(bytes),
            Spelling::Escape => escape(bytes, out),
            Spelling::Hex => bytes.iter().for_each(|&byte| push_hex(byte, out)),
        }
    }

    /// Appends the bytes that `text` spells.
    pub(crate) fn decode(self, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Spelling::Plain => {
                out.extend_from_slice(text);
                Ok(())
            }
            Spelling::Escape => unescape(text, out),
            Spelling::Hex => decode_hex(text, out),
        }
    }

    /// The bytes that an argument spells.
    pub(crate) fn argument(self, text: &std::ffi::OsStr) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        self.decode(text.as_encoded_bytes(), &mut out)?;
        Ok(out)
    }
}

/// A key as a person can read it, cut to `characters_max`.
pub(crate) fn readable(bytes: &[u8], characters_max: usize) -> String {
    let mut out = Vec::new();
    let shown = &bytes[..bytes.len().min(characters_max * 4)];
    escape(shown, &mut out);
    let text = String::from_utf8_lossy(&out).into_owned();
    if shown.len() == bytes.len() && text.chars().count() <= characters_max {
        return text;
    }
    let mut cut: String = text.chars().take(characters_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    // Text in other alphabets stays legible; anything that is not text is spelt byte by byte.
    let text = std::str::from_utf8(bytes).is_ok();
    for &byte in bytes {
        match byte {
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0..=0x1f | 0x7f => push_escaped_hex(byte, out),
            0x80.. if !text => push_escaped_hex(byte, out),
            _ => out.push(byte),
        }
    }
}

fn push_escaped_hex(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\x");
    push_hex(byte, out);
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

fn decode_hex(text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let pairs = text.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err("a hex spelling needs an even number of digits".to_string());
    }
    for pair in pairs {
        match (hex_digit(pair[0]), hex_digit(pair[1])) {
            (Some(high), Some(low)) => out.push(high << 4 | low),
            _ => return Err(format!("{:?} is not hex", String::from_utf8_lossy(pair))),
        }
    }
    Ok(())
}

fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&kind, after)) = rest.split_first() else {
            return Err("a lone backslash at the end: write \\\\ for a backslash".to_string());
        };
        rest = after;
        match kind {
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b'0' => out.push(0),
            b'\\' => out.push(b'\\'),
            b'x' if rest.len() >= 2 => {
                decode_hex(&rest[..2], out)?;
                rest = &rest[2..];
            }
            _ => {
                return Err(format!(
                    "unknown escape \\{}: known are \\t \\n \\r \\0 \\\\ \\xNN",
                    char::from(kind).escape_default()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn every_spelling_gives_every_byte_string_back() {
        let mut random = Rng::with_seed(7);
        for round in 0..2000_u64 {
            let length = random.usize(..40);
            let bytes: Vec<u8> = match round % 3 {
                0 => (0..length).map(|_| random.u8(..)).collect(),
                1 => (0..length).map(|_| b"\\xtn\t\n\r0a"[random.usize(..9)]).collect(),
                _ => "grün/Ωμέγα\\".bytes().cycle().take(length).collect(),
            };
            for spelling in [Spelling::Plain, Spelling::Escape, Spelling::Hex] {
                let mut text = Vec::new();
                spelling.encode(&bytes, &mut text);
                if spelling != Spelling::Plain {
                    assert!(!text.iter().any(|b| matches!(b, b'\t' | b'\n' | b'\r')));
                }
                let mut back = Vec::new();
                spelling.decode(&text, &mut back).unwrap();
                assert_eq!(back, bytes, "{spelling:?}");
            }
        }
    }

    #[test]
    fn what_is_no_spelling_is_refused() {
        for text in ["0", "0g", "zz", "0x10"] {
            assert!(Spelling::Hex.decode(text.as_bytes(), &mut Vec::new()).is_err(), "{text}");
        }
        for text in ["\\", "\\q", "\\x1", "\\xg0"] {
            assert!(Spelling::Escape.decode(text.as_bytes(), &mut Vec::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn readable_keys_are_cut_with_an_ellipsis() {
        assert_eq!(readable(b"user", 10), "user");
        assert_eq!(readable(b"user000000012345", 8), "user000…");
        assert_eq!(readable(&[0, 255], 20), "\\x00\\xff");
        assert_eq!(readable("äöü".as_bytes(), 3), "äöü");
    }
}
