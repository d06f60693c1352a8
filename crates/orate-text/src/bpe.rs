//! Byte-level byte-pair encoding, as GPT-2 introduced it and Qwen2 uses it.
//!
//! A piece of text is split into bytes, and neighboring tokens are merged as long as the list of merges has
//! the pair, the earliest in the list first. Files write each byte as one printable character: `!` to `~` and
//! most of Latin-1 represent themselves, the other 68 bytes are U+0100 and up (so `Ġ` is a space and `Ċ` a
//! line feed).
//!
//! Each model has its own rules for splitting text; see [`crate::qwen`] and [`crate::chatterbox`].

use std::borrow::{Borrow, Cow};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

use orate_files::quoted;
use serde::Deserialize;

use crate::TextError;

/// Maximum id. The published vocabularies end at 151,675; an id in the millions means damage.
pub const MAX_ID: u32 = 0xFF_FFFF;

/// Most tokens that are merged together, in bytes or characters. Nobody writes such words; a longer one is
/// encoded in parts, so that memory stays bounded.
pub(crate) const MAX_PIECE: usize = 1 << 16;

pub(crate) const VOCAB: &str = "vocab.json";
pub(crate) const MERGES: &str = "merges.txt";

/// Rank and resulting id of a pair of ids.
pub(crate) type Merges = HashMap<(u32, u32), (u32, u32)>;

/// A token as `vocab.json` writes it, borrowed from the file unless it has escapes.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(transparent)]
struct Written<'a>(#[serde(borrow)] Cow<'a, str>);

impl Borrow<str> for Written<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Ids by token.
type Vocabulary<'a> = HashMap<Written<'a>, u32>;

/// A vocabulary and its merges.
#[derive(Debug, Clone)]
pub struct Bpe {
    /// Where the bytes of a token are in `text`, by id. One buffer, as vocabularies have 150,000 tokens.
    tokens: HashMap<u32, Range<usize>>,
    text: Box<[u8]>,
    /// Id of each single byte.
    bytes: [u32; 256],
    merges: Merges,
}

impl Bpe {
    /// Reads `vocab.json`, an object from token to id, and `merges.txt`, one pair per line after a `#version`
    /// line.
    ///
    /// Every other line is a merge, also those that begin with `#`: they produce tokens such as `##`.
    ///
    /// # Errors
    ///
    /// [`TextError::TokenizerFile`] with the entry or line: it is not JSON, not in the byte alphabet, a
    /// duplicate, or a merge of tokens that are not in the vocabulary; or one of the 256 bytes has no token.
    pub fn from_files(vocab_json: &[u8], merges_txt: &[u8]) -> Result<Self, TextError> {
        let vocab: Vocabulary<'_> =
            serde_json::from_slice(vocab_json).map_err(|e| broken(VOCAB, e.to_string()))?;
        let alphabet: HashMap<char, u8> = (0..=255).map(|b| (printable(b), b)).collect();
        let after = alphabet.keys().max().map_or(0, |last| u32::from(*last) + 1);
        // A table, because vocabularies have half a million characters.
        let alphabet: Vec<Option<u8>> =
            (0..after).map(|c| alphabet.get(&char::from_u32(c)?).copied()).collect();
        let byte_of = |c: char| *alphabet.get(c as usize)?;

        let (mut tokens, mut text) = (HashMap::with_capacity(vocab.len()), vec![]);
        for (Written(token), &id) in &vocab {
            let start = text.len();
            for c in token.chars() {
                text.push(byte_of(c).ok_or_else(|| {
                    let problem = "has a character that represents no byte";
                    broken(VOCAB, format!("{token} {problem}", token = quoted(token)))
                })?);
            }
            let bytes = start..text.len();
            if bytes.is_empty() || id > MAX_ID {
                return Err(broken(
                    VOCAB,
                    format!("{token} has id {id}; ids go from 0 to {MAX_ID}", token = quoted(token)),
                ));
            }
            if tokens.insert(id, bytes).is_some() {
                return Err(broken(
                    VOCAB,
                    format!("id {id} is given twice, the second time to {token}", token = quoted(token)),
                ));
            }
        }
        let mut bytes = [0; 256];
        for (byte, id) in (0..=255u8).zip(&mut bytes) {
            let c = printable(byte);
            *id = *vocab
                .get(c.encode_utf8(&mut [0; 4]) as &str)
                .ok_or_else(|| broken(VOCAB, format!("`{c}` is missing, the token of byte 0x{byte:02x}")))?;
        }
        let merges = read_merges(&vocab, merges_txt)?;
        Ok(Self { tokens, text: text.into(), bytes, merges })
    }

    /// Appends the ids of one piece. Time is that of sorting the bytes, however long the piece is. Pieces of
    /// more than 65,536 bytes are encoded in parts.
    pub fn encode(&self, piece: &[u8], ids: &mut Vec<u32>) {
        for part in piece.chunks(MAX_PIECE) {
            merge(&self.merges, part.iter().map(|b| self.bytes[usize::from(*b)]), ids);
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Always false: every byte has a token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of merges.
    #[must_use]
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    /// All ids, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.keys().copied()
    }

    /// Returns the ids of tokens of several bytes that no merge produces, in order. A text never gets them.
    #[must_use]
    pub fn unmade(&self) -> Vec<u32> {
        let largest = self.ids().max().unwrap_or(0); // at most `MAX_ID`
        let mut made = vec![false; largest as usize + 1];
        for (_, joined) in self.merges.values() {
            made[*joined as usize] = true;
        }
        let long = self.tokens.iter().filter(|(_, bytes)| bytes.len() > 1);
        let mut ids: Vec<u32> = long.map(|(id, _)| *id).filter(|id| !made[*id as usize]).collect();
        ids.sort_unstable();
        ids
    }

    /// Refuses a truncated list of merges: every token of a published vocabulary is a byte, an added token,
    /// or produced by a merge. With fewer merges texts would get other ids than in training, without any
    /// other symptom. Vocabularies padded with tokens that no merge can produce are not published ones, and
    /// accepted as they are.
    pub(crate) fn check_merges(&self, added: impl Iterator<Item = u32>) -> Result<(), TextError> {
        let added: HashSet<u32> = added.collect();
        let mut unmade = self.unmade();
        unmade.retain(|id| !added.contains(id));
        let Some(first) = unmade.first() else { return Ok(()) };
        let bytes = |at: &Range<usize>| &self.text[at.clone()];
        let all: HashSet<&[u8]> = self.tokens.values().map(bytes).collect();
        if !unmade.iter().all(|id| is_two(bytes(&self.tokens[id]), &all)) {
            return Ok(());
        }
        let problem = format!(
            "no merge makes {} of the tokens in {VOCAB}, the first of them `{}` (id {first}); the list has \
             {} merges. Copy it again from the model's repository",
            unmade.len(),
            bytes(&self.tokens[first]).iter().map(|b| printable(*b)).collect::<String>(),
            self.merges(),
        );
        Err(broken(MERGES, problem))
    }

    /// Bytes of a token, which need not be UTF-8.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        Some(&self.text[self.tokens.get(&id)?.clone()])
    }
}

/// Whether a token is the concatenation of two others.
fn is_two(token: &[u8], all: &HashSet<&[u8]>) -> bool {
    (1..token.len()).any(|at| all.contains(&token[..at]) && all.contains(&token[at..]))
}

/// The character of a byte in the files.
#[must_use]
pub fn printable(byte: u8) -> char {
    let itself = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if itself(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|b| !itself(*b)).count() as u32;
    char::from_u32(0x100 + earlier).expect("68 letters follow U+0100")
}

/// Marks a link that was merged into the previous one; greater than any id.
const GONE: u32 = u32::MAX;

struct Link {
    id: u32,
    /// Past the end for the first link.
    previous: usize,
    next: usize,
}

/// Two neighbors that may be merged. Ordered by rank, then from left to right.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    pair: (u32, u32),
    joined: u32,
}

/// Merges neighbors as long as `merges` has them, the lowest rank first and from left to right, and appends
/// what is left.
pub(crate) fn merge(merges: &Merges, start: impl Iterator<Item = u32>, ids: &mut Vec<u32>) {
    // A linked list of tokens: a merge keeps the left one.
    let mut list: Vec<Link> =
        start.enumerate().map(|(i, id)| Link { id, previous: i.wrapping_sub(1), next: i + 1 }).collect();
    let end = list.len();
    let candidate = |list: &[Link], left: usize, right: usize| {
        let pair = (list[left].id, list[right].id);
        let &(rank, joined) = merges.get(&pair)?;
        Some(Reverse(Candidate { rank, left, pair, joined }))
    };
    let mut queue: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
    for left in 1..end {
        queue.extend(candidate(&list, left - 1, left));
    }
    while let Some(Reverse(c)) = queue.pop() {
        // Stale if either side was merged meanwhile.
        let right = list[c.left].next;
        if list[c.left].id != c.pair.0 || right >= end || list[right].id != c.pair.1 {
            continue;
        }
        let (previous, next) = (list[c.left].previous, list[right].next);
        list[c.left].id = c.joined;
        list[c.left].next = next;
        list[right].id = GONE;
        if next < end {
            list[next].previous = c.left;
            queue.extend(candidate(&list, c.left, next));
        }
        if previous < end {
            queue.extend(candidate(&list, previous, c.left));
        }
    }
    ids.extend(list.iter().map(|link| link.id).filter(|id| *id != GONE));
}

fn read_merges(vocab: &Vocabulary<'_>, text: &[u8]) -> Result<Merges, TextError> {
    let text = std::str::from_utf8(text).map_err(|e| broken(MERGES, format!("not UTF-8: {e}")))?;
    let mut merges = HashMap::with_capacity(vocab.len());
    let mut joined = String::new();
    for (i, line) in text.lines().enumerate() {
        let header = i == 0 && line.starts_with("#version");
        if header || line.is_empty() {
            continue;
        }
        let fault =
            |problem: &str| broken(MERGES, format!("line {}, {line}: {problem}", i + 1, line = quoted(line)));
        let Some((left, right)) = line.split_once(' ').filter(|(_, right)| !right.contains(' ')) else {
            return Err(fault("a merge is two tokens with one space between them"));
        };
        let id = |token: &str| {
            vocab
                .get(token)
                .copied()
                .ok_or_else(|| fault(&format!("{token} is not in {VOCAB}", token = quoted(token))))
        };
        joined.clear();
        joined.extend([left, right]);
        let (pair, made) = ((id(left)?, id(right)?), id(&joined)?);
        let rank = merges.len() as u32;
        if merges.insert(pair, (rank, made)).is_some() {
            return Err(fault("this merge is a duplicate"));
        }
    }
    Ok(merges)
}

fn broken(file: &'static str, problem: String) -> TextError {
    TextError::TokenizerFile { file, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary with every byte's value as its id, and further tokens from 256 on, each produced by the
    /// merge at the same position.
    fn files(merges: &[&str]) -> (String, String) {
        let mut vocab: HashMap<String, u32> = (0..=255).map(|b| (printable(b).into(), b.into())).collect();
        vocab.extend(merges.iter().zip(256..).map(|(m, id)| (m.replace(' ', ""), id)));
        (serde_json::to_string(&vocab).unwrap(), format!("#version: 0.2\n{}\n", merges.join("\n")))
    }

    fn bpe(merges: &[&str]) -> Bpe {
        let (vocab, merges) = files(merges);
        Bpe::from_files(vocab.as_bytes(), merges.as_bytes()).unwrap()
    }

    fn ids(bpe: &Bpe, text: &str) -> Vec<u32> {
        let mut ids = vec![];
        bpe.encode(text.as_bytes(), &mut ids);
        ids
    }

    #[test]
    fn bytes_are_written_as_printable_characters() {
        let cases =
            [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'!', '!'), (b'~', '~'), (0x7F, 'ġ'), (0xAD, 'Ń'), (0xFF, 'ÿ')];
        for (byte, c) in cases {
            assert_eq!(printable(byte), c, "{byte:#x}");
        }
        let all: HashSet<char> = (0..=255).map(printable).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn the_earliest_merge_goes_first_and_from_left_to_right() {
        let b = bpe(&["b c", "a b", "a a", "aa a", "bc a"]);
        let a = u32::from(b'a');
        assert_eq!(ids(&b, "abc"), [a, 256]);
        assert_eq!(ids(&b, "aaaaa"), [258, 259]); // aa|aa|a, then the last pair becomes aaa
        assert_eq!(ids(&b, "aaaa"), [258, 258]);
        assert_eq!(ids(&b, "bcabca"), [260, 260]);
        assert_eq!(ids(&b, ""), [] as [u32; 0]);
    }

    #[test]
    fn tokens_that_no_merge_makes_are_known() {
        let (vocab, merges) = files(&["a b", "c d", "ab cd"]);
        let unmade = |merges: &str| Bpe::from_files(vocab.as_bytes(), merges.as_bytes()).unwrap().unmade();
        assert_eq!(unmade(&merges), [] as [u32; 0]);
        assert_eq!(unmade("c d\n"), [256, 258]);
    }

    /// Readers that treat `#` as a comment lose these.
    #[test]
    fn merges_may_begin_with_a_hash() {
        let b = bpe(&["# #", "## #", "Ġ #"]);
        assert_eq!(b.merges(), 3);
        assert_eq!(ids(&b, "###"), [257]);
        assert_eq!(ids(&b, " #"), [258]);
        let (vocab, _) = files(&["# #"]);
        let no_header = Bpe::from_files(vocab.as_bytes(), b"# #\r\n").unwrap();
        assert_eq!(ids(&no_header, "##"), [256]);
    }

    /// The naive algorithm would take an hour here.
    #[test]
    fn a_long_piece_takes_no_quadratic_time() {
        let b = bpe(&["a a", "aa aa", "aaaa aaaa"]);
        let text = "a".repeat(1 << 20);
        assert_eq!(ids(&b, &text), vec![258; 1 << 17]);
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_place() {
        let (vocab, merges) = files(&["a b"]);
        let cases: [(&str, &str, &[&str]); 10] = [
            ("", &merges, &["vocab.json", "EOF"]),
            ("[1]", &merges, &["vocab.json", "map"]),
            ("{\"a\":-1}", &merges, &["vocab.json", "-1"]),
            ("{\"a\":0}", &merges, &["vocab.json", "`Ā` is missing", "0x00"]),
            ("{\"a b\":0}", &merges, &["vocab.json", "`a b`", "represents no byte"]),
            ("{\"a\":20000000}", &merges, &["vocab.json", "`a` has id 20000000", "16777215"]),
            ("{\"a\":7,\"b\":7}", &merges, &["vocab.json", "id 7 is given twice"]),
            (&vocab, "#version: 0.2\nab\n", &["merges.txt", "line 2, `ab`", "two tokens"]),
            (&vocab, "a b\na b\n", &["merges.txt", "line 2, `a b`", "duplicate"]),
            (&vocab, "a c\n", &["merges.txt", "line 1", "`ac` is not in vocab.json"]),
        ];
        for (vocab, merges, parts) in cases {
            let e = Bpe::from_files(vocab.as_bytes(), merges.as_bytes()).unwrap_err().to_string();
            assert!(parts.iter().all(|p| e.contains(p)), "{e}\nshould hold {parts:?}");
        }
        assert!(Bpe::from_files(vocab.as_bytes(), b"\xFF").is_err());
    }
}
