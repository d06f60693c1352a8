//! Keys of clients. Only hashes are kept.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use subtle::ConstantTimeEq;

/// Bytes of a new key.
const KEY_BYTES: usize = 24;
/// Start of new keys, which scanners for leaked keys can find.
const PREFIX: &str = "orate-";

/// Names of clients, and hashes of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(Vec<(String, [u8; 32])>);

impl Keys {
    /// Reads lines (or parts between commas) such as `alice:5e88…`: a name, and the SHA-256 of a key in
    /// hexadecimal digits. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// A line is of another form. The message names it by its number and has nothing of the line.
    pub fn parse(text: &str) -> Result<Keys, String> {
        let mut keys = vec![];
        for (i, line) in text.split(['\n', ',']).map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || {
                format!(
                    "line {}: not NAME:SHA256 with 64 hex digits; `orate serve --new-key NAME` prints one",
                    i + 1
                )
            };
            let (name, digits) = line.split_once(':').ok_or_else(bad)?;
            let hash = from_hex(digits.trim()).ok_or_else(bad)?;
            keys.push((name.trim().to_owned(), hash));
        }
        Ok(Keys(keys))
    }

    /// Whether there are no keys, so that none is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Name of a key, compared in constant time.
    pub fn name_of(&self, key: &str) -> Option<&str> {
        let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for (name, known) in &self.0 {
            if bool::from(known.ct_eq(&hash)) {
                found = Some(name.as_str());
            }
        }
        found
    }

    /// Returns a new random key for `name`, and its line for [`Keys::parse`].
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn generate(name: &str) -> std::io::Result<[String; 2]> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
        let key = format!("{PREFIX}{}", hex(&bytes));
        let line = format!("{name}:{}", hex(&Sha256::digest(key.as_bytes())));
        Ok([key, line])
    }
}

/// Key of a request: of OpenAI's header, or of ElevenLabs'.
pub fn of_request(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| text("xi-api-key"))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_let_in() {
        let [key, line] = Keys::generate("ada").expect("random numbers");
        let keys = Keys::parse(&format!("# clients\n\n{line}\nbob:{}", "0".repeat(64))).expect("lines");
        assert_eq!(keys.name_of(&key), Some("ada"));
        assert_eq!(keys.name_of("orate-x"), None);
        assert_ne!(Keys::generate("ada").expect("random numbers")[0], key);
        let [letters, wide] = ["g".repeat(64), "é".repeat(32)].map(|digits| format!("ada:{digits}"));
        for wrong in ["ada", "ada:12", &letters, &wide] {
            let e = Keys::parse(wrong).expect_err(wrong);
            assert!(e.starts_with("line 1:") && !e.contains(wrong), "{e}");
        }
    }

    #[test]
    fn requests_show_keys_in_two_ways() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, header::HeaderValue::from_static(value));
            of_request(&headers).map(str::to_owned)
        };
        assert_eq!(of("authorization", "Bearer k").as_deref(), Some("k"));
        assert_eq!(of("authorization", "bearer  k").as_deref(), Some("k"));
        assert_eq!(of("xi-api-key", "k").as_deref(), Some("k"));
        assert_eq!(of("authorization", "Basic k"), None);
    }
}
