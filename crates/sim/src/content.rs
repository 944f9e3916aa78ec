//! The bytes of a file, in pages that copies share until one of them writes.
//!
//! Invariants:
//! 1. A page that was never written is not allocated and reads as zeros.
//! 2. Bytes of a page past the file's end are zero.

use std::sync::Arc;

use crate::random::{fingerprint, mix};

const PAGE_BYTES: usize = 4096;

/// A file's bytes.
#[derive(Debug, Clone, Default)]
pub struct Content {
    len: u64,
    pages: Vec<Option<Arc<[u8; PAGE_BYTES]>>>,
}

impl Content {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no byte of the page that `offset` lies in was ever written.
    pub fn is_blank(&self, offset: u64) -> bool {
        self.pages.get(place(offset).0).is_none_or(Option::is_none)
    }

    /// Fills `buf` from `offset`; false if the file ends before.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return false;
        }
        let mut done = 0;
        while done < buf.len() {
            let (page, at) = place(offset + done as u64);
            let n = (PAGE_BYTES - at).min(buf.len() - done);
            match &self.pages[page] {
                Some(bytes) => buf[done..done + n].copy_from_slice(&bytes[at..at + n]),
                None => buf[done..done + n].fill(0),
            }
            done += n;
        }
        true
    }

    /// As `read`, with zeros past the end.
    pub fn read_some(&self, offset: u64, buf: &mut [u8]) {
        let there = (self.len.saturating_sub(offset)).min(buf.len() as u64) as usize;
        self.read(offset, &mut buf[..there]);
        buf[there..].fill(0);
    }

    /// What all bytes come to: equal for equal bytes.
    pub fn fingerprint(&self) -> u64 {
        let pages = self.pages.iter().enumerate().filter_map(|(number, page)| {
            let bytes = page.as_ref()?;
            // Written zeros are as good as none.
            bytes
                .iter()
                .any(|byte| *byte != 0)
                .then(|| fingerprint(&number.to_le_bytes(), &bytes[..]))
        });
        pages.fold(mix(self.len), u64::wrapping_add)
    }

    /// Writes `bytes` at `offset`, extending the file as needed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.set_len(self.len.max(offset + bytes.len() as u64));
        let mut done = 0;
        while done < bytes.len() {
            let (page, at) = place(offset + done as u64);
            let n = (PAGE_BYTES - at).min(bytes.len() - done);
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[at..at + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
    }

    /// Cuts or zero-extends the file.
    pub fn set_len(&mut self, len: u64) {
        self.pages.resize(len.div_ceil(PAGE_BYTES as u64) as usize, None);
        let (_, tail) = place(len);
        if len < self.len
            && tail > 0
            && let Some(Some(last)) = self.pages.last_mut()
        {
            Arc::make_mut(last)[tail..].fill(0);
        }
        self.len = len;
    }
}

fn place(offset: u64) -> (usize, usize) {
    ((offset / PAGE_BYTES as u64) as usize, (offset % PAGE_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn content_is_as_a_vector_of_bytes_and_copies_do_not_change() {
        let mut random = Random::new(&[1]);
        let (mut content, mut model) = (Content::default(), Vec::new());
        let mut copies = Vec::new();
        for step in 0..600 {
            let offset = random.below(14_000);
            if random.one_in(4) {
                content.set_len(offset as u64);
                model.resize(offset, 0);
            } else {
                let bytes = vec![step as u8; random.below(5000)];
                content.write(offset as u64, &bytes);
                if !bytes.is_empty() {
                    model.resize(model.len().max(offset + bytes.len()), 0);
                    model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            if step % 50 == 0 {
                copies.push((content.clone(), model.clone()));
            }
            let mut found = vec![1; model.len()];
            assert!(content.read(0, &mut found));
            assert!(found == model && content.len() == model.len() as u64);
            assert!(!content.read(1, &mut found) || model.is_empty());
        }
        for (content, model) in copies {
            let mut found = vec![1; model.len()];
            assert!(content.read(0, &mut found) && found == model);
        }
    }
}
