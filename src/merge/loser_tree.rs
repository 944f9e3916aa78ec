//! A tournament among sorted sources, decided mostly by integer comparisons.
//!
//! A key is read as a sequence of 8-byte *columns*. A source's *code* says where its key first differs
//! from the key that won last (the base) and by which column: of two keys not before the base, the one
//! that shares more columns with it comes first, and of two that share equally many, the one with the
//! smaller next column. So bytes are compared only to compute the code of a source that has advanced
//! and where two codes are equal, each column of a key about once however long the shared prefix is.
//! (Offset-value coding, after Conner and after Graefe and Do.)
//!
//! Invariants:
//! 1. The code of a loser is relative to the key it lost to; on the path of the last winner that is
//!    the last winner's key, so all codes met when it is replaced are relative to the base.
//! 2. Code 0 is a key equal to the base. Equal keys are ordered by `order`, then by source.
//! 3. Backwards, columns compare inverted and so does everything else; the base is then the key that
//!    no key in play is after.

/// The keys of the sources in play.
pub(super) trait Keys {
    /// The key that the source stands at; it has one.
    fn key(&self, source: usize) -> &[u8];
}

const COLUMN_BYTES: usize = 8;
const SYMBOL_BITS: u32 = 72;
const SYMBOL_MASK: u128 = (1 << SYMBOL_BITS) - 1;
const EQUAL: u128 = 0;
const EXHAUSTED: u128 = u128::MAX;

#[derive(Debug, Clone, Copy)]
struct Player {
    code: u128,
    order: u64,
    source: u32,
}

/// The tournament. Knows codes and orders; keys are asked for when codes do not decide.
#[derive(Debug, Default)]
pub(super) struct LoserTree {
    /// The winner at 0, then the losers of the inner nodes 1..n; source `i`'s parent is `(n + i) / 2`.
    nodes: Vec<Player>,
    /// The key of the last winner, see `remember_winner`.
    base: Vec<u8>,
    /// All ones in the symbol's bits when playing backwards.
    flip: u128,
    scratch: Vec<Player>,
}

impl LoserTree {
    /// Starts anew with `count` sources. `order` gives the rank among equal keys of the entry that a
    /// source stands at, smaller first, or `None` if it stands nowhere.
    pub(super) fn build(
        &mut self,
        count: usize,
        backwards: bool,
        keys: &impl Keys,
        order: impl Fn(usize) -> Option<u64>,
    ) {
        self.flip = if backwards { SYMBOL_MASK } else { 0 };
        self.nodes.clear();
        self.scratch.clear();
        let Some(first) = (0..count).map(|source| self.player(source, keys, &order)).next() else {
            return;
        };
        self.nodes.resize(count, first);
        self.scratch.resize(2 * count, first);
        for source in 0..count {
            self.scratch[count + source] = self.player(source, keys, &order);
        }
        for node in (1..count).rev() {
            let (mut a, mut b) = (self.scratch[2 * node], self.scratch[2 * node + 1]);
            if b.code < a.code || b.code == a.code && self.break_tie(&mut a, &mut b, keys) {
                std::mem::swap(&mut a, &mut b);
            }
            self.scratch[node] = a;
            self.nodes[node] = b;
        }
        self.nodes[0] = self.scratch[1];
    }

    /// A source with its code relative to a key before (or, backwards, after) all keys.
    fn player(
        &self,
        source: usize,
        keys: &impl Keys,
        order: &impl Fn(usize) -> Option<u64>,
    ) -> Player {
        let (code, order) = match order(source) {
            Some(order) => (self.code(0, symbol(keys.key(source), 0)), order),
            None => (EXHAUSTED, 0),
        };
        Player { code, order, source: source as u32 }
    }

    /// The source that stands at the first entry (backwards: the last), if any stands somewhere.
    #[inline]
    pub(super) fn winner(&self) -> Option<usize> {
        match self.nodes.first() {
            Some(winner) if winner.code != EXHAUSTED => Some(winner.source as usize),
            _ => None,
        }
    }

    /// Whether the winner's key equals the last winner's (the one remembered last).
    #[inline]
    pub(super) fn winner_equals_base(&self) -> bool {
        self.nodes.first().is_some_and(|winner| winner.code == EQUAL)
    }

    /// The key of the last winner.
    #[inline]
    pub(super) fn base(&self) -> &[u8] {
        &self.base
    }

    /// Notes the winner's key; to be called before its source moves.
    #[inline]
    pub(super) fn remember_winner(&mut self, key: &[u8]) {
        self.base.clear();
        self.base.extend_from_slice(key);
    }

    /// Plays again after the winner's source has moved from the remembered key on to an entry of rank
    /// `order`, or to its end.
    #[inline]
    pub(super) fn replace_winner(&mut self, keys: &impl Keys, order: Option<u64>) {
        let count = self.nodes.len();
        let source = self.nodes[0].source as usize;
        let code = match order {
            Some(_) => self.code_between(keys.key(source), &self.base, 0),
            None => EXHAUSTED,
        };
        let mut player = Player { code, order: order.unwrap_or(0), source: source as u32 };
        let mut node = (count + source) / 2;
        while node > 0 {
            let mut other = self.nodes[node];
            if other.code < player.code {
                self.nodes[node] = player;
                player = other;
            } else if other.code == player.code {
                if self.break_tie(&mut player, &mut other, keys) {
                    std::mem::swap(&mut player, &mut other);
                }
                self.nodes[node] = other;
            }
            node /= 2;
        }
        self.nodes[0] = player;
    }

    /// Whether `b` comes before `a`, whose code is the same. Where bytes had to be compared, the
    /// loser's code becomes relative to the winner.
    fn break_tie(&self, a: &mut Player, b: &mut Player, keys: &impl Keys) -> bool {
        if a.code == EXHAUSTED {
            return false;
        }
        let whole_column = ((a.code ^ self.flip) & 0xff) as usize == COLUMN_BYTES;
        if a.code != EQUAL && whole_column {
            let column = (u32::MAX - (a.code >> SYMBOL_BITS) as u32) as usize + 1;
            let (key_a, key_b) = (keys.key(a.source as usize), keys.key(b.source as usize));
            let code_a = self.code_between(key_a, key_b, column);
            let code_b = self.code_between(key_b, key_a, column);
            // Both name the same column, so its symbols decide; or both are `EQUAL`.
            if code_a != code_b {
                let second = code_b < code_a;
                if second {
                    a.code = code_a;
                } else {
                    b.code = code_b;
                }
                return second;
            }
        }
        let mirror = if self.flip == 0 { 0 } else { u32::MAX };
        let second = (b.order, b.source ^ mirror) < (a.order, a.source ^ mirror);
        (if second { a } else { b }).code = EQUAL;
        second
    }

    #[inline(always)]
    fn code(&self, column: usize, (bytes, count): (u64, u8)) -> u128 {
        let symbol = u128::from(bytes) << 8 | u128::from(count);
        u128::from(u32::MAX - column as u32) << SYMBOL_BITS | (symbol ^ self.flip)
    }

    /// The code of `key` relative to `base`, both equal before `column`.
    #[inline]
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

/// A column of a key as a number that compares as its bytes do, with how many bytes it has: a key
/// that ends here comes before those that go on with zeros.
#[inline(always)]
fn symbol(key: &[u8], column: usize) -> (u64, u8) {
    let rest = key.get(column * COLUMN_BYTES..).unwrap_or_default();
    match rest.first_chunk::<COLUMN_BYTES>() {
        Some(bytes) => (u64::from_be_bytes(*bytes), COLUMN_BYTES as u8),
        None => {
            let mut bytes = [0; COLUMN_BYTES];
            bytes[..rest.len()].copy_from_slice(rest);
            (u64::from_be_bytes(bytes), rest.len() as u8)
        }
    }
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
            let order = lists.0[winner].last().map(|e| e.1);
            tree.replace_winner(&lists, order);
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
