//! Searches for an order that explains a history, from the beginning, with backtracking. A state is
//! a position in each chain and the value of each key.
//!
//! An observer that can be next is taken at once, because it changes nothing for the others. A
//! commit is taken only if no remaining observer must still see the value that it replaces.
//!
//! An early wrong choice shows late, and backtracking from there may never end. So the search
//! restarts from time to time and prefers other commits. States known to fail are remembered.
//!
//! Invariants:
//! 1. A state (positions and values) from which the search failed is not tried twice.

use std::collections::BTreeSet;

use super::index::{Index, Source};
use super::order::Order;
use crate::random::mix;

/// What has been found.
pub(super) enum Search {
    /// An order of all nodes.
    Found(Vec<usize>),
    /// There is none; where the longest try ended.
    None(Vec<usize>),
    /// Neither, after so many tries.
    GaveUp(usize),
}

const TRIES_MAX: usize = 200_000;

/// After so many the search begins anew.
const TRIES_BEFORE_RESTART: usize = 20_000;

struct Taken {
    node: usize,
    /// What its keys held before.
    replaced: Vec<Source>,
    /// The others that could have been taken instead; none for an observer.
    others: Vec<usize>,
}

struct State<'a> {
    index: &'a Index,
    order: &'a Order<'a>,
    /// How many of each chain have been taken.
    places: Vec<u32>,
    /// What each key holds.
    holds: Vec<Source>,
    /// How many have yet to see each version.
    waiting: Vec<u32>,
    taken: Vec<Taken>,
    restarts: u64,
    hash: u64,
    dead: BTreeSet<u64>,
}

/// Looks for an order.
pub(super) fn find(index: &Index, order: &Order<'_>) -> Search {
    let mut state = State {
        index,
        order,
        places: vec![0; index.chains.len()],
        holds: vec![Source::Absent; index.keys.len()],
        waiting: index.seen_by.iter().map(|sights| sights.len() as u32).collect(),
        taken: Vec::with_capacity(index.nodes.len()),
        restarts: 0,
        hash: 0,
        dead: BTreeSet::new(),
    };
    let mut tries = 0;
    let mut furthest = (0, Vec::new());
    while state.taken.len() < index.nodes.len() {
        if state.go_on() {
            continue;
        }
        if furthest.0 <= state.taken.len() {
            furthest = (state.taken.len(), state.heads().collect());
        }
        tries += 1;
        if tries > TRIES_MAX {
            return Search::GaveUp(tries);
        }
        if !state.go_back() {
            return Search::None(furthest.1);
        }
        if tries.is_multiple_of(TRIES_BEFORE_RESTART) {
            state.begin_anew();
        }
    }
    Search::Found(state.taken.into_iter().map(|taken| taken.node).collect())
}

impl State<'_> {
    /// The next node of each chain.
    fn heads(&self) -> impl Iterator<Item = usize> + '_ {
        let chains = self.index.chains.iter().zip(&self.places);
        chains.filter_map(|(chain, place)| chain.get(*place as usize).copied())
    }

    fn go_on(&mut self) -> bool {
        let ready: Vec<usize> = self
            .heads()
            .filter(|&node| {
                let clock = self.order.clock(node);
                clock.iter().zip(&self.places).all(|(least, place)| least <= place)
            })
            .collect();
        let observer = |node: &usize| self.index.nodes[*node].versions.is_empty();
        if let Some(&node) = ready.iter().find(|node| observer(node) && self.sees(**node)) {
            self.take(node, Vec::new());
            return true;
        }
        if self.dead.contains(&self.hash) {
            return false;
        }
        let mut commits: Vec<usize> =
            ready.into_iter().filter(|node| !observer(node) && self.may_commit(*node)).collect();
        // Who must be done first is taken first, so last in the list.
        commits.sort_by_key(|&node| std::cmp::Reverse(self.preference(node)));
        match commits.pop() {
            Some(node) => {
                self.take(node, commits);
                true
            }
            None => {
                self.dead.insert(self.hash);
                false
            }
        }
    }

    /// Which of the commits that can be next is taken first: by their ends, in later searches by
    /// about their ends.
    fn preference(&self, node: usize) -> u64 {
        let about = match self.restarts {
            0 => 0,
            again => mix(mix(node as u64) ^ again) % (again * self.places.len() as u64 * 4),
        };
        self.index.nodes[node].ended + about
    }

    fn begin_anew(&mut self) {
        while let Some(taken) = self.taken.pop() {
            self.undo(&taken);
        }
        self.restarts += 1;
    }

    /// Undoes until something else can be taken.
    fn go_back(&mut self) -> bool {
        while let Some(taken) = self.taken.pop() {
            self.undo(&taken);
            let mut others = taken.others;
            if self.index.nodes[taken.node].versions.is_empty() {
                continue;
            }
            match others.pop() {
                Some(node) => {
                    self.take(node, others);
                    return true;
                }
                None => {
                    self.dead.insert(self.hash);
                }
            }
        }
        false
    }

    fn holds_what_is_seen(&self, key: usize, source: Source) -> bool {
        match source {
            Source::Version(_) => self.holds[key] == source,
            Source::Absent => match self.holds[key] {
                Source::Absent => true,
                Source::Version(version) => self.index.versions[version].is_absent(),
            },
        }
    }

    fn sees(&self, node: usize) -> bool {
        self.index.nodes[node].reads.iter().all(|&sight| {
            let sight = &self.index.sights[sight];
            self.holds_what_is_seen(sight.key, sight.source)
        })
    }

    fn may_commit(&self, node: usize) -> bool {
        self.sees(node)
            && self.index.nodes[node].versions.iter().all(|&version| {
                let key = self.index.versions[version].key;
                match self.holds[key] {
                    Source::Version(held) if !self.index.versions[held].is_absent() => {
                        let mut own = self.index.nodes[node].reads.iter();
                        let own = own.any(|&sight| self.index.sights[sight].key == key);
                        self.waiting[held] <= u32::from(own)
                    }
                    _ => self.index.versions[version].is_absent() || self.may_appear(key, node),
                }
            })
    }

    /// Whether nobody is left behind who has yet to see nothing in `key`, if `node` puts it.
    fn may_appear(&self, key: usize, node: usize) -> bool {
        let index = self.index;
        self.heads().filter(|&other| other != node && !self.order.is_before(node, other)).all(
            |other| {
                let reads = &index.nodes[other].reads;
                let at = reads.binary_search_by_key(&key, |&sight| index.sights[sight].key);
                let absent = at.is_ok_and(|at| index.sights[reads[at]].source == Source::Absent);
                // Somebody may delete it again before that one's turn.
                !absent
                    || index.written[key].iter().enumerate().any(|(chain, written)| {
                        let place = self.places[chain];
                        let taken = written.deletes.partition_point(|&version| {
                            index.nodes[index.versions[version].node].place < place
                        });
                        let next = written.deletes.get(taken);
                        let next = next.map(|&version| index.versions[version].node);
                        next.is_some_and(|n| n != node && !self.order.is_before(other, n))
                    })
            },
        )
    }

    fn take(&mut self, node: usize, others: Vec<usize>) {
        let index = self.index;
        self.move_chain(index.nodes[node].chain, 1);
        for &sight in &index.nodes[node].reads {
            if let Source::Version(version) = index.sights[sight].source {
                self.waiting[version] -= 1;
            }
        }
        let mut replaced = Vec::with_capacity(index.nodes[node].versions.len());
        for &version in &index.nodes[node].versions {
            let key = index.versions[version].key;
            replaced.push(self.hold(key, Source::Version(version)));
        }
        self.taken.push(Taken { node, replaced, others });
    }

    fn undo(&mut self, taken: &Taken) {
        let found = &self.index.nodes[taken.node];
        self.move_chain(found.chain, -1);
        for &sight in &found.reads {
            if let Source::Version(version) = self.index.sights[sight].source {
                self.waiting[version] += 1;
            }
        }
        for (&version, &source) in found.versions.iter().zip(&taken.replaced) {
            self.hold(self.index.versions[version].key, source);
        }
    }

    fn move_chain(&mut self, chain: usize, by: i32) {
        let part = |place: u32| mix(mix(chain as u64) ^ u64::from(place));
        let place = &mut self.places[chain];
        self.hash ^= part(*place);
        *place = place.wrapping_add_signed(by);
        self.hash ^= part(*place);
    }

    fn hold(&mut self, key: usize, source: Source) -> Source {
        let part = |source: Source| match source {
            Source::Absent => 0,
            Source::Version(version) => mix(mix(key as u64 ^ 0x5eed) ^ version as u64),
        };
        let before = std::mem::replace(&mut self.holds[key], source);
        self.hash ^= part(before) ^ part(source);
        before
    }
}
