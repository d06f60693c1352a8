//! Books: the real program is killed, repeated, and run several times at once.

use crate::util::{Folder, Run};
use std::process::{Child, Stdio};
use std::time::Duration;

/// A book in Markdown, each of whose chapters is a part.
fn book(chapters: usize) -> String {
    let chapter = |i: usize| format!("## Chapter {i}\n\n{}\n\n", "It rains. ".repeat(1 + i % 3));
    format!("---\ntitle: The Kettle\nauthor: Ada\n---\n\n{}", (1..=chapters).map(chapter).collect::<String>())
}

fn start(folder: &Folder, args: &[&str]) -> Child {
    let mut command = folder.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run orate")
}

fn end(child: Child) -> Run {
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!stderr.contains("panicked"), "{stderr}");
    Run { status: output.status.code(), stdout: output.stdout, stderr }
}

/// The next of some numbers that are different in each run, below `limit`.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

#[test]
fn a_book_that_is_killed_ten_times_equals_one_that_is_not() {
    let folder = Folder::new();
    folder.write("book.md", book(12));
    let args = |output| ["say", "--file", "book.md", "-o", output, "--quiet"];
    let begun = std::time::Instant::now();
    folder.orate(&args("whole.flac")).ok();
    let whole = folder.read("whole.flac");
    let time = begun.elapsed().as_millis() as u64;
    let mut state = u64::from(std::process::id());
    let (mut kills, mut parts, mut finished) = (0, vec![], 0);
    while kills < 10 {
        let mut child = start(&folder, &args("killed.flac"));
        let wait = random(&mut state, time / 3);
        std::thread::sleep(Duration::from_millis(wait));
        let has_ended = child.try_wait().expect("a status").is_some();
        if has_ended {
            end(child).ok();
            assert!(folder.read("killed.flac") == whole, "run {finished} differs after {kills} kills");
            finished += 1;
            std::fs::remove_file(folder.path("killed.flac")).expect("a file");
            continue;
        }
        // SIGKILL: nothing can be tidied up.
        child.kill().expect("it runs");
        end(child);
        kills += 1;
        let output = folder.path("killed.flac");
        assert!(!output.exists() || folder.read("killed.flac") == whole, "half-written after {wait} ms");
        let work = std::fs::read_dir(folder.path("killed.flac.parts"));
        parts.push(work.map_or(0, |all| {
            all.flatten().filter(|e| e.path().extension().is_some_and(|e| e == "f32")).count()
        }));
    }
    folder.orate(&args("killed.flac")).ok();
    assert!(folder.read("killed.flac") == whole, "finished parts after each kill: {parts:?}");
    assert_eq!(folder.files(), ["book.md", "killed.flac", "whole.flac"]);
    assert!(parts.iter().any(|parts| *parts > 0), "{parts:?}, {finished} finished");
}

#[test]
fn processes_share_the_work() {
    let folder = Folder::new();
    folder.write("book.md", book(8));
    folder.orate(&["say", "--file", "book.md", "-o", "alone.flac", "--quiet"]).ok();
    let args = ["say", "--file", "book.md", "-o", "both.flac", "--json", "--threads", "1"];
    let both = [start(&folder, &args), start(&folder, &args)].map(|child| end(child).ok().json());
    let spoken: u64 = both.iter().map(|json| json["parts_spoken"].as_u64().expect("a number")).sum();
    assert!(both.iter().all(|json| json["complete"] == true), "{both:?}");
    assert_eq!(spoken, 8, "each part is spoken once: {both:?}");
    assert!(folder.read("both.flac") == folder.read("alone.flac"));
    // Threads of one process do, too.
    let args = ["say", "--file", "book.md", "-o", "jobs.flac", "--json", "--jobs", "3"];
    assert_eq!(folder.orate(&args).ok().json()["parts_spoken"], 8);
    assert!(folder.read("jobs.flac") == folder.read("alone.flac"));
    assert_eq!(folder.files(), ["alone.flac", "book.md", "both.flac", "jobs.flac"]);
}

#[test]
fn a_plan_says_what_is_left() {
    let folder = Folder::new();
    folder.write("book.md", book(3));
    let plan = |more: &[&str]| {
        folder.orate(&[&["say", "--file", "book.md", "-o", "a.flac", "--plan"], more].concat()).ok()
    };
    let text = plan(&[]);
    assert!(text.text().starts_with("The Kettle, Ada\n\n"), "{}", text.text());
    assert!(text.text().lines().any(|line| line.starts_with("2  Chapter 2 ")), "{}", text.text());
    let json = plan(&["--json"]).json();
    assert_eq!((&json["parts"], &json["parts_left"]), (&3.into(), &3.into()));
    assert_eq!(folder.files(), ["book.md"], "nothing is made");
    let args = ["say", "--file", "book.md", "-o", "a.flac"];
    let mut child = start(&folder, &args);
    while folder.path("a.flac.parts/00000.f32").symlink_metadata().is_err() {
        assert!(child.try_wait().expect("a status").is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("it runs");
    end(child);
    let json = plan(&["--json"]).json();
    let left = json["parts_left"].as_u64().expect("a number");
    assert!(left < 3, "{json}");
    // Other options do not fit.
    let other = [&args[..], &["--seed", "7"]].concat();
    folder.orate(&other).fails(1, &["a.flac.parts: ", "another run; these differ: seed", "with --restart"]);
    folder.write("book.md", book(4));
    folder.orate(&args).fails(1, &["these differ: ", "text"]);
    folder.orate(&[&args[..], &["--restart"]].concat()).ok();
    assert_eq!(folder.files(), ["a.flac", "book.md"]);
}

#[test]
fn chapters_become_files_of_a_folder() {
    let folder = Folder::new();
    folder.write("book.html", "<h2>One?</h2><p>First.</p><h2>Two/2</h2><p>Second.</p>");
    let json =
        folder.orate(&["say", "--file", "book.html", "-o", "out/", "--format", "flac", "--json"]).ok().json();
    assert_eq!(json["files"], serde_json::json!(["out/01 One.flac", "out/02 Two2.flac"]));
    for file in ["out/01 One.flac", "out/02 Two2.flac"] {
        let sound = orate_audio::read_audio(folder.path(file), 60.0).expect("sound");
        let loudness = orate_audio::integrated_loudness(&sound.samples, sound.sample_rate).expect("loudness");
        assert!((loudness + 18.0).abs() < 1.0, "{loudness} LUFS");
    }
    assert_eq!(folder.files(), ["book.html", "out"]);
}

#[test]
fn captions_are_of_the_whole_book() {
    let folder = Folder::new();
    folder.write("a.md", "# One\n\nThe kettle is on.\n\n# Two\n\nThe rain has stopped.\n");
    let args = ["say", "--file", "a.md", "-o", "a.wav", "--captions", "a.srt", "--json"];
    let json = folder.orate(&args).ok().json();
    assert_eq!(json["parts"], 2);
    let text = String::from_utf8(folder.read("a.srt")).expect("text");
    let times: Vec<&str> = text.lines().filter(|line| line.contains(" --> ")).collect();
    assert!(text.contains("The kettle is on.") && text.contains("The rain has stopped."), "{text}");
    // The second chapter begins after the first one and the pause, and ends before the file does.
    let second = text.split("\n\n").find(|cue| cue.contains("The rain")).expect("a cue");
    let seconds = |clock: &str| {
        clock[6..8].parse::<f64>().expect("a number") + clock[9..12].parse::<f64>().unwrap() / 1e3
    };
    let line = second.lines().find(|line| line.contains(" --> ")).expect("times");
    let (start, end) = line.split_once(" --> ").expect("two times");
    assert!(
        seconds(start) > 2.5 && seconds(end) <= json["duration_s"].as_f64().unwrap() + 0.001,
        "{times:?}"
    );
    assert_eq!(folder.files(), ["a.md", "a.srt", "a.wav"]);
}

#[test]
fn a_document_is_read_without_its_markup() {
    let folder = Folder::new();
    folder.write("a.md", "# Hello\n\n```\ncode\n```\n\nThere [is](x) more.\n");
    let piped = folder.orate(&["say", "--file", "a.md", "-o", "-"]).ok().stdout;
    let typed = folder.orate(&["say", "Hello\n\nThere is more.", "-o", "-"]).ok().stdout;
    assert!(piped == typed);
}

#[test]
fn what_a_voice_cannot_say_is_left_out_of_a_book_on_demand() {
    let folder = Folder::new();
    folder.write("a.md", "# One\n\nHello.\n\n漢字。\n\nBye.\n\n# 漢字\n\n漢字。\n\n# Two\n\nMore.\n");
    folder.write("b.md", "# 漢字\n");
    folder.orate(&["say", "--file", "a.md", "-o", "a.wav"]).fails(1, &["chapter `One`", "--skip-unknown"]);
    let args = ["say", "--skip-unknown", "--json", "--captions", "a.srt", "-o", "a.wav", "--file"];
    let json = folder.orate(&[&args[..], &["a.md"]].concat()).ok().json();
    assert_eq!((&json["parts"], &json["parts_spoken"]), (&3.into(), &3.into()));
    let warnings = json["warnings"].to_string();
    assert!(warnings.contains("chapter `漢字`, part 2") && warnings.contains("left out"), "{warnings}");
    let captions = String::from_utf8(folder.read("a.srt")).expect("text");
    for word in ["Hello", "Bye", "More"] {
        assert!(captions.contains(word), "{captions}");
    }
    folder.orate(&[&args[..], &["b.md"]].concat()).fails(1, &["chapter `漢字`", "nothing to say"]);
    let ssml = "<speak><s>One.</s><voice name='default'>漢字</voice><s>Two.</s></speak>";
    folder.orate(&["say", "--ssml", ssml, "--skip-unknown", "-o", "c.wav"]).ok();
}

#[cfg(feature = "mp3")]
#[test]
fn text_has_chapters_where_the_format_has_them() {
    let folder = Folder::new();
    folder.write("a.txt", "Chapter 1\n\nOne.\n\nChapter 2\n\nTwo.\n");
    let json = folder.orate(&["say", "--file", "a.txt", "-o", "a.mp3", "--json"]).ok().json();
    assert_eq!((&json["chapters"], &json["parts"]), (&2.into(), &2.into()));
    let bytes = folder.read("a.mp3");
    assert!(bytes.starts_with(b"ID3"));
    let count = |text: &[u8]| bytes.windows(text.len()).filter(|window| *window == text).count();
    assert_eq!((count(b"CHAP"), count(b"CTOC")), (2, 1));
    // With what books do not have it is a text as before.
    folder.orate(&["say", "--file", "a.txt", "-o", "b.mp3", "--captions", "b.json"]).ok();
    assert!(!folder.read("b.mp3").starts_with(b"ID3"));
}

#[test]
fn what_cannot_be_a_book_is_refused_before_the_work() {
    let folder = Folder::new();
    folder.write("a.md", "# A\n\nText.\n");
    folder.write("bad.epub", "no zip");
    folder.write("unknown.md", "# A\n\nFine.\n\n# B\n\nThis is 漢字.\n");
    let cases: [(&[&str], i32, &[&str]); 11] = [
        (&["--file", "bad.epub", "-o", "a.wav"], 1, &["bad.epub: not an EPUB file, or a damaged one"]),
        (&["--file", "none.epub", "-o", "a.wav"], 1, &["none.epub: cannot read the book"]),
        (&["--file", "a.md", "-o", "a.wav", "--captions", "a.json"], 2, &["--captions with JSON: books"]),
        (
            &["--file", "a.md", "-o", "a/", "--captions", "a.srt"],
            2,
            &["--captions: they are of a whole book"],
        ),
        (&["--file", "a.md", "-o", "a.wav", "--ssml"], 2, &["--ssml: books"]),
        (&["--file", "a.md", "-o", "a.md"], 2, &["-o a.md"]),
        (&["--file", "a.md", "-o", "none/a.wav"], 1, &["none/a.wav"]),
        (&["--file", "a.md", "-o", "unknown.md/"], 2, &["-o unknown.md/: this is a file"]),
        (&["--file", "a.md", "-o", "none/a/"], 2, &["none/a/", "make it first"]),
        (&["--file", "unknown.md", "-o", "a.wav"], 1, &["chapter `B`", "`漢` (U+6F22)", "--skip-unknown"]),
        (&["Hello.", "--plan"], 2, &["a book is a file; name it with --file"]),
    ];
    for (args, status, parts) in cases {
        folder.orate(&[&["say"], args].concat()).fails(status, parts);
        assert!(!folder.path("a.wav.parts").exists(), "{args:?}");
    }
    #[cfg(not(feature = "aac"))]
    folder
        .orate(&["say", "--file", "a.md", "-o", "a.m4b"])
        .fails(2, &["-o a.m4b: this build of Orate lacks AAC", ".mp3 or .opus", "feature `aac`"]);
    assert_eq!(folder.files(), ["a.md", "bad.epub", "unknown.md"]);
}
