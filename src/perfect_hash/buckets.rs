//! Hashes by bucket, and what constructions take and return.

/// The sizes of a segment, for its readers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) slots: u32,
    pub(super) buckets: u32,
    pub(super) dictionary: u32,
}

/// What a construction has built.
pub(super) struct Built {
    pub(super) buckets: u32,
    pub(super) dictionary: u32,
    pub(super) body: Vec<u8>,
}

/// Hashes by bucket, for both constructions.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    /// The hashes, bucket by bucket.
    hashes: Vec<u64>,
    /// Where each bucket begins in `hashes`; one more at the end.
    starts: Vec<u32>,
    /// The buckets by decreasing size, those without hashes left out.
    pub(super) order: Vec<u32>,
    /// The bucket of each hash, then positions; only while they are distributed.
    of: Vec<u32>,
}

impl Buckets {
    /// Distributes hashes to buckets. Buckets of one size are in order of their numbers.
    pub(super) fn fill(&mut self, hashes: &[u64], buckets: usize, bucket: impl Fn(u64) -> usize) {
        self.starts.clear();
        self.starts.resize(buckets + 1, 0);
        self.of.clear();
        self.of.extend(hashes.iter().map(|&hash| bucket(hash) as u32));
        for &bucket in &self.of {
            self.starts[bucket as usize] += 1;
        }
        let mut end = 0;
        let mut size_max = 0;
        for start in &mut self.starts {
            size_max = size_max.max(*start);
            end += *start;
            // From here on it descends as the bucket is filled.
            *start = end;
        }
        self.hashes.clear();
        self.hashes.resize(hashes.len(), 0);
        for (&bucket, &hash) in self.of.iter().zip(hashes) {
            let place = &mut self.starts[bucket as usize];
            *place -= 1;
            self.hashes[*place as usize] = hash;
        }
        let mut counts = vec![0u32; size_max as usize + 1];
        let size = |starts: &[u32], bucket: usize| starts[bucket + 1] - starts[bucket];
        for bucket in 0..buckets {
            counts[size(&self.starts, bucket) as usize] += 1;
        }
        let mut place = 0;
        for count in counts[1..].iter_mut().rev() {
            place += std::mem::replace(count, place);
        }
        self.order.clear();
        self.order.resize(place as usize, 0);
        for bucket in 0..buckets {
            let size = size(&self.starts, bucket) as usize;
            if size > 0 {
                self.order[counts[size] as usize] = bucket as u32;
                counts[size] += 1;
            }
        }
    }

    /// The hashes of a bucket.
    #[inline(always)]
    pub(super) fn of(&self, bucket: u32) -> &[u64] {
        let bucket = bucket as usize;
        &self.hashes[self.starts[bucket] as usize..self.starts[bucket + 1] as usize]
    }

    /// The number of hashes in a bucket.
    #[inline(always)]
    pub(super) fn size(&self, bucket: u32) -> usize {
        let bucket = bucket as usize;
        (self.starts[bucket + 1] - self.starts[bucket]) as usize
    }
}
