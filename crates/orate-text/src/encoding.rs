//! Encodings of text files.

use crate::TextError;

/// Decodes a text: UTF-8, or UTF-16 after the byte order mark of that. The mark is dropped.
///
/// # Errors
/// A byte is not of the encoding, or the text has the byte order mark of UTF-32. `fix` says what to do about
/// texts without the mark of UTF-16.
pub fn decode_text(bytes: Vec<u8>, fix: &str) -> Result<String, TextError> {
    match &*bytes {
        // Before UTF-16, whose mark begins alike.
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => Err(TextError::Encoding {
            encoding: "UTF-8 or UTF-16",
            problem: "byte order mark of UTF-32".to_owned(),
            offset: 0,
            fix: "convert it first, for example with `iconv -f UTF-32 -t UTF-8`".to_owned(),
        }),
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => match String::from_utf8(bytes) {
            Ok(text) => Ok(text.strip_prefix('\u{FEFF}').map(str::to_owned).unwrap_or(text)),
            Err(e) => {
                let offset = e.utf8_error().valid_up_to();
                let problem = format!("byte 0x{:02x}", e.as_bytes()[offset]);
                Err(TextError::Encoding { encoding: "UTF-8", problem, offset, fix: fix.to_owned() })
            }
        },
    }
}

/// Decodes what follows the byte order mark.
fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, TextError> {
    let damaged = |problem, at| {
        let fix = "the file is damaged; open it in an editor and save it as UTF-8".to_owned();
        Err(TextError::Encoding { encoding: "UTF-16", problem, offset: 2 + at, fix })
    };
    let (pairs, rest) = bytes.as_chunks();
    let mut text = String::with_capacity(bytes.len());
    for c in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        match c {
            Ok(c) => text.push(c),
            Err(e) => {
                let at = 2 * text.encode_utf16().count();
                return damaged(format!("unpaired surrogate 0x{:04x}", e.unpaired_surrogate()), at);
            }
        }
    }
    match rest {
        [] => Ok(text),
        [byte, ..] => damaged(format!("single byte 0x{byte:02x}"), bytes.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<String, String> {
        decode_text(bytes.to_vec(), "convert it").map_err(|e| e.to_string())
    }

    #[test]
    fn texts_have_one_of_three_encodings() {
        let text = "Hé 漢 🎉";
        let mark = '\u{FEFF}';
        let units = || std::iter::once(0xFEFF).chain(text.encode_utf16());
        for bytes in [
            text.as_bytes().to_vec(),
            format!("{mark}{text}").into_bytes(),
            units().flat_map(u16::to_le_bytes).collect(),
            units().flat_map(u16::to_be_bytes).collect(),
        ] {
            assert_eq!(decoded(&bytes).as_deref(), Ok(text), "{bytes:x?}");
        }
        for empty in ["".as_bytes(), b"\xff\xfe", b"\xfe\xff"] {
            assert_eq!(decoded(empty).as_deref(), Ok(""));
        }
    }

    #[test]
    fn errors_name_the_byte_and_its_offset() {
        for (bytes, problem) in [
            (&b"caf\xe9"[..], "not UTF-8 text: byte 0xe9 at offset 3; convert it"),
            (b"\xff", "not UTF-8 text: byte 0xff at offset 0; convert it"),
            (b"\xff\xfeH\0\0\xd8i\0", "not UTF-16 text: unpaired surrogate 0xd800 at offset 4; the file"),
            (
                b"\xfe\xff\xd8\x3c\xdf\x89\xdc\0",
                "not UTF-16 text: unpaired surrogate 0xdc00 at offset 6; the",
            ),
            (b"\xff\xfeH\0i", "not UTF-16 text: single byte 0x69 at offset 4; the file"),
            (
                b"\xff\xfe\0\0H\0\0\0",
                "not UTF-8 or UTF-16 text: byte order mark of UTF-32 at offset 0; convert",
            ),
            (
                b"\0\0\xfe\xff\0\0\0H",
                "not UTF-8 or UTF-16 text: byte order mark of UTF-32 at offset 0; convert",
            ),
        ] {
            let e = decoded(bytes).unwrap_err();
            assert!(e.starts_with(problem), "{e}");
        }
    }
}
