//! An [`IoQueue`] that performs each operation when it is submitted. It is used for files in
//! memory, on machines without io_uring, and for the file systems of tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AlignedBuf, File, IoQueue, IoTicket};
use crate::base::error::Result;

/// Performs operations immediately, through [`File`]'s own methods, and keeps their results.
#[derive(Debug, Default)]
pub struct BlockingQueue {
    depth: Option<usize>,
    next_ticket: u64,
    finished: BTreeMap<u64, (AlignedBuf, Result<()>)>,
}

impl BlockingQueue {
    /// A queue that panics if more than `depth` operations are pending, to find callers that
    /// request too small a depth.
    pub fn with_depth(depth: usize) -> BlockingQueue {
        BlockingQueue { depth: Some(depth), ..BlockingQueue::default() }
    }

    fn finish(&mut self, buf: AlignedBuf, result: Result<()>) -> IoTicket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.finished.insert(ticket, (buf, result));
        let most = self.depth.unwrap_or(usize::MAX);
        assert!(self.finished.len() <= most, "more than {most} operations in the queue");
        IoTicket(ticket)
    }
}

impl IoQueue for BlockingQueue {
    fn submit_read(&mut self, file: &Arc<dyn File>, offset: u64, mut buf: AlignedBuf) -> IoTicket {
        let result = file.read_at(offset, &mut buf);
        self.finish(buf, result)
    }

    fn submit_write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket {
        let result = file.write_at(offset, &buf[..len]);
        self.finish(buf, result)
    }

    fn wait(&mut self, ticket: IoTicket) -> (AlignedBuf, Result<()>) {
        match self.finished.remove(&ticket.0) {
            Some(finished) => finished,
            None => panic!("{ticket:?} was not given by this queue or has been waited for already"),
        }
    }
}
