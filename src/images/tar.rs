//! Reads tar archives (POSIX ustar, pax and GNU) one member at a time.
//!
//! Archives are untrusted. Everything that is kept in memory, such as a member's name and attributes, has a fixed limit. A size is only used as the
//! number of bytes still to be read. This module writes no member.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};

use super::ImageError;

const BLOCK: usize = 512;
/// The maximum length of a path or link target: PATH_MAX of Linux.
const MAX_PATH: u64 = 4096;
/// The maximum length of a block of pax attributes, which contains paths, times and extended attributes.
const MAX_PAX: u64 = 1 << 20;
/// The maximum number of consecutive headers that describe the next member.
const MAX_PREFIXES: u32 = 8;

/// The type of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    /// A device node or FIFO.
    Special,
}

/// A member's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    /// The modification time, in seconds since 1970.
    pub(crate) mtime: i64,
    /// The size of the content, in bytes.
    pub(crate) size: u64,
    /// The target, if the member is a link.
    pub(crate) link: Vec<u8>,
    /// The position of the content in the archive.
    pub(crate) offset: u64,
}

/// Attributes of the next member, from a preceding pax or GNU member.
#[derive(Default)]
struct Overrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<i64>,
}

/// A reader of an archive.
pub(crate) struct Archive<R> {
    reader: R,
    position: u64,
    /// The unread bytes of the current member's content, and of the padding after it.
    unread_content: u64,
    padding: u64,
    /// Whether the archive may end without its end mark, because its digest is verified.
    may_have_no_end: bool,
    /// Skips this many bytes, and returns how many there were.
    skip: fn(&mut R, u64) -> io::Result<u64>,
}

fn malformed(why: &str) -> ImageError {
    ImageError::Malformed(why.to_owned())
}

impl Archive<BufReader<File>> {
    /// A reader that seeks over skipped members.
    pub(crate) fn seekable(reader: BufReader<File>) -> Self {
        let skip = |reader: &mut BufReader<File>, left: u64| {
            let (end, at) = (reader.get_ref().metadata()?.len(), reader.stream_position()?);
            let limit = left.min(end.saturating_sub(at));
            reader.seek_relative(i64::try_from(limit).map_err(io::Error::other)?)?;
            Ok(limit)
        };
        Self { skip, ..Self::new(reader) }
    }
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(reader: R) -> Self {
        let skip = |reader: &mut R, left| io::copy(&mut reader.take(left), &mut io::sink());
        Self { reader, position: 0, unread_content: 0, padding: 0, may_have_no_end: false, skip }
    }

    /// Accepts an archive without the blocks of zeros at its end, which some builders of images do not write.
    pub(crate) fn without_end(self) -> Self {
        Self { may_have_no_end: true, ..self }
    }

    /// The next member, or `None` at the end. Skips the unread content of the previous member.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, ImageError> {
        let mut overrides = Overrides::default();
        for _ in 0..MAX_PREFIXES {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136])?;
            match header[156] {
                b'L' => overrides.path = Some(self.read_name(size)?),
                b'K' => overrides.link = Some(self.read_name(size)?),
                b'x' => self.read_pax(size, &mut overrides)?,
                // Attributes of the whole archive: git's comment, a volume's name.
                b'g' | b'V' => self.begin_content(size),
                kind => return self.member(&header, kind, size, overrides).map(Some),
            }
        }
        Err(malformed("too many headers describe one member"))
    }

    fn member(
        &mut self,
        header: &[u8; BLOCK],
        kind: u8,
        size: u64,
        overrides: Overrides,
    ) -> Result<Member, ImageError> {
        let path = overrides.path.unwrap_or_else(|| path(header));
        let link = overrides.link.unwrap_or_else(|| until_nul(&header[157..257]).to_vec());
        if path.is_empty() || path.contains(&0) || link.contains(&0) {
            return Err(malformed("a member has an invalid name"));
        }
        let kind = match kind {
            // The format of Unix version 7 has no type for directories.
            0 | b'0' | b'7' if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' | b'4' | b'6' => Kind::Special,
            b'5' => Kind::Directory,
            _ => return Err(ImageError::Unsupported { path: lossy(&path), what: "type of archive member" }),
        };
        let size = if kind == Kind::File { overrides.size.unwrap_or(size) } else { 0 };
        self.begin_content(size);
        let mtime = overrides.mtime.unwrap_or(number(&header[136..148])?.try_into().unwrap_or(0));
        let mode = u32::try_from(number(&header[100..108])? & 0o7777).unwrap_or(0);
        Ok(Member { path, kind, mode, mtime, size, link, offset: self.position })
    }

    fn begin_content(&mut self, size: u64) {
        self.unread_content = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    /// Skips the unread content and the padding of the current member.
    fn skip(&mut self) -> Result<(), ImageError> {
        let left = self.unread_content.checked_add(self.padding);
        let left = left.ok_or_else(|| malformed("a member's size is too large"))?;
        let skipped = if left == 0 { 0 } else { (self.skip)(&mut self.reader, left)? };
        self.position += skipped;
        // The last block need not be complete either: umoci does not pad it.
        let needed = if self.may_have_no_end { self.unread_content } else { left };
        if skipped < needed {
            return Err(malformed("the archive is truncated"));
        }
        (self.unread_content, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; `None` at the end, which two blocks of zeros mark. A single block of zeros is skipped, as in GNU tar.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, ImageError> {
        for _ in 0..2 {
            let mut header = [0; BLOCK];
            let read = read_up_to(&mut self.reader, &mut header)?;
            self.position += read as u64;
            match read {
                0 if self.may_have_no_end => return Ok(None),
                0 if self.position == 0 => return Err(malformed("the archive is empty")),
                0 => return Err(malformed("the archive is truncated: it has no end")),
                BLOCK => {}
                _ if self.position == read as u64 => return Err(malformed("not a tar archive")),
                _ => return Err(malformed("the archive is truncated")),
            }
            if header == [0; BLOCK] {
                continue;
            }
            let bytes = header.iter().enumerate();
            let sum: u64 = bytes.map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
            if number(&header[148..156])? != sum {
                return Err(malformed("not a tar archive, or a header is damaged (wrong checksum)"));
            }
            return Ok(Some(header));
        }
        Ok(None)
    }

    /// The content of the current member as a name.
    fn read_name(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = self.read_content(size, MAX_PATH)?;
        Ok(until_nul(&bytes).to_vec())
    }

    fn read_content(&mut self, size: u64, limit: u64) -> Result<Vec<u8>, ImageError> {
        if size > limit {
            return Err(malformed("a member's name or attributes are too long"));
        }
        self.begin_content(size);
        let mut bytes = Vec::new();
        (&mut *self).take(size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads records `LENGTH KEY=VALUE\n`, where LENGTH counts the whole record.
    fn read_pax(&mut self, size: u64, overrides: &mut Overrides) -> Result<(), ImageError> {
        let bytes = self.read_content(size, MAX_PAX)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let record = || {
                let digits = rest.iter().position(|byte| *byte == b' ')?;
                let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
                let record = rest.get(digits + 1..length)?.strip_suffix(b"\n")?;
                let equals = record.iter().position(|byte| *byte == b'=')?;
                Some((&record[..equals], &record[equals + 1..], length))
            };
            let (key, value, length) = record().ok_or_else(|| malformed("a member's pax attributes are damaged"))?;
            let text = std::str::from_utf8(value).unwrap_or_default();
            match key {
                b"path" | b"linkpath" if value.len() as u64 > MAX_PATH => {
                    return Err(malformed("a member's name is too long"));
                }
                b"path" => overrides.path = Some(value.to_vec()),
                b"linkpath" => overrides.link = Some(value.to_vec()),
                b"size" => overrides.size = Some(text.parse().map_err(|_| malformed("a member's size is invalid"))?),
                b"mtime" => overrides.mtime = text.split('.').next().and_then(|seconds| seconds.parse().ok()),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(malformed("the archive has sparse files; make it without --sparse"));
                }
                _ => {}
            }
            rest = &rest[length..];
        }
        Ok(())
    }
}

/// The content of the current member.
impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = usize::try_from(self.unread_content).unwrap_or(usize::MAX).min(buffer.len());
        if limit == 0 {
            return Ok(0);
        }
        let read = self.reader.read(&mut buffer[..limit])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is truncated"));
        }
        self.unread_content -= read as u64;
        self.position += read as u64;
        Ok(read)
    }
}

/// Reads until the buffer is full or the input ends; returns the number of bytes.
pub(crate) fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A path as short printable text, for messages.
pub(crate) fn lossy(path: &[u8]) -> String {
    model::printable::short(&String::from_utf8_lossy(path), 120)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn path(header: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (until_nul(&header[..100]), until_nul(&header[345..500]));
    // In GNU's old format, this field contains times instead of the prefix.
    let is_ustar = &header[257..263] == b"ustar\0";
    if is_ustar && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
}

/// Parses octal digits, or GNU's base 256 for large numbers.
fn number(field: &[u8]) -> Result<u64, ImageError> {
    if field[0] & 0x80 != 0 {
        if field[0] == 0xff {
            // A time before 1970 is read as 0.
            return Ok(0);
        }
        let first = u64::from(field[0] & 0x7f);
        let digits = field[1..].iter().try_fold(first, |sum, byte| Some(sum.checked_mul(256)? | u64::from(*byte)));
        return digits.ok_or_else(|| malformed("a number in a header is too large"));
    }
    let text = std::str::from_utf8(field).map_err(|_| malformed("a number in a header is invalid"))?;
    let text = text.trim_matches(['\0', ' ']);
    if text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text, 8).map_err(|_| malformed("a number in a header is invalid"))
}
