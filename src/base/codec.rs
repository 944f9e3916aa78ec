//! Little-endian encoding and checked decoding. A decoder never reads beyond its bytes: missing
//! bytes are an `Error::Corruption` that names the file, the offset and the field.

use std::path::Path;

use super::checksum::checksum;
use super::error::{Error, Result};

/// Appends an unsigned LEB128 number (at most 10 bytes).
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length-prefixed byte string.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns the number of bytes that `put_varint` writes for `value`.
#[inline]
pub(crate) fn varint_bytes(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Reads an unsigned LEB128 number. Returns it and its length in bytes, or `None` if it is
/// truncated or too long.
#[inline]
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        if i == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * i);
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// A checked reader of bytes from disk.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
    file: &'a Path,
    base_offset: u64,
}

impl<'a> Decoder<'a> {
    /// Reads `bytes`, which begin at offset `base_offset` of `file`.
    pub(crate) fn new(bytes: &'a [u8], file: &'a Path, base_offset: u64) -> Decoder<'a> {
        Decoder { bytes, position: 0, file, base_offset }
    }

    /// Reads a header at the start of `file`: `magic`, other fields, and after `body_bytes` a
    /// checksum of all before it. `names` are those of the header, its magic and its checksum, for
    /// errors.
    pub(crate) fn of_header<const N: usize>(
        bytes: &'a [u8],
        file: &'a Path,
        (magic, body_bytes): (&[u8; N], usize),
        [header, magic_name, checksum_name]: [&'static str; 3],
    ) -> Result<Decoder<'a>> {
        let mut whole = Decoder::new(bytes, file, 0);
        let body = whole.take(body_bytes, header)?;
        let (at, found) = (whole.offset(), whole.u64(checksum_name)?);
        let mut fields = Decoder::new(body, file, 0);
        fields.magic(magic, magic_name)?;
        let expected = checksum(0, body);
        if found != expected {
            let (expected, found) =
                (format_args!("{expected:#018x}"), format_args!("{found:#018x}"));
            return Err(Error::corruption(file, at, checksum_name, expected, found));
        }
        Ok(fields)
    }

    /// Returns the bytes that are not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Returns true at the end.
    pub(crate) fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// Returns the offset of the next byte in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.base_offset + self.position as u64
    }

    /// Returns a corruption error at the next byte.
    pub(crate) fn corrupt(
        &self,
        what: &'static str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Error {
        Error::corruption(self.file, self.offset(), what, expected, found)
    }

    /// Reads the magic bytes at the start of a file or section.
    pub(crate) fn magic<const N: usize>(
        &mut self,
        magic: &[u8; N],
        what: &'static str,
    ) -> Result<()> {
        let at = self.offset();
        let found = self.take(N, what)?;
        if found == magic {
            return Ok(());
        }
        let (expected, found) = (magic.escape_ascii(), found.escape_ascii());
        Err(Error::corruption(self.file, at, what, expected, found))
    }

    /// Reads a 32-bit format version and checks it with [`Decoder::check_version`].
    pub(crate) fn version(&mut self, supported: u32, what: &'static str) -> Result<u32> {
        let version = self.u32(what)?;
        self.check_version(version, supported, what)?;
        Ok(version)
    }

    /// Returns an error for a format version above `supported`, the newest that this build reads.
    /// Versions begin with 1.
    pub(crate) fn check_version(
        &self,
        version: u32,
        supported: u32,
        what: &'static str,
    ) -> Result<()> {
        match version {
            0 => Err(self.corrupt(what, "at least 1", version)),
            _ if version <= supported => Ok(()),
            _ => Err(Error::UnsupportedVersion {
                file: self.file.to_path_buf(),
                found: version,
                supported,
            }),
        }
    }

    /// Reads `n` bytes.
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8]> {
        match self.bytes.get(self.position..).and_then(|rest| rest.get(..n)) {
            Some(taken) => {
                self.position += n;
                Ok(taken)
            }
            None => Err(self.corrupt(
                what,
                format_args!("{n} bytes"),
                format_args!("{} bytes", self.remaining()),
            )),
        }
    }

    /// Reads a byte.
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Reads a 16-bit number.
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Reads a 32-bit number.
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Reads a 64-bit number.
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads an LEB128 number.
    pub(crate) fn varint(&mut self, what: &'static str) -> Result<u64> {
        match self.bytes.get(self.position..).and_then(read_varint) {
            Some((value, used)) => {
                self.position += used;
                Ok(value)
            }
            None => Err(self.corrupt(what, "a varint", "cut or overlong bytes")),
        }
    }

    /// Reads a length-prefixed byte string.
    pub(crate) fn byte_string(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let n = self.varint(what)?;
        if n > self.remaining() as u64 {
            return Err(self.corrupt(
                what,
                format_args!("{n} bytes"),
                format_args!("{} bytes", self.remaining()),
            ));
        }
        self.take(n as usize, what)
    }

    /// Reads an LEB128 count of items that have at least `bytes_each` bytes each. A count that the
    /// remaining bytes cannot hold is corruption, so no allocation trusts a damaged count.
    pub(crate) fn count(&mut self, bytes_each: usize, what: &'static str) -> Result<usize> {
        let n = self.varint(what)?;
        let most = (self.remaining() / bytes_each.max(1)) as u64;
        if n > most {
            return Err(self.corrupt(what, format_args!("at most {most}"), n));
        }
        Ok(n as usize)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_refuse_what_is_cut_or_overlong() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_bytes(value));
                assert_eq!(read_varint(&out), Some((value, out.len())));
                assert_eq!(read_varint(&out[..out.len() - 1]), None);
            }
        }
        assert_eq!(read_varint(&[0xff; 11]), None);
    }

    #[test]
    fn a_count_larger_than_the_bytes_is_corruption() {
        let mut out = Vec::new();
        put_varint(&mut out, 1 << 40);
        out.extend_from_slice(&[0; 100]);
        let mut decoder = Decoder::new(&out, Path::new("f"), 7);
        assert!(decoder.count(4, "things").unwrap_err().is_corruption());
    }

    #[test]
    fn the_documented_varints_are_what_is_written_and_read() {
        let page = include_str!("../../docs/format/README.md");
        let block = page.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next());
        let mut numbers = Vec::new();
        for line in block.expect("the page has the block").lines() {
            let (hex, number) = line.split_once('#').expect("a number behind each");
            let hex = hex.split_whitespace();
            let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
            let number: u64 = number.trim().parse().expect("a number");
            let mut out = Vec::new();
            put_varint(&mut out, number);
            assert_eq!(out, bytes, "{number}");
            assert_eq!(read_varint(&bytes), Some((number, bytes.len())));
            numbers.push(number);
        }
        assert_eq!(numbers, [0, 127, 128, 300, u64::MAX]);
    }
}
