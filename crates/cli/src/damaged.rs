//! Going on where a part of a store cannot be read.

use clap::Args;
use spinney::{DamagedRange, Iter, Keys};

use crate::failure::{EXIT_DAMAGED, Failure, Outcome};
use spinney_quantity::grouped;

/// Whether to.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DamagedOptions {
    /// Continue after damaged parts, list them on standard error, and exit with 3 if there were any
    #[arg(long)]
    skip_damaged: bool,
}

/// The ranges that an iteration could not read.
pub(crate) struct Skipped {
    options: DamagedOptions,
    ranges: u64,
}

/// An iteration that can continue after a range that it could not read.
pub(crate) trait Continues: DoubleEndedIterator {
    fn damaged_range(&self) -> Option<&DamagedRange>;
}

impl Continues for Iter {
    fn damaged_range(&self) -> Option<&DamagedRange> {
        Iter::damaged_range(self)
    }
}

impl Continues for Keys {
    fn damaged_range(&self) -> Option<&DamagedRange> {
        Keys::damaged_range(self)
    }
}

impl Skipped {
    pub(crate) fn new(options: DamagedOptions) -> Skipped {
        Skipped { options, ranges: 0 }
    }

    /// The next item that can be read, from the front or from the back; `None` at the end.
    pub(crate) fn next<T, I: Continues<Item = spinney::Result<T>>>(
        &mut self,
        pairs: &mut I,
        from_back: bool,
    ) -> Outcome<Option<T>> {
        loop {
            let next = if from_back { pairs.next_back() } else { pairs.next() };
            let error = match next {
                None => return Ok(None),
                Some(Ok(pair)) => return Ok(Some(pair)),
                Some(Err(error)) => error,
            };
            match pairs.damaged_range() {
                Some(range) if self.options.skip_damaged => {
                    eprintln!("missing: {range}: {}", error.description());
                    self.ranges += 1;
                }
                Some(range) => {
                    return Err(Failure::Message(
                        EXIT_DAMAGED,
                        format!(
                            "{range} cannot be read: {}; --skip-damaged goes on behind them, and `spinney repair` \
                             makes a new store of what can be read",
                            error.description()
                        ),
                    ));
                }
                None => return Err(error.into()),
            }
        }
    }

    /// At the end: whether anything was left out.
    pub(crate) fn end(self) -> Outcome {
        match self.ranges {
            0 => Ok(()),
            ranges => Err(Failure::Message(
                EXIT_DAMAGED,
                format!(
                    "{} of keys could not be read and {} missing; `spinney repair` may find older values there",
                    if ranges == 1 {
                        "a range".into()
                    } else {
                        format!("{} ranges", grouped(ranges))
                    },
                    if ranges == 1 { "is" } else { "are" },
                ),
            )),
        }
    }
}
