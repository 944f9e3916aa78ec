//! The bytes of keys and values. A value identifies its writer and shows whether it is complete.

use super::history::{Id, Seen};
use crate::random::mix;

/// Bytes of an operand before its filling.
const HEAD_BYTES: usize = 10;

/// A key's bytes; keys are ordered as their numbers are.
pub(super) fn key_bytes(key: u32) -> Vec<u8> {
    let mut bytes = format!("key/{key:05}").into_bytes();
    bytes.extend_from_slice(&b"/tail"[..key as usize % 6]);
    bytes
}

/// The number of a key, if it is one.
pub(super) fn key_number(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"key/")?.get(..5)?;
    let key = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (key_bytes(key) == bytes).then_some(key)
}

fn filling(id: Id) -> u8 {
    mix(u64::from(id.thread) << 32 | u64::from(id.count)) as u8
}

/// An operand with `filling_bytes` behind its head. What a key holds is one behind the other.
pub(super) fn operand(id: Id, filling_bytes: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + usize::from(filling_bytes));
    bytes.extend_from_slice(&id.thread.to_le_bytes());
    bytes.extend_from_slice(&id.count.to_le_bytes());
    bytes.extend_from_slice(&filling_bytes.to_le_bytes());
    let first = filling(id);
    bytes.extend((0..filling_bytes).map(|at| first.wrapping_add(at as u8)));
    bytes
}

/// Whose operands a value is made of.
pub(super) fn operands(value: &[u8]) -> Result<Seen, String> {
    let mut seen = Seen::new();
    let mut rest = value;
    if value.is_empty() {
        return Err("an empty value".to_string());
    }
    while !rest.is_empty() {
        let broken =
            || format!("a value of {} bytes, broken at {}", value.len(), value.len() - rest.len());
        let (head, after) = rest.split_at_checked(HEAD_BYTES).ok_or_else(broken)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let id = Id { thread: word(0), count: word(4) };
        let filling_bytes = usize::from(u16::from_le_bytes([head[8], head[9]]));
        let (bytes, after) = after.split_at_checked(filling_bytes).ok_or_else(broken)?;
        let first = filling(id);
        if bytes.iter().enumerate().any(|(at, byte)| *byte != first.wrapping_add(at as u8)) {
            return Err(format!("{}, in the bytes of {id}", broken()));
        }
        seen.push(id);
        rest = after;
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_numbers() {
        let keys: Vec<Vec<u8>> = (0..3000).map(key_bytes).collect();
        assert!(keys.is_sorted());
        assert!(keys.iter().enumerate().all(|(n, key)| key_number(key) == Some(n as u32)));
        for bad in ["key/0001", "key/00001", "key/0000x", "other", "key/00001/t"] {
            assert_eq!(key_number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_value_says_whose_it_is_and_whether_it_is_whole() {
        let (a, b) = (Id { thread: 1, count: 70_000 }, Id { thread: 2, count: 0 });
        let value = [operand(a, 300), operand(b, 0)].concat();
        assert_eq!(operands(&value), Ok(vec![a, b]));
        for len in 0..value.len() {
            let cut = operands(&value[..len]);
            assert!(cut.is_err() || (len == 310 && cut == Ok(vec![a])), "{len}");
        }
        let mut damaged = value;
        damaged[100] ^= 1;
        assert!(operands(&damaged).unwrap_err().contains("1.70000"));
    }
}
