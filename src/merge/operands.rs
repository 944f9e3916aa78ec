//! Folding merge operands over the base below them.
//!
//! Invariants:
//! 1. Operands in blob files are read and folded in batches. Besides the value, at most as many
//!    bytes of operands as the value has are in memory at a time, or [`INSTALMENT_BYTES`] if that
//!    is more. So a fold copies each byte a bounded number of times, and its memory depends on the
//!    value, not on the number of operands.

use std::borrow::Cow;
use std::sync::Arc;

use super::operator::MergeOperator;
use crate::base::error::{Error, Result};
use crate::base::limits::VALUE_BYTES_MAX;
use crate::base::planted::{Bug, planted};

/// The minimum number of operand bytes that are read from blob files before they are folded.
const INSTALMENT_BYTES: usize = if cfg!(test) { 24 } else { 16 << 20 };

/// Fetches the value that the pointer of a `PutBlob` or `MergeBlob` entry stands for.
pub(crate) trait BlobReader: Send + Sync {
    /// Replaces `out` by the value.
    fn read_blob(&self, pointer: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// How long the value is, without reading it; `None` if the bytes are no pointer.
    fn blob_bytes(&self, pointer: &[u8]) -> Option<u64>;
}

/// The context for folding merge operands in a keyspace.
#[derive(Clone, Default)]
pub(crate) struct MergeContext {
    /// The keyspace's name, for errors.
    pub(crate) keyspace: Arc<str>,
    /// The name of the operator that the keyspace was created with.
    pub(crate) operator_name: Option<Arc<str>>,
    /// The operator, if it is registered; without one, operands cannot be folded.
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    /// Reads the values that are in blob files.
    pub(crate) blobs: Option<Arc<dyn BlobReader>>,
}

impl MergeContext {
    /// The error of a fold that failed.
    #[cold]
    pub(crate) fn failed(&self, key: &[u8], what: impl Into<String>) -> Error {
        let operator = self.operator_name.as_deref().unwrap_or_default();
        Error::merge(&self.keyspace, key, operator, what)
    }

    /// The operator.
    ///
    /// # Errors
    /// `Merge` if there is none.
    pub(super) fn operator(&self, key: &[u8]) -> Result<&dyn MergeOperator> {
        self.operator.as_deref().ok_or_else(|| {
            let what =
                "it is not registered; register it with Builder::merge_operator before opening";
            self.failed(key, what)
        })
    }

    /// Reads a value from its blob file.
    pub(super) fn read(&self, key: &[u8], pointer: &[u8]) -> Result<Vec<u8>> {
        let Some(blobs) = &self.blobs else {
            return Err(self.failed(key, "a value is in a blob file, and none is open"));
        };
        let mut value = Vec::new();
        blobs.read_blob(pointer, &mut value)?;
        Ok(value)
    }
}

/// The value that operands are applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base<'a> {
    /// No value: deleted or never put.
    Nothing,
    /// A value.
    Value(&'a [u8]),
    /// The pointer of a value in a blob file.
    Blob(&'a [u8]),
}

/// An operand: its bytes, or a pointer into a blob file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_blob: bool,
}

/// Operands of one key in one reused buffer, collected newest first (as entries come) or oldest
/// first. Point reads also use it.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    bytes: Vec<u8>,
    /// The end of each operand, and whether it is a pointer.
    ends: Vec<(usize, bool)>,
}

impl Operands {
    /// Memory used on the heap.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Forgets all operands.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds an operand; `is_blob` if its bytes are a pointer into a blob file.
    pub(crate) fn push(&mut self, bytes: &[u8], is_blob: bool) {
        self.bytes.extend_from_slice(bytes);
        let is_blob = is_blob && !planted(Bug::MergeBlobOperandRaw);
        self.ends.push((self.bytes.len(), is_blob));
    }

    /// The value that the operands make of `base`. `newest_first` tells the order of the pushes.
    ///
    /// # Errors
    /// `Merge` if there is no operator, it refuses, or its result is longer than a value may be.
    pub(crate) fn fold(
        &self,
        context: &MergeContext,
        key: &[u8],
        base: Base<'_>,
        newest_first: bool,
    ) -> Result<Vec<u8>> {
        let mut start = 0;
        let mut operands = Vec::with_capacity(self.ends.len());
        for &(end, is_blob) in &self.ends {
            operands.push(Operand { bytes: &self.bytes[start..end], is_blob });
            start = end;
        }
        if newest_first && !planted(Bug::MergeOperandsReversed) {
            operands.reverse();
        }
        fold(context, key, base, &operands)
    }
}

/// The value that the operands, oldest first, make of `base`.
///
/// # Errors
/// `Merge` if there is no operator, it refuses, or its result is longer than a value may be;
/// whatever reading a blob file gives.
pub(super) fn fold(
    context: &MergeContext,
    key: &[u8],
    base: Base<'_>,
    operands: &[Operand<'_>],
) -> Result<Vec<u8>> {
    context.operator(key)?;
    let mut value = match base {
        Base::Nothing => None,
        Base::Blob(_) if planted(Bug::MergeBlobBaseIgnored) => None,
        Base::Value(value) => Some(Cow::Borrowed(value)),
        Base::Blob(pointer) => Some(Cow::Owned(context.read(key, pointer)?)),
    };
    let mut gathered: Vec<Cow<'_, [u8]>> = Vec::with_capacity(operands.len().min(1024));
    let mut read_bytes = 0;
    for (i, operand) in operands.iter().enumerate() {
        if operand.is_blob {
            let bytes = context.read(key, operand.bytes)?;
            read_bytes += bytes.len();
            gathered.push(Cow::Owned(bytes));
        } else {
            gathered.push(Cow::Borrowed(operand.bytes));
        }
        let enough = value.as_ref().map_or(0, |value| value.len()).max(INSTALMENT_BYTES);
        if read_bytes >= enough && i + 1 < operands.len() {
            value = Some(Cow::Owned(full_merge(context, key, value.as_deref(), &gathered)?));
            gathered.clear();
            read_bytes = 0;
        }
    }
    full_merge(context, key, value.as_deref(), &gathered)
}

/// Calls the operator and checks the size of its result.
fn full_merge(
    context: &MergeContext,
    key: &[u8],
    existing: Option<&[u8]>,
    operands: &[Cow<'_, [u8]>],
) -> Result<Vec<u8>> {
    let operands: Vec<&[u8]> = operands.iter().map(|operand| &**operand).collect();
    let value = context.operator(key)?.full_merge(key, existing, &operands);
    let value = value.map_err(|what| context.failed(key, what))?;
    if value.len() as u64 > VALUE_BYTES_MAX {
        let what = format!("the result has {} bytes, too many for a value", value.len());
        return Err(context.failed(key, what));
    }
    Ok(value)
}

/// Folds two operands into one, if the operator does so and the result can be stored.
pub(super) fn partial_merge(
    operator: &dyn MergeOperator,
    key: &[u8],
    older: &[u8],
    newer: &[u8],
) -> Option<Vec<u8>> {
    let operand = operator.partial_merge(key, older, newer)?;
    (operand.len() as u64 <= VALUE_BYTES_MAX).then_some(operand)
}

/// The error for a reserved entry kind.
#[cold]
pub(crate) fn refuse_range_delete(key: &[u8]) -> Error {
    Error::invalid(format!(
        "a table has a range delete as an entry, at key \"{}\", which this version of Spinney does not know; \
         open the store with the version that wrote it",
        key.escape_ascii()
    ))
}
