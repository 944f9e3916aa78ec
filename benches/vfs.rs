//! What file access costs: `cargo bench --bench vfs [directory]`. `docs/decisions/0002-file-access.md`
//! quotes it. The directory (default: the system's for temporary files) takes a file of 1 GiB.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use spinney::vfs::{Access, AlignedBuf, File, PosixOptions, PosixVfs, ReadRequest, Vfs};

const FILE_UNITS: u64 = (1 << 30) / 4096;
const UNIT: usize = 4096;

/// CPU time of this thread, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `f` so often and prints wall and CPU time per operation.
fn measure(what: &str, operations_each: usize, times: usize, mut f: impl FnMut()) {
    f();
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..times {
        f();
    }
    let operations = (operations_each * times) as f64;
    let wall_us = wall.elapsed().as_secs_f64() * 1e6 / operations;
    let cpu_us = (cpu_seconds() - cpu) * 1e6 / operations;
    let rate = 1e6 / wall_us;
    println!("{what:<48} {wall_us:>9.3} us wall {cpu_us:>9.3} us CPU {rate:>10.0}/s");
}

/// A seeded generator (xorshift).
struct Random(u64);

impl Random {
    fn unit_offset(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % FILE_UNITS * UNIT as u64
    }
}

fn make_file(vfs: &PosixVfs, path: &Path) {
    let file = vfs.create(path, Access::Direct).expect("a file of 1 GiB");
    let mut queue = vfs.io_queue(4);
    let mut tickets = Vec::new();
    let chunk = 1 << 20;
    for i in 0..FILE_UNITS * UNIT as u64 / chunk {
        let mut buf = AlignedBuf::new(chunk as usize);
        buf.fill(i as u8);
        tickets.push(queue.submit_write(&file, i * chunk, buf, chunk as usize));
        if tickets.len() == 4 {
            queue.wait(tickets.remove(0)).1.expect("a write");
        }
    }
    drop(queue);
    file.sync().expect("a sync");
}

fn reads(path: &Path) {
    for (name, direct, io_uring) in
        [("plain", true, false), ("ring", true, true), ("buffered, ring", false, true)]
    {
        let vfs = PosixVfs::with(PosixOptions { direct, io_uring, ..PosixOptions::default() });
        let file = vfs.open(path, Access::Direct, false).expect("the file");
        let mut random = Random(88_172_645_463_325_252);
        for count in [1, 2, 4, 8, 16, 32, 64, 256] {
            let mut bufs: Vec<AlignedBuf> = (0..count).map(|_| AlignedBuf::new(UNIT)).collect();
            let times = 16 * 1024 / count;
            measure(&format!("batch of {count} random 4 KiB reads, {name}"), count, times, || {
                read_batch(&vfs, &*file, &mut bufs, &mut random);
            });
        }
    }
}

fn read_batch(vfs: &PosixVfs, file: &dyn File, bufs: &mut [AlignedBuf], random: &mut Random) {
    let mut requests: Vec<ReadRequest<'_>> = bufs
        .iter_mut()
        .map(|buf| ReadRequest { file, offset: random.unit_offset(), buf, result: Ok(()) })
        .collect();
    vfs.read_batch(&mut requests);
    for request in &requests {
        assert!(request.result.is_ok());
    }
}

fn queues(path: &Path) {
    for (name, io_uring) in [("plain", false), ("ring", true)] {
        let vfs = PosixVfs::with(PosixOptions { io_uring, ..PosixOptions::default() });
        let file = vfs.open(path, Access::Direct, true).expect("the file");
        measure(&format!("making and dropping a queue, {name}"), 1, 1000, || {
            drop(black_box(vfs.io_queue(2)));
        });
        let chunk = 256 * 1024;
        for write in [false, true] {
            let what = if write { "writes" } else { "reads" };
            let mut queue = vfs.io_queue(2);
            let mut in_flight = Vec::new();
            let mut spare = vec![AlignedBuf::new(chunk), AlignedBuf::new(chunk)];
            let mut offset = 0;
            measure(&format!("sequential 256 KiB {what}, 2 deep, {name}"), 1, 2000, || {
                if in_flight.len() == 2 {
                    let (buf, result) = queue.wait(in_flight.remove(0));
                    result.expect("an operation");
                    spare.push(buf);
                }
                let buf = spare.pop().expect("two buffers");
                in_flight.push(if write {
                    queue.submit_write(&file, offset, buf, chunk)
                } else {
                    queue.submit_read(&file, offset, buf)
                });
                offset = (offset + chunk as u64) % (FILE_UNITS * UNIT as u64);
            });
        }
    }
}

fn mapped(dir: &Path) {
    const SEGMENT_BYTES: u64 = 64 << 20;
    let vfs = PosixVfs::new();
    let path = dir.join("spinney-bench-segment");
    let record = [7; 150];
    let records = SEGMENT_BYTES / 150;
    let make = || {
        let _ = vfs.remove(&path);
        vfs.create_mapped(&path, SEGMENT_BYTES).expect("a segment")
    };
    let mut segment = make();
    measure("creating a segment of 64 MiB", 1, 5, || segment = make());
    measure("150-byte mapped write, page faults included", records as usize, 5, || {
        let segment = make();
        for i in 0..records {
            segment.write(i * 150, &record);
        }
    });
    let segment = make();
    let mut at = 0;
    measure("150-byte mapped write and sync", 1, 2000, || {
        segment.write(at, &record);
        segment.sync().expect("a sync");
        at += 150;
    });
    let file = vfs.open(&path, Access::Buffered, true).expect("the segment");
    let mut at = 0;
    measure("150-byte write by system call", 1, 100_000, || {
        file.write_at(at, &record).expect("a write");
        at += 150;
    });
    vfs.remove(&path).expect("the segment");
}

fn main() {
    let dir = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join("spinney-bench-reads");
    let vfs = PosixVfs::new();
    let _ = vfs.remove(&path);
    make_file(&vfs, &path);
    reads(&path);
    queues(&path);
    vfs.remove(&path).expect("the file");
    mapped(&dir);
}
