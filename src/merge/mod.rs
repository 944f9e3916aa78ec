//! stub
use std::sync::Arc;
/// Folds operands.
pub trait MergeOperator: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// Folds operands (oldest first) over the existing value.
    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &[&[u8]]) -> std::result::Result<Vec<u8>, String>;
    /// Folds two operands into one.
    fn partial_merge(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Vec<u8>> { None }
}
pub(crate) fn builtin_operators() -> Vec<Arc<dyn MergeOperator>> { Vec::new() }
