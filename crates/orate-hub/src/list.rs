//! The file list of a repository. Nothing in it is trusted.

use crate::http::{Client, Failure, header, notify, retry};
use crate::name::{check_path, is_commit};
use crate::part::Sum;
use crate::{Error, ErrorKind, Event, Repo, Result, Watch};
use orate_files::quoted;
use serde_json::Value;
use std::collections::HashSet;
use std::io::Read;
use std::time::Instant;
use ureq::Body;
use ureq::http::header::{CONTENT_LENGTH, ETAG};

/// Largest list, in bytes. 10,000 files have about 4 MB.
const MAX_LIST: usize = 32 << 20;
/// Most files of a repository.
const MAX_FILES: usize = 10_000;
/// A list may take this many times [`crate::Patience::silence`].
const LIST_TIME: u32 = 10;

/// Files of a repository at a commit.
pub(crate) struct Listing {
    pub commit: String,
    pub license: Option<String>,
    pub files: Vec<Listed>,
}

/// A file as the hub describes it.
#[derive(Clone)]
pub(crate) struct Listed {
    pub name: String,
    pub size: Option<u64>,
    pub sum: Option<Sum>,
}

/// Asks the hub for the commit of a revision and its files.
pub(crate) fn list(client: &Client, repo: &Repo, watch: &mut Watch<'_>) -> Result<Listing> {
    let url = client.list_url(repo);
    let bytes = retry(&client.patience, watch, |watch| {
        let answer = client.get(repo, &url, None)?;
        read(repo, answer.into_body(), client.patience.silence * LIST_TIME, watch)
    })?;
    parse(repo, &bytes).map_err(|problem| {
        let advice = "is HF_ENDPOINT the address of a hub?";
        Error::new(ErrorKind::Damaged, format!("{repo}: the hub's list of files {problem}; {advice}"))
    })
}

fn read(
    repo: &Repo,
    body: Body,
    time: std::time::Duration,
    watch: &mut Watch<'_>,
) -> Result<Vec<u8>, Failure> {
    let (mut reader, mut bytes, mut chunk) = (body.into_reader(), vec![], [0; 16 << 10]);
    let start = Instant::now();
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) => return Err(Failure::again(format!("{repo}: the list of files broke off: {e}"))),
        }
        if bytes.len() > MAX_LIST || start.elapsed() > time {
            let problem = format!("{repo}: the hub's list of files has no end; is HF_ENDPOINT a hub?");
            return Err(Error::new(ErrorKind::Damaged, problem).into());
        }
        notify(watch, &Event::Tick)?;
    }
}

fn parse(repo: &Repo, bytes: &[u8]) -> Result<Listing, String> {
    let all: Value = serde_json::from_slice(bytes).map_err(|e| format!("is not JSON ({e})"))?;
    let commit = all["sha"].as_str().filter(|sha| is_commit(sha)).ok_or("names no commit")?;
    if is_commit(repo.revision()) && repo.revision() != commit {
        return Err(format!("is of another commit, {commit}"));
    }
    let siblings = all["siblings"].as_array().ok_or("has no `siblings`")?;
    if siblings.len() > MAX_FILES {
        return Err(format!("has {} files; {MAX_FILES} are allowed", siblings.len()));
    }
    let (mut files, mut names) = (vec![], HashSet::new());
    for file in siblings {
        let name = file["rfilename"].as_str().ok_or("has a file without a name")?;
        check_path(name).map_err(|problem| format!("is hostile: the name {} {problem}", quoted(name)))?;
        if !names.insert(name.to_lowercase()) {
            return Err(format!("has {} twice", quoted(name)));
        }
        let large = &file["lfs"];
        let size = large["size"].as_u64().or_else(|| file["size"].as_u64());
        let sum = large["sha256"].as_str().or_else(|| large["oid"].as_str());
        // The id of a large file's blob is that of the pointer to it, not of its content.
        let sum = if large.is_object() { sum } else { file["blobId"].as_str() };
        files.push(Listed { name: name.to_owned(), size, sum: sum.and_then(Sum::parse) });
    }
    Ok(Listing { commit: commit.to_owned(), license: license(&all), files })
}

/// The license that the model card names.
fn license(all: &Value) -> Option<String> {
    let card = &all["cardData"];
    let named = card["license_name"].as_str().or_else(|| card["license"].as_str());
    let tags = all["tags"].as_array().into_iter().flatten();
    let tagged = || tags.filter_map(|tag| tag.as_str()?.strip_prefix("license:")).next();
    let license = named.or_else(tagged)?;
    Some(license.chars().filter(|c| !c.is_control()).take(80).collect())
}

/// Completes what the list says about a file by asking for its headers.
pub(crate) fn describe(
    client: &Client,
    repo: &Repo,
    commit: &str,
    file: &Listed,
    watch: &mut Watch<'_>,
) -> Result<(u64, Sum)> {
    let url = client.file_url(repo, commit, &file.name);
    let answer = retry(&client.patience, watch, |_| client.head(repo, &url))?;
    let (headers, name) = (answer.headers(), quoted(&file.name));
    let damaged = |problem: &str| Error::new(ErrorKind::Damaged, format!("{repo}: {name}: {problem}"));
    if header(headers, "x-repo-commit").is_some_and(|other| other != commit) {
        return Err(damaged("the hub answered with another commit; try again"));
    }
    let linked = header(headers, "x-linked-etag").and_then(Sum::parse);
    let contradicts = "the hub names two sizes or checksums for it; try another mirror (HF_ENDPOINT)";
    let sum = match (&file.sum, linked) {
        (Some(listed), Some(linked)) if *listed != linked => return Err(damaged(contradicts)),
        (Some(sum), _) => sum.clone(),
        (None, linked) => linked
            .or_else(|| header(headers, ETAG.as_str()).and_then(Sum::parse))
            .ok_or_else(|| damaged("the hub names no checksum for it; try another mirror (HF_ENDPOINT)"))?,
    };
    let number = |name: &str| header(headers, name).and_then(|n| n.parse::<u64>().ok());
    let own = number(CONTENT_LENGTH.as_str()).filter(|_| answer.status().is_success());
    let size = match (file.size, number("x-linked-size")) {
        (Some(listed), Some(linked)) if listed != linked => return Err(damaged(contradicts)),
        (listed, linked) => listed
            .or(linked)
            .or(own)
            .ok_or_else(|| damaged("the hub names no size for it; try another mirror (HF_ENDPOINT)"))?,
    };
    Ok((size, sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(list: &Value) -> Result<Listing, String> {
        parse(&"a/b".parse().unwrap(), list.to_string().as_bytes())
    }

    #[test]
    fn lists_have_sizes_sums_and_a_license() {
        let (commit, large, small) = ("c".repeat(40), "a".repeat(64), "b".repeat(40));
        let list = json!({
            "sha": commit, "tags": ["x", "license:openrail"], "siblings": [
                {
                    "rfilename": "m.safetensors", "size": 9, "blobId": small,
                    "lfs": { "sha256": large, "size": 9 },
                },
                { "rfilename": "d/c.json", "size": 3, "blobId": small },
                { "rfilename": "old.json" },
            ],
        });
        let found = parsed(&list).unwrap();
        assert_eq!((found.commit, found.license.as_deref()), (commit, Some("openrail")));
        let [m, c, old] = &found.files[..] else { panic!("three files") };
        assert_eq!((m.size, &m.sum), (Some(9), &Sum::parse(&large)));
        assert_eq!((c.size, &c.sum), (Some(3), &Sum::parse(&small)));
        assert!(old.size.is_none() && old.sum.is_none());
    }

    #[test]
    fn hostile_lists_are_refused() {
        let sha = "c".repeat(40);
        let file = |name: &str| json!({ "rfilename": name });
        let many: Vec<_> = (0..=MAX_FILES).map(|i| file(&i.to_string())).collect();
        let cases = [
            (json!({ "sha": "../..", "siblings": [] }), "names no commit"),
            (json!({ "sha": sha }), "has no `siblings`"),
            (json!({ "sha": sha, "siblings": [{}] }), "without a name"),
            (json!({ "sha": sha, "siblings": [file("ok"), file("../evil.json")] }), "hostile"),
            (json!({ "sha": sha, "siblings": [file("/etc/passwd")] }), "hostile"),
            (json!({ "sha": sha, "siblings": [file("a.json"), file("A.json")] }), "twice"),
            (json!({ "sha": sha, "siblings": many }), "10001 files"),
            (json!([]), "names no commit"),
        ];
        for (list, problem) in cases {
            let error = parsed(&list).err().expect(problem);
            assert!(error.contains(problem), "{error}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(&"a/b".parse().unwrap(), deep.as_bytes()).is_err());
    }
}
