//! The common part of the fuzz targets of all modules, and the targets of the codec.

use std::path::Path;

use super::codec::{Decoder, put_bytes, put_varint, read_varint, varint_bytes};
use super::error::{Error, Result};

/// A decoder of bytes from a disk or from a user.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The target's name.
    pub name: &'static str,
    /// Decodes any bytes. Panics if the result is not allowed.
    pub run: fn(&[u8]),
    /// Valid encodings, as seeds.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The file that every error of the targets must name.
pub(crate) const FILE: &str = "/fuzz";

/// The decoded value, if decoding succeeded.
///
/// # Panics
/// On an error that does not name the file and the problem.
pub(crate) fn named<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(decoded) => Some(decoded),
        Err(Error::Corruption { file, .. } | Error::UnsupportedVersion { file, .. }) => {
            assert!(file.starts_with(FILE), "{} is named", file.display());
            None
        }
        Err(error) => panic!("an error that names no damage: {error}"),
    }
}

/// The first byte as a number, and the bytes after it.
pub(crate) fn split_first(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}

/// The first `N` bytes, padded with zeros, and the bytes after them.
pub(crate) fn split_array<const N: usize>(data: &[u8]) -> ([u8; N], &[u8]) {
    let (front, rest) = data.split_at(N.min(data.len()));
    let mut array = [0; N];
    array[..front.len()].copy_from_slice(front);
    (array, rest)
}

pub(crate) const TARGETS: [Target; 1] = [Target { name: "codec", run: codec, seeds: codec_seeds }];

fn codec(data: &[u8]) {
    if let Some((value, used)) = read_varint(data) {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        assert_eq!(read_varint(&out), Some((value, out.len())));
        assert!(out.len() == varint_bytes(value) && used >= out.len() && used <= 10);
    }
    let mut decoder = Decoder::new(data, Path::new(FILE), 7);
    while let Some(step) = named(decoder.u8("step")) {
        let before = decoder.remaining();
        let went_on = match step % 6 {
            0 => named(decoder.varint("number")).is_some(),
            1 => named(decoder.byte_string("bytes")).is_some_and(|bytes| {
                let mut out = Vec::new();
                put_bytes(&mut out, bytes);
                let mut again = Decoder::new(&out, Path::new(FILE), 0);
                assert_eq!(again.byte_string("bytes").ok(), Some(bytes));
                again.is_empty()
            }),
            2 => named(decoder.count(3, "count")).is_some_and(|n| {
                assert!(n * 3 <= decoder.remaining());
                true
            }),
            3 => named(decoder.u16("number")).is_some(),
            4 => named(decoder.u64("number")).is_some(),
            _ => named(decoder.take(usize::from(step), "bytes")).is_some(),
        };
        assert!(decoder.remaining() <= before);
        assert_eq!(decoder.offset() + decoder.remaining() as u64, 7 + data.len() as u64);
        if !went_on {
            break;
        }
    }
}

fn codec_seeds() -> Vec<Vec<u8>> {
    let mut steps = vec![0];
    put_varint(&mut steps, 300);
    steps.push(1);
    put_bytes(&mut steps, b"twelve bytes");
    steps.extend([2, 2, 3, 1, 2, 4, 1, 2, 3, 4, 5, 6, 7, 8, 5, 1, 2, 3, 4, 5]);
    let mut long = Vec::new();
    put_varint(&mut long, u64::MAX);
    vec![steps, long]
}
