//! [`Simulated`]: a region that builds every state in which a power loss can leave persistent memory.
//!
//! The region records the stores to each cache line since the line was last written back. At each fence, before it
//! takes effect, and whenever a test asks, it passes images of the persistent memory to a check: each line holds a
//! prefix of its stores in program order. If there are at most [`IMAGES_MAX`] such images, these are all, else a
//! selection from a seed. As each fence and the end of each operation are checked, every crash is.
//!
//! The region also loses flushes or fences of one place in the code, to show that the check needs each of them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::Location;
use std::path::Path;

use super::{LINE_WORDS, Region, lines};
use crate::base::sync::plain::{AtomicU64, Mutex, Ordering};

/// All images are checked if they are no more than this; else this many are drawn.
pub(crate) const IMAGES_MAX: usize = 4096;

thread_local! {
    /// The place in the code that called [`super::flush`] or [`super::fence`].
    static SITE: Cell<Option<Site>> = const { Cell::new(None) };
}

/// A place in the code.
pub(crate) type Site = &'static Location<'static>;

/// Names the place of the next flush or fence of this thread.
pub(super) fn set_site(site: Site) {
    SITE.set(Some(site));
}

/// A flush or a fence of one place in the code, which is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    Flush(Site),
    Fence(Site),
}

/// A check of an image of the persistent memory.
pub(crate) type Check<'a> = dyn FnMut(&[u64]) + Send + 'a;

#[derive(Default)]
struct State {
    persistent: Vec<u64>,
    /// Of each line: the stores that are not known to be persistent.
    pending: BTreeMap<usize, Vec<(usize, u64)>>,
    /// Of each flushed line: how many of its pending stores the next fence makes persistent.
    flushed: BTreeMap<usize, usize>,
    sites: BTreeSet<Lost>,
    random: u64,
    images: u64,
}

impl State {
    fn draw(&mut self, below: usize) -> usize {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    /// The persistent words, with the first `taken` stores of each pending line.
    fn image(&self, taken: &[usize]) -> Vec<u64> {
        let mut image = self.persistent.clone();
        for (stores, &taken) in self.pending.values().zip(taken) {
            for &(word, value) in &stores[..taken] {
                image[word] = value;
            }
        }
        image
    }

    fn images(&mut self) -> Vec<Vec<u64>> {
        let lens: Vec<usize> = self.pending.values().map(Vec::len).collect();
        let count = lens.iter().try_fold(1usize, |all, len| {
            let all = all.checked_mul(len + 1)?;
            (all <= IMAGES_MAX).then_some(all)
        });
        let Some(count) = count else { return self.drawn_images(&lens) };
        let mut taken = vec![0; lens.len()];
        let mut images = Vec::with_capacity(count);
        loop {
            images.push(self.image(&taken));
            // The next number of a system whose digits have the bases `len + 1`.
            let Some(digit) = (0..lens.len()).find(|&digit| taken[digit] < lens[digit]) else {
                return images;
            };
            taken[digit] += 1;
            taken[..digit].fill(0);
        }
    }

    /// The two extreme images, those in which one line differs from all others, and drawn ones.
    fn drawn_images(&mut self, lens: &[usize]) -> Vec<Vec<u64>> {
        let mut all: Vec<Vec<usize>> = vec![vec![0; lens.len()], lens.to_vec()];
        for line in 0..lens.len() {
            let mut without = lens.to_vec();
            without[line] = 0;
            let mut only = vec![0; lens.len()];
            only[line] = lens[line];
            all.extend([without, only]);
        }
        while all.len() < IMAGES_MAX / 16 {
            all.push(lens.iter().map(|len| self.draw(len + 1)).collect());
        }
        all.iter().map(|taken| self.image(taken)).collect()
    }
}

/// See the module's description.
pub(crate) struct Simulated<'a> {
    words: Box<[AtomicU64]>,
    state: Mutex<State>,
    check: Mutex<Option<Box<Check<'a>>>>,
    lost: Option<Lost>,
}

impl std::fmt::Debug for Simulated<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl<'a> Simulated<'a> {
    /// A persistent region of zeros.
    pub(crate) fn new(words: usize, seed: u64, lost: Option<Lost>) -> Simulated<'a> {
        assert!(words.is_multiple_of(LINE_WORDS));
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = State { persistent: vec![0; words], random, ..State::default() };
        Simulated {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(state),
            check: Mutex::default(),
            lost,
        }
    }

    /// A persistent region with the words of an image.
    pub(crate) fn from_image(image: &[u64], seed: u64, lost: Option<Lost>) -> Simulated<'a> {
        let region = Simulated::new(image.len(), seed, lost);
        region.state.lock().persistent = image.to_vec();
        for (word, value) in region.words.iter().zip(image) {
            word.store(*value, Ordering::Release);
        }
        region
    }

    /// From now on, calls `check` with the images at each fence.
    pub(crate) fn set_check(&self, check: Box<Check<'a>>) {
        *self.check.lock() = Some(check);
    }

    /// Checks the images of now.
    pub(crate) fn check_now(&self) {
        let mut check = self.check.lock();
        if let Some(check) = check.as_mut() {
            let images = self.state.lock().images();
            self.state.lock().images += images.len() as u64;
            for image in images {
                check(&image);
            }
        }
    }

    /// The flushes and fences that were called so far.
    pub(crate) fn sites(&self) -> Vec<Lost> {
        self.state.lock().sites.iter().copied().collect()
    }

    /// How many images were checked.
    pub(crate) fn images_checked(&self) -> u64 {
        self.state.lock().images
    }

    /// Notes the call and returns whether it has an effect.
    fn takes_effect(&self, site: Option<Site>, call: fn(Site) -> Lost) -> bool {
        let Some(site) = site else { return true };
        self.state.lock().sites.insert(call(site));
        self.lost != Some(call(site))
    }
}

impl Region for Simulated<'_> {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn store(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
        let mut state = self.state.lock();
        state.pending.entry(word / LINE_WORDS).or_default().push((word, value));
    }

    fn flush(&self, words: Range<usize>) {
        if !self.takes_effect(SITE.get(), Lost::Flush) {
            return;
        }
        let mut state = self.state.lock();
        for line in lines(&words) {
            if let Some(stores) = state.pending.get(&line) {
                let count = stores.len();
                state.flushed.insert(line, count);
            }
        }
    }

    fn fence(&self) {
        // The check uses regions of its own.
        let site = SITE.get();
        self.check_now();
        if !self.takes_effect(site, Lost::Fence) {
            return;
        }
        let mut state = self.state.lock();
        for (line, count) in std::mem::take(&mut state.flushed) {
            let Some(mut stores) = state.pending.remove(&line) else { continue };
            let later = stores.split_off(count);
            for (word, value) in stores {
                state.persistent[word] = value;
            }
            if !later.is_empty() {
                state.pending.insert(line, later);
            }
        }
    }

    fn path(&self) -> &Path {
        Path::new("simulated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The images of a region in which `stores` were made, without repetitions.
    fn images(
        before: &[(usize, u64)],
        flushed: Range<usize>,
        after: &[(usize, u64)],
    ) -> BTreeSet<Vec<u64>> {
        let (sender, receiver) = mpsc::channel();
        let region = Simulated::new(2 * LINE_WORDS, 1, None);
        for &(word, value) in before {
            region.store(word, value);
        }
        super::super::persist(&region, flushed);
        for &(word, value) in after {
            region.store(word, value);
        }
        region.set_check(Box::new(move |image: &[u64]| {
            sender.send(vec![image[0], image[1], image[8]]).expect("a receiver");
        }));
        region.check_now();
        drop(region);
        receiver.into_iter().collect()
    }

    #[test]
    fn a_line_holds_a_prefix_of_its_stores_and_lines_are_independent() {
        let found = images(&[], 0..0, &[(0, 1), (1, 2), (8, 3)]);
        let expected = [[0, 0, 0], [1, 0, 0], [1, 2, 0], [0, 0, 3], [1, 0, 3], [1, 2, 3]];
        assert_eq!(found, expected.map(|image| image.to_vec()).into());
    }

    #[test]
    fn what_was_flushed_and_fenced_stays() {
        let found = images(&[(0, 1), (8, 3)], 0..1, &[(1, 2)]);
        let expected = [[1, 0, 0], [1, 2, 0], [1, 0, 3], [1, 2, 3]];
        assert_eq!(found, expected.map(|image| image.to_vec()).into());
    }

    #[test]
    fn many_images_are_drawn() {
        let region = Simulated::new(64 * LINE_WORDS, 1, None);
        (0..64).for_each(|line| region.store(line * LINE_WORDS, 1));
        let (sender, receiver) = mpsc::channel();
        region.set_check(Box::new(move |image: &[u64]| {
            sender.send(image.iter().sum::<u64>()).expect("a receiver");
        }));
        region.check_now();
        drop(region);
        let sums: BTreeSet<u64> = receiver.into_iter().collect();
        for sum in [0, 1, 63, 64] {
            assert!(sums.contains(&sum), "no image with {sum} lines");
        }
    }
}
