//! The operations of a batch, as a record's payload holds them.
//!
//! Each operation takes one sequence number, in the order in which they stand.

use std::path::Path;

use crate::base::codec::{Decoder, put_varint, varint_bytes};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::KeyspaceId;
use crate::base::limits::KEY_BYTES_MAX;
use crate::table::BlobPointer;

/// One operation, borrowed from its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation<'a> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) kind: EntryKind,
    pub(crate) key: &'a [u8],
    /// For `PutBlob` and `MergeBlob` the pointer into the blob file; empty for `Delete`; for `RangeDelete` the upper bound,
    /// empty if there is none.
    pub(crate) value: &'a [u8],
}

/// Appends an operation to a payload.
#[inline]
pub(crate) fn encode_operation(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
) {
    out.reserve(operation_bytes(keyspace, key.len(), value.len()));
    encode_operation_head(out, keyspace, kind, key, value.len());
    out.extend_from_slice(value);
}

/// Appends an operation without its value, which has to follow.
#[inline]
pub(crate) fn encode_operation_head(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    kind: EntryKind,
    key: &[u8],
    value_len: usize,
) {
    put_varint(out, u64::from(keyspace.0));
    out.push(kind as u8);
    // Not `put_bytes`, which may not be inlined: 22 instructions a put.
    put_varint(out, key.len() as u64);
    out.extend_from_slice(key);
    put_varint(out, value_len as u64);
}

/// How many bytes `encode_operation` appends.
#[inline]
pub(crate) fn operation_bytes(keyspace: KeyspaceId, key_len: usize, value_len: usize) -> usize {
    varint_bytes(u64::from(keyspace.0))
        + 1
        + varint_bytes(key_len as u64)
        + key_len
        + varint_bytes(value_len as u64)
        + value_len
}

/// What a blob pointer is made of.
const POINTER: &str = "file, offset, length and checksum";

/// The operations of a record, in order. Ends after the first error. A record that does not hold
/// exactly as many operations as its header says is corrupt.
pub(crate) struct Operations<'a> {
    decoder: Decoder<'a>,
    left: u32,
}

impl<'a> Operations<'a> {
    /// The `count` operations in `payload`, which starts at `offset` of `file`.
    pub(crate) fn new(payload: &'a [u8], count: u32, file: &'a Path, offset: u64) -> Self {
        Operations { decoder: Decoder::new(payload, file, offset), left: count }
    }

    fn decode(&mut self) -> Result<Operation<'a>> {
        let decoder = &mut self.decoder;
        let number = decoder.varint("journal operation keyspace")?;
        let keyspace = u32::try_from(number).map_err(|_| {
            decoder.corrupt("journal operation keyspace", "a 32-bit number", number)
        })?;
        let kind = operation_kind(decoder)?;
        let key = decoder.byte_string("journal operation key")?;
        if key.len() > KEY_BYTES_MAX {
            let most = format_args!("at most {KEY_BYTES_MAX} bytes");
            return Err(decoder.corrupt("journal operation key", most, key.len()));
        }
        let value = decoder.byte_string("journal operation value")?;
        if kind.is_blob() && BlobPointer::decode(value).is_none() {
            let found = format_args!("\"{}\"", value.escape_ascii());
            return Err(decoder.corrupt("blob pointer in the journal", POINTER, found));
        }
        if kind == EntryKind::RangeDelete
            && (value.len() > KEY_BYTES_MAX || (!value.is_empty() && value <= key))
        {
            let found = format_args!("\"{}\"", value.escape_ascii());
            let bound = "a key above the first of the range";
            return Err(decoder.corrupt("upper bound of a range delete", bound, found));
        }
        if self.left == 1 && !decoder.is_empty() {
            let found = format_args!("{} bytes more", decoder.remaining());
            return Err(decoder.corrupt("journal record", "its end", found));
        }
        Ok(Operation { keyspace: KeyspaceId(keyspace), kind, key, value })
    }
}

fn operation_kind(decoder: &mut Decoder<'_>) -> Result<EntryKind> {
    let tag = decoder.u8("journal operation kind")?;
    match EntryKind::from_tag(tag) {
        Some(kind) => Ok(kind),
        None => Err(decoder.corrupt("journal operation kind", "a known tag", tag)),
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>>;

    fn next(&mut self) -> Option<Result<Operation<'a>>> {
        if self.left == 0 {
            return None;
        }
        let operation = self.decode();
        self.left = if operation.is_ok() { self.left - 1 } else { 0 };
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::error::Error;
    use crate::base::ids::FileId;

    fn decode(payload: &[u8], count: u32) -> Result<Vec<Operation<'_>>> {
        Operations::new(payload, count, Path::new("s"), 0).collect()
    }

    proptest! {
        #[test]
        fn operations_round_trip(operations in proptest::collection::vec(
            (any::<u32>(), 0usize..4, proptest::collection::vec(any::<u8>(), 0..300),
             proptest::collection::vec(any::<u8>(), 0..300)), 1..8)) {
            let kinds = [
                EntryKind::Put,
                EntryKind::Delete,
                EntryKind::Merge,
                EntryKind::PutBlob,
                EntryKind::MergeBlob,
            ];
            let mut operations = operations;
            for (number, kind, _, value) in &mut operations {
                if kinds[*kind].is_blob() {
                    *value = pointer(*number);
                }
            }
            let mut payload = Vec::new();
            let mut bytes = 0;
            for (keyspace, kind, key, value) in &operations {
                encode_operation(&mut payload, KeyspaceId(*keyspace), kinds[*kind], key, value);
                bytes += operation_bytes(KeyspaceId(*keyspace), key.len(), value.len());
            }
            prop_assert_eq!(bytes, payload.len());
            let count = operations.len() as u32;
            let found = decode(&payload, count).unwrap();
            prop_assert_eq!(found.len(), operations.len());
            for (found, (keyspace, kind, key, value)) in found.iter().zip(&operations) {
                let wanted =
                    Operation { keyspace: KeyspaceId(*keyspace), kind: kinds[*kind], key, value };
                prop_assert_eq!(*found, wanted);
            }
            prop_assert!(decode(&payload, count + 1).unwrap_err().is_corruption());
            prop_assert!(decode(&payload[..payload.len() - 1], count).unwrap_err().is_corruption());
            payload.push(0);
            prop_assert!(decode(&payload, count).unwrap_err().is_corruption());
        }

        #[test]
        fn any_bytes_decode_or_are_corruption(payload in proptest::collection::vec(any::<u8>(), 0..64),
                                              count in 1u32..5) {
            if let Err(error) = decode(&payload, count) {
                prop_assert!(error.is_corruption());
            }
        }
    }

    fn pointer(number: u32) -> Vec<u8> {
        let (file, offset) = (FileId(u64::from(number)), u64::from(number) * 7);
        let mut bytes = Vec::new();
        BlobPointer { file, offset, length: number, checksum: 5 }.encode(&mut bytes);
        bytes
    }

    /// It was found when the operation was in memory, and then said of the store's directory.
    #[test]
    fn a_blob_operation_without_a_pointer_is_damage_of_its_record() {
        for kind in [EntryKind::PutBlob, EntryKind::MergeBlob] {
            for (value, good) in [(pointer(9), true), (b"no pointer".to_vec(), false)] {
                let mut payload = Vec::new();
                encode_operation(&mut payload, KeyspaceId(1), kind, b"key", &value);
                let found = Operations::new(&payload, 1, Path::new("s"), 100).next().unwrap();
                match found {
                    Ok(operation) => assert!(good && operation.value == value),
                    Err(Error::Corruption { file, offset, .. }) => {
                        assert!(!good && file == Path::new("s"));
                        assert_eq!(offset, 100 + payload.len() as u64);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn a_key_longer_than_any_is_refused() {
        for (bytes, good) in [(KEY_BYTES_MAX, true), (KEY_BYTES_MAX + 1, false)] {
            let mut payload = Vec::new();
            encode_operation(&mut payload, KeyspaceId(1), EntryKind::Put, &vec![7; bytes], b"");
            assert_eq!(decode(&payload, 1).is_ok(), good, "{bytes}");
        }
    }

    #[test]
    fn a_range_delete_has_a_range() {
        let long = vec![b'b'; KEY_BYTES_MAX + 1];
        let cases = [
            (&b"a"[..], &b"b"[..], true),
            (b"a", b"", true),
            (b"", b"", true),
            (b"b", b"b", false),
            (b"b", b"a", false),
            (b"a", &long, false),
        ];
        for (lower, upper, is_good) in cases {
            let mut payload = Vec::new();
            encode_operation(&mut payload, KeyspaceId(1), EntryKind::RangeDelete, lower, upper);
            match decode(&payload, 1) {
                Ok(operations) => {
                    assert!(is_good);
                    assert_eq!((operations[0].key, operations[0].value), (lower, upper));
                }
                Err(error) => assert!(!is_good && error.is_corruption(), "{error}"),
            }
        }
    }
}
