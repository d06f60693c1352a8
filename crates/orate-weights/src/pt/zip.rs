//! Where the entries of a zip file are. PyTorch stores them uncompressed, so that an entry is a range of the
//! file.
//!
//! ```text
//! entries: local header, name, extra, bytes │ central directory │ zip64 end │ zip64 locator │ end
//! ```

use std::collections::HashMap;
use std::ops::Range;

use orate_files::quoted;

use crate::error::{Fault, malformed, unsupported};

const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const ZIP64_END: &[u8] = b"PK\x06\x06";
const ZIP64_LOCATOR: &[u8] = b"PK\x06\x07";

/// Bytes of the records above without names, extra fields and comments.
const LOCAL_LEN: usize = 30;
const CENTRAL_LEN: usize = 46;
const END_LEN: usize = 22;
const ZIP64_END_LEN: usize = 56;
const ZIP64_LOCATOR_LEN: usize = 20;

/// Extra field with the numbers that need 64 bits.
const ZIP64_EXTRA: u64 = 1;
/// Stands for a number that is in the extra field.
const IN_EXTRA: u64 = 0xffff_ffff;

/// Bytes of each entry by name.
pub(super) type Entries<'a> = HashMap<&'a str, Range<usize>>;

/// Reads the central directory. Every range lies inside `file`.
pub(super) fn entries(file: &[u8]) -> Result<Entries<'_>, Fault> {
    let (directory, count) = directory(file)?;
    let mut rest = &file[directory];
    if count > (rest.len() / CENTRAL_LEN) as u64 {
        return malformed!("{count} entries do not fit into a directory of {} bytes", rest.len());
    }
    let mut entries = HashMap::with_capacity(count as usize);
    for i in 0..count {
        let entry = Central::read(&mut rest);
        let Some(entry) = entry else { return malformed!("entry {i} of the zip directory is damaged") };
        let Ok(name) = std::str::from_utf8(entry.name) else {
            return malformed!("the name of zip entry {i} is not UTF-8");
        };
        if entry.flags & 1 != 0 {
            return unsupported!("zip entry {} is encrypted", quoted(name));
        }
        if entry.method != 0 {
            return unsupported!("zip entry {} is compressed; torch.save does not do that", quoted(name));
        }
        let Some(range) = entry.range(file) else {
            return malformed!("zip entry {} is not where the directory says", quoted(name));
        };
        if entries.insert(name, range).is_some() {
            return malformed!("two zip entries are named {}", quoted(name));
        }
    }
    Ok(entries)
}

/// Finds the central directory and its number of entries.
fn directory(file: &[u8]) -> Result<(Range<usize>, u64), Fault> {
    let Some(end) = find_end(file) else {
        return malformed!("it has no zip directory at its end; it may be cut off");
    };
    let [mut count, mut len, mut start] =
        [(10, 2), (12, 4), (16, 4)].map(|(at, n)| number(&file[end + at..], n));
    if count == 0xffff || len == IN_EXTRA || start == IN_EXTRA {
        let Some(record) = zip64_end(file, end) else {
            return malformed!("the zip64 directory is not where the zip directory says");
        };
        [count, len, start] = [32, 40, 48].map(|at| number(&record[at..], 8));
    }
    let stop = start.checked_add(len).filter(|stop| *stop <= end as u64);
    match stop {
        Some(stop) => Ok((start as usize..stop as usize, count)),
        None => malformed!("the zip directory should be {len} bytes at {start}, behind its own end"),
    }
}

/// Offset of the end record, before which a comment may follow.
fn find_end(file: &[u8]) -> Option<usize> {
    let last = file.len().checked_sub(END_LEN)?;
    (last.saturating_sub(0xffff)..=last).rev().find(|&at| {
        file[at..].starts_with(END) && number(&file[at + 20..], 2) as usize == file.len() - at - END_LEN
    })
}

fn zip64_end(file: &[u8], end: usize) -> Option<&[u8]> {
    let locator = &file[end.checked_sub(ZIP64_LOCATOR_LEN)?..end];
    let at = usize::try_from(number(&locator[8..], 8)).ok()?;
    let record = file.get(at..)?.get(..ZIP64_END_LEN)?;
    (locator.starts_with(ZIP64_LOCATOR) && record.starts_with(ZIP64_END)).then_some(record)
}

/// An entry of the central directory.
struct Central<'a> {
    name: &'a [u8],
    flags: u64,
    method: u64,
    size: u64,
    /// Offset of the local header.
    header: u64,
}

impl<'a> Central<'a> {
    /// Reads the first entry of `rest`, which becomes what follows.
    fn read(rest: &mut &'a [u8]) -> Option<Central<'a>> {
        let fixed = rest.get(..CENTRAL_LEN).filter(|f| f.starts_with(CENTRAL))?;
        let [flags, method, name, extra, comment] = [8, 10, 28, 30, 32].map(|at| number(&fixed[at..], 2));
        let [packed, mut size, mut header] = [20, 24, 42].map(|at| number(&fixed[at..], 4));
        let [name, extra, comment] = [name, extra, comment].map(|n| n as usize);
        let after = &rest[CENTRAL_LEN..];
        let (name, after) = after.split_at_checked(name)?;
        let (mut extra, after) = after.split_at_checked(extra)?;
        *rest = after.get(comment..)?;
        while let Some((field, next)) = split_extra(extra) {
            if number(extra, 2) == ZIP64_EXTRA {
                let mut words = field.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
                for value in [&mut size, &mut { packed }, &mut header] {
                    if *value == IN_EXTRA {
                        *value = words.next()?;
                    }
                }
            }
            extra = next;
        }
        Some(Central { name, flags, method, size, header })
    }

    /// The bytes of the entry, behind its local header.
    fn range(&self, file: &[u8]) -> Option<Range<usize>> {
        let at = usize::try_from(self.header).ok()?;
        let fixed = file.get(at..)?.get(..LOCAL_LEN).filter(|f| f.starts_with(LOCAL))?;
        let (name, extra) = (number(&fixed[26..], 2) as usize, number(&fixed[28..], 2) as usize);
        let start = at + LOCAL_LEN + name + extra;
        let end = start.checked_add(usize::try_from(self.size).ok()?)?;
        let same = file.get(at + LOCAL_LEN..)?.get(..name)? == self.name;
        (same && end <= file.len()).then_some(start..end)
    }
}

/// Splits extra fields after the first one, and returns its content and the rest.
fn split_extra(extra: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = extra.split_at_checked(4)?;
    rest.split_at_checked(number(&head[2..], 2) as usize)
}

/// The little-endian number of the first `len` bytes.
fn number(bytes: &[u8], len: usize) -> u64 {
    bytes[..len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A zip file of `entries`, which are a name, a method and bytes. Sizes can be in zip64 fields.
    pub(in crate::pt) fn zip(entries: &[(&str, u16, &[u8])], zip64: bool) -> Vec<u8> {
        let (mut file, mut directory) = (vec![], vec![]);
        for (name, method, bytes) in entries {
            let header = file.len() as u64;
            let [name_len, padding] = [name.len() as u16, 5u16].map(u16::to_le_bytes);
            file.extend(LOCAL);
            file.extend([0; 22]);
            file.extend(name_len);
            file.extend(padding);
            file.extend(name.bytes());
            file.extend([0; 5]);
            file.extend(*bytes);

            let size = bytes.len() as u64;
            let field = |value: u64| if zip64 { u32::MAX } else { value as u32 }.to_le_bytes();
            let mut extra = vec![];
            if zip64 {
                extra.extend([9, 0, 1, 0, 0xff, 1, 0, 24, 0]);
                [size, size, header].iter().for_each(|v| extra.extend(v.to_le_bytes()));
            }
            directory.extend(CENTRAL);
            directory.extend([0; 6]);
            directory.extend(method.to_le_bytes());
            directory.extend([0; 8]);
            directory.extend([field(size), field(size)].concat());
            directory.extend(name_len);
            directory.extend((extra.len() as u16).to_le_bytes());
            directory.extend([0; 10]);
            directory.extend(field(header));
            directory.extend(name.bytes());
            directory.extend(extra);
        }
        let (start, len, count) = (file.len() as u64, directory.len() as u64, entries.len() as u64);
        file.extend(directory);
        if zip64 {
            let end = file.len() as u64;
            file.extend(ZIP64_END);
            file.extend([0; 28]);
            [count, len, start].iter().for_each(|v| file.extend(v.to_le_bytes()));
            file.extend(ZIP64_LOCATOR);
            file.extend([0; 4]);
            file.extend(end.to_le_bytes());
            file.extend([0; 4]);
        }
        let (count, len, start) = if zip64 { (0xffff, IN_EXTRA, IN_EXTRA) } else { (count, len, start) };
        file.extend(END);
        file.extend([0; 6]);
        file.extend((count as u16).to_le_bytes());
        file.extend((len as u32).to_le_bytes());
        file.extend((start as u32).to_le_bytes());
        file.extend([0; 2]);
        file
    }

    #[test]
    fn entries_are_ranges_of_the_file() {
        for zip64 in [false, true] {
            let file = zip(&[("a/one", 0, b"first"), ("a/two", 0, b""), ("b", 0, b"PK\x05\x06")], zip64);
            let entries = entries(&file).unwrap();
            assert_eq!(entries.len(), 3);
            let bytes = |name: &str| &file[entries[name].clone()];
            assert_eq!([bytes("a/one"), bytes("a/two"), bytes("b")], [&b"first"[..], b"", b"PK\x05\x06"]);
        }
    }

    #[test]
    fn a_comment_may_follow() {
        let mut file = zip(&[("a", 0, b"first")], false);
        let at = file.len() - 2;
        file[at] = 7;
        file.extend(b"comment");
        assert_eq!(entries(&file).unwrap().len(), 1);
        file.pop();
        assert!(entries(&file).is_err());
    }

    #[test]
    fn damage_is_named() {
        let message = |file: &[u8]| entries(file).unwrap_err().at("test", "zip").to_string();
        let cases = [
            (zip(&[("a", 8, b"x")], false), "zip entry `a` is compressed"),
            (zip(&[("a", 0, b"x"), ("a", 0, b"y")], true), "two zip entries are named `a`"),
            (vec![], "no zip directory"),
            (vec![0; 100], "no zip directory"),
        ];
        for (file, problem) in cases {
            let message = message(&file);
            assert!(message.contains(problem), "{message}\nshould hold {problem}");
        }
        let good = zip(&[("a", 0, b"xyz")], false);
        let edit = |from_end: usize, value: u8| {
            let mut file = good.clone();
            let at = file.len() - from_end;
            file[at] = value;
            message(&file)
        };
        assert!(edit(12, 9).contains("9 entries do not fit"), "{}", edit(12, 9));
        assert!(edit(6, 200).contains("behind its own end"), "{}", edit(6, 200));
        assert!(edit(END_LEN + 5, 3).contains("zip entry `a` is not where"), "{}", edit(END_LEN + 5, 3));
        assert!(edit(END_LEN + 47, 0).contains("entry 0 of the zip directory"), "{}", edit(END_LEN + 47, 0));
    }
}
