//! Decompresses layers, limits their compression ratio, and verifies their digests.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::rc::Rc;
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use ring::digest::{Context, SHA256};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::ImageError;

/// The maximum number of decompressed bytes per compressed byte. gzip cannot exceed 1,032; layers of real images stay
/// below 30.
const MAX_RATIO: u64 = 200;
/// The decompressed size in bytes up to which any ratio is allowed: a small file system full of zeros would exceed [`MAX_RATIO`].
const RATIO_EXEMPT_SIZE: u64 = if cfg!(test) { 8 << 20 } else { 256 << 20 };

/// A digest: `sha256:HEX`. OCI allows other algorithms, but no registry uses them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest(String);

impl Digest {
    /// The 64 hexadecimal digits.
    pub(crate) fn hex(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::from(ring::digest::digest(&SHA256, bytes))
    }

    /// # Errors
    /// The digests differ.
    pub(crate) fn verify(&self, expected: &Self, what: &'static str) -> Result<(), ImageError> {
        if self == expected {
            return Ok(());
        }
        Err(ImageError::Digest { what, expected: expected.to_string(), found: self.to_string() })
    }
}

impl From<ring::digest::Digest> for Digest {
    fn from(sum: ring::digest::Digest) -> Self {
        Self(sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let hex = text.strip_prefix("sha256:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        });
        let malformed =
            || ImageError::Malformed(format!("not a sha256 digest: {}", super::tar::lossy(text.as_bytes())));
        hex.map(|hex| Self(hex.to_owned())).ok_or_else(malformed)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A running checksum that outlives its reader.
#[derive(Clone)]
pub(crate) struct Checksum(Rc<RefCell<(Context, u64)>>);

impl Checksum {
    fn new() -> Self {
        Self(Rc::new(RefCell::new((Context::new(&SHA256), 0))))
    }

    /// The number of bytes so far.
    fn count(&self) -> u64 {
        self.0.borrow().1
    }

    /// The digest of the bytes so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest::from(self.0.borrow().0.clone().finish())
    }

    /// # Errors
    /// The digest differs.
    pub(crate) fn verify(&self, expected: &Digest, what: &'static str) -> Result<(), ImageError> {
        self.digest().verify(expected, what)
    }
}

/// A reader that adds the bytes read to a checksum.
pub(crate) struct ChecksumReader<R> {
    reader: R,
    sum: Checksum,
}

impl<R: Read> ChecksumReader<R> {
    pub(crate) fn new(reader: R) -> (Self, Checksum) {
        let sum = Checksum::new();
        (Self { reader, sum: sum.clone() }, sum)
    }
}

impl<R: Read> Read for ChecksumReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let mut sum = self.sum.0.borrow_mut();
        sum.0.update(&buffer[..read]);
        sum.1 += read as u64;
        Ok(read)
    }
}

/// A reader that fails if the decompressed data exceeds the maximum ratio.
struct RatioLimiter<R> {
    reader: R,
    compressed: Checksum,
    expanded: u64,
}

impl<R: Read> Read for RatioLimiter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.expanded += read as u64;
        if self.expanded > RATIO_EXEMPT_SIZE && self.expanded / MAX_RATIO > self.compressed.count() {
            return Err(io::Error::other(ImageError::TooLarge("the archive expands to more than 200 times its size")));
        }
        Ok(read)
    }
}

/// The decompressed content of a layer, and the checksums of its compressed and decompressed bytes. The checksums are complete when the reader has
/// reached its end.
pub(crate) struct Layer {
    pub(crate) reader: Box<dyn Read>,
    pub(crate) compressed: Checksum,
    pub(crate) content: Checksum,
}

/// Opens a layer. The first bytes identify the compression, because the archives of docker save contain no media types.
///
/// # Errors
/// The layer cannot be read, or is compressed with bzip2 or xz.
pub(crate) fn open(reader: impl Read + 'static) -> Result<Layer, ImageError> {
    let (reader, compressed) = ChecksumReader::new(reader);
    let mut reader = io::BufReader::with_capacity(128 << 10, reader);
    let start = io::BufRead::fill_buf(&mut reader)?.to_vec();
    let decompressed: Box<dyn Read> = if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(MultiGzDecoder::new(reader))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || start.get(1..4) == Some(&[0x2a, 0x4d, 0x18]) {
        Box::new(Zstd::new(reader))
    } else if start.starts_with(b"BZh") || start.starts_with(b"\xfd7zXZ") {
        return Err(ImageError::Malformed(
            "bzip2 and xz are not supported; use gzip, zstd or no compression".to_owned(),
        ));
    } else {
        Box::new(reader)
    };
    let limited = RatioLimiter { reader: decompressed, compressed: compressed.clone(), expanded: 0 };
    let (reader, content) = ChecksumReader::new(limited);
    Ok(Layer { reader: Box::new(reader), compressed, content })
}

/// A reader of the content of all frames of zstd data. zstd:chunked writes one frame for each file, and an index in frames that decoders skip
/// (RFC 8878, 3.1.2).
struct Zstd<R> {
    reader: R,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(reader: R) -> Self {
        Self { reader, decoder: FrameDecoder::new(), is_in_frame: false }
    }

    /// Starts the next frame that has content. Returns false at the end of the data.
    fn next_frame(&mut self) -> io::Result<bool> {
        let damaged = |why: &dyn fmt::Display| {
            io::Error::other(ImageError::Malformed(format!("damaged zstd data, or other data after it: {why}")))
        };
        loop {
            if self.reader.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.reader) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.reader).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(damaged(&"a frame is truncated"));
                    }
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_in_frame || self.next_frame()? {
            while self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let missing = BlockDecodingStrategy::UptoBytes(buffer.len() - self.decoder.can_collect());
                self.decoder.decode_blocks(&mut self.reader, missing).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read != 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.is_in_frame = false;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_has_64_lowercase_digits() {
        let hex = "0123456789abcdef".repeat(4);
        let digest = |text: &str| text.parse::<Digest>().ok().map(|digest| digest.to_string());
        assert_eq!(digest(&format!("sha256:{hex}")), Some(format!("sha256:{hex}")));
        for text in
            [&hex, "sha256:", &format!("sha512:{hex}"), &format!("sha256:{hex}0"), &format!("sha256:{}", &hex[1..])]
        {
            assert_eq!(digest(text), None, "{text}");
        }
        for character in ["A", "g", "`", "/", ":", " "] {
            assert_eq!(digest(&format!("sha256:{character}{}", &hex[1..])), None, "{character}");
        }
    }

    /// Whether this many decompressed bytes of this many compressed ones are accepted.
    fn accepts(expanded: u64, compressed: u64) -> bool {
        let (mut reader, sum) = ChecksumReader::new(io::repeat(0).take(compressed));
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert_eq!(sum.count(), compressed);
        let mut limiter = RatioLimiter { reader: io::repeat(0).take(expanded), compressed: sum, expanded: 0 };
        io::copy(&mut limiter, &mut io::sink()).is_ok()
    }

    #[test]
    fn large_content_may_have_200_times_its_compressed_size() {
        let exempt = 8 << 20;
        assert!(accepts(exempt, 0) && !accepts(exempt + 1, 1));
        let compressed = (exempt + 200) / 200;
        assert!(accepts(compressed * 200 + 199, compressed) && !accepts(compressed * 200 + 200, compressed));
    }

    #[test]
    fn compression_follows_from_the_first_bytes() {
        let content = |bytes: &'static [u8]| -> Result<Vec<u8>, ImageError> {
            let mut content = Vec::new();
            open(bytes)?.reader.read_to_end(&mut content)?;
            Ok(content)
        };
        for plain in [&b""[..], b"x", b"BZ", b"\x1f", b"\xfd7z", b"x\x2a\x4dx"] {
            assert_eq!(content(plain).unwrap(), plain, "{plain:?}");
        }
        // A skipped frame without content.
        assert_eq!(content(b"\x50\x2a\x4d\x18\x01\0\0\0x").unwrap(), b"");
        for rejected in [&b"BZh9"[..], b"\xfd7zXZ\0"] {
            let error = content(rejected).unwrap_err().to_string();
            assert!(error.contains("bzip2 and xz"), "{error}");
        }
    }
}
