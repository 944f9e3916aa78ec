//! A tournament among sorted sources, decided mostly by integer comparisons.
//!
//! It uses offset-value coding, after Conner and after Graefe and Do. A key is a sequence of 8-byte
//! *columns*. A source's *code* states where its key first differs from the last winner's key (the
//! base), and the column there. Of two keys not before the base, the one that shares more columns
//! with the base comes first; if they share equally many, the one with the smaller next column. So
//! bytes are compared only to compute the code of a source that has advanced, and where two codes
//! are equal. Each column of a key is compared about once, however long the shared prefix is.
//!
//! Invariants:
//! 1. The code of a loser is relative to the key it lost to. On the path of the last winner that is
//!    the last winner's key, so all codes that are encountered when it is replaced are relative to
//!    the base.
//! 2. Code 0 is a key equal to the base. Equal keys are ordered by `order`, then by source.
//! 3. Backwards, columns and all other comparisons are inverted. The base is then a key that no key
//!    in play is after.

use std::cmp::Ordering;
use std::hint::select_unpredictable;

/// The keys of the sources in play.
pub(crate) trait Keys {
    /// The key that the source stands at; it has one.
    fn key(&self, source: usize) -> &[u8];
}

const COLUMN_BYTES: usize = 8;
const SYMBOL_BITS: u32 = 72;
const SYMBOL_MASK: u128 = (1 << SYMBOL_BITS) - 1;
const EQUAL: u128 = 0;
const EXHAUSTED: u128 = u128::MAX;

/// The tournament. Knows codes and orders; keys are asked for when codes do not decide.
#[derive(Debug, Default)]
pub(crate) struct LoserTree {
    /// The winning source at 0, then the losers of the inner nodes 1..n; source `i`'s parent is
    /// node `(n + i) / 2`.
    nodes: Vec<u32>,
    /// Each source's code and rank among equal keys. Apart from the nodes, so that a match moves
    /// two words without a branch: whom it is won by cannot be predicted.
    codes: Vec<u128>,
    orders: Vec<u64>,
    /// The columns of the last winner's key, the last of them cut short or empty, and its length.
    base: Vec<u64>,
    base_bytes: usize,
    /// All ones in the symbol's bits when playing backwards.
    flip: u128,
    scratch: Vec<u32>,
}

impl LoserTree {
    /// Memory used on the heap.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.nodes.capacity() + self.scratch.capacity()) * size_of::<u32>()
            + self.codes.capacity() * size_of::<u128>()
            + (self.orders.capacity() + self.base.capacity()) * size_of::<u64>()
    }

    /// Starts anew with `count` sources. `order` gives the rank among equal keys of the entry that
    /// a source stands at, smaller first, or `None` if it stands nowhere.
    pub(crate) fn build(
        &mut self,
        count: usize,
        backwards: bool,
        keys: &impl Keys,
        order: impl Fn(usize) -> Option<u64>,
    ) {
        self.flip = if backwards { SYMBOL_MASK } else { 0 };
        self.codes.clear();
        self.orders.clear();
        for source in 0..count {
            // Relative to a base before (or, backwards, after) all keys.
            let order = order(source);
            let code = order.map(|_| self.code(0, symbol(keys.key(source), 0)));
            self.codes.push(code.unwrap_or(EXHAUSTED));
            self.orders.push(order.unwrap_or(0));
        }
        self.scratch.clear();
        self.scratch.resize(count, 0);
        self.scratch.extend(0..count as u32);
        self.nodes.clear();
        self.nodes.resize(count, 0);
        for node in (1..count).rev() {
            let (a, b) = (self.scratch[2 * node], self.scratch[2 * node + 1]);
            let (code_a, code_b) = (self.codes[a as usize], self.codes[b as usize]);
            let second = code_b < code_a || code_b == code_a && self.break_tie(a, b, keys);
            (self.scratch[node], self.nodes[node]) = if second { (b, a) } else { (a, b) };
        }
        if let (Some(winner), Some(source)) = (self.nodes.first_mut(), self.scratch.get(1)) {
            *winner = *source;
        }
    }

    /// The source that stands at the first entry (backwards: the last), if any stands somewhere.
    #[inline]
    pub(crate) fn winner(&self) -> Option<usize> {
        let source = *self.nodes.first()? as usize;
        (self.codes[source] != EXHAUSTED).then_some(source)
    }

    /// The source that stands at the first entry (backwards: the last) of all but the winner; to be
    /// asked once the winner's key has been remembered.
    pub(super) fn runner_up(&self, keys: &impl Keys) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut node = (self.nodes.len() + *self.nodes.first()? as usize) / 2;
        while node > 0 {
            let source = self.nodes[node] as usize;
            let code = self.codes[source];
            let is_before = |best: usize| match code.cmp(&self.codes[best]) {
                Ordering::Equal if self.flip != 0 => keys.key(source) > keys.key(best),
                Ordering::Equal => keys.key(source) < keys.key(best),
                order => order == Ordering::Less,
            };
            if code != EXHAUSTED && best.is_none_or(is_before) {
                best = Some(source);
            }
            node /= 2;
        }
        best
    }

    /// Whether the winner's key equals the last winner's (the one remembered last).
    #[inline]
    pub(crate) fn winner_equals_base(&self) -> bool {
        self.nodes.first().is_some_and(|&source| self.codes[source as usize] == EQUAL)
    }

    /// Makes the winner's key the base; to be called before its source moves.
    #[inline]
    pub(crate) fn remember_winner(&mut self, key: &[u8]) {
        let code = self.codes[self.nodes[0] as usize];
        if code == EQUAL {
            return;
        }
        // What the code says is shared with the base is there already.
        self.base_bytes = key.len();
        let columns = key.len() / COLUMN_BYTES + 1;
        if columns > self.base.len() {
            self.base.resize(columns, 0);
        }
        for column in column_of(code)..columns {
            self.base[column] = symbol(key, column).0;
        }
    }

    /// The key that was remembered last.
    pub(super) fn base(&self) -> Vec<u8> {
        let columns = self.base.iter().flat_map(|column| column.to_be_bytes());
        columns.take(self.base_bytes).collect()
    }

    /// Plays again after the winner's source has moved from the remembered key on to a key of rank
    /// `order`, or to its end.
    #[inline]
    pub(crate) fn replace_winner(&mut self, keys: &impl Keys, moved_to: Option<(&[u8], u64)>) {
        let mut source = self.nodes[0];
        let mut code = EXHAUSTED;
        if let Some((key, order)) = moved_to {
            code = self.code_after_base(key);
            self.orders[source as usize] = order;
        }
        self.codes[source as usize] = code;
        let mut node = (self.nodes.len() + source as usize) / 2;
        while node > 0 {
            let other = self.nodes[node];
            let other_code = self.codes[other as usize];
            let mut second = other_code < code;
            if other_code == code {
                second = self.break_tie(source, other, keys);
            }
            self.nodes[node] = select_unpredictable(second, source, other);
            source = select_unpredictable(second, other, source);
            code = select_unpredictable(second, other_code, code);
            node /= 2;
        }
        self.nodes[0] = source;
    }

    /// Whether source `b` comes before source `a`, whose code is the same. Where bytes had to be
    /// compared, the loser's code becomes relative to the winner.
    fn break_tie(&mut self, a: u32, b: u32, keys: &impl Keys) -> bool {
        let (at_a, at_b) = (a as usize, b as usize);
        let code = self.codes[at_a];
        if code == EXHAUSTED {
            return false;
        }
        let whole_column = ((code ^ self.flip) & 0xff) as usize == COLUMN_BYTES;
        if code != EQUAL && whole_column {
            let column = column_of(code) + 1;
            let (key_a, key_b) = (keys.key(at_a), keys.key(at_b));
            let code_a = self.code_between(key_a, key_b, column);
            let code_b = self.code_between(key_b, key_a, column);
            // Both name the same column, so its symbols decide; or both are `EQUAL`.
            if code_a != code_b {
                let second = code_b < code_a;
                if second {
                    self.codes[at_a] = code_a;
                } else {
                    self.codes[at_b] = code_b;
                }
                return second;
            }
        }
        let mirror = if self.flip == 0 { 0 } else { u32::MAX };
        let second = (self.orders[at_b], b ^ mirror) < (self.orders[at_a], a ^ mirror);
        self.codes[if second { at_a } else { at_b }] = EQUAL;
        second
    }

    #[inline(always)]
    fn code(&self, column: usize, (bytes, count): (u64, u8)) -> u128 {
        let symbol = u128::from(bytes) << 8 | u128::from(count);
        u128::from(u32::MAX - column as u32) << SYMBOL_BITS | (symbol ^ self.flip)
    }

    /// The code of `key` relative to the base.
    #[inline(always)]
    fn code_after_base(&self, key: &[u8]) -> u128 {
        let (chunks, _) = key.as_chunks::<COLUMN_BYTES>();
        let whole = self.base_bytes.min(key.len()) / COLUMN_BYTES;
        for (column, (chunk, of_base)) in chunks.iter().zip(&self.base).take(whole).enumerate() {
            let of_key = u64::from_be_bytes(*chunk);
            if of_key != *of_base {
                return self.code(column, (of_key, COLUMN_BYTES as u8));
            }
        }
        let rest = (self.base_bytes - whole * COLUMN_BYTES).min(COLUMN_BYTES) as u8;
        let of_base = (self.base.get(whole).map_or(0, |column| *column), rest);
        let of_key = symbol(key, whole);
        if of_key == of_base { EQUAL } else { self.code(whole, of_key) }
    }

    /// The code of `key` relative to `base`, both equal before `column`.
    fn code_between(&self, key: &[u8], base: &[u8], column: usize) -> u128 {
        let mut column = column;
        loop {
            let (of_key, of_base) = (symbol(key, column), symbol(base, column));
            if of_key != of_base {
                return self.code(column, of_key);
            }
            if usize::from(of_key.1) < COLUMN_BYTES {
                return EQUAL;
            }
            column += 1;
        }
    }
}

/// The column that a code is about.
#[inline(always)]
fn column_of(code: u128) -> usize {
    (u32::MAX - (code >> SYMBOL_BITS) as u32) as usize
}

/// A column of a key as a number that compares as its bytes do, with how many bytes it has: a key
/// that ends here comes before those that go on with zeros.
#[inline(always)]
fn symbol(key: &[u8], column: usize) -> (u64, u8) {
    let rest = key.get(column * COLUMN_BYTES..).unwrap_or_default();
    let bytes = match (rest.first_chunk::<COLUMN_BYTES>(), key.last_chunk::<COLUMN_BYTES>()) {
        (Some(bytes), _) => return (u64::from_be_bytes(*bytes), COLUMN_BYTES as u8),
        _ if rest.is_empty() => 0,
        // The last bytes of the key, without those of the column before.
        (None, Some(bytes)) => {
            u64::from_be_bytes(*bytes) << (8 * (COLUMN_BYTES - rest.len()) as u32)
        }
        (None, None) => {
            let bytes = rest.iter().fold(0, |bytes, &byte| bytes << 8 | u64::from(byte));
            bytes << (8 * (COLUMN_BYTES - rest.len()) as u32)
        }
    };
    (bytes, rest.len() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lists(Vec<Vec<(Vec<u8>, u64)>>);

    impl Keys for Lists {
        fn key(&self, source: usize) -> &[u8] {
            &self.0[source].last().unwrap().0
        }
    }

    /// Merges lists that are consumed from their ends.
    fn drain(lists: Vec<Vec<(Vec<u8>, u64)>>, backwards: bool) -> Vec<(Vec<u8>, u64)> {
        let mut lists = Lists(lists);
        let mut tree = LoserTree::default();
        let mut out: Vec<(Vec<u8>, u64)> = Vec::new();
        tree.build(lists.0.len(), backwards, &lists, |i| lists.0[i].last().map(|e| e.1));
        let mut first = true;
        while let Some(winner) = tree.winner() {
            let entry = lists.0[winner].pop().unwrap();
            let equal = out.last().is_some_and(|last| last.0 == entry.0);
            assert!(first || tree.winner_equals_base() == equal);
            first = false;
            tree.remember_winner(&entry.0);
            out.push(entry);
            tree.replace_winner(&lists, lists.0[winner].last().map(|e| (&e.0[..], e.1)));
        }
        out
    }

    proptest::proptest! {
        #[test]
        fn any_lists_come_out_sorted_both_ways(
            // Few distinct bytes, 0 among them, and lengths around whole columns.
            keys in proptest::collection::vec(
                (proptest::collection::vec(0u8..3, 0..26), proptest::bool::ANY, 0usize..7), 0..60),
            sources in 1usize..7,
        ) {
            let mut lists = vec![Vec::new(); sources];
            for (i, (key, prefixed, source)) in keys.into_iter().enumerate() {
                let key = if prefixed { [vec![1; 16], key].concat() } else { key };
                lists[source % sources].push((key, i as u64));
            }
            let mut expected: Vec<_> = lists.concat();
            expected.sort();
            let forward: Vec<Vec<_>> = lists.iter().cloned().map(|mut list| {
                list.sort();
                list.reverse();
                list
            }).collect();
            proptest::prop_assert_eq!(drain(forward, false), expected.clone());
            // Backwards by key, ranks ascending among equal keys.
            expected.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            let backward: Vec<Vec<_>> = lists.into_iter().map(|mut list| {
                list.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
                list
            }).collect();
            proptest::prop_assert_eq!(drain(backward, true), expected);
        }
    }
}
