//! A pairwise merge of sorted runs that fit the processor's caches, without data-dependent
//! branches.

/// Sorted runs of numbers, with buffers to merge them.
#[derive(Default)]
pub(crate) struct Runs {
    numbers: Vec<u64>,
    ends: Vec<usize>,
    merged: Vec<u64>,
    merged_ends: Vec<usize>,
}

impl Runs {
    /// The buffer for the numbers of the next run, sorted. [`Runs::end_run`] ends the run.
    #[inline]
    pub(crate) fn run(&mut self) -> &mut Vec<u64> {
        &mut self.numbers
    }

    /// Ends a run: the numbers appended since the last call.
    pub(crate) fn end_run(&mut self) {
        if self.ends.last().copied().unwrap_or(0) < self.numbers.len() {
            self.ends.push(self.numbers.len());
        }
    }

    /// Removes all runs.
    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.ends.clear();
    }

    /// All numbers of all runs, sorted.
    pub(crate) fn merge(&mut self) -> &mut Vec<u64> {
        while self.ends.len() > 1 {
            self.merged.resize(self.numbers.len(), 0);
            self.merged_ends.clear();
            let mut start = 0;
            for pair in self.ends.chunks(2) {
                let middle = pair[0];
                let end = pair.last().copied().unwrap_or(middle);
                merge_two(
                    &self.numbers[start..middle],
                    &self.numbers[middle..end],
                    &mut self.merged[start..end],
                );
                self.merged_ends.push(end);
                start = end;
            }
            std::mem::swap(&mut self.numbers, &mut self.merged);
            std::mem::swap(&mut self.ends, &mut self.merged_ends);
        }
        &mut self.numbers
    }
}

/// Merges `a` and `b` into `out`, which has the length of both: the lower half from the front and
/// the upper half from the back, in alternating steps. Each half is a chain of dependent steps, so
/// two chains take little more time than one. A run that has ended looks like one of the greatest
/// number (from the back: the least), which is never chosen before real numbers.
fn merge_two(a: &[u64], b: &[u64], out: &mut [u64]) {
    let (mut i, mut j) = (0, 0);
    let mut from_front = || {
        let x = a.get(i).copied().unwrap_or(u64::MAX);
        let y = b.get(j).copied().unwrap_or(u64::MAX);
        let first = x <= y;
        i += usize::from(first);
        j += usize::from(!first);
        if first { x } else { y }
    };
    // One past the next, so that the index before the front wraps to one past every end.
    let (mut k, mut l) = (a.len(), b.len());
    let mut from_back = || {
        let x = a.get(k.wrapping_sub(1)).copied().unwrap_or(0);
        let y = b.get(l.wrapping_sub(1)).copied().unwrap_or(0);
        let second = x <= y;
        k = k.wrapping_sub(usize::from(!second));
        l = l.wrapping_sub(usize::from(second));
        if second { y } else { x }
    };
    let (lower, upper) = out.split_at_mut(out.len() / 2);
    let (middle, upper) = upper.split_at_mut(upper.len() - lower.len());
    for (low, high) in lower.iter_mut().zip(upper.iter_mut().rev()) {
        *low = from_front();
        *high = from_back();
    }
    middle.fill_with(from_front);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    #[test]
    fn merging_runs_is_sorting() {
        let mut random = SplitMix::new(8);
        let mut runs = Runs::default();
        for count in 0..40 {
            runs.clear();
            let mut expected = Vec::new();
            for _ in 0..count {
                let mut run: Vec<u64> =
                    (0..random.next() % 20).map(|_| random.next() % 50).collect();
                run.sort_unstable();
                runs.run().extend_from_slice(&run);
                runs.end_run();
                expected.extend(run);
            }
            expected.sort_unstable();
            assert_eq!(*runs.merge(), expected);
        }
    }
}
