//! [`Keys`], an iterator over keys that reads no value from a blob file.

use super::{DamagedRange, End, Inner, Iter};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::slice::Slice;

/// A double-ended iterator over the keys of an [`Iter`], made by [`Iter::keys`].
pub struct Keys(Iter);

impl Iter {
    /// Turns this into an iterator over the keys that are left. It reads no value from a blob file, and folds no
    /// merge operands: a key with operands that cannot be folded is a key.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// items.put("a", "1")?;
    /// items.put("b", "2")?;
    /// let keys: Vec<_> = items.iter().keys().collect::<spinney::Result<_>>()?;
    /// assert_eq!(keys, ["a".into(), "b".into()] as [spinney::Slice; 2]);
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> Keys {
        if let Some(inner) = self.inner.as_ref().filter(|_| self.birthplace.is_here()) {
            inner.enter().only_keys();
        }
        Keys(self)
    }
}

impl Keys {
    /// The next key, and the number of its newest version.
    pub(crate) fn next_version(&mut self) -> Option<Result<(Slice, Seqno)>> {
        self.0.step(Inner::next_version).map(|pair| {
            let (key, number) = pair?;
            let number = <[u8; 8]>::try_from(&*number).unwrap_or_default();
            Ok((key, Seqno(u64::from_le_bytes(number))))
        })
    }

    /// Returns the range of keys that the last error is about. As [`Iter::damaged_range`].
    pub fn damaged_range(&self) -> Option<&DamagedRange> {
        self.0.damaged_range()
    }
}

impl Iterator for Keys {
    type Item = Result<Slice>;

    #[inline]
    fn next(&mut self) -> Option<Result<Slice>> {
        self.0.step(Inner::next_front).map(|pair| pair.map(|(key, _)| key))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Result<Slice>> {
        self.0.step(Inner::next_back).map(|pair| pair.map(|(key, _)| key))
    }
}

impl std::iter::FusedIterator for Keys {}

impl Inner {
    fn only_keys(&mut self) {
        self.keys_only = true;
        self.values = None;
        for open in [&mut self.front.open, &mut self.back.open].into_iter().flatten() {
            open.visible.only_keys();
        }
    }

    /// Advances the front. Returns its key, and the number of its newest version.
    fn next_version(&mut self) -> Result<Option<(Slice, Slice)>> {
        let Some((key, _)) = self.next_front()? else { return Ok(None) };
        let current = self.front.open.as_ref().and_then(|open| open.visible.current());
        let Seqno(number) = current.map(|current| current.seqno).unwrap_or_default();
        Ok(Some((key, Slice::from(&number.to_le_bytes()))))
    }

    /// The current key of an end, with an empty value.
    pub(super) fn key_alone(&mut self, end: End) -> Option<(Slice, Slice)> {
        let open = match end {
            End::Front => self.front.open.as_ref(),
            End::Back => self.back.open.as_ref(),
        };
        let key = open.and_then(|open| open.last()).map(Slice::from)?;
        self.count_read(key.len());
        Some((key, Slice::default()))
    }
}
