//! Folding merge operands over what lies beneath them.

use std::sync::Arc;

use super::operator::MergeOperator;
use crate::base::error::{Error, Result};
use crate::base::limits::VALUE_BYTES_MAX;
use crate::base::planted::{Bug, planted};

/// Fetches the value that the pointer of a `PutBlob` entry stands for.
pub(crate) trait BlobReader: Send + Sync {
    /// Replaces `out` by the value.
    fn read_blob(&self, key: &[u8], pointer: &[u8], out: &mut Vec<u8>) -> Result<()>;
}

/// What a keyspace needs to fold merge operands.
#[derive(Clone, Default)]
pub(crate) struct MergeContext {
    /// The keyspace's operator; without one, a merge entry is an error.
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    /// Reads the values that operands meet in blob files.
    pub(crate) blobs: Option<Arc<dyn BlobReader>>,
}

/// What operands are applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base<'a> {
    /// No value: deleted or never put.
    Nothing,
    /// A value.
    Value(&'a [u8]),
    /// The pointer of a value in a blob file.
    Blob(&'a [u8]),
}

/// Operands of one key, collected newest first (as entries come) or oldest first, in one reused
/// buffer. A point read collects into one of these too.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Operands {
    /// Forgets all operands.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds an operand after the others.
    pub(crate) fn push(&mut self, operand: &[u8]) {
        self.bytes.extend_from_slice(operand);
        self.ends.push(self.bytes.len());
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
        let Some(operator) = &context.operator else {
            return Err(Error::Merge {
                operator: String::new(),
                what: format!(
                    "the keyspace was opened without its merge operator, and key \"{}\" needs it",
                    key.escape_ascii()
                ),
            });
        };
        let mut blob = Vec::new();
        let existing = match base {
            Base::Nothing => None,
            Base::Blob(_) if planted(Bug::MergeBlobBaseIgnored) => None,
            Base::Value(value) => Some(value),
            Base::Blob(pointer) => {
                let Some(blobs) = &context.blobs else {
                    return Err(Error::Merge {
                        operator: operator.name().to_string(),
                        what: "the existing value lies in a blob file that is not open".to_string(),
                    });
                };
                blobs.read_blob(key, pointer, &mut blob)?;
                Some(&blob[..])
            }
        };
        let mut start = 0;
        let mut operands = Vec::with_capacity(self.ends.len());
        for &end in &self.ends {
            operands.push(&self.bytes[start..end]);
            start = end;
        }
        if newest_first && !planted(Bug::MergeOperandsReversed) {
            operands.reverse();
        }
        full_merge(&**operator, key, existing, &operands)
    }
}

/// Calls the operator and holds it to what a value may be.
pub(super) fn full_merge(
    operator: &dyn MergeOperator,
    key: &[u8],
    existing: Option<&[u8]>,
    operands: &[&[u8]],
) -> Result<Vec<u8>> {
    let failed = |what| Error::Merge { operator: operator.name().to_string(), what };
    let value = operator.full_merge(key, existing, operands).map_err(failed)?;
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(failed(format!("the result has {} bytes, too many for a value", value.len())));
    }
    Ok(value)
}

/// The error for an entry kind that the formats reserve.
#[cold]
pub(super) fn refuse_range_delete(key: &[u8]) -> Error {
    Error::invalid(format!(
        "the store holds a range delete at key \"{}\", which this version of Spinney cannot apply; \
         open it with the version that wrote it",
        key.escape_ascii()
    ))
}
