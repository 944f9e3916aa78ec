//! How a batch is handed to the journal: encoded as a whole, or part by part if it is large.
//!
//! Invariants:
//! 1. Both ways give the same bytes.
//! 2. A large batch never exists in a second copy: its parts are at most [`PART_BYTES`] of small operations, or one
//!    value where it lies.

use super::operation::Operation;
use crate::journal::{Parts, Payload, encode_operation_head, operation_bytes};

/// Batches that hold so much (`Checked::held`) and more are encoded part by part.
pub(super) const LARGE_BYTES: u64 = 1 << 20;
/// About how much is encoded at a time.
const PART_BYTES: usize = 64 << 10;

/// Calls `f` with the operations as a payload in parts.
pub(super) fn with_parts<'a, I, R>(
    operations: &impl Fn() -> I,
    f: impl FnOnce(Payload<'_>) -> R,
) -> R
where
    I: Iterator<Item = Operation<'a>>,
{
    let sizes = operations().map(|operation| {
        operation_bytes(operation.keyspace.id, operation.key.len(), operation.value.len())
    });
    let bytes = sizes.sum();
    let parts = |part: &mut dyn FnMut(&[u8])| {
        let mut buffer = Vec::with_capacity(PART_BYTES);
        for Operation { keyspace, kind, key, value } in operations() {
            encode_operation_head(&mut buffer, keyspace.id, kind, key, value.len());
            if buffer.len() + value.len() <= PART_BYTES {
                buffer.extend_from_slice(value);
                continue;
            }
            part(&buffer);
            buffer.clear();
            part(value);
        }
        part(&buffer);
    };
    let parts: &Parts<'_> = &parts;
    f(Payload::Parts { bytes, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::entry::EntryKind;
    use crate::journal::encode_operation;
    use crate::{Database, KeyspaceOptions};

    #[test]
    fn parts_are_what_the_whole_would_be() {
        let db = Database::builder_in_memory().deterministic(1).open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        let values: Vec<Vec<u8>> = [0, 10, 60_000, 6_000, 65_000, 300_000, 3, 65_536]
            .map(|len| vec![len as u8; len])
            .into();
        let operations = || {
            values.iter().map(|value| Operation {
                keyspace: items.state(),
                kind: EntryKind::Put,
                key: b"key",
                value,
            })
        };
        let mut whole = Vec::new();
        for operation in operations() {
            let Operation { keyspace, kind, key, value } = operation;
            encode_operation(&mut whole, keyspace.id, kind, key, value);
        }
        let mut joined = Vec::new();
        let len = with_parts(&operations, |payload| {
            if let Payload::Parts { parts, .. } = payload {
                parts(&mut |part| joined.extend_from_slice(part));
            }
            payload.len()
        });
        assert!(joined == whole && len == whole.len());
    }
}
