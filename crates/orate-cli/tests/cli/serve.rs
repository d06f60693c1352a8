//! `orate serve`: what can be wrong before it listens, and a whole life of a server.

use crate::util::{Folder, tiny};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

fn refused(args: &[&str]) -> String {
    let run = Folder::new().orate(args);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    run.stderr
}

#[test]
fn wrong_options_are_named() {
    for (args, words) in [
        (&["--listen", "0.0.0.0:0"][..], "--no-auth"),
        (&["--listen", "127.0.0.1:x"], "an address and a port"),
        (&["--listen", "8880"], "an address and a port"),
        (&["--wyoming", "here"], "an address and a port"),
        (&["--alias", "alloy"], "NAME=VOICE"),
        (&["--new-key", "a b"], "letters"),
        (&["--model", "a/b c!"], "PATH=NAME"),
        (&["--model", "x=a", "--model", "y=a"], "two models are called a"),
    ] {
        let stderr = refused(&[&["serve"], args].concat());
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let folder = Folder::new();
    let keys = folder.write("keys.txt", "ada:123");
    let run = folder.orate(&["serve", "--api-key-file", keys.to_str().expect("UTF-8")]);
    assert!(run.stderr.contains("keys.txt: line 1: not NAME:SHA256"), "{}", run.stderr);
}

#[test]
fn a_key_is_printed_once_and_its_hash_is_the_line() {
    let run = Folder::new().orate(&["serve", "--new-key", "ada"]);
    assert_eq!(run.status, Some(0));
    assert!(run.stderr.contains("orate-"), "{}", run.stderr);
    let line = String::from_utf8(run.stdout).expect("text");
    assert!(line.starts_with("ada:") && line.trim().len() == 68, "{line}");
}

/// A server that is killed if a test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[cfg(unix)]
#[test]
fn a_server_answers_and_ends_in_order() {
    let folder = Folder::new();
    let model = tiny(2);
    let model = model.to_str().expect("UTF-8");
    let args = ["serve", "--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1", "--model", model];
    let mut command = folder.command(&args);
    let mut server = Server(command.stderr(Stdio::piped()).spawn().expect("the program starts"));
    let mut lines = BufReader::new(server.0.stderr.take().expect("piped")).lines();
    let address = loop {
        let line = lines.next().expect("a line").expect("text");
        if let Some(address) = line.strip_prefix("ready at http://") {
            break address.to_owned();
        }
    };
    let ask = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        let kind = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all((head + &kind).as_bytes()).expect("it reads");
        let mut answer = vec![];
        stream.read_to_end(&mut answer).expect("it answers");
        answer
    };
    let has = |answer: &[u8], words: &str| answer.windows(words.len()).any(|w| w == words.as_bytes());
    assert!(has(&ask("GET", "/v1/models", ""), "\"id\":\"tiny\""));
    let body = r#"{"model": "tiny", "input": "Hello.", "response_format": "wav", "stream": false}"#;
    let sound = ask("POST", "/v1/audio/speech", body);
    assert!(sound.starts_with(b"HTTP/1.1 200 OK") && has(&sound, "WAVEfmt"));
    let text = lines.next().expect("a line of the log").expect("text");
    assert!(text.contains("GET /v1/models") || text.contains("POST /v1/audio/speech"), "{text}");
    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    assert!(server.0.wait().expect("it ends").success());
}
