//! What a tree's log has of one epoch, read batch by batch in rising sequence numbers.

use std::path::PathBuf;

use super::reader::Rules;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::tree::{BadBatch, Logged, LoggedBatch, OperationSource};

/// Reads one log.
pub(super) struct LogReader {
    rules: Rules,
    pub(super) path: PathBuf,
    batches: Box<dyn Iterator<Item = Result<Logged>>>,
    pub(super) head: Option<LoggedBatch>,
    /// The last sequence number that counts.
    pub(super) last: Seqno,
    /// The largest sequence number that a batch of this log knows to be durable.
    pub(super) durable: Seqno,
    /// Where it ends, if the rest of the file is not blank.
    pub(super) bad: Option<BadBatch>,
    /// Why it cannot be read. In an older epoch this matters only if its limit is not reached.
    pub(super) damage: Option<Error>,
}

impl LogReader {
    /// A reader before the first batch.
    pub(super) fn open(log: &dyn OperationSource, rules: Rules) -> Result<LogReader> {
        let (batches, damage) = match log.batches() {
            Err(error) if error.is_corruption() && (rules.salvage || rules.limit.is_some()) => {
                (Box::new(std::iter::empty()) as Box<dyn Iterator<Item = _>>, Some(error))
            }
            batches => (batches?, None),
        };
        Ok(LogReader {
            rules,
            path: log.path().to_path_buf(),
            batches,
            head: None,
            last: Seqno(0),
            durable: Seqno(0),
            bad: None,
            damage,
        })
    }

    /// Goes to the next batch, or to the end.
    pub(super) fn advance(&mut self) -> Result<()> {
        self.head = None;
        let limit = self.rules.limit.map_or(Seqno::MAX, Seqno);
        match self.batches.next().transpose()? {
            // What an earlier recovery dropped never comes back.
            Some(Logged::Batch(batch)) if batch.first > limit => {}
            Some(Logged::Batch(batch)) => {
                if batch.first <= self.last || batch.last() > limit || batch.count == 0 {
                    let expected = format_args!("from {} to {limit}", self.last.0 + 1);
                    let found = format_args!("{} from {} on", batch.count, batch.first);
                    let what = "sequence numbers in a tree's log";
                    return Err(Error::corruption(&self.path, batch.offset, what, expected, found));
                }
                self.last = batch.last();
                self.durable = self.durable.max(batch.durable);
                self.head = Some(batch);
            }
            Some(Logged::Bad(bad)) => {
                if self.rules.limit.is_none() {
                    self.durable = self.durable.max(bad.durable);
                }
                self.bad = Some(bad);
            }
            None => {}
        }
        Ok(())
    }
}
