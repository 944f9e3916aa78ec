//! Input files: plain or LZ4-framed, or standard input, streamed with constant memory.
//!
//! Invariants:
//! 1. Compression is recognised by the first bytes, never by the name.
//! 2. Several LZ4 frames one after another read as one stream.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use lz4_flex::frame::FrameDecoder;

use crate::failure::{Failure, Outcome};

const BUFFER_BYTES: usize = 256 << 10;
const LZ4_FRAME_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Where records come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Standard,
    File(PathBuf),
}

impl Source {
    pub(crate) fn new(path: &Path) -> Source {
        if path.as_os_str() == "-" { Source::Standard } else { Source::File(path.to_path_buf()) }
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Standard => "standard input".to_string(),
            Source::File(path) => path.display().to_string(),
        }
    }

    /// The bytes to be read, where that is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Source::Standard => None,
            Source::File(path) => path.metadata().ok().filter(|m| m.is_file()).map(|m| m.len()),
        }
    }

    /// Opens it. `progress` counts the bytes as they lie in the file.
    pub(crate) fn open(&self, progress: &ProgressBar) -> Outcome<Box<dyn BufRead>> {
        let failed =
            |error: io::Error| Failure::other(format!("cannot read {}: {error}", self.name()));
        let raw: Box<dyn Read> = match self {
            Source::Standard => Box::new(io::stdin()),
            Source::File(path) => Box::new(File::open(path).map_err(failed)?),
        };
        let counted = progress.wrap_read(raw);
        decompressed(Box::new(counted), &self.name()).map_err(failed)
    }
}

fn decompressed(raw: Box<dyn Read>, name: &str) -> io::Result<Box<dyn BufRead>> {
    // The first bytes are read on their own: a pipe may deliver fewer than four at a time.
    let mut raw = raw;
    let mut head = Vec::new();
    (&mut raw).take(8).read_to_end(&mut head)?;
    let compressor = match head.as_slice() {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [b'B', b'Z', b'h', _, b'1', b'A', ..] => Some("bzip2"),
        _ => None,
    };
    if let Some(tool) = compressor {
        return Err(io::Error::other(format!(
            "it is compressed with {tool}; try `{tool} -dc {name} | spinney import STORE -`"
        )));
    }
    let framed = head.starts_with(&LZ4_FRAME_MAGIC);
    let whole = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(head).chain(raw));
    if framed {
        let frames = Frames { decoder: FrameDecoder::new(whole) };
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, frames)))
    } else {
        Ok(Box::new(whole))
    }
}

/// Reads LZ4 frames until the input ends.
struct Frames<R: BufRead> {
    decoder: FrameDecoder<R>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.decoder.read(out)?;
            // The decoder says "end" after each frame and begins the next when asked again.
            if count > 0 || out.is_empty() || self.decoder.get_mut().fill_buf()?.is_empty() {
                return Ok(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::frame::FrameEncoder;
    use std::io::Write;

    fn frame(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read_all(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(Box::new(io::Cursor::new(bytes)), "f")?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn plain_and_framed_input_read_alike() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(read_all(text.clone()).unwrap(), text);
        assert_eq!(read_all(frame(&text)).unwrap(), text);
        assert_eq!(read_all(Vec::new()).unwrap(), b"");
        assert_eq!(read_all(b"abc".to_vec()).unwrap(), b"abc");
    }

    #[test]
    fn several_frames_are_one_stream() {
        let mut bytes = frame(b"one ");
        bytes.extend(frame(b"two "));
        bytes.extend(frame(&[b'x'; 300_000]));
        let mut expected = b"one two ".to_vec();
        expected.extend([b'x'; 300_000]);
        assert_eq!(read_all(bytes).unwrap(), expected);
    }

    #[test]
    fn a_cut_frame_is_an_error() {
        let mut bytes = frame(&(0..50_000_u32).flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>());
        bytes.truncate(bytes.len() / 2);
        assert!(read_all(bytes).is_err());
    }

    #[test]
    fn other_compressions_are_named() {
        let error = read_all(vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4]).unwrap_err();
        assert!(error.to_string().contains("xz -dc"), "{error}");
    }
}
