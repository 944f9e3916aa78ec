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
        let frames = Frames::new(whole);
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, frames)))
    } else {
        Ok(Box::new(whole))
    }
}

/// Reads LZ4 frames until the input ends.
///
/// The decoder takes an input that ends between two blocks for a frame that has ended. So the input is followed by
/// one end mark more: a frame that was cut takes it, and a whole one leaves it.
struct Frames<R: BufRead> {
    decoder: FrameDecoder<Marked<R>>,
}

const END_MARK: [u8; 4] = [0; 4];

/// An input followed by an end mark.
struct Marked<R> {
    input: R,
    mark: &'static [u8],
}

impl<R: BufRead> Marked<R> {
    /// Whether all of the input has been read, and the rest of the mark.
    fn at_end(&mut self) -> io::Result<Option<usize>> {
        Ok(self.input.fill_buf()?.is_empty().then_some(self.mark.len()))
    }
}

impl<R: BufRead> Read for Marked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.input.read(out)? {
            0 => self.mark.read(out),
            count => Ok(count),
        }
    }
}

impl<R: BufRead> Frames<R> {
    fn new(input: R) -> Frames<R> {
        Frames { decoder: FrameDecoder::new(Marked { input, mark: &END_MARK }) }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let cut_short = || {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the LZ4 data ends in the middle of a frame: the file is cut short; fetch or compress it again",
            )
        };
        loop {
            let count = self.decoder.read(out).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => cut_short(),
                _ => io::Error::new(error.kind(), in_words(&error)),
            })?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            // The decoder says "end" after each frame and begins the next when asked again.
            match self.decoder.get_mut().at_end()? {
                None => {}
                Some(mark) if mark == END_MARK.len() => return Ok(0),
                Some(_) => return Err(cut_short()),
            }
        }
    }
}

/// A readable error for LZ4 data; the decoder's errors print as structures.
fn in_words(error: &io::Error) -> String {
    use lz4_flex::frame::Error::*;
    let Some(found) = error.get_ref().and_then(|inner| inner.downcast_ref()) else {
        return error.to_string();
    };
    let what = match found {
        SkippableFrame(_) => return "it has an LZ4 skippable frame, which is not read".to_string(),
        DictionaryNotSupported => {
            return "it is compressed with an LZ4 dictionary, which is not read".to_string();
        }
        UnsupportedVersion(version) => {
            return format!("it has version {version} of the LZ4 frame format, which is not read");
        }
        DecompressionError(_) => "a block cannot be decompressed".to_string(),
        IoError(error) => error.to_string(),
        WrongMagicNumber => "what follows a frame is no frame".to_string(),
        UnsupportedBlocksize(_) => "a frame's block size is none that there is".to_string(),
        ReservedBitsSet => "bits of a frame's header are set that are reserved".to_string(),
        InvalidBlockInfo => "a block's header cannot be one".to_string(),
        BlockTooBig => "a block is larger than its frame's header allows".to_string(),
        HeaderChecksumError => "the checksum of a frame's header is wrong".to_string(),
        BlockChecksumError => "the checksum of a block is wrong".to_string(),
        ContentChecksumError => "the checksum of a frame's content is wrong".to_string(),
        ContentLengthError { expected, actual } => {
            format!("a frame has {actual} bytes of content, and its header says {expected}")
        }
        _ => "it does not follow the LZ4 frame format".to_string(),
    };
    format!("the LZ4 data is damaged: {what}; fetch or compress it again")
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
        // The last four bytes are the end mark: without it the cut is between two blocks.
        for length in (bytes.len() - 9..bytes.len()).chain([bytes.len() / 2, 9]) {
            let result = read_all(bytes[..length].to_vec());
            let message = result.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains("cut short"), "{length}: {message}");
        }
        // The first block's length, behind the frame's header.
        bytes[7..11].fill(0xff);
        let result = read_all(bytes);
        let message = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("LZ4 data is damaged"), "{message}");
    }

    /// `DecompressionError(OutputTooSmall { expected: 4194305, actual: 4194304 })` was all that was said.
    #[test]
    fn what_is_wrong_with_a_damaged_frame_is_said_in_words() {
        let whole = frame(&(0..50_000_u32).flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>());
        let mut told = std::collections::BTreeSet::new();
        for at in 4..whole.len() {
            // Every byte of the headers and many of the block.
            if at > 40 && at % 997 > 2 {
                continue;
            }
            for bit in [1, 0x10, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                let Err(error) = read_all(bytes) else { continue };
                let message = error.to_string();
                let is_words = !message.contains(['{', '(', '_']) && message.contains("LZ4");
                assert!(is_words, "byte {at}: {message}");
                told.insert(message);
            }
        }
        assert!(told.len() > 3, "{told:?}");
    }

    #[test]
    fn other_compressions_are_named() {
        let error = read_all(vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4]).unwrap_err();
        assert!(error.to_string().contains("xz -dc"), "{error}");
    }
}
