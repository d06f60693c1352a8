//! Downloads from an imitation of the hub that breaks off, lies, refuses and attacks: never a damaged model,
//! never the token for another host.

mod imitation;

use imitation::{COMMIT, Imitation, REPO, Reply, Request, git, noise, sha256};
use orate_hub::{Error, ErrorKind, Event, Hub, Patience, Plan, Repo, Settings, Target, Watch};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TOKEN: &str = "hf_secret";
const BIG: &str = "onnx/vocoder.onnx";
const SMALL: &str = "onnx/tts.json";

/// Makes a bad answer of a good one.
type Lie = fn(Reply) -> Reply;

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (BIG, noise(3_000_000)),
        (SMALL, b"{\"a\": 1}".to_vec()),
        ("voice_styles/F1.json", b"{}".to_vec()),
        ("empty.json", vec![]),
        ("README.md", b"# no".to_vec()),
    ]
}

fn big() -> Vec<u8> {
    files().swap_remove(0).1
}

fn settings(endpoint: &str, cache: &Path) -> Settings {
    Settings {
        endpoint: endpoint.to_owned(),
        token: Some(TOKEN.to_owned()),
        cache: cache.to_owned(),
        offline: false,
        insecure: false,
        patience: Patience {
            first_wait: Duration::from_millis(5),
            silence: Duration::from_secs(10),
            ..Patience::default()
        },
    }
}

fn go_on(_: &Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

const PATTERNS: [&str; 2] = ["*.onnx", "*.json"];

/// Plans and fetches `PATTERNS` into the cache.
fn pull_as(settings: &Settings, watch: &mut Watch<'_>) -> Result<Plan, Error> {
    let hub = Hub::new(settings)?;
    let repo: Repo = REPO.parse()?;
    let plan = hub.plan(&repo, &PATTERNS, &Target::Cache, watch)?;
    hub.fetch(&plan, watch)?;
    Ok(plan)
}

fn pull(hub: &Imitation, cache: &Path) -> Result<Plan, Error> {
    pull_as(&settings(&hub.endpoint, cache), &mut go_on)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn models(cache: &Path) -> PathBuf {
    cache.join("models--Supertone--supertonic-2")
}

/// Files that a pull has left incomplete.
fn parts(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(models(cache).join("blobs")).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "incomplete")).collect()
}

/// Checks that every file of the snapshot is as the hub has it.
#[track_caller]
fn assert_whole(cache: &Path) {
    let snapshot = models(cache).join("snapshots").join(COMMIT);
    for (name, bytes) in files().iter().filter(|(name, _)| *name != "README.md") {
        assert!(fs::read(snapshot.join(name)).unwrap() == *bytes, "{name}");
    }
    assert_eq!(fs::read_to_string(models(cache).join("refs/main")).unwrap(), COMMIT);
    assert_eq!(parts(cache), Vec::<PathBuf>::new());
}

/// Checks that nothing of the large file can be taken for it.
#[track_caller]
fn assert_nothing(cache: &Path) {
    assert!(!models(cache).join("snapshots").join(COMMIT).join(BIG).exists());
    assert!(!models(cache).join("blobs").join(sha256(&big())).exists());
    assert!(!models(cache).join("refs/main").exists());
}

#[track_caller]
fn assert_no_token_elsewhere(hub: &Imitation) {
    let log = hub.log();
    assert!(log.iter().any(|r| r.is_storage), "the second server was asked");
    for request in log {
        let token = request.headers.get("authorization").map(String::as_str);
        let expected = (!request.is_storage).then_some("Bearer hf_secret");
        assert_eq!(token, expected, "{} {}", request.method, request.path);
    }
}

/// A file of the storage, asked by GET.
fn is_big(request: &Request) -> bool {
    request.is_storage && request.method == "GET"
}

#[test]
fn a_repository_is_laid_out_as_python_does() {
    let (hub, cache) = (Imitation::good(&files()), folder());
    let plan = pull(&hub, cache.path()).unwrap();
    assert_eq!((plan.commit.as_str(), plan.license.as_deref()), (COMMIT, Some("openrail")));
    assert_eq!(plan.folder, models(cache.path()).join("snapshots").join(COMMIT));
    assert_whole(cache.path());
    assert_no_token_elsewhere(&hub);
    assert!(!plan.folder.join("README.md").exists());
    #[cfg(unix)]
    {
        let link = |name: &str| fs::read_link(plan.folder.join(name)).unwrap();
        assert_eq!(link(BIG), Path::new("../../../blobs").join(sha256(&big())));
        assert_eq!(link("empty.json"), Path::new("../../blobs").join(git(&[])));
    }
    assert!(cache.path().join(".locks/models--Supertone--supertonic-2").is_dir());

    // All is there: one request, for the list.
    let before = hub.log().len();
    let again = pull(&hub, cache.path()).unwrap();
    assert!(again.files.iter().all(|file| file.is_there) && again.missing() == 0);
    assert_eq!(hub.log().len(), before + 1);
    assert_eq!(again.size(), files()[..4].iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
}

#[test]
fn a_missing_or_shortened_link_is_made_again_without_a_download() {
    let (hub, cache) = (Imitation::good(&files()), folder());
    let plan = pull(&hub, cache.path()).unwrap();
    fs::remove_file(plan.folder.join(BIG)).unwrap();
    fs::remove_file(plan.folder.join(SMALL)).unwrap();
    fs::write(plan.folder.join(SMALL), "{").unwrap();
    pull(&hub, cache.path()).unwrap();
    assert_whole(cache.path());
    assert_eq!(hub.downloads(BIG, &big()).len(), 1);
}

#[test]
fn broken_connections_go_on_where_they_stopped() {
    let cut = |request: &Request, good: Option<Reply>| {
        let at = (is_big(request) && request.before < 3).then_some(700_000);
        good.map(|reply| Reply { breaks_at: at, ..reply })
    };
    let (hub, cache) = (Imitation::new(&files(), cut), folder());
    let mut waits = 0;
    let mut watch = |event: &Event<'_>| {
        waits += usize::from(matches!(event, Event::Waiting { .. }));
        ControlFlow::Continue(())
    };
    pull_as(&settings(&hub.endpoint, cache.path()), &mut watch).unwrap();
    assert_whole(cache.path());
    assert_no_token_elsewhere(&hub);
    assert_eq!(waits, 3);
    let ranges: Vec<_> = hub.downloads(BIG, &big()).iter().map(|r| r.headers.get("range").cloned()).collect();
    let from = |n: usize| Some(format!("bytes={n}-"));
    assert_eq!(ranges, [None, from(700_000), from(1_400_000), from(2_100_000)]);
    // The signed address is asked for anew each time.
    let asked = hub.log().iter().filter(|r| r.method == "GET" && r.path.ends_with(BIG)).count();
    assert_eq!(asked, 4);
}

#[test]
fn tries_are_counted_only_without_progress() {
    // Eight times a third of a megabyte more is no progress worth a try, a whole one is.
    let cut_at = |bytes: usize| {
        move |request: &Request, good: Option<Reply>| {
            good.map(|reply| {
                let breaks_at = (is_big(request) && reply.body.len() > bytes).then_some(bytes);
                Reply { breaks_at, ..reply }
            })
        }
    };
    let cache = folder();
    let hub = Imitation::new(&files(), cut_at(300_000));
    let error = pull(&hub, cache.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(
        error.to_string().contains("broke off") && error.to_string().contains("gave up after 5"),
        "{error}"
    );
    assert_nothing(cache.path());
    assert_eq!(fs::metadata(&parts(cache.path())[0]).unwrap().len(), 1_500_000);
    // The next run goes on.
    let hub = Imitation::good(&files());
    pull(&hub, cache.path()).unwrap();
    assert_whole(cache.path());
    assert_eq!(hub.downloads(BIG, &big())[0].headers["range"], "bytes=1500000-");

    let (hub, cache) = (Imitation::new(&files(), cut_at(1_200_000)), folder());
    let patience = Patience { tries: 2, ..settings("", cache.path()).patience };
    pull_as(&Settings { patience, ..settings(&hub.endpoint, cache.path()) }, &mut go_on).unwrap();
    assert_whole(cache.path());
}

#[test]
fn an_interrupted_download_keeps_its_part() {
    let (hub, cache) = (Imitation::good(&files()), folder());
    let mut watch = |event: &Event<'_>| match event {
        Event::Progress { done, .. } if *done > 1_000_000 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let error = pull_as(&settings(&hub.endpoint, cache.path()), &mut watch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_nothing(cache.path());
    let kept = fs::metadata(&parts(cache.path())[0]).unwrap().len();
    assert!(kept > 1_000_000);
    pull(&hub, cache.path()).unwrap();
    assert_whole(cache.path());
    assert_eq!(hub.downloads(BIG, &big())[1].headers["range"], format!("bytes={kept}-"));
}

#[test]
fn wrong_bytes_are_an_error_and_are_deleted() {
    for name in [BIG, SMALL] {
        let flip = move |request: &Request, good: Option<Reply>| {
            let is_it = request.method == "GET"
                && if name == BIG { request.is_storage } else { request.path.ends_with(name) };
            good.map(|mut reply| {
                if is_it {
                    reply.body[5] ^= 1;
                }
                reply
            })
        };
        let (hub, cache) = (Imitation::new(&files(), flip), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains(name) && error.to_string().contains("checksum"), "{error}");
        assert!(!models(cache.path()).join("snapshots").join(COMMIT).join(name).exists());
        assert!(!models(cache.path()).join("refs/main").exists());
        assert_eq!(parts(cache.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_damaged_part_of_an_earlier_run_costs_one_more_download() {
    let (hub, cache) = (Imitation::good(&files()), folder());
    let blobs = models(cache.path()).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    for part in [vec![0; 1_000_000], vec![0; 3_000_000], vec![0; 4_000_000]] {
        fs::write(blobs.join(format!("{}.incomplete", sha256(&big()))), part).unwrap();
        pull(&hub, cache.path()).unwrap();
        assert_whole(cache.path());
        fs::remove_dir_all(models(cache.path()).join("snapshots")).unwrap();
        fs::remove_file(blobs.join(sha256(&big()))).unwrap();
    }
    let ranges: Vec<_> = hub.downloads(BIG, &big()).iter().map(|r| r.headers.get("range").cloned()).collect();
    assert_eq!(ranges, [Some("bytes=1000000-".to_owned()), None, None, None]);
}

#[test]
fn odd_answers_to_a_range_start_the_file_again() {
    let odd: [Lie; 5] = [
        // All of it, whatever was asked.
        |_| Reply::new(200).body(big()),
        |_| Reply::new(416).with("Content-Range", "bytes */5"),
        // Another part, of the right length.
        |reply| reply.body(&big()[5..2_000_005]).with("Content-Range", "bytes 5-2000004/3000000"),
        |reply| reply.with("Content-Range", "none"),
        |_| Reply::new(204),
    ];
    for (i, odd) in odd.into_iter().enumerate() {
        let misbehave = move |request: &Request, good: Option<Reply>| match is_big(request) {
            true if request.before == 0 => good.map(|reply| Reply { breaks_at: Some(1_000_000), ..reply }),
            true if request.before == 1 => good.map(odd),
            _ => good,
        };
        let (hub, cache) = (Imitation::new(&files(), misbehave), folder());
        pull(&hub, cache.path()).unwrap_or_else(|e| panic!("case {i}: {e}"));
        assert_whole(cache.path());
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let lies: [(Lie, &str); 4] = [
        (|reply| reply.with("Content-Length", 2_999_999), "instead of"),
        (|reply| reply.with("Content-Length", 3_000_001), "instead of"),
        // Without a length, the end of the connection is the end of the file.
        (
            |reply| {
                Reply { body: [reply.body, vec![0]].concat(), ..Reply::new(200) }
                    .with("Content-Length", "none")
            },
            "more than",
        ),
        (
            |reply| {
                Reply { body: reply.body[1..].to_vec(), ..Reply::new(200) }.with("Content-Length", "none")
            },
            "missing",
        ),
    ];
    for (lie, problem) in lies {
        let misbehave = move |request: &Request, good: Option<Reply>| match is_big(request) {
            true => good.map(lie),
            false => good,
        };
        let (hub, cache) = (Imitation::new(&files(), misbehave), folder());
        let patience = Patience { tries: 1, ..settings("", cache.path()).patience };
        let error = pull_as(&Settings { patience, ..settings(&hub.endpoint, cache.path()) }, &mut go_on);
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains(problem), "{error}");
        assert_nothing(cache.path());
    }
}

#[test]
fn refusals_say_what_to_do() {
    let cases: [(u16, &str, ErrorKind, &str); 7] = [
        (401, "", ErrorKind::Refused, "private"),
        (401, "GatedRepo", ErrorKind::Refused, "accept its terms"),
        (403, "GatedRepo", ErrorKind::Refused, "accept its terms"),
        (403, "", ErrorKind::Refused, "accept its terms"),
        (404, "RepoNotFound", ErrorKind::NotFound, "check the name"),
        (404, "RevisionNotFound", ErrorKind::NotFound, "no revision `main`"),
        (418, "", ErrorKind::Refused, "refuses"),
    ];
    for (status, code, kind, advice) in cases {
        let reply = move |_: &Request, _| {
            Some(Reply::new(status).with("X-Error-Code", code).with("X-Error-Message", "be\tcause"))
        };
        let (hub, cache) = (Imitation::new(&files(), reply), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(advice) && text.contains(REPO) && text.contains(&status.to_string()), "{text}");
        assert!(!text.contains(TOKEN) && text.contains(r"be\tcause"), "{text}");
        assert_eq!(hub.log().len(), 1, "nobody asks again");
    }
    let hub = Imitation::good(&files());
    let cache = folder();
    let plan = |repo: &str, patterns: &[&str]| {
        let hub = Hub::new(&settings(&hub.endpoint, cache.path())).unwrap();
        hub.plan(&repo.parse().unwrap(), patterns, &Target::Cache, &mut go_on).map(drop)
    };
    let error = plan(REPO, &["*.gguf"]).unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("no file matches *.gguf"),
        "{error}"
    );
    gguf_files_are_chosen();
    let error = plan("Supertone/supertonic-2@v9", &PATTERNS).unwrap_err();
    assert!(error.to_string().contains("no revision `v9`"), "{error}");
    let error = plan("Supertone/other", &PATTERNS).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound, "{error}");
}

/// The usual patterns name no GGUF files: most repositories have one for each format.
#[track_caller]
fn gguf_files_are_chosen() {
    let repo: Repo = REPO.parse().unwrap();
    let plan = |names: &[&str], patterns: &[&str]| {
        let files: Vec<_> = names.iter().map(|name| (*name, b"GGUF".to_vec())).collect();
        let (hub, cache) = (Imitation::good(&files), folder());
        let hub = Hub::new(&settings(&hub.endpoint, cache.path())).unwrap();
        let plan = hub.plan(&repo, patterns, &Target::Cache, &mut go_on)?;
        Ok::<_, Error>(plan.files.into_iter().map(|file| file.name).collect::<Vec<_>>())
    };
    let usual = orate_hub::default_files(&repo);
    assert_eq!(plan(&["README.md", "a.gguf"], &usual).unwrap(), ["a.gguf"]);
    let error = plan(&["README.md", "a-q8_0.gguf", "a-q4_k.gguf"], &usual).unwrap_err().to_string();
    for part in ["2 GGUF files", "a-q8_0.gguf", "a-q4_k.gguf", "--include"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(plan(&["a-q8_0.gguf", "a-q4_k.gguf"], &["*q4*"]).unwrap(), ["a-q4_k.gguf"]);
    assert_eq!(plan(&["onnx/vocoder.onnx", "a.gguf"], &["*.onnx"]).unwrap(), ["onnx/vocoder.onnx"]);
}

#[test]
fn a_file_that_vanished_is_an_error_that_names_its_repository() {
    let gone = |request: &Request, good: Option<Reply>| match request.path.ends_with(SMALL) {
        true => Some(Reply::new(404).with("X-Error-Code", "EntryNotFound")),
        false => good,
    };
    let (hub, cache) = (Imitation::new(&files(), gone), folder());
    let error = pull(&hub, cache.path()).unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("a file is missing"),
        "{error}"
    );
}

#[test]
fn busy_hubs_are_asked_again_when_they_say() {
    for (status, wait) in [(429, Some("1")), (503, Some("0")), (500, None), (502, None), (408, None)] {
        let busy = move |request: &Request, good: Option<Reply>| match request.before {
            0 | 1 => {
                let reply = Reply::new(status);
                Some(wait.map_or(reply.clone(), |s| reply.with("Retry-After", s)))
            }
            _ => good,
        };
        let (hub, cache) = (Imitation::new(&files()[1..3], busy), folder());
        let start = Instant::now();
        pull(&hub, cache.path()).unwrap();
        // Two waits for the list, and for each of two files HEAD and GET.
        let least = if wait == Some("1") { Duration::from_secs(10) } else { Duration::ZERO };
        assert!(start.elapsed() >= least, "{status}");
    }
    let late = |_: &Request, _| Some(Reply::new(429).with("Retry-After", 86_400));
    let error = pull(&Imitation::new(&files(), late), folder().path()).unwrap_err();
    assert!(error.to_string().contains("wait for 86400 s"), "{error}");
    let down = Imitation::new(&files(), |_, _| Some(Reply::new(500)));
    let error = pull(&down, folder().path()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains("500"), "{error}");
    assert_eq!(down.log().len(), 5);
}

#[test]
fn an_expired_signature_is_asked_for_again() {
    let expired = |request: &Request, good: Option<Reply>| match is_big(request) && request.before == 0 {
        true => Some(Reply::new(403)),
        false => good,
    };
    let (hub, cache) = (Imitation::new(&files(), expired), folder());
    pull(&hub, cache.path()).unwrap();
    assert_whole(cache.path());
    assert_no_token_elsewhere(&hub);
}

#[test]
fn the_token_stays_with_the_endpoint() {
    // Everything is redirected to another port, which serves it; a redirect within the host keeps the token.
    let cache = folder();
    let other = Imitation::good(&files());
    let target = other.endpoint.clone();
    let away = move |request: &Request, good: Option<Reply>| match request.path.strip_prefix("/moved") {
        Some(path) => Some(Reply::new(307).with("Location", format!("{target}{path}"))),
        None if request.is_storage => good,
        None => Some(Reply::new(307).with("Location", format!("/moved{}", request.path))),
    };
    let hub = Imitation::new(&files(), away);
    let plan = {
        let hub = Hub::new(&settings(&hub.endpoint, cache.path())).unwrap();
        // HEAD does not follow to another host, so the list's checksums count.
        hub.plan(&REPO.parse().unwrap(), &PATTERNS, &Target::Cache, &mut go_on)
            .and_then(|plan| hub.fetch(&plan, &mut go_on).map(|()| plan))
    };
    plan.unwrap();
    assert_whole(cache.path());
    let token = |r: &Request| r.headers.get("authorization").cloned();
    assert!(!other.log().is_empty() && other.log().iter().all(|r| token(r).is_none()));
    let own = hub.log();
    assert!(own.iter().any(|r| r.path.starts_with("/moved")));
    assert!(own.iter().all(|r| token(r).as_deref() == Some("Bearer hf_secret")));
}

#[test]
fn strange_redirects_are_refused() {
    let cases = [
        ("file:///etc/passwd", "redirects to nowhere"),
        ("http://192.0.2.1/x", "without encryption"),
        ("http://127.0.0.1@192.0.2.1/x", "strange address"),
        ("/api/models/Supertone/supertonic-2/revision/main", "more than 10 redirects"),
    ];
    for (location, problem) in cases {
        let away = move |_: &Request, _| Some(Reply::new(302).with("Location", location));
        let (hub, cache) = (Imitation::new(&files(), away), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn hostile_lists_are_refused_whole() {
    for name in
        ["../../evil.json", "/tmp/evil.json", "a\\..\\evil.json", "C:evil.json", "nul.json", "a//b.json"]
    {
        let mut all = files();
        all.push((name, b"{}".to_vec()));
        let (hub, cache) = (Imitation::good(&all), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Damaged && error.to_string().contains("hostile"),
            "{name}: {error}"
        );
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }
    let replies: [(Lie, &str); 4] = [
        (|_| Reply { is_endless: true, ..Reply::new(200).body(vec![b'['; 64 << 10]) }, "no end"),
        (|_| Reply::new(200).body("<html>sign in</html>"), "is not JSON"),
        (|_| Reply::new(200).body(r#"{"sha":"../../..","siblings":[]}"#), "names no commit"),
        (|_| Reply::new(200).body(format!(r#"{{"sha":"{COMMIT}","siblings":[]}}"#)), "no file matches"),
    ];
    for (reply, problem) in replies {
        let (hub, cache) = (Imitation::new(&files(), move |_, good| good.map(reply)), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }
}

#[test]
fn contradictions_and_missing_checksums_are_errors() {
    let cases: [(Lie, &str); 4] = [
        (|reply| reply.with("X-Repo-Commit", "f".repeat(40)), "another commit"),
        (|reply| reply.with("X-Linked-ETag", "a".repeat(64)), "two sizes or checksums"),
        (|reply| reply.with("X-Linked-Size", 5), "two sizes or checksums"),
        (|reply| reply.with("X-Linked-Size", u64::MAX), "two sizes or checksums"),
    ];
    for (lie, problem) in cases {
        let misbehave = move |request: &Request, good: Option<Reply>| match &*request.method {
            "HEAD" => good.map(lie),
            _ => good,
        };
        let (hub, cache) = (Imitation::new(&files(), misbehave), folder());
        let error = pull(&hub, cache.path()).unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains(problem), "{error}");
        assert_nothing(cache.path());
    }
    // A mirror whose list has neither: headers must have them.
    let bare = |etag: &'static str| {
        move |request: &Request, good: Option<Reply>| match request.path.contains("/api/") {
            true => {
                let list = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{SMALL}"}}]}}"#);
                Some(Reply::new(200).body(list))
            }
            false if etag.is_empty() => good,
            false => good.map(|reply| reply.with("ETag", etag)),
        }
    };
    let (hub, cache) = (Imitation::new(&files(), bare("")), folder());
    let plan = pull(&hub, cache.path()).unwrap();
    assert_eq!(fs::read(plan.folder.join(SMALL)).unwrap(), files()[1].1);
    let (hub, cache) = (Imitation::new(&files(), bare("\"5d41402abc4b2a76b9719d911017c592\"")), folder());
    let error = pull(&hub, cache.path()).unwrap_err();
    assert!(error.to_string().contains("names no checksum"), "{error}");
}

#[test]
fn a_file_that_does_not_fit_on_the_disk_is_not_begun() {
    let huge = |request: &Request, good: Option<Reply>| match &*request.method {
        "HEAD" if request.path.ends_with(BIG) => good.map(|reply| reply.with("X-Linked-Size", 1_u64 << 60)),
        "GET" if request.path.contains("/api/") => good.map(|reply| {
            let list = String::from_utf8(reply.body).unwrap().replace("3000000", &(1_u64 << 60).to_string());
            Reply::new(200).body(list)
        }),
        _ => good,
    };
    let (hub, cache) = (Imitation::new(&files(), huge), folder());
    let error = pull(&hub, cache.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains("MB are free"), "{error}");
    assert_eq!(hub.downloads(BIG, &big()).len(), 0);
}

#[test]
fn silent_servers_are_left() {
    let silent = |request: &Request, good: Option<Reply>| match (is_big(request), request.before) {
        (true, 0) => None,
        // Half of it, and then nothing while the connection stays open.
        (true, 1) => good.map(|reply| Reply { pause: Duration::from_secs(9), ..reply }),
        _ => good,
    };
    let (hub, cache) = (Imitation::new(&files(), silent), folder());
    let patience = Patience { silence: Duration::from_millis(700), ..settings("", cache.path()).patience };
    let start = Instant::now();
    pull_as(&Settings { patience, ..settings(&hub.endpoint, cache.path()) }, &mut go_on).unwrap();
    assert_whole(cache.path());
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

#[test]
fn one_of_several_downloads_and_the_others_wait() {
    let slow = |request: &Request, good: Option<Reply>| {
        let pause = if is_big(request) { Duration::from_micros(200) } else { Duration::ZERO };
        good.map(|reply| Reply { pause, ..reply })
    };
    let (hub, cache) = (Imitation::new(&files(), slow), folder());
    let waits = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut watch = |event: &Event<'_>| {
                    let waiting = matches!(event, Event::Waiting { wait: None, .. });
                    waits.fetch_add(usize::from(waiting), Ordering::SeqCst);
                    ControlFlow::Continue(())
                };
                pull_as(&settings(&hub.endpoint, cache.path()), &mut watch).unwrap();
            });
        }
    });
    assert_whole(cache.path());
    assert_eq!(hub.downloads(BIG, &big()).len(), 1);
    assert!(waits.into_inner() >= 3);
}

#[test]
fn an_earlier_snapshot_stays_in_use_until_the_next_is_whole() {
    let cache = folder();
    let old = "f".repeat(40);
    fs::create_dir_all(models(cache.path()).join("refs")).unwrap();
    fs::write(models(cache.path()).join("refs/main"), &old).unwrap();
    let broken = |request: &Request, good: Option<Reply>| match is_big(request) {
        true => Some(Reply::new(500)),
        false => good,
    };
    pull(&Imitation::new(&files(), broken), cache.path()).unwrap_err();
    assert_eq!(fs::read_to_string(models(cache.path()).join("refs/main")).unwrap(), old);
    pull(&Imitation::good(&files()), cache.path()).unwrap();
    assert_whole(cache.path());
}

#[test]
fn a_folder_gets_plain_files() {
    let (hub, to, cache) = (Imitation::good(&files()), folder(), folder());
    let target = Target::Folder(to.path().join("model"));
    let path = to.path().join("model").join(SMALL);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Of the same size, and something else.
    fs::write(&path, b"{\"b\": 2}").unwrap();
    let client = Hub::new(&settings(&hub.endpoint, cache.path())).unwrap();
    let plan = || client.plan(&REPO.parse().unwrap(), &PATTERNS, &target, &mut go_on).unwrap();
    client.fetch(&plan(), &mut go_on).unwrap();
    for (name, bytes) in &files()[..4] {
        let path = to.path().join("model").join(name);
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert!(fs::read(path).unwrap() == *bytes, "{name}");
    }
    let mut names: Vec<_> =
        fs::read_dir(to.path().join("model")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["empty.json", "onnx", "voice_styles"]);
    assert_eq!(plan().missing(), 0);
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn offline_asks_nobody() {
    let (hub, cache) = (Imitation::good(&files()), folder());
    let settings = Settings { offline: true, ..settings(&hub.endpoint, cache.path()) };
    let error = pull_as(&settings, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert_eq!(hub.log().len(), 0);
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let cache = folder();
    let mut waits = 0;
    let mut count = |event: &Event<'_>| {
        waits += usize::from(matches!(event, Event::Waiting { .. }));
        ControlFlow::Continue(())
    };
    let error = pull_as(&settings("http://127.0.0.1:9", cache.path()), &mut count).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let message = error.to_string();
    assert!(message.contains("127.0.0.1:9") && message.contains("is there a network?"), "{message}");
    assert_eq!(waits, 0, "it tries again");
}
