//! What transactions did and saw.

use std::fmt;

/// Where a list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) space: u32,
    pub(super) key: u32,
}

/// How a transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Committed,
    /// Nothing of it may ever be seen.
    Aborted,
}

/// A transaction, or a write without one.
#[derive(Debug, Clone)]
pub(super) struct Transaction {
    /// A moment before it began, and one after it ended.
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) end: End,
    /// The lists that it has read, without its own appends.
    pub(super) reads: Vec<(Key, Vec<u32>)>,
    /// Its appends, in order. What was taken back is not here.
    pub(super) appends: Vec<(Key, u32)>,
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} to {}, {:?}:", self.begun, self.ended, self.end)?;
        for (key, list) in &self.reads {
            let last = list.last();
            write!(f, " read {}/{} ({} up to {last:?})", key.space, key.key, list.len())?;
        }
        for (key, id) in &self.appends {
            write!(f, " append {}/{} {id}", key.space, key.key)?;
        }
        write!(f, "]")
    }
}

/// An append as it is stored: its number, and so much more.
pub(super) fn item(id: u32, padding: usize) -> Vec<u8> {
    let mut item = id.to_le_bytes().to_vec();
    item.extend((padding as u32).to_le_bytes());
    item.resize(item.len() + padding, b'.');
    item
}

/// The appends of a stored list.
pub(super) fn ids(value: Option<&[u8]>) -> Result<Vec<u32>, String> {
    let mut ids = Vec::new();
    let mut rest = value.unwrap_or_default();
    while !rest.is_empty() {
        let word = |at: usize| {
            rest.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
        };
        let (Some(id), Some(padding)) = (word(0), word(4)) else {
            return Err(format!("a list ends with {} bytes", rest.len()));
        };
        rest = rest.get(8 + padding as usize..).ok_or("a list ends within an append")?;
        ids.push(id);
    }
    Ok(ids)
}
