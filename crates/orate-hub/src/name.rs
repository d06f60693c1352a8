//! Checks of untrusted names of repositories, revisions and files, and patterns.

use crate::{Error, ErrorKind, Result};
use orate_files::quoted;
use std::fmt;
use std::str::FromStr;

/// Longest name of an organization or repository.
const MAX_ID: usize = 96;
/// Longest part of a path; the limit of most file systems.
const MAX_PART: usize = 255;
/// Longest path.
const MAX_PATH: usize = 1000;

/// A repository of models at a revision: `ORG/NAME` or `ORG/NAME@REVISION`.
///
/// ```
/// let repo: orate_hub::Repo = "Supertone/supertonic-3".parse()?;
/// assert_eq!((repo.id(), repo.revision()), ("Supertone/supertonic-3", "main"));
/// assert!("../etc/passwd".parse::<orate_hub::Repo>().is_err());
/// # Ok::<(), orate_hub::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    id: String,
    revision: String,
}

impl Repo {
    /// `ORG/NAME`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A branch, a tag or a commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Folder of the repository in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.id.replace('/', "--"))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.id),
            revision => write!(f, "{}@{revision}", self.id),
        }
    }
}

impl FromStr for Repo {
    type Err = Error;

    fn from_str(text: &str) -> Result<Repo> {
        let bad = |problem: &str| Error::new(ErrorKind::InvalidInput, format!("{}: {problem}", quoted(text)));
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        if id.split('/').count() != 2 || !id.split('/').all(is_id) {
            return Err(bad("not a repository; write ORG/NAME or ORG/NAME@REVISION"));
        }
        if !revision.chars().all(|c| c.is_ascii_graphic()) || check_path(revision).is_err() {
            return Err(bad("not a revision; after `@` comes a branch, a tag or a commit"));
        }
        Ok(Repo { id: id.to_owned(), revision: revision.to_owned() })
    }
}

/// Whether a name is valid for organizations and repositories of the hub.
fn is_id(text: &str) -> bool {
    let is_edge = |c: char| c == '-' || c == '.';
    (1..=MAX_ID).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && !text.starts_with(is_edge)
        && !text.ends_with(is_edge)
        && !text.contains("--")
        && !text.contains("..")
}

/// Whether a text is the id of a commit, and so a safe name of a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Checks that a path of the hub stays in its folder on every system, and returns what is wrong with it.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > MAX_PATH {
        return Err("is empty or too long");
    }
    if path.chars().any(|c| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|')) {
        return Err("has a character that paths must not have");
    }
    for part in path.split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return Err("is absolute, or leaves its folder");
        }
        if part.len() > MAX_PART || part.ends_with(['.', ' ']) || is_reserved(part) {
            return Err("is not a valid file name on every system");
        }
    }
    Ok(())
}

/// Whether Windows takes a name for a device.
fn is_reserved(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end().to_ascii_lowercase();
    let numbered = |prefix| {
        stem.strip_prefix(prefix).is_some_and(|n| n.len() == 1 && n.bytes().all(|b| b.is_ascii_digit()))
    };
    matches!(&*stem, "con" | "prn" | "aux" | "nul") || numbered("com") || numbered("lpt")
}

/// Whether a name fits a pattern: `*` stands for any characters, also `/`, and `?` for one.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last `*` is, and how far it reaches so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match &mut star {
                Some((at, reach)) => {
                    *reach += 1;
                    (p, n) = (*at + 1, *reach);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_have_two_parts_and_perhaps_a_revision() {
        let long = format!("a/{}", "x".repeat(97));
        let bad = [
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            ".a/b",
            "a/b.",
            "a/b--c",
            "a b/c",
            "a/b@",
            "a/b@../c",
            "a/b@/c",
            "a/b@c d",
            "a\\b/c",
            "a/b\n",
            "a/b@c\u{7}",
            "C:/b",
            &long,
        ];
        for text in bad {
            let error = text.parse::<Repo>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        let repo: Repo = "Qwen/Qwen3-TTS-12Hz-0.6B-Base@refs/pr/1".parse().unwrap();
        assert_eq!((repo.id(), repo.revision()), ("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "refs/pr/1"));
        assert_eq!(repo.folder(), "models--Qwen--Qwen3-TTS-12Hz-0.6B-Base");
        assert_eq!(repo.to_string(), "Qwen/Qwen3-TTS-12Hz-0.6B-Base@refs/pr/1");
    }

    #[test]
    fn paths_stay_in_their_folder() {
        for path in
            ["a", "a/b.json", "voice_styles/F1.json", ".gitattributes", "a..b/c", "console.json", "com10"]
        {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        let long = "x".repeat(256);
        let hostile = [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "a\\..\\b",
            "C:/a",
            "c:a",
            "a\0b",
            "a\nb",
            "nul",
            "a/CON.json",
            "Lpt1.txt",
            "aux ",
            "a.",
            "a*",
            &long,
        ];
        for path in hostile {
            assert!(check_path(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn patterns_are_those_of_shells() {
        let fit = [("*.json", "a/b.json"), ("a?c", "abc"), ("*", ""), ("a*b*c", "axxbyybzc"), ("x", "x")];
        for (pattern, name) in fit {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.json", "a.jsonl"), ("a?c", "ac"), ("", "a"), ("a*b", "abc"), ("A", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(!fits(&"*a".repeat(200), &"b".repeat(10_000)), "ends soon");
    }
}
