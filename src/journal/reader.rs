//! One shard of one epoch, read record by record in rising sequence numbers.
//!
//! The rules by which a bad record is a torn tail or damage are in the module's documentation
//! (`journal/mod.rs`); `ShardReader::judge` applies them.

use std::path::{Path, PathBuf};

use super::format::{Position, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentId};
use super::search::Later;
use super::window::{Found, Window};
use crate::base::error::{Error, Result};
use crate::vfs::{Access, Vfs};

/// A segment file as found in the directory.
pub(super) struct SegmentFile {
    pub(super) id: SegmentId,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// The last sequence number read from it.
    pub(super) last: u64,
}

/// How a shard's records end.
#[derive(Debug)]
pub(super) enum End {
    /// Nothing follows the last record.
    Data,
    /// The marker of a clean close.
    Clean,
    /// Something follows that was never synced.
    Torn { file: PathBuf, offset: u64, what: &'static str, records: u64, bytes: u64 },
    /// Something is wrong that does not end the replay at once. So many whole records are known to follow.
    Damaged { error: Error, records: u64, bytes: u64 },
}

/// What the reader must know of the plan.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) store_id: u64,
    pub(super) floor: u64,
    /// For older epochs: later records do not exist.
    pub(super) limit: Option<u64>,
    pub(super) salvage: bool,
}

/// Reads one shard.
pub(super) struct ShardReader<'a> {
    vfs: &'a dyn Vfs,
    rules: Rules,
    /// In order, not empty.
    pub(super) segments: Vec<SegmentFile>,
    index: usize,
    window: Option<Window>,
    seed: u64,
    /// Where the next record is expected.
    offset: u64,
    /// The segment before this one was ended or is even gone, so this one has certainly been used.
    rolled: bool,
    last: u64,
    /// The current record and where it starts.
    pub(super) head: Option<(RecordHeader, u64)>,
    pub(super) end: Option<End>,
    /// The largest sequence number that a record of this shard knows to be durable.
    pub(super) durable: u64,
    /// Damage that lies wholly at or below the floor.
    pub(super) skipped: Vec<Error>,
}

impl<'a> ShardReader<'a> {
    /// A reader before the first record of `segments`, which are one shard's, in order.
    pub(super) fn new(vfs: &'a dyn Vfs, rules: Rules, segments: Vec<SegmentFile>) -> Self {
        // The one in use is never removed: who has no predecessor any more has succeeded it.
        let rolled = segments.first().is_some_and(|segment| segment.id.number > 1);
        ShardReader {
            vfs,
            rules,
            segments,
            index: 0,
            window: None,
            seed: 0,
            offset: 0,
            rolled,
            last: 0,
            head: None,
            end: None,
            durable: 0,
            skipped: Vec::new(),
        }
    }

    /// Goes to the next batch, or to the end.
    pub(super) fn advance(&mut self) -> Result<()> {
        self.head = None;
        while self.head.is_none() && self.end.is_none() {
            let Some(mut window) =
                self.window.take().map_or_else(|| self.open(), |w| Ok(Some(w)))?
            else {
                continue;
            };
            match window.examine(self.seed, self.offset)? {
                Found::Record(header) => {
                    self.window = Some(window);
                    self.accept(header)?;
                }
                Found::Bad { extent, what } => self.judge(window, extent, what)?,
            }
        }
        if self.end.is_some() {
            self.window = None;
        }
        Ok(())
    }

    /// The segment that is being read.
    pub(super) fn segment(&self) -> Option<&SegmentFile> {
        self.segments.get(self.index)
    }

    /// The payload of the current record, with the file and the offset where it stands.
    pub(super) fn payload(&mut self) -> Result<(&[u8], &Path, u64)> {
        let Some((segment, (header, offset))) = self.segments.get(self.index).zip(self.head) else {
            return Err(Error::invalid("the reader of a journal shard stands on no record"));
        };
        let offset = offset + header.header_bytes() as u64;
        match &mut self.window {
            Some(window) => {
                let payload = window.bytes(offset, u64::from(header.payload_bytes))?;
                Ok((payload, &segment.path, offset))
            }
            None => Ok((&[], &segment.path, offset)),
        }
    }

    fn accept(&mut self, header: RecordHeader) -> Result<()> {
        let offset = self.offset;
        self.offset += header.record_bytes();
        let limit = self.rules.limit.unwrap_or(u64::MAX);
        match header.kind {
            RecordKind::Batch if header.seqno > limit => self.end = Some(End::Data),
            RecordKind::Batch if header.seqno <= self.last || header.last() > limit => {
                let expected = format_args!("from {} to {limit}", self.last + 1);
                let found = format_args!("from {} to {}", header.seqno, header.last());
                let what = "journal record sequence numbers";
                let Some(segment) = self.segment() else { return Ok(()) };
                let error = Error::corruption(&segment.path, offset, what, expected, found);
                return self.fail(error, &Later::default());
            }
            RecordKind::Batch => {
                self.last = header.last();
                self.durable = self.durable.max(header.durable);
                if let Some(segment) = self.segments.get_mut(self.index) {
                    segment.last = self.last;
                }
                self.head = Some((header, offset));
            }
            RecordKind::Clean => {
                self.durable = self.durable.max(header.seqno);
                self.end = Some(End::Clean);
            }
            RecordKind::Roll => return self.go_on(),
        }
        Ok(())
    }

    /// Goes to the next segment, which must exist.
    fn go_on(&mut self) -> Result<()> {
        let Some(here) = self.segment() else { return Ok(()) };
        let next = self.segments.get(self.index + 1).map(|segment| segment.id);
        let wanted = SegmentId { number: here.id.number.saturating_add(1), ..here.id };
        if next != Some(wanted) {
            let expected = wanted.file_name() + " after this one";
            let found = next.map_or("no more".to_owned(), |id| id.file_name());
            let error = Error::corruption(&here.path, 0, "journal segments", expected, found);
            return self.fail(error, &Later::default());
        }
        self.index += 1;
        self.window = None;
        self.rolled = true;
        Ok(())
    }

    /// Opens the current segment and checks its header. `None` if the shard ends here.
    fn open(&mut self) -> Result<Option<Window>> {
        let Some(segment) = self.segments.get(self.index) else {
            self.end = Some(End::Data);
            return Ok(None);
        };
        let mut window = open_window(self.vfs, segment)?;
        self.seed = segment.id.seed(self.rules.store_id);
        self.offset = SEGMENT_HEADER_BYTES as u64;
        let Err(error) = check_header(&mut window, segment, self.rules.store_id) else {
            return Ok(Some(window));
        };
        if !error.is_corruption() {
            return Err(error);
        }
        // A segment is used once its header is durable, and the next one is made only then. So a
        // crash while a segment was being made leaves one without records, as the last of its shard.
        let unused = !self.rolled
            && self.index + 1 == self.segments.len()
            && window.next_nonzero_word(self.offset.min(window.len()))?.is_none();
        if unused {
            self.end = Some(End::Data);
        } else {
            self.fail(error, &Later::default())?;
        }
        Ok(None)
    }

    /// Ends the shard at something wrong: at once an error in the newest epoch, and a reason to be
    /// given later in an older one, if its limit is not reached.
    fn fail(&mut self, error: Error, later: &Later) -> Result<()> {
        if self.rules.limit.is_none() && !self.rules.salvage {
            return Err(error);
        }
        self.end = Some(End::Damaged { error, records: later.records, bytes: later.bytes });
        Ok(())
    }

    /// Decides what the bad record at the current offset is.
    fn judge(&mut self, mut window: Window, extent: u64, what: &'static str) -> Result<()> {
        let offset = self.offset;
        let Some(segment) = self.segments.get(self.index) else { return Ok(()) };
        let place = Position { segment: segment.id.number, offset };
        let explained = window.has_zero_word(offset, extent)?;
        let blank = window.next_nonzero_word(offset)?.is_none();

        let mut later = Later::default();
        later.search(&mut window, self.seed, self.index, offset + 8)?;
        for (index, segment) in self.segments.iter().enumerate().skip(self.index + 1) {
            let seed = segment.id.seed(self.rules.store_id);
            let mut window = open_window(self.vfs, segment)?;
            later.search(&mut window, seed, index, SEGMENT_HEADER_BYTES as u64)?;
        }

        let path = segment.path.clone();
        let corrupt = |expected, found| Error::corruption(&path, offset, what, expected, found);
        let found = format_args!("{} valid records after a bad one", later.records);
        match later.first {
            // Everything between is below the floor, since sequence numbers rise.
            Some((index, next, first)) if first <= self.rules.floor + 1 => {
                self.skipped.push(corrupt("a whole record", found));
                self.index = index;
                self.offset = next;
                self.window = Some(window);
                if let Some(segment) = self.segments.get(index)
                    && segment.id.number != place.segment
                {
                    self.seed = segment.id.seed(self.rules.store_id);
                    self.window = Some(open_window(self.vfs, segment)?);
                }
                return Ok(());
            }
            _ => {}
        }
        if self.rules.limit.is_none() {
            self.durable = self.durable.max(later.durable);
        }
        if later.watermark.is_some_and(|watermark| watermark > place) {
            let error = corrupt("a whole record, as it had been synced", found);
            return self.fail(error, &later);
        }
        if later.watermark.is_some() && !explained {
            let expected = "a whole record, as no part of it is blank";
            let error = corrupt(expected, found);
            return self.fail(error, &later);
        }
        self.end = Some(if blank && later.watermark.is_none() {
            End::Data
        } else {
            End::Torn { file: path, offset, what, records: later.records, bytes: later.bytes }
        });
        Ok(())
    }
}

fn open_window(vfs: &dyn Vfs, segment: &SegmentFile) -> Result<Window> {
    Window::new(vfs.open(&segment.path, Access::Buffered, false)?)
}

fn check_header(window: &mut Window, segment: &SegmentFile, store_id: u64) -> Result<()> {
    let len = window.len();
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    bytes.copy_from_slice(window.bytes(0, SEGMENT_HEADER_BYTES as u64)?);
    segment.id.check_header(&bytes, &segment.path, store_id, len)
}
