//! An io_uring that counts the operations in flight.
//!
//! Invariants:
//! 1. `in_flight` counts the operations pushed and not yet completed. Memory lent to the kernel is
//!    free again exactly when [`Ring::drain`] has returned true.
//! 2. A ring whose submission failed permanently is *broken*: nothing is submitted to it again,
//!    what it had not yet accepted never runs, and it is dropped once drained.

use std::io;
use std::sync::OnceLock;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use super::descriptors::is_exhaustion;
use crate::base::process::Birthplace;
use crate::base::sync::yield_now;

/// Entries per ring: a few pages of memory, and deep enough for an NVMe drive.
pub(super) const RING_ENTRIES: u32 = 64;

/// The longest operation. Longer ones use plain calls (the kernel would truncate them).
const RING_BYTES_MAX: usize = 1 << 30;

/// Attempts to submit while the kernel is short of memory.
const REFUSALS_MAX: usize = 1000;

/// A submission and a completion queue shared with the kernel.
pub(super) struct Ring {
    ring: IoUring,
    in_flight: usize,
    broken: bool,
    birthplace: Birthplace,
}

impl Ring {
    /// A ring for the calling thread only, whose completions are collected when it waits.
    pub(super) fn for_one_thread() -> Option<Ring> {
        if !available() {
            return None;
        }
        let deferred =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(RING_ENTRIES);
        // Kernels before 6.1 do not know those flags.
        deferred.or_else(|_| IoUring::new(RING_ENTRIES)).ok().map(Ring::wrap)
    }

    /// A ring that may move between threads.
    pub(super) fn movable() -> Option<Ring> {
        if !available() {
            return None;
        }
        IoUring::new(RING_ENTRIES).ok().map(Ring::wrap)
    }

    fn wrap(ring: IoUring) -> Ring {
        Ring { ring, in_flight: 0, broken: false, birthplace: Birthplace::here() }
    }

    /// Operations submitted or queued.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the ring belongs to this process and not to its parent. A forked child has a copy,
    /// and the parent would submit what the child pushes.
    pub(super) fn is_ours(&self) -> bool {
        self.birthplace.is_here()
    }

    /// Whether the ring is broken or not ours.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether another operation can be pushed.
    pub(super) fn has_room(&self) -> bool {
        !self.broken && self.in_flight < RING_ENTRIES as usize
    }

    /// Queues an operation; returns false if it was not accepted.
    ///
    /// # Safety
    /// The memory and the file that `entry` names stay valid, and the memory is not touched, until
    /// the operation's completion has been taken or [`Ring::drain`] has returned true.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller keeps memory and file valid for the operation's duration.
        let pushed = self.has_room() && unsafe { self.ring.submission().push(entry) }.is_ok();
        if pushed {
            self.in_flight += 1;
        }
        pushed
    }

    /// Submits what was pushed and waits for `want` completions. Returns false if the ring broke:
    /// what the kernel had not accepted is then discarded.
    pub(super) fn submit(&mut self, want: usize) -> bool {
        let mut refusals = 0;
        while !self.broken {
            match self.ring.submit_and_wait(want) {
                Ok(_) if self.ring.submission().is_empty() => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of memory (never of room for completions: there are twice as
                // many entries for those), or accepted a part.
                Err(e) if !transient(&e) => self.give_up(),
                Ok(_) | Err(_) if refusals == REFUSALS_MAX => self.give_up(),
                Ok(_) | Err(_) => {
                    refusals += 1;
                    yield_now();
                }
            }
        }
        false
    }

    /// Breaks the ring: operations that the kernel has not accepted are no longer in flight.
    pub(super) fn give_up(&mut self) {
        if !self.broken {
            self.broken = true;
            self.in_flight -= self.ring.submission().len();
        }
    }

    /// The next completion, if any: its operation's user data and result.
    pub(super) fn completed(&mut self) -> Option<(u64, i32)> {
        let completion = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((completion.user_data(), completion.result()))
    }

    /// Waits for a completion without submitting. Returns false if waiting is impossible.
    pub(super) fn wait(&mut self) -> bool {
        loop {
            if !self.ring.completion().is_empty() {
                return true;
            }
            // SAFETY: no argument is passed, and no entry is submitted.
            let entered = unsafe {
                self.ring.submitter().enter::<()>(0, 1, EnterFlags::GETEVENTS.bits(), None)
            };
            match entered {
                Ok(_) => {}
                Err(e) if transient(&e) => yield_now(),
                Err(_) => return false,
            }
        }
    }

    /// Waits for everything in flight and discards the results. Returns false if waiting is
    /// impossible: then the memory lent to the kernel must never be used again.
    pub(super) fn drain(&mut self) -> bool {
        if self.in_flight == 0 {
            return true;
        }
        // Entries that were not submitted need not run. The ring is not used again.
        if !self.ring.submission().is_empty() {
            self.give_up();
        }
        while self.in_flight > 0 {
            if !self.wait() {
                return false;
            }
            while self.completed().is_some() {}
        }
        true
    }
}

/// Whether a range can be read or written through a ring.
pub(super) fn is_rideable(offset: u64, len: usize) -> bool {
    // An offset of -1 would mean the file's current position.
    i64::try_from(offset).is_ok() && len <= RING_BYTES_MAX && len > 0
}

fn transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

/// How an operation went.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All its bytes moved.
    Done,
    /// The operation was truncated, interrupted or refused in this form. A plain call repeats it,
    /// which resumes, retries and falls back from direct I/O as needed.
    Again,
    /// It failed.
    Failed(io::Error),
}

impl Outcome {
    /// Reads a completion's result for an operation of `len` bytes.
    pub(super) fn of(result: i32, len: usize) -> Outcome {
        if let Ok(n) = usize::try_from(result) {
            return if n == len { Outcome::Done } else { Outcome::Again };
        }
        use rustix::io::Errno;
        let number = result.saturating_neg();
        let again = [Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::INVAL, Errno::OPNOTSUPP];
        if again.iter().any(|errno| errno.raw_os_error() == number) {
            Outcome::Again
        } else {
            Outcome::Failed(io::Error::from_raw_os_error(number))
        }
    }
}

/// Whether this machine has the required io_uring features, determined once.
fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    if let Some(available) = AVAILABLE.get() {
        return *available;
    }
    let available = match IoUring::new(2) {
        Ok(ring) => {
            let mut probe = Probe::new();
            ring.submitter().register_probe(&mut probe).is_ok()
                && probe.is_supported(opcode::Read::CODE)
                && probe.is_supported(opcode::Write::CODE)
        }
        // No descriptor is available now, which says nothing about later.
        Err(e) if is_exhaustion(&e) => return false,
        Err(_) => false,
    };
    *AVAILABLE.get_or_init(|| available)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::types;

    use super::*;

    fn with_reads(ring: &mut Ring, bufs: &mut [[u8; 8]; 3], file: &std::fs::File) {
        for buf in bufs {
            let fd = types::Fd(file.as_raw_fd());
            let entry = opcode::Read::new(fd, buf.as_mut_ptr(), 8).build();
            // SAFETY: the tests keep file and buffers until the ring is drained.
            assert!(unsafe { ring.push(&entry) });
        }
    }

    fn file() -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"contents").unwrap();
        file
    }

    #[test]
    fn what_was_never_submitted_never_runs() {
        let (Some(mut ring), file, mut bufs) = (Ring::movable(), file(), [[0; 8]; 3]) else {
            return;
        };
        with_reads(&mut ring, &mut bufs, &file);
        assert_eq!(ring.in_flight(), 3);
        assert!(ring.drain());
        assert!(ring.is_broken() && !ring.has_room() && ring.in_flight() == 0);
        assert!(!ring.submit(1));
        drop(ring);
        assert_eq!(bufs, [[0; 8]; 3]);
    }

    #[test]
    fn what_was_submitted_is_waited_for() {
        for ring in [Ring::movable(), Ring::for_one_thread()] {
            let (Some(mut ring), file, mut bufs) = (ring, file(), [[0; 8]; 3]) else { return };
            with_reads(&mut ring, &mut bufs, &file);
            assert!(ring.submit(0));
            ring.give_up();
            assert_eq!(ring.in_flight(), 3);
            assert!(ring.drain());
            assert_eq!(bufs, [*b"contents"; 3]);
        }
    }

    #[test]
    fn results_are_told_apart() {
        let errno = |e: rustix::io::Errno| -e.raw_os_error();
        assert!(matches!(Outcome::of(8, 8), Outcome::Done));
        assert!(matches!(Outcome::of(7, 8), Outcome::Again));
        assert!(matches!(Outcome::of(0, 8), Outcome::Again));
        assert!(matches!(Outcome::of(errno(rustix::io::Errno::INTR), 8), Outcome::Again));
        let full = Outcome::of(errno(rustix::io::Errno::NOSPC), 8);
        assert!(matches!(full, Outcome::Failed(e) if e.kind() == io::ErrorKind::StorageFull));
        assert!(matches!(Outcome::of(i32::MIN, 8), Outcome::Failed(_)));
    }
}
