//! `--play`: sound goes to a program that plays it. Here, scripts stand for players.
#![cfg(unix)]

use crate::util::{Folder, finish, tiny};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

const SENTENCE: &str = "The kettle is on, and the rain has stopped.";

/// A player that runs a script.
fn player(folder: &Folder, name: &str, script: &str) -> String {
    let path = folder.write(name, format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    path.display().to_string()
}

/// The program, with a command that plays; without one only the players in the folder are there.
fn playing(folder: &Folder, command: &str, args: &[&str]) -> Command {
    let path = format!("{}:/usr/bin:/bin", folder.path("").display());
    let mut program = folder.command(args);
    program.env("ORATE_PLAYER", command).env("PATH", path);
    program
}

#[test]
fn a_player_gets_what_a_pipe_gets() {
    let folder = Folder::new();
    let streamed = folder.orate(&["say", SENTENCE, "-o", "-"]).ok().stdout;
    let command = player(&folder, "my-player", "echo noise; cat > \"$1\"") + " played.wav";
    let run = finish(&mut playing(&folder, &command, &["say", SENTENCE, "--play"])).ok();
    assert!(folder.read("played.wav") == streamed);
    assert!(run.stdout.is_empty() && run.stderr.starts_with("played with my-player: "), "{}", run.stderr);
    let report = finish(&mut playing(&folder, &command, &["say", SENTENCE, "--play", "--json"])).ok().json();
    assert_eq!((report["output"].as_str(), report["format"].as_str()), (Some("my-player"), Some("wav16")));
    assert_eq!(folder.files(), ["my-player", "played.wav"], "nothing else is written");
}

#[test]
fn known_players_are_found_and_told_the_rate() {
    let folder = Folder::new();
    player(&folder, "paplay", "echo \"$@\" > args; cat > played.raw");
    player(&folder, "ffplay", "exit 9");
    finish(&mut playing(&folder, "", &["say", SENTENCE, "--play"])).ok();
    assert_eq!(folder.read("args"), b"--raw --format=s16le --channels=1 --rate=24000\n");
    let streamed = folder.orate(&["say", SENTENCE, "-o", "-", "--format", "raw"]).ok().stdout;
    assert!(folder.read("played.raw") == streamed);
}

#[test]
fn files_are_played_when_they_are_complete() {
    let folder = Folder::new();
    player(&folder, "afplay", "/bin/cp \"$1\" played.wav; echo \"$1\" > name");
    let mut program = folder.command(&["say", SENTENCE, "--play"]);
    program.env("PATH", folder.path("")).env("TMPDIR", folder.path("")).env_remove("ORATE_PLAYER");
    let run = finish(&mut program).ok();
    assert!(run.stderr.starts_with("played with afplay: "), "{}", run.stderr);
    folder.orate(&["say", SENTENCE, "-o", "file.wav"]).ok();
    assert!(folder.read("played.wav") == folder.read("file.wav"));
    let name = String::from_utf8(folder.read("name")).expect("a path");
    assert!(name.ends_with(".wav\n") && !std::path::Path::new(name.trim()).exists(), "{name}: deleted");
}

#[test]
fn a_player_that_fails_is_an_error() {
    let folder = Folder::new();
    let command = player(&folder, "my-player", "echo no sound card >&2; exit 3");
    let model = tiny(1).display().to_string();
    let args = ["say", &"One sentence and then another one. ".repeat(40), "--play", "--model", &model];
    let run = finish(&mut playing(&folder, &command, &args));
    assert!(run.status == Some(1) && run.stdout.is_empty(), "{}", run.stderr);
    for part in ["no sound card\n", "error: --play: `my-player` failed (exit status: 3)", "ORATE_PLAYER"] {
        assert!(run.stderr.contains(part), "no `{part}` in: {}", run.stderr);
    }
    let run = finish(&mut playing(&folder, "/nowhere/player", &["say", SENTENCE, "--play"]));
    run.fails(1, &["--play: cannot start `/nowhere/player`", "No such file"]);
}

#[test]
fn a_player_may_be_closed_early() {
    let folder = Folder::new();
    let command = player(&folder, "my-player", "head -c 1000 > /dev/null");
    finish(&mut playing(&folder, &command, &["say", &SENTENCE.repeat(20), "--play"])).ok();
}

#[test]
fn what_cannot_be_played_is_said_before_work() {
    let folder = Folder::new();
    let mut program = folder.command(&["say", SENTENCE, "--play"]);
    let run = finish(program.env("PATH", "/nowhere").env_remove("ORATE_PLAYER"));
    run.fails(2, &["--play: no player is installed; install paplay", "ORATE_PLAYER", "-o"]);
    let with_file = folder.orate(&["say", SENTENCE, "--play", "-o", "a.wav"]);
    with_file.fails(2, &["--play", "--output"]);
    folder.write("book.txt", "One.");
    let book =
        playing(&folder, "cat", &["say", "--file", "book.txt", "--book", "--play"]).output().expect("runs");
    let problem = String::from_utf8_lossy(&book.stderr).into_owned();
    assert!(
        book.status.code() == Some(2) && problem.contains("--play: a book is spoken in parts"),
        "{problem}"
    );
    assert_eq!(folder.files(), ["book.txt"]);
}

#[test]
fn books_can_be_played() {
    let folder = Folder::new();
    folder.write("book.md", "# One\n\nIt begins.\n");
    let command = player(&folder, "my-player", "cat > played.wav");
    finish(&mut playing(&folder, &command, &["say", "--file", "book.md", "--play"])).ok();
    let streamed = folder.orate(&["say", "--file", "book.md", "-o", "-"]).ok().stdout;
    assert!(folder.read("played.wav") == streamed);
}

#[test]
fn a_player_ends_with_the_program() {
    let folder = Folder::new();
    let command = player(&folder, "my-player", "echo $$ > pid; exec sleep 600");
    let mut program = playing(&folder, &command, &["say", SENTENCE, "--play"]).spawn().expect("starts");
    let since = Instant::now();
    let pid = loop {
        let pid = std::fs::read_to_string(folder.path("pid")).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse::<i32>() {
            break pid;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the player is started");
        std::thread::sleep(Duration::from_millis(5));
    };
    // Much of the sentence waits for the player then.
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: sends a signal to the program alone, not to its player. Not SIGINT, which a background job of a
    // shell ignores.
    unsafe { libc::kill(program.id() as i32, libc::SIGTERM) };
    assert_eq!(program.wait().expect("ends").code(), Some(130));
    let ended = || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z "));
    while cfg!(target_os = "linux") && !ended() {
        assert!(since.elapsed() < Duration::from_secs(60), "the player is left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}
