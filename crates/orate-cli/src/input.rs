//! The text to speak, from arguments, a file, or standard input; and standard input for recordings.

use crate::failure::UsageError;
use crate::print;
use anyhow::{Context, anyhow, bail};
use orate::decode_text;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// Limit of text in bytes, about 1000 hours of speech: an endless pipe must not fill memory.
const MOST_BYTES: u64 = 64 << 20;

/// Whether [`read`] reads standard input.
pub fn is_standard(words: &[String], file: Option<&Path>) -> bool {
    match (words, file) {
        (_, Some(path)) => path.as_os_str() == "-",
        ([], None) => true,
        ([word, more @ ..], None) => word == "-" && more.is_empty(),
    }
}

/// Reads the text: `words` joined by spaces, or the file. Without either, or with `-` as either, reads
/// standard input.
pub fn read(words: &[String], file: Option<&Path>) -> anyhow::Result<String> {
    if is_standard(words, file) {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            print::note("Type the text, then press Ctrl-D on a line of its own.");
        }
        return decode("standard input", stdin.lock());
    }
    let Some(path) = file else { return Ok(words.join(" ")) };
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name}: cannot open the text file"))?;
    decode(&name, file)
}

/// Standard input, for a recording.
pub fn recording() -> anyhow::Result<io::Stdin> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let problem = "a terminal has no sound; pipe a recording into it, or name a file";
        return Err(UsageError(format!("standard input: {problem}")).into());
    }
    Ok(stdin)
}

fn decode(name: &str, reader: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{name}: cannot read the text"))?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("{name}: more than {} MiB of text; split it and speak the parts", MOST_BYTES >> 20);
    }
    let has_mark =
        [&b"\xff\xfe"[..], b"\xfe\xff", b"\0\0\xfe\xff"].iter().any(|mark| bytes.starts_with(mark));
    if !has_mark && bytes.contains(&0) {
        bail!("{name}: not a text file: it contains NUL bytes");
    }
    let fix = "convert it first, for example with `iconv -f LATIN1 -t UTF-8`";
    let text = decode_text(bytes, fix).map_err(|e| anyhow!("{name}: {e}"))?;
    if text.contains('\0') {
        bail!("{name}: not a text file: it contains NUL characters");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_joined() {
        let words = ["Good", "morning."].map(str::to_owned);
        assert_eq!(read(&words, None).unwrap(), "Good morning.");
        let words = ["-", "minus"].map(str::to_owned);
        assert_eq!(read(&words, None).unwrap(), "- minus");
        let is_standard = |words: &[&str], file: Option<&str>| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            is_standard(&words, file.map(Path::new))
        };
        assert!(is_standard(&[], None) && is_standard(&["-"], None) && is_standard(&[], Some("-")));
        assert!(!is_standard(&["-", "minus"], None) && !is_standard(&[], Some("a.txt")));
    }

    #[test]
    fn bytes_become_text_or_an_error_with_a_place() {
        assert_eq!(decode("x", "\u{feff}Hé".as_bytes()).unwrap(), "Hé");
        let error = decode("x", &b"caf\xe9"[..]).unwrap_err().to_string();
        assert!(error.starts_with("x: not UTF-8 text: byte 0xe9 at offset 3;"), "{error}");
        for utf16 in [b"\xff\xfeH\0", b"\xfe\xff\0H"] {
            assert_eq!(decode("x", &utf16[..]).unwrap(), "H");
        }
        let error = decode("x", &b"\xff\xfe\0\xd8"[..]).unwrap_err().to_string();
        assert!(error.starts_with("x: not UTF-16 text: unpaired surrogate 0xd800 at offset 2;"), "{error}");
        for binary in [&b"\x7fELF\0\xff"[..], b"H\0i\0"] {
            let error = decode("x", binary).unwrap_err().to_string();
            assert_eq!(error, "x: not a text file: it contains NUL bytes");
        }
        for utf32 in [b"\xff\xfe\0\0H\0\0\0", b"\0\0\xfe\xff\0\0\0H"] {
            let error = decode("x", &utf32[..]).unwrap_err().to_string();
            assert!(
                error.contains("byte order mark of UTF-32") && error.contains("iconv -f UTF-32"),
                "{error}"
            );
        }
        for nul in [b"\xff\xfeH\0\0\0i\0", b"\xfe\xff\0H\0\0\0i"] {
            let error = decode("x", &nul[..]).unwrap_err().to_string();
            assert_eq!(error, "x: not a text file: it contains NUL characters");
        }
        let error = decode("x", io::repeat(b'a')).unwrap_err().to_string();
        assert!(error.contains("more than 64 MiB"), "{error}");
    }
}
