//! The child's reports to the parent through a pipe: frames of a fixed size, each written by one
//! call. They arrive whole, in the order of events, and survive the child.

use std::io::{self, Read, Write};
use std::sync::Mutex;

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 16;
/// The longest text.
const TEXT_BYTES_MAX: usize = 4000;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The child runs, with this process number.
    Started(u32),
    /// A writer's steps, as found when the store had been opened.
    Found {
        /// Whose.
        writer: usize,
        /// How many.
        steps: u64,
    },
    /// The last writer of a shared key, as found.
    SharedFound {
        /// Which key.
        key: usize,
        /// Who wrote it last.
        writer: usize,
        /// In which step.
        step: u64,
    },
    /// The store is open and has its keyspaces; the writers begin.
    Ready,
    /// A writer begins a step.
    Issued {
        /// Who.
        writer: usize,
        /// In which life.
        life: u32,
        /// Which step.
        step: u64,
    },
    /// The step has returned.
    Acknowledged {
        /// Whose.
        writer: usize,
        /// Whether it is durable.
        sync: bool,
        /// Which step.
        step: u64,
    },
    /// The step has been refused for want of room: nothing of it has been stored.
    Refused {
        /// Whose.
        writer: usize,
        /// Which step.
        step: u64,
    },
    /// The step has failed otherwise; the writer stops.
    Failed {
        /// Whose.
        writer: usize,
        /// Which step.
        step: u64,
    },
    /// A copy is begun.
    CopyIssued(u64),
    /// The copy is whole.
    CopyDone(u64),
    /// All writers have stopped.
    Stopped,
    /// The store could not be opened, for a reason that a fault explains.
    NotOpened(String),
    /// An error that a fault explains.
    Explained(String),
    /// Something is not as promised.
    Violation(String),
}

/// What can be sent through a [`Pipe`].
pub trait Message {
    /// Its bytes.
    fn encode(&self) -> Vec<u8>;
}

impl Message for Frame {
    fn encode(&self) -> Vec<u8> {
        let numbers = |tag: u8, a: usize, b: u32, c: u64| {
            let mut out = vec![tag, a as u8, 0, 0];
            out.extend_from_slice(&b.to_le_bytes());
            out.extend_from_slice(&c.to_le_bytes());
            out
        };
        let text = |tag: u8, text: &str| {
            let mut end = text.len().min(TEXT_BYTES_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let mut out = numbers(tag, 0, end as u32, 0);
            out.extend_from_slice(&text.as_bytes()[..end]);
            out
        };
        match self {
            Frame::Started(pid) => numbers(1, 0, *pid, 0),
            Frame::Found { writer, steps } => numbers(2, *writer, 0, *steps),
            Frame::SharedFound { key, writer, step } => numbers(3, *writer, *key as u32, *step),
            Frame::Ready => numbers(4, 0, 0, 0),
            Frame::Issued { writer, life, step } => numbers(5, *writer, *life, *step),
            Frame::Acknowledged { writer, sync, step } => {
                numbers(6, *writer, u32::from(*sync), *step)
            }
            Frame::Refused { writer, step } => numbers(7, *writer, 0, *step),
            Frame::Failed { writer, step } => numbers(8, *writer, 0, *step),
            Frame::CopyIssued(copy) => numbers(9, 0, 0, *copy),
            Frame::CopyDone(copy) => numbers(10, 0, 0, *copy),
            Frame::Stopped => numbers(11, 0, 0, 0),
            Frame::NotOpened(what) => text(12, what),
            Frame::Explained(what) => text(13, what),
            Frame::Violation(what) => text(14, what),
        }
    }
}

impl Frame {
    /// The next frame; none at the end.
    ///
    /// # Errors
    /// If the pipe fails, or what comes through it is no frame.
    pub fn read(pipe: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut bytes = [0; FRAME_BYTES];
        match pipe.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [tag, writer, _, _, b0, b1, b2, b3, c @ ..] = bytes;
        let (writer, b, step) =
            (usize::from(writer), u32::from_le_bytes([b0, b1, b2, b3]), u64::from_le_bytes(c));
        let mut text = || {
            let mut text = vec![0; b as usize];
            pipe.read_exact(&mut text)?;
            Ok::<String, io::Error>(String::from_utf8_lossy(&text).into_owned())
        };
        Ok(Some(match tag {
            1 => Frame::Started(b),
            2 => Frame::Found { writer, steps: step },
            3 => Frame::SharedFound { key: b as usize, writer, step },
            4 => Frame::Ready,
            5 => Frame::Issued { writer, life: b, step },
            6 => Frame::Acknowledged { writer, sync: b == 1, step },
            7 => Frame::Refused { writer, step },
            8 => Frame::Failed { writer, step },
            9 => Frame::CopyIssued(step),
            10 => Frame::CopyDone(step),
            11 => Frame::Stopped,
            12 => Frame::NotOpened(text()?),
            13 => Frame::Explained(text()?),
            14 => Frame::Violation(text()?),
            other => return Err(io::Error::other(format!("no frame begins with {other}"))),
        }))
    }
}

/// The child's end of the pipe.
#[derive(Debug)]
pub struct Pipe<W: Write>(Mutex<W>);

impl<W: Write> Pipe<W> {
    /// Sends through `pipe`.
    pub fn new(pipe: W) -> Pipe<W> {
        Pipe(Mutex::new(pipe))
    }

    /// Tells the parent. Without a parent there is nothing left to do.
    pub fn send(&self, frame: &impl Message) {
        let mut pipe = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if pipe.write_all(&frame.encode()).and_then(|()| pipe.flush()).is_err() {
            std::process::exit(3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_sent() {
        let frames = [
            Frame::Started(77),
            Frame::Found { writer: 2, steps: 1 << 40 },
            Frame::SharedFound { key: 3, writer: 1, step: 9 },
            Frame::Ready,
            Frame::Issued { writer: 1, life: 70_000, step: 5 },
            Frame::Acknowledged { writer: 1, sync: true, step: 5 },
            Frame::Refused { writer: 0, step: 6 },
            Frame::Failed { writer: 0, step: 6 },
            Frame::CopyIssued(4),
            Frame::CopyDone(4),
            Frame::Stopped,
            Frame::NotOpened("why".to_string()),
            Frame::Explained(String::new()),
            Frame::Violation("ä".repeat(3000)),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut pipe = &bytes[..];
        for frame in &frames[..13] {
            assert_eq!(Frame::read(&mut pipe).unwrap().as_ref(), Some(frame));
        }
        let cut = Frame::Violation("ä".repeat(TEXT_BYTES_MAX / 2));
        assert_eq!(Frame::read(&mut pipe).unwrap(), Some(cut));
        assert_eq!(Frame::read(&mut pipe).unwrap(), None);
        assert!(Frame::read(&mut &[99; 16][..]).is_err());
    }
}
