//! Batches of reads through a ring per thread.
//!
//! Invariants:
//! 1. The callers' buffers are lent to the kernel only while a [`Lent`] exists. Dropping it, also
//!    while unwinding, waits until the kernel has finished with them.
//! 2. What the ring did not perform completely is repeated with `read_at`, so results and errors
//!    are those of plain reads.

use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};

use super::ReadRequest;
use super::ring::{Outcome, Ring, is_rideable};
use crate::base::error::Error;

/// Completions that a full ring waits for before it is refilled: few enough to keep the drive busy,
/// enough to share the cost of a system call.
const REFILL: usize = 16;

thread_local! {
    static RING: Cell<ThreadRing> = const { Cell::new(ThreadRing::Untried) };
}

#[derive(Default)]
enum ThreadRing {
    /// No batch has been read on this thread yet.
    Untried,
    Idle(Box<Ring>),
    /// In use further down the stack, or unavailable.
    #[default]
    Absent,
}

/// The thread's ring while buffers are lent to the kernel through it (`None` where there is no
/// ring), and the files that are read, which stay open until then.
struct Lent(Option<Box<Ring>>, Vec<Arc<fs::File>>);

impl Lent {
    fn take() -> Lent {
        let ring = match RING.try_with(Cell::take) {
            Ok(ThreadRing::Idle(ring)) if ring.is_ours() => Some(ring),
            // A forked child creates its own ring.
            Ok(ThreadRing::Idle(_)) => Ring::for_one_thread().map(Box::new),
            Ok(ThreadRing::Untried) => Ring::for_one_thread().map(Box::new),
            Ok(ThreadRing::Absent) | Err(_) => None,
        };
        Lent(ring, Vec::new())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut ring) = self.0.take() else { return };
        if !ring.drain() {
            // The kernel may still write to buffers that their owners would now reuse, for an
            // unknown time. There is no safe way to continue.
            eprintln!("spinney: io_uring no longer reports completions; aborting");
            std::process::abort();
        }
        if !ring.is_broken() {
            // While the thread's locals are being destroyed, the ring is dropped.
            let _ = RING.try_with(|cell| cell.set(ThreadRing::Idle(ring)));
        }
    }
}

/// Performs all the reads, those of the operating system's files together.
pub(super) fn read_batch(requests: &mut [ReadRequest<'_>]) {
    for request in &mut *requests {
        // Means "not performed yet" until the end of this function.
        request.result = Err(Error::NotResident);
    }
    if requests.iter().filter(|request| request.file.pin(None).is_some()).count() > 1 {
        let mut lent = Lent::take();
        let Lent(ring, files) = &mut lent;
        if let Some(ring) = ring {
            ride(ring, files, requests);
        }
    }
    for request in requests {
        if matches!(request.result, Err(Error::NotResident)) {
            request.result = request.file.read_at(request.offset, request.buf);
        }
    }
}

fn ride(ring: &mut Ring, files: &mut Vec<Arc<fs::File>>, requests: &mut [ReadRequest<'_>]) {
    let mut next = 0;
    loop {
        while ring.has_room()
            && let Some(request) = requests.get_mut(next)
        {
            if let Some(file) = request.file.pin(None)
                && is_rideable(request.offset, request.buf.len())
            {
                let fd = file.as_raw_fd();
                files.push(file);
                let len = request.buf.len() as u32;
                let entry = opcode::Read::new(types::Fd(fd), request.buf.as_mut_ptr(), len)
                    .offset(request.offset)
                    .build()
                    .user_data(next as u64);
                // SAFETY: the buffer is borrowed by the request for longer than the `Lent` that
                // owns the ring lives, which has the file too, and it waits for the kernel. Nothing
                // touches the buffer meanwhile.
                unsafe { ring.push(&entry) };
            }
            next += 1;
        }
        if ring.in_flight() == 0 {
            return;
        }
        let more = next < requests.len();
        let want = if more { REFILL.min(ring.in_flight()) } else { ring.in_flight() };
        if !ring.submit(want) {
            return;
        }
        while let Some((index, result)) = ring.completed() {
            let Some(request) = requests.get_mut(index as usize) else { continue };
            match Outcome::of(result, request.buf.len()) {
                Outcome::Done => request.result = Ok(()),
                Outcome::Again => {}
                Outcome::Failed(e) => {
                    let (path, offset) = (request.file.path(), Some(request.offset));
                    request.result = Err(Error::io("read", path, offset, e));
                }
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;
    use crate::base::error::Result;
    use crate::vfs::{Access, AlignedBuf, File, PosixVfs, Vfs};

    /// Gives its handle so often, then panics.
    #[derive(Debug)]
    struct Treacherous<'a> {
        file: &'a dyn File,
        handles_left: Mutex<Cell<u32>>,
    }

    impl File for Treacherous<'_> {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.file.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.file.write_at(offset, bytes)
        }

        fn sync(&self) -> Result<()> {
            self.file.sync()
        }

        fn len(&self) -> Result<u64> {
            self.file.len()
        }

        fn truncate(&self, len: u64) -> Result<()> {
            self.file.truncate(len)
        }

        fn path(&self) -> &Path {
            self.file.path()
        }

        fn pin(&self, write_end: Option<u64>) -> Option<Arc<fs::File>> {
            let left = self.handles_left.lock().unwrap();
            left.set(left.get().checked_sub(1).expect("no handle any more"));
            self.file.pin(write_end)
        }
    }

    #[test]
    fn a_panic_in_a_batch_leaves_nothing_in_flight() {
        let dir = tempfile::tempdir().unwrap();
        let vfs = PosixVfs::new();
        let file = vfs.create(&dir.path().join("a"), Access::Direct).unwrap();
        let mut buf = AlignedBuf::new(4096);
        buf.fill(9);
        file.write_at(0, &buf).unwrap();
        // One call for each request counts them; the next come as they are pushed. So the panics
        // come with nothing submitted yet, with the ring just refilled, and with the last request.
        for handles in [100 + 3, 100 + 64, 100 + 99] {
            let panicked = std::thread::scope(|scope| {
                let file = &*file;
                let reader = scope.spawn(move || {
                    let handles_left = Mutex::new(Cell::new(handles));
                    let treacherous = Treacherous { file, handles_left };
                    read_100(&treacherous);
                });
                reader.join().is_err()
            });
            assert_eq!(panicked, Ring::for_one_thread().is_some(), "rings ask for handles");
        }
        // Also a thread that has seen such a panic goes on.
        let treacherous = Treacherous { file: &*file, handles_left: Mutex::new(Cell::new(170)) };
        let _ = catch_unwind(AssertUnwindSafe(|| read_100(&treacherous)));
        assert!(read_100(&*file).iter().all(|buf| buf.iter().all(|&b| b == 9)));
    }

    fn read_100(file: &dyn File) -> Vec<AlignedBuf> {
        let mut bufs: Vec<AlignedBuf> = (0..100).map(|_| AlignedBuf::new(4096)).collect();
        let mut requests: Vec<ReadRequest<'_>> = bufs
            .iter_mut()
            .map(|buf| ReadRequest { file, offset: 0, buf, result: Ok(()) })
            .collect();
        read_batch(&mut requests);
        assert!(requests.iter().all(|request| request.result.is_ok()));
        bufs
    }
}
