//! Ctrl-C in the middle of a book.
#![cfg(unix)]

use crate::util::Folder;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for busy machines; a run takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// If a megabyte of text takes more, its audio is held in memory.
#[cfg(target_os = "linux")]
const MOST_RESIDENT_KB: u64 = 400_000;

/// A child that is killed at the end of the test, even if the test panics.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl std::ops::Deref for Kept {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes of the output file so far. On Linux it has no name yet, so it is found among the open files.
fn unfinished(child: &Child, folder: &Folder) -> Option<u64> {
    let root = folder.path("").canonicalize().expect("a folder");
    let of_process = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let open = of_process.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let unnamed = open.filter(|file| {
        file.read_link().is_ok_and(|to| to.starts_with(&root) && to.to_string_lossy().ends_with("(deleted)"))
    });
    let named =
        folder.files().into_iter().filter(|name| name.ends_with(".part")).map(|name| folder.path(&name));
    unnamed.chain(named).find_map(|file| Some(file.metadata().ok()?.len()))
}

/// Whether there is an unfinished file with content. An empty one may be the check that the folder is
/// writable, which precedes the signal handlers.
fn has_audio(child: &Child, folder: &Folder) -> bool {
    unfinished(child, folder).is_some_and(|bytes| bytes > 0)
}

/// The program with default signal handlers. The parent of the tests may ignore Ctrl-C, as shells do for
/// background jobs, and children inherit that.
fn at_a_terminal(folder: &Folder, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    // SAFETY: between fork and exec only `signal` is called, which POSIX allows there.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    command
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("run kill");
    assert!(status.success());
}

#[test]
fn a_megabyte_of_text_starts_and_can_be_stopped() {
    let folder = Folder::new();
    let text = "The kettle is on, and the rain has stopped. ".repeat(23_000);
    assert!(text.len() > 1_000_000);
    folder.write("book.txt", &text);
    for (output, format, name) in [("book.wav", "wav16", "-INT"), ("book.raw", "raw", "-TERM")] {
        let child = at_a_terminal(&folder, &["say", "--file", "book.txt", "-o", output, "--format", format])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = Kept(child.expect("run orate"));
        wait_until("some audio", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended early");
            has_audio(&child, &folder)
        });
        #[cfg(target_os = "linux")]
        {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
            let kb: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            assert!(kb < MOST_RESIDENT_KB, "{kb} kB");
        }
        let asked = Instant::now();
        signal(&child, name);
        wait_until("the end", || child.try_wait().unwrap().is_some());
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let mut printed = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut printed).unwrap();
        assert_eq!(printed, "error: cancelled\n");
        assert_eq!(folder.files(), ["book.txt"], "nothing half-written remains");
    }
}

/// As under `nohup`: a hangup is ignored, and the other signals still clean up.
#[test]
fn ignored_signals_stay_ignored() {
    let folder = Folder::new();
    folder.write("book.txt", "The kettle is on, and the rain has stopped. ".repeat(2000));
    let mut command = at_a_terminal(&folder, &["say", "--file", "book.txt", "-o", "book.wav"]);
    // SAFETY: as above.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut child = Kept(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("run orate"));
    wait_until("some audio", || has_audio(&child, &folder));
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it goes on");
    signal(&child, "-TERM");
    wait_until("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(folder.files(), ["book.txt"], "nothing half-written remains");
}

#[test]
fn ctrl_c_while_text_is_awaited_ends_at_once() {
    let folder = Folder::new();
    let child = at_a_terminal(&folder, &["say"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = Kept(child.expect("run orate"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it waits for text");
    signal(&child, "-INT");
    wait_until("the end", || child.try_wait().unwrap().is_some());
    assert!(folder.files().is_empty());
}

/// During work that does not check the flag, users press Ctrl-C again.
#[test]
fn a_second_signal_ends_at_once_and_leaves_nothing() {
    let folder = Folder::new();
    folder.write("book.txt", "The kettle is on, and the rain has stopped. ".repeat(2000));
    for (output, format) in [("book.wav", "wav16"), ("book.raw", "raw")] {
        let mut command =
            at_a_terminal(&folder, &["say", "--file", "book.txt", "-o", output, "--format", format]);
        let mut child = Kept(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("run orate"));
        wait_until("some audio", || has_audio(&child, &folder));
        let id = i32::try_from(child.id()).expect("a process");
        // SAFETY: the child has not been waited for, so its process id is still valid.
        unsafe {
            libc::kill(id, libc::SIGINT);
            libc::kill(id, libc::SIGTERM);
        }
        wait_until("the end", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(folder.files(), ["book.txt"], "nothing half-written remains");
    }
}

/// Writing to a full pipe does not check the flag.
#[test]
fn one_signal_is_enough_while_a_pipe_is_full() {
    let folder = Folder::new();
    folder.write("book.txt", "The kettle is on, and the rain has stopped. ".repeat(2000));
    let mut command = at_a_terminal(&folder, &["say", "--file", "book.txt", "-o", "-", "--format", "raw"]);
    let mut child = Kept(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("run orate"));
    // Long enough to fill the pipe.
    std::thread::sleep(Duration::from_secs(4));
    assert!(child.try_wait().unwrap().is_none(), "it waits for a reader");
    signal(&child, "-INT");
    wait_until("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// When memory runs out, Rust prints a message and aborts without destructors.
#[test]
fn an_abort_leaves_nothing() {
    let folder = Folder::new();
    folder.write("book.txt", "The kettle is on, and the rain has stopped. ".repeat(2000));
    let mut command = at_a_terminal(&folder, &["say", "--file", "book.txt", "-o", "book.wav"]);
    let mut child = Kept(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("run orate"));
    wait_until("some audio", || has_audio(&child, &folder));
    signal(&child, "-ABRT");
    wait_until("the end", || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{status}");
    assert_eq!(folder.files(), ["book.txt"], "nothing half-written remains");
}
