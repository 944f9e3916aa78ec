//! The queue of reads and writes of a background job, on a ring.
//!
//! Invariants:
//! 1. An operation's buffer and file belong to the queue from submission until its completion has
//!    been taken. If the kernel stops reporting, they are leaked, never freed.
//! 2. What the ring did not perform completely is repeated with plain calls.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use io_uring::{opcode, types};

use super::descriptors::{Descriptors, Held};
use super::ring::{Outcome, RING_ENTRIES, Ring, is_rideable};
use super::{AlignedBuf, File, IoQueue, IoTicket, io_error};
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;

/// Rings that are kept for the next queue, if there are enough descriptors. Creating a ring costs
/// as much as several operations, and a compaction has one for each of its inputs.
const IDLE_RINGS_MAX: usize = 64;

/// Idle rings of a [`PosixVfs`](super::PosixVfs).
pub(super) struct RingPool {
    descriptors: Arc<Descriptors>,
    idle: Mutex<Vec<CountedRing>>,
}

/// A ring that counts as an open file: a merge of a hundred tables has two hundred rings.
struct CountedRing {
    ring: Ring,
    _held: Held,
}

impl RingPool {
    /// Rings that count as open files of `descriptors`.
    pub(super) fn new(descriptors: &Arc<Descriptors>) -> Arc<RingPool> {
        Arc::new(RingPool { descriptors: Arc::clone(descriptors), idle: Mutex::default() })
    }

    /// An idle ring, or a new one.
    fn take(&self) -> Option<CountedRing> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(counted) if counted.ring.is_ours() => Some(counted),
            _ => {
                let held = self.descriptors.hold()?;
                Some(CountedRing { ring: Ring::movable()?, _held: held })
            }
        }
    }

    fn put(&self, ring: CountedRing) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_RINGS_MAX.min(self.descriptors.max() as usize / 8) {
            idle.push(ring);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

struct Operation {
    direction: Direction,
    file: Arc<dyn File>,
    offset: u64,
    buf: AlignedBuf,
    /// Bytes of `buf` to move.
    len: usize,
    /// The open file, while it is in flight.
    pinned: Option<Arc<fs::File>>,
    /// The result; `None` while it is in flight.
    result: Option<Result<()>>,
}

impl Operation {
    fn carry_out(&mut self) -> Result<()> {
        match self.direction {
            Direction::Read => self.file.read_at(self.offset, &mut self.buf[..self.len]),
            Direction::Write => self.file.write_at(self.offset, &self.buf[..self.len]),
        }
    }

    fn failed(&self, e: io::Error) -> Error {
        let op = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        io_error(op, self.file.path(), Some(self.offset), self.len as u64, e)
    }
}

/// See the module.
pub(super) struct RingQueue {
    /// Taken out only on drop.
    ring: Option<CountedRing>,
    pool: Weak<RingPool>,
    depth: usize,
    next_ticket: u64,
    operations: BTreeMap<u64, Operation>,
}

impl RingQueue {
    /// A queue for up to `depth` operations in flight (at most 64), or `None` without io_uring or a
    /// descriptor for it.
    pub(super) fn new(pool: &Arc<RingPool>, depth: usize) -> Option<RingQueue> {
        Some(RingQueue {
            ring: Some(pool.take()?),
            pool: Arc::downgrade(pool),
            depth: depth.clamp(1, RING_ENTRIES as usize),
            next_ticket: 0,
            operations: BTreeMap::new(),
        })
    }

    fn ring(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut().map(|counted| &mut counted.ring)
    }

    fn submit(
        &mut self,
        direction: Direction,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket {
        assert!(len <= buf.len(), "{len} bytes of a buffer of {}", buf.len());
        let depth = self.depth;
        while self.ring().is_some_and(|ring| ring.in_flight() >= depth) {
            self.take_completions();
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let file = Arc::clone(file);
        let write_end = (direction == Direction::Write).then(|| offset.saturating_add(len as u64));
        let pinned = file.pin(write_end);
        let operation = Operation { direction, file, offset, buf, len, pinned, result: None };
        let operation = self.operations.entry(ticket).or_insert(operation);
        let taken = match (&mut self.ring, &operation.pinned) {
            (Some(CountedRing { ring, .. }), Some(file)) if is_rideable(offset, len) => {
                let (fd, bytes) = (types::Fd(file.as_raw_fd()), operation.buf.as_mut_ptr());
                let entry = match direction {
                    Direction::Read => {
                        opcode::Read::new(fd, bytes, len as u32).offset(offset).build()
                    }
                    Direction::Write => {
                        opcode::Write::new(fd, bytes, len as u32).offset(offset).build()
                    }
                };
                // SAFETY: the operation owns the buffer's allocation and a handle of the file, and
                // stays in `operations`, untouched, until its completion has been taken.
                unsafe { ring.push(&entry.user_data(ticket)) && ring.submit(0) }
            }
            _ => false,
        };
        if !taken {
            operation.result = Some(operation.carry_out());
        }
        IoTicket(ticket)
    }

    /// Waits for a completion and takes all that are available.
    fn take_completions(&mut self) {
        match self.ring() {
            Some(ring) if ring.in_flight() > 0 => {
                if !ring.wait() {
                    self.abandon();
                }
            }
            // Only a panic in a file's own code can have lost a result.
            _ => {
                for operation in self.operations.values_mut().filter(|o| o.result.is_none()) {
                    operation.result = Some(operation.carry_out());
                }
            }
        }
        while let Some((ticket, result)) = self.ring().and_then(Ring::completed) {
            let Some(operation) = self.operations.get_mut(&ticket) else { continue };
            operation.result = Some(match Outcome::of(result, operation.len) {
                Outcome::Done => Ok(()),
                Outcome::Again => operation.carry_out(),
                Outcome::Failed(e) => Err(operation.failed(e)),
            });
        }
    }

    /// Abandons a ring that no longer reports completions. The kernel may still write to the
    /// buffers and use the files, so they are leaked.
    fn abandon(&mut self) {
        mem::forget(self.ring.take());
        for operation in self.operations.values_mut().filter(|o| o.result.is_none()) {
            let lost = io::Error::other("io_uring no longer reports completions");
            operation.result = Some(Err(operation.failed(lost)));
            let fresh = AlignedBuf::new(operation.buf.len());
            mem::forget(mem::replace(&mut operation.buf, fresh));
            mem::forget(operation.pinned.take());
            mem::forget(Arc::clone(&operation.file));
        }
    }
}

impl IoQueue for RingQueue {
    fn submit_read(&mut self, file: &Arc<dyn File>, offset: u64, buf: AlignedBuf) -> IoTicket {
        let len = buf.len();
        self.submit(Direction::Read, file, offset, buf, len)
    }

    fn submit_write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket {
        self.submit(Direction::Write, file, offset, buf, len)
    }

    fn wait(&mut self, ticket: IoTicket) -> (AlignedBuf, Result<()>) {
        loop {
            match self.operations.get_mut(&ticket.0).map(|operation| operation.result.take()) {
                None => {
                    panic!("{ticket:?} was not given by this queue or has been waited for already")
                }
                Some(None) => self.take_completions(),
                Some(Some(result)) => match self.operations.remove(&ticket.0) {
                    Some(operation) => return (operation.buf, result),
                    None => unreachable!("found just above"),
                },
            }
        }
    }
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        let Some(mut counted) = self.ring.take() else { return };
        if !counted.ring.drain() {
            self.ring = Some(counted);
            self.abandon();
        } else if !counted.ring.is_broken()
            && let Some(pool) = self.pool.upgrade()
        {
            pool.put(counted);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::vfs::{Access, PosixOptions, PosixVfs, Vfs};

    fn file() -> (Arc<dyn File>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let file = PosixVfs::new().create(&dir.path().join("a"), Access::Direct).unwrap();
        let mut buf = AlignedBuf::new(4096);
        buf.fill(9);
        file.write_at(0, &buf).unwrap();
        (file, dir)
    }

    #[test]
    fn a_broken_ring_is_done_without() {
        let (file, _dir) = file();
        let pool = RingPool::new(&Descriptors::new(10));
        let Some(mut queue) = RingQueue::new(&pool, 4) else { return };
        let before = queue.submit_read(&file, 0, AlignedBuf::new(4096));
        queue.ring().unwrap().give_up();
        let after = queue.submit_read(&file, 0, AlignedBuf::new(4096));
        for ticket in [after, before] {
            let (buf, result) = queue.wait(ticket);
            result.unwrap();
            assert!(buf.iter().all(|&b| b == 9));
        }
        drop(queue);
        assert!(pool.idle.lock().is_empty(), "a broken ring is not kept");
    }

    #[test]
    fn a_ring_that_says_nothing_costs_memory_not_safety() {
        let (file, _dir) = file();
        let pool = RingPool::new(&Descriptors::new(10));
        let Some(mut queue) = RingQueue::new(&pool, 4) else { return };
        let ticket = queue.submit_read(&file, 0, AlignedBuf::new(4096));
        queue.abandon();
        let (buf, result) = queue.wait(ticket);
        assert!(matches!(result, Err(Error::Io { op: "read", offset: Some(0), .. })), "{result:?}");
        assert!(buf.iter().all(|&b| b == 0), "a fresh buffer, not the one the kernel has");
        let ticket = queue.submit_read(&file, 0, AlignedBuf::new(4096));
        queue.wait(ticket).1.unwrap();
    }

    /// A merge reads each of its tables through a ring of its own: 155 rings stood beside 1,024
    /// files, and more descriptors were open than is promised.
    #[test]
    fn rings_count_as_open_files() {
        let (dir, descriptors) = (tempfile::tempdir().unwrap(), Descriptors::new(10));
        let pool = RingPool::new(&descriptors);
        let options = PosixOptions { open_files_max: 10, ..PosixOptions::default() };
        let vfs = PosixVfs::with(options);
        let files: Vec<_> = (0..10)
            .map(|number: u8| {
                let path = dir.path().join(number.to_string());
                vfs.create(&path, Access::Direct).unwrap()
            })
            .collect();
        assert_eq!(vfs.open_files().open, 10);
        let is_ring = |target: std::path::PathBuf| target.to_string_lossy().contains("io_uring");
        let mut queues: Vec<_> = (0..4).map(|_| vfs.io_queue(2)).collect();
        let links = fs::read_dir("/proc/self/fd").unwrap();
        if !links.filter_map(|link| fs::read_link(link.ok()?.path()).ok()).any(is_ring) {
            return;
        }
        assert_eq!(vfs.open_files().open, 10, "four of the files were closed");
        let mut buf = AlignedBuf::new(4096);
        buf.fill(3);
        let ticket = queues[0].submit_write(&files[0], 0, buf, 4096);
        queues[0].wait(ticket).1.unwrap();
        queues.clear();
        assert_eq!(vfs.open_files().open, 7, "one ring is kept, and six of the files are open");
        let many: Vec<_> = (0..20).map(|_| vfs.io_queue(2)).collect();
        assert!(vfs.open_files().open <= 10, "rings have at most half, the others do without");
        drop(many);
        let rings: Vec<_> = (0..3).filter_map(|_| pool.take()).collect();
        assert_eq!(descriptors.statistics().open, rings.len() as u64);
        drop(rings);
        assert_eq!(descriptors.statistics().open, 0);
    }

    #[test]
    fn rings_are_used_again() {
        let (file, _dir) = file();
        let pool = RingPool::new(&Descriptors::new(10));
        for _ in 0..3 {
            let Some(mut queue) = RingQueue::new(&pool, 4) else { return };
            let ticket = queue.submit_read(&file, 0, AlignedBuf::new(4096));
            drop(queue);
            assert_eq!(pool.idle.lock().len(), 1);
            assert_eq!(pool.idle.lock()[0].ring.in_flight(), 0, "{ticket:?} is over");
        }
    }
}
