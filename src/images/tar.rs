//! Reads tar archives (Unix version 7, POSIX ustar and pax, GNU) one member at a time.
//!
//! Archives are untrusted. Everything that is kept in memory, such as a member's name and attributes, has a fixed limit. A size is only used as the
//! number of bytes still to be read. This module does not write files.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};

use super::ImageError;

const BLOCK: usize = 512;
/// The maximum length of a path or link target: PATH_MAX of Linux.
const MAX_PATH: u64 = 4096;
/// The maximum length of a block of pax attributes, which contains paths, times and extended attributes.
const MAX_PAX: u64 = 1 << 20;
/// The maximum number of consecutive headers that describe one member, including its own.
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
    /// The number of unread bytes of the current member's content.
    unread_content: u64,
    /// The number of bytes of padding to skip after the content.
    padding: u64,
    /// Whether the archive may end without its end mark, because its digest is verified.
    may_have_no_end: bool,
    /// Skips this many bytes, and returns how many it skipped: fewer at the end of the input.
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
                // Attributes of the whole archive, such as git's comment or a volume's name, are skipped.
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
            return Err(malformed("a member has an invalid name or link target"));
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

    /// The next header; `None` at the end, which two blocks of zeros mark. With `may_have_no_end`, the input may also just end. A single block of
    /// zeros is skipped, as in GNU tar.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, ImageError> {
        for _ in 0..2 {
            let mut header = [0; BLOCK];
            let read = read_up_to(&mut self.reader, &mut header)?;
            self.position += read as u64;
            match read {
                0 if self.may_have_no_end => return Ok(None),
                0 if self.position == 0 => return Err(malformed("the archive is empty")),
                0 => return Err(malformed("the archive is truncated: its end mark is missing")),
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
            return Err(malformed("a member's name, link target or attributes are too long"));
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
            let (key, value, length) = record().ok_or_else(|| malformed("a pax extended header is malformed"))?;
            let text = std::str::from_utf8(value).unwrap_or_default();
            match key {
                b"path" | b"linkpath" if value.len() as u64 > MAX_PATH => {
                    return Err(malformed("a member's name or link target is too long"));
                }
                b"path" => overrides.path = Some(value.to_vec()),
                b"linkpath" => overrides.link = Some(value.to_vec()),
                b"size" => overrides.size = Some(text.parse().map_err(|_| malformed("a member's size is invalid"))?),
                b"mtime" => overrides.mtime = text.split('.').next().and_then(|seconds| seconds.parse().ok()),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(malformed("the archive contains sparse files; create it without --sparse"));
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
    // In GNU's old format, times and other data take the place of the prefix.
    let is_ustar = &header[257..263] == b"ustar\0";
    if is_ustar && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
}

/// Parses octal digits, or GNU's base 256 for large numbers.
fn number(field: &[u8]) -> Result<u64, ImageError> {
    if field[0] & 0x80 != 0 {
        if field[0] == 0xff {
            // A negative number, such as a time before 1970, is replaced by 0.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::archive::Tar;

    /// The members of an archive, whose content is not read.
    fn members(archive: &[u8]) -> Result<Vec<Member>, ImageError> {
        let mut archive = Archive::new(archive);
        std::iter::from_fn(|| archive.next().transpose()).collect()
    }

    fn only_member(tar: Tar) -> Member {
        <[Member; 1]>::try_from(members(&tar.end()).unwrap()).unwrap().into_iter().next().unwrap()
    }

    #[test]
    fn type_of_member_follows_from_its_byte_and_name() {
        for (byte, path, expected) in [
            (0, "a", Kind::File),
            (0, "a/", Kind::Directory),
            (b'0', "a", Kind::File),
            (b'7', "a", Kind::File),
            (b'7', "a/", Kind::Directory),
            (b'1', "a", Kind::Hardlink),
            (b'2', "a/", Kind::Symlink),
            (b'3', "a", Kind::Special),
            (b'4', "a", Kind::Special),
            (b'5', "a", Kind::Directory),
            (b'6', "a", Kind::Special),
        ] {
            // Only a file has content, whatever the header says.
            let size = if expected == Kind::File { 0 } else { 7 };
            let member = only_member(Tar::new().member(path, byte, 0o4751, (size, b""), "to"));
            let (mode, mtime, link) = (0o4751, 1_700_000_000, b"to".to_vec());
            let path = path.as_bytes().to_vec();
            assert_eq!(member, Member { path, kind: expected, mode, mtime, size: 0, link, offset: 512 }, "{byte}");
        }
    }

    #[test]
    fn attributes_before_a_member_replace_those_of_its_header() {
        let long = "l".repeat(200);
        let gnu = Tar::new().gnu_long("path", b"").member("x", b'K', 0, (201, format!("{long}\0").as_bytes()), "");
        let all = members(&gnu.symlink("a", "short").end()).unwrap();
        assert_eq!((all[0].path.as_slice(), all[1].link.as_slice()), (&b"path"[..], long.as_bytes()));
        let pax = [("path", "p"), ("linkpath", "l"), ("size", "3"), ("mtime", "5.9"), ("uname", "x")];
        let member = only_member(Tar::new().pax(&pax, "short", b"123"));
        assert_eq!((member.path, member.link, member.size, member.mtime), (b"p".to_vec(), b"l".to_vec(), 3, 5));
        // A comment of git, and the name of a volume.
        let global = Tar::new().member("g", b'g', 0, (9, b"9 comment"), "").member("v", b'V', 0, (0, b""), "");
        assert_eq!(only_member(global.file("a", 0o644, b"")).path, b"a");
        let prefixes = |count| (0..count).fold(Tar::new(), |tar, _| tar.member("v", b'V', 0, (0, b""), ""));
        assert_eq!(only_member(prefixes(7).file("a", 0o644, b"")).offset, 8 * 512);
        assert!(members(&prefixes(8).file("a", 0o644, b"").end()).is_err());
    }

    #[test]
    fn names_and_attributes_have_a_maximum_length() {
        let name = |length: usize| Tar::new().gnu_long(&"n".repeat(length - 1), b"").end();
        assert_eq!(members(&name(4096)).unwrap()[0].path.len(), 4095);
        assert!(members(&name(4097)).is_err());
        for key in ["path", "linkpath"] {
            let pax = |length: usize| Tar::new().pax(&[(key, &"n".repeat(length))], "a", b"").end();
            assert!(members(&pax(4096)).is_ok() && members(&pax(4097)).is_err(), "{key}");
        }
        let pax = |length: usize| {
            let record = format!("{length} comment={}\n", "x".repeat(length - 17));
            assert_eq!(record.len(), length);
            Tar::new().member("p", b'x', 0, (length as u64, record.as_bytes()), "").file("a", 0o644, b"").end()
        };
        assert!(members(&pax(1 << 20)).is_ok() && members(&pax((1 << 20) + 1)).is_err());
    }

    #[test]
    fn content_follows_its_header_and_is_padded() {
        let tar = Tar::new().file("a", 0o644, b"1").file("b", 0o644, &[2; 512]).file("c", 0o644, &[3; 513]);
        let bytes = tar.file("d", 0o644, b"").end();
        let offsets: Vec<u64> = members(&bytes).unwrap().iter().map(|member| member.offset).collect();
        assert_eq!(offsets, [512, 1536, 2560, 4096]);
        // The content may be read in part.
        let mut archive = Archive::new(bytes.as_slice());
        archive.next().unwrap();
        archive.next().unwrap();
        let mut start = [0; 5];
        archive.read_exact(&mut start).unwrap();
        assert_eq!((start, archive.next().unwrap().unwrap().offset), ([2; 5], 2560));
        let mut rest = Vec::new();
        archive.read_to_end(&mut rest).unwrap();
        assert_eq!((rest, archive.next().unwrap().unwrap().path), (vec![3; 513], b"d".to_vec()));
        assert_eq!(archive.next().unwrap(), None);
    }

    #[test]
    fn prefix_of_a_name_is_used_in_posix_archives_only() {
        let name = |magic: &[u8], prefix: &[u8]| {
            only_member(Tar::new().file("a", 0o644, b"").patch(257, magic).patch(345, prefix)).path
        };
        assert_eq!(name(b"ustar\0", b"directory"), b"directory/a");
        assert_eq!(name(b"ustar\0", b""), b"a");
        assert_eq!(name(b"ustar ", b"14000000000"), b"a");
    }

    #[test]
    fn parses_octal_and_binary_numbers() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   12 \0", Some(0o12)),
            (b"  \0", Some(0)),
            (b"12 3", None),
            (b"8", None),
            (b"-1", None),
            (b"1\xc3", None),
            (b"\x80\0\x01\x02", Some(258)),
            (b"\x81\x03", Some(259)),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xfe", Some(0)),
        ] {
            assert_eq!(number(field).ok(), expected, "{field:?}");
        }
    }

    #[test]
    fn one_block_of_zeros_is_skipped_and_two_end_the_archive() {
        let [one, two] = ["a", "b"].map(|name| Tar::new().file(name, 0o644, b"").0);
        let zeros = |blocks: usize| vec![0; blocks * BLOCK];
        let names = |archive: &[Vec<u8>]| {
            let paths =
                members(&archive.concat()).map(|all| all.into_iter().map(|member| member.path).collect::<Vec<_>>());
            paths.map_err(|error| error.to_string())
        };
        assert_eq!(names(&[one.clone(), zeros(1), two.clone(), zeros(2)]), Ok(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(names(&[one.clone(), zeros(2), two]), Ok(vec![b"a".to_vec()]));
        for (archive, why) in [
            (&[] as &[Vec<u8>], "the archive is empty"),
            (std::slice::from_ref(&one), "the archive is truncated: its end mark is missing"),
            (&[vec![b'x'; 100]], "not a tar archive"),
            (&[one.clone(), vec![0; 100]], "the archive is truncated"),
        ] {
            assert_eq!(names(archive), Err(malformed(why).to_string()));
        }
    }
}
