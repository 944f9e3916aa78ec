//! Merge operators: how the operands of merge entries become a value.

/// Folds the operands of merge entries into a value.
///
/// An operator is associative: folding some operands first, with [`partial_merge`], and the result
/// with the others later, gives what folding all of them at once gives. It is deterministic, and
/// its name stands for its meaning: a keyspace remembers the name and refuses to be opened with
/// another.
///
/// Operators are called by readers, in the background, and while a store is opened, with no lock of
/// the store held. One may read the store, and write to it as long as there is room; what would
/// have to wait for background work (a write without room, flushing, compacting, waiting, closing)
/// is refused there, since that work may be what called it. One that blocks holds up whoever called
/// it.
///
/// A panic is caught. A full merge that panics has refused: the reader of that key gets
/// [`Error::Merge`] with the panic's message, every other key and keyspace goes on, and nothing is
/// lost, since operands that cannot be folded are kept as they are. A panic in the background is an
/// [`Event::Error`], fails the next [`Database::wait_idle`], and counts in
/// [`KeyspaceStatistics::operator_panics`]. (A program that is built to abort on panics aborts.)
///
/// [`partial_merge`]: MergeOperator::partial_merge
/// [`Error::Merge`]: crate::Error::Merge
/// [`Event::Error`]: crate::Event::Error
/// [`Database::wait_idle`]: crate::Database::wait_idle
/// [`KeyspaceStatistics::operator_panics`]: crate::KeyspaceStatistics::operator_panics
///
/// ```
/// use spinney::MergeOperator;
///
/// struct Max;
///
/// impl MergeOperator for Max {
///     fn name(&self) -> &str {
///         "max"
///     }
///     fn full_merge(
///         &self,
///         _key: &[u8],
///         existing: Option<&[u8]>,
///         operands: &[&[u8]],
///     ) -> Result<Vec<u8>, String> {
///         let most = operands.iter().copied().chain(existing).max();
///         Ok(most.unwrap_or_default().to_vec())
///     }
/// }
///
/// assert_eq!(Max.full_merge(b"k", Some(b"5"), &[b"7", b"6"]), Ok(b"7".to_vec()));
/// ```
pub trait MergeOperator: Send + Sync + 'static {
    /// The name under which keyspaces remember the operator.
    fn name(&self) -> &str;

    /// The value of `key` after `operands`, oldest first, have been applied to the `existing`
    /// value.
    ///
    /// Operands may come in instalments: first some of the oldest, then others with the result as
    /// the existing value.
    ///
    /// # Errors
    /// What is wrong with an operand or the existing value; the reader of the key gets it as
    /// [`Error::Merge`](crate::Error::Merge), and the operands are kept as they are. A result above
    /// 4 GiB - 1 is an error too.
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String>;

    /// One operand that does what `older` followed by `newer` does, or `None` to keep both. With
    /// it, the number of operands of a key stays small whatever its value's size. Without it,
    /// operands are folded over values of up to a memtable's size alone (a sixteenth of the memory
    /// budget, 256 KiB to 64 MiB); of a larger value's key all stay, to be folded by whoever reads
    /// it.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let _ = (key, older, newer);
        None
    }
}

/// Adds 64-bit little-endian numbers, wrapping. A key without a value counts as 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct U64Add;

fn number(bytes: &[u8], what: &str) -> Result<u64, String> {
    let array = <[u8; 8]>::try_from(bytes)
        .map_err(|_| format!("the {what} has {} bytes instead of 8", bytes.len()))?;
    Ok(u64::from_le_bytes(array))
}

impl MergeOperator for U64Add {
    fn name(&self) -> &str {
        "u64_add"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        let mut sum = existing.map_or(Ok(0), |bytes| number(bytes, "existing value"))?;
        for operand in operands {
            sum = sum.wrapping_add(number(operand, "operand")?);
        }
        Ok(sum.to_le_bytes().to_vec())
    }

    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let sum = number(older, "operand").ok()?.wrapping_add(number(newer, "operand").ok()?);
        Some(sum.to_le_bytes().to_vec())
    }
}

/// Appends the operands to the value.
#[derive(Debug, Clone, Copy, Default)]
pub struct Append;

impl MergeOperator for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        let mut out = existing.unwrap_or_default().to_vec();
        operands.iter().for_each(|operand| out.extend_from_slice(operand));
        Ok(out)
    }

    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some([older, newer].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u64_add_adds_wraps_and_names_what_is_not_a_number() {
        let one = 1u64.to_le_bytes();
        let most = u64::MAX.to_le_bytes();
        let add = U64Add;
        assert_eq!(add.full_merge(b"k", None, &[&one, &one]), Ok(2u64.to_le_bytes().to_vec()));
        assert_eq!(add.full_merge(b"k", Some(&most), &[&one]), Ok(0u64.to_le_bytes().to_vec()));
        assert_eq!(add.partial_merge(b"k", &most, &one), Some(0u64.to_le_bytes().to_vec()));
        assert_eq!(add.partial_merge(b"k", &one, b"x"), None);
        let error = add.full_merge(b"k", Some(b"abc"), &[&one]).unwrap_err();
        assert!(error.contains("existing value has 3 bytes"), "{error}");
    }

    #[test]
    fn append_is_associative() {
        let all = Append.full_merge(b"k", Some(b"a"), &[b"b", b"c"]).unwrap();
        let partial = Append.partial_merge(b"k", b"b", b"c").unwrap();
        assert_eq!(all, Append.full_merge(b"k", Some(b"a"), &[&partial]).unwrap());
        assert_eq!(all, b"abc");
    }
}
