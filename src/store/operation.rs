//! An operation of a commit, and what is refused before anything of it is done.

use std::sync::Arc;

use super::sizes::Sizes;
use super::state::KeyspaceState;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::limits::{BATCH_BYTES_MAX, BATCH_OPERATION_BYTES, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// An operation of a commit, borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) keyspace: &'a Arc<KeyspaceState>,
    pub(crate) kind: EntryKind,
    /// Of a range delete, the lower bound.
    pub(crate) key: &'a [u8],
    /// Of a range delete, the upper bound; empty if there is none.
    pub(crate) value: &'a [u8],
}

impl<'a> Operation<'a> {
    /// The range of a range delete.
    pub(super) fn range(&self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let upper = Some(self.value).filter(|value| !value.is_empty());
        (self.kind == EntryKind::RangeDelete).then_some((self.key, upper))
    }

    /// Whether its value is too large for journal and memtable. Asked once for each batch: options may change.
    #[inline]
    pub(crate) fn is_large(&self, sizes: &Sizes) -> bool {
        self.value.len() >= sizes.direct_value_bytes && self.goes_to_blob_file()
    }

    #[cold]
    #[inline(never)]
    fn goes_to_blob_file(&self) -> bool {
        self.value.len() >= self.keyspace.options().blob_bytes_min as usize
            && !matches!(self.kind, EntryKind::Delete | EntryKind::RangeDelete)
    }
}

/// Refuses keys and values that the formats cannot take.
pub(crate) fn check_sizes(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key has at most {KEY_BYTES_MAX} bytes, not {}; store long identifiers in the value \
             and key by their hash",
            key.len()
        )));
    }
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a value has at most {VALUE_BYTES_MAX} bytes, not {}; split it over several keys",
            value.len()
        )));
    }
    Ok(())
}

/// Refuses a merge without an operator, and a range delete with a bound that no key can be.
#[cold]
pub(super) fn check_kind(operation: &Operation<'_>) -> Result<()> {
    let Operation { keyspace, kind, value, .. } = operation;
    if *kind == EntryKind::RangeDelete {
        return check_sizes(value, &[]);
    }
    if keyspace.merge.operator.is_none() {
        keyspace.check_exists()?;
        return Err(no_operator(keyspace));
    }
    Ok(())
}

/// Why a merge is refused.
#[cold]
pub(crate) fn no_operator(keyspace: &KeyspaceState) -> Error {
    match &keyspace.options().merge_operator {
        Some(name) => Error::Conflict {
            what: format!(
                "keyspace {:?} needs the merge operator {name:?} for merges; register it with \
                 Builder::merge_operator before opening",
                keyspace.name
            ),
        },
        None => Error::invalid(format!(
            "keyspace {:?} has no merge operator; create it with one \
             (KeyspaceOptions::merge_operator)",
            keyspace.name
        )),
    }
}

/// Why a batch is refused that counts so many bytes.
#[cold]
pub(super) fn too_large(bytes: u64) -> Error {
    Error::invalid(format!(
        "a batch has at most {BATCH_BYTES_MAX} bytes of keys and values ({BATCH_OPERATION_BYTES} more for each \
         operation; values that go to blob files do not count), not {bytes}; commit it in parts"
    ))
}
