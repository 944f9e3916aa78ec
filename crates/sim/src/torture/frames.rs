//! The child's reports to the parent: frames of 32 bytes, in the order of events.

use std::io::{self, Read};

use crate::kill::frames::Message;

/// Bytes of a frame.
const FRAME_BYTES: usize = 32;
const TEXT_BYTES_MAX: usize = 4000;

/// A value as it was read: its length and its digest, or none.
pub type Seen = Option<(u64, u64)>;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The child is about to open the store; its own memory, without files, in bytes.
    Opening {
        /// Anonymous memory before.
        bytes: u64,
    },
    /// The store is open.
    Opened {
        /// Processor time that this took.
        processor_micros: u64,
        /// Bytes of the journal that were replayed.
        replayed_bytes: u64,
    },
    /// What was read at a key: now, as far as its owner is concerned.
    Read {
        /// The keyspace.
        space: usize,
        /// The key.
        index: u32,
        /// The value.
        seen: Seen,
    },
    /// All keys of the step that was under way when the last child died have been read.
    Settled {
        /// Whose step.
        writer: usize,
    },
    /// All pairs of a keyspace follow, in order.
    ScanBegun {
        /// The keyspace.
        space: usize,
    },
    /// That was all of them.
    ScanEnded {
        /// The keyspace.
        space: usize,
    },
    /// The store has been judged; the writers begin.
    Working,
    /// A writer begins a step.
    Issued {
        /// Who.
        writer: usize,
        /// Which.
        step: u32,
    },
    /// The step has returned.
    Acknowledged {
        /// Whose.
        writer: usize,
        /// Which.
        step: u32,
    },
    /// A write took long.
    Stalled {
        /// Whose.
        writer: usize,
        /// How long.
        micros: u64,
    },
    /// A snapshot or an iterator is held from now on.
    Pinned(u64),
    /// It has been dropped.
    Unpinned(u64),
    /// A copy is begun.
    CopyIssued(u64),
    /// The copy is whole.
    CopyDone(u64),
    /// Something was counted: what the figures say was done.
    Counted {
        /// What, by its place in `COUNTS`.
        what: usize,
        /// How many.
        count: u64,
    },
    /// Nobody writes or holds anything any more.
    Idle,
    /// What the store believes to be live, when asked while idle.
    Live {
        /// The keyspace.
        space: usize,
        /// Bytes that it says are live.
        live_bytes: u64,
        /// Bytes of its files.
        disk_bytes: u64,
    },
    /// Something is not as promised.
    Violation(String),
}

/// What is counted.
pub const COUNTS: [&str; 8] = [
    "pairs scanned",
    "iterators held",
    "snapshots held",
    "views read again",
    "flushes and compactions",
    "checks while writing",
    "full checks",
    "keys sampled",
];

impl Message for Told {
    fn encode(&self) -> Vec<u8> {
        let numbers = |tag: u8, small: usize, middle: u32, a: u64, b: u64| {
            let mut out = vec![0; FRAME_BYTES];
            out[0] = tag;
            out[2..4].copy_from_slice(&(small as u16).to_le_bytes());
            out[4..8].copy_from_slice(&middle.to_le_bytes());
            out[8..16].copy_from_slice(&a.to_le_bytes());
            out[16..24].copy_from_slice(&b.to_le_bytes());
            out
        };
        match *self {
            Told::Opening { bytes } => numbers(1, 0, 0, bytes, 0),
            Told::Opened { processor_micros, replayed_bytes } => {
                numbers(2, 0, 0, processor_micros, replayed_bytes)
            }
            Told::Read { space, index, seen } => {
                let (len, digest) = seen.unwrap_or((u64::MAX, 0));
                numbers(3, space, index, len, digest)
            }
            Told::Settled { writer } => numbers(4, writer, 0, 0, 0),
            Told::ScanBegun { space } => numbers(5, space, 0, 0, 0),
            Told::ScanEnded { space } => numbers(6, space, 0, 0, 0),
            Told::Working => numbers(7, 0, 0, 0, 0),
            Told::Issued { writer, step } => numbers(8, writer, step, 0, 0),
            Told::Acknowledged { writer, step } => numbers(9, writer, step, 0, 0),
            Told::Stalled { writer, micros } => numbers(10, writer, 0, micros, 0),
            Told::Pinned(number) => numbers(11, 0, 0, number, 0),
            Told::Unpinned(number) => numbers(12, 0, 0, number, 0),
            Told::CopyIssued(number) => numbers(13, 0, 0, number, 0),
            Told::CopyDone(number) => numbers(14, 0, 0, number, 0),
            Told::Counted { what, count } => numbers(15, what, 0, count, 0),
            Told::Idle => numbers(16, 0, 0, 0, 0),
            Told::Live { space, live_bytes, disk_bytes } => {
                numbers(17, space, 0, live_bytes, disk_bytes)
            }
            Told::Violation(ref what) => {
                let mut end = what.len().min(TEXT_BYTES_MAX);
                while !what.is_char_boundary(end) {
                    end -= 1;
                }
                let mut out = numbers(18, 0, end as u32, 0, 0);
                out.extend_from_slice(&what.as_bytes()[..end]);
                out
            }
        }
    }
}

impl Told {
    /// The next frame; none at the end.
    ///
    /// # Errors
    /// If the pipe fails, or what comes through it is no frame.
    pub fn read(pipe: &mut impl Read) -> io::Result<Option<Told>> {
        let mut bytes = [0; FRAME_BYTES];
        match pipe.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let number = |from: usize, len: usize| {
            bytes[from..from + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (writer, middle) = (number(2, 2) as usize, number(4, 4) as u32);
        let (space, a, b) = (writer, number(8, 8), number(16, 8));
        Ok(Some(match bytes[0] {
            1 => Told::Opening { bytes: a },
            2 => Told::Opened { processor_micros: a, replayed_bytes: b },
            3 => Told::Read { space, index: middle, seen: (a != u64::MAX).then_some((a, b)) },
            4 => Told::Settled { writer },
            5 => Told::ScanBegun { space },
            6 => Told::ScanEnded { space },
            7 => Told::Working,
            8 => Told::Issued { writer, step: middle },
            9 => Told::Acknowledged { writer, step: middle },
            10 => Told::Stalled { writer, micros: a },
            11 => Told::Pinned(a),
            12 => Told::Unpinned(a),
            13 => Told::CopyIssued(a),
            14 => Told::CopyDone(a),
            15 => Told::Counted { what: space, count: a },
            16 => Told::Idle,
            17 => Told::Live { space, live_bytes: a, disk_bytes: b },
            18 => {
                let mut text = vec![0; middle as usize];
                pipe.read_exact(&mut text)?;
                Told::Violation(String::from_utf8_lossy(&text).into_owned())
            }
            other => return Err(io::Error::other(format!("no frame begins with {other}"))),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_sent() {
        let frames = [
            Told::Opening { bytes: 1 << 40 },
            Told::Opened { processor_micros: 7, replayed_bytes: 9 },
            Told::Read { space: 199, index: 1 << 30, seen: Some((5, u64::MAX)) },
            Told::Read { space: 0, index: 0, seen: None },
            Told::Settled { writer: 3 },
            Told::ScanBegun { space: 4 },
            Told::ScanEnded { space: 4 },
            Told::Working,
            Told::Issued { writer: 1, step: 70_000 },
            Told::Acknowledged { writer: 1, step: 70_000 },
            Told::Stalled { writer: 2, micros: 1 << 33 },
            Told::Pinned(3),
            Told::Unpinned(3),
            Told::CopyIssued(8),
            Told::CopyDone(8),
            Told::Counted { what: 2, count: 11 },
            Told::Idle,
            Told::Live { space: 1, live_bytes: 2, disk_bytes: 3 },
            Told::Violation("ä".to_string()),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Message::encode).collect();
        let mut pipe = &bytes[..];
        for frame in &frames {
            assert_eq!(Told::read(&mut pipe).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Told::read(&mut pipe).unwrap(), None);
        assert!(Told::read(&mut &[99; FRAME_BYTES][..]).is_err());
    }
}
