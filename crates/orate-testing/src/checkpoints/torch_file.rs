//! Writes files as `torch.save` does: a zip of a pickle and the bytes of its tensors.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A value that a pickle holds.
pub(super) enum Pickled {
    None,
    /// Whether it is `f32` rather than `i64`, its shape, and its bytes.
    Tensor(bool, Vec<usize>, Vec<u8>),
    Dict(Vec<(String, Pickled)>),
}

/// Writes `value` to a file that `torch.load` opens with `weights_only`.
pub(super) fn write_torch_file(path: &Path, value: &Pickled) -> io::Result<()> {
    let mut pickle = b"\x80\x02".to_vec();
    let mut storages = vec![];
    append(value, &mut pickle, &mut storages);
    pickle.push(b'.');
    let mut entries = vec![("data.pkl".to_owned(), &pickle[..])];
    entries.extend(storages.iter().enumerate().map(|(i, bytes)| (format!("data/{i}"), *bytes)));
    entries.push(("version".to_owned(), b"3\n"));

    let mut out = BufWriter::new(File::create(path)?);
    let (mut at, mut directory) = (0, vec![]);
    for (name, bytes) in &entries {
        // Zip: version 2.0, no flags, stored, midnight of the first day of 1980, checksum and sizes.
        let name = format!("archive/{name}");
        let mut entry = [20_u16, 0, 0, 0, 33].map(u16::to_le_bytes).concat();
        let size = bytes.len() as u32;
        entry.extend([crc32(bytes), size, size].map(u32::to_le_bytes).concat());
        entry.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        out.write_all(b"PK\x03\x04")?;
        out.write_all(&entry)?;
        out.write_all(name.as_bytes())?;
        out.write_all(bytes)?;
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(entry);
        directory.extend([0; 10]);
        directory.extend((at as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        at += 30 + name.len() + bytes.len();
    }
    out.write_all(&directory)?;
    let count = entries.len() as u16;
    out.write_all(b"PK\x05\x06")?;
    out.write_all(&[0, 0, count, count].map(u16::to_le_bytes).concat())?;
    out.write_all(&[directory.len() as u32, at as u32].map(u32::to_le_bytes).concat())?;
    out.write_all(&[0; 2])?;
    out.flush()
}

fn append<'v>(value: &'v Pickled, pickle: &mut Vec<u8>, storages: &mut Vec<&'v [u8]>) {
    match value {
        Pickled::None => pickle.push(b'N'),
        Pickled::Dict(entries) => {
            pickle.extend(b"}(");
            for (key, value) in entries {
                text(key, pickle);
                append(value, pickle, storages);
            }
            pickle.push(b'u');
        }
        Pickled::Tensor(is_float, dims, bytes) => {
            let width = if *is_float { 4 } else { 8 };
            pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text("storage", pickle);
            pickle.extend(if *is_float { &b"ctorch\nFloatStorage\n"[..] } else { b"ctorch\nLongStorage\n" });
            text(&storages.len().to_string(), pickle);
            text("cpu", pickle);
            integer(bytes.len() / width, pickle);
            pickle.extend(b"tQ");
            // Offset, shape, strides, no gradient, no hooks.
            integer(0, pickle);
            pickle.push(b'(');
            dims.iter().for_each(|n| integer(*n, pickle));
            pickle.extend(b"t(");
            (0..dims.len()).for_each(|i| integer(dims[i + 1..].iter().product(), pickle));
            pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
            storages.push(bytes);
        }
    }
}

fn text(s: &str, pickle: &mut Vec<u8>) {
    pickle.push(b'X');
    pickle.extend((s.len() as u32).to_le_bytes());
    pickle.extend(s.as_bytes());
}

fn integer(n: usize, pickle: &mut Vec<u8>) {
    pickle.push(b'J');
    pickle.extend((n as u32).to_le_bytes());
}

/// CRC-32 of zip files and of `zlib.crc32`.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut i) = ([0; 256], 0);
        while i < 256 {
            let (mut word, mut bit) = (i as u32, 0);
            while bit < 8 {
                word = (word >> 1) ^ (if word & 1 == 1 { 0xEDB8_8320 } else { 0 });
                bit += 1;
            }
            table[i] = word;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, b| (crc >> 8) ^ TABLE[((crc ^ u32::from(*b)) & 255) as usize])
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn checksum_of_the_usual_test_vector() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
