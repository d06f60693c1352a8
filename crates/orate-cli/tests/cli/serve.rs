//! `orate serve`: what can be wrong before it listens, and a whole life of a server.

use crate::util::{Folder, repository, tiny};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
        (&["--listen", "unix:"], "an address and a port, such as 127.0.0.1:8880, or unix:PATH"),
        (&["--wyoming", "unix:/tmp/x"], "an address and a port"),
        (&["--allow-host", "a b/"], "--allow-host a b/: write a host name, without scheme, port and path"),
        (&["--allow-host", "https://example.org"], "write a host name"),
        (&["--allow-host", "example.org:8080"], "write a host name"),
        (&["--cors-origin", "*"], "such as https://example.org"),
        (&["--cors-origin", "example.org"], "such as https://example.org"),
        (&["--alias", "alloy"], "NAME=VOICE"),
        (
            &["--listen", "127.0.0.1:0", "--device", "cpu", "--alias", "a=B"],
            "--alias a=B: orate-default has no",
        ),
        (&["--new-key", "a b"], "letters"),
        (&["--model", "a/b c!"], "PATH=NAME"),
        (&["--model", "x=a", "--model", "y=a"], "two models are called a"),
        (&["--model", "x=a", "--model", "y=b", "--codec", "c.gguf"], "c.gguf: it needs the name of a model"),
        (&["--model", "x=a", "--codec", "c.gguf=b"], "--codec c.gguf: no model is called b"),
        (&["--model", "x=a", "--codec", "c=a", "--codec", "d=a"], "--codec d: the model has another codec"),
        (&["--model", "x=a", "--codec", "c=a", "--codec", "d"], "--codec d: the model has another codec"),
        (&["--listen", "127.0.0.1:0", "--codec", "c.gguf"], "name the first as the model"),
    ] {
        let stderr = refused(&[&["serve"], args].concat());
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let run = Folder::new().orate(&["serve", "--listen", &taken]);
    assert!(run.stderr.contains("another server is there"), "{}", run.stderr);
    let folder = Folder::new();
    #[cfg(unix)]
    {
        let run = folder.orate(&["serve", "--listen", "unix:none/orate.sock"]);
        assert!(run.stderr.contains("unix:none/orate.sock: cannot listen there; create"), "{}", run.stderr);
    }
    let run = folder.orate(&["serve", "--api-key-file", "none.txt"]);
    assert!(run.stderr.contains("--api-key-file none.txt: cannot read it"), "{}", run.stderr);
    let keys = folder.write("keys.txt", "ada:123");
    let run = folder.orate(&["serve", "--api-key-file", keys.to_str().expect("UTF-8")]);
    assert!(run.stderr.contains("keys.txt: line 1: not NAME:SHA256"), "{}", run.stderr);
    let keys = folder.write("none.txt", "# nobody yet\n");
    let run =
        folder.orate(&["serve", "--listen", "127.0.0.1:0", "--api-key-file", keys.to_str().expect("UTF-8")]);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("none.txt: it has no key, so everyone could ask"), "{}", run.stderr);
}

/// Runs the program with a socket of a service manager, as systemd does.
#[cfg(unix)]
fn with_socket(folder: &Folder, socket: std::os::fd::OwnedFd) -> Child {
    let orate = folder.command::<&str>(&[]);
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
    command.args(["-c", script]).arg(orate.get_program()).args([
        "serve",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]);
    command.envs(orate.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::from(socket)).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Access depends on the socket that is there, not on `--listen`.
#[cfg(unix)]
#[test]
fn sockets_of_service_managers_need_keys_too() {
    let folder = Folder::new();
    let open = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let output = with_socket(&folder, open.into()).wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the socket of the service manager 0.0.0.0:"), "{stderr}");
    assert!(stderr.contains("--no-auth"), "{stderr}");

    let path = folder.path("orate.sock");
    let local = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let mut child = with_socket(&folder, local.into());
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: orate\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn switches_in_the_environment_are_words_or_digits() {
    let folder = Folder::new();
    let run = |value| {
        let mut command = folder.command(&["serve", "--listen", "0.0.0.0:0", "--alias", "x"]);
        let output = command.env("ORATE_SERVE_NO_AUTH", value).output().expect("the program starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (value, words) in [
        ("1", "--alias x"),
        ("yes", "--alias x"),
        ("0", "there are no keys"),
        ("perhaps", "invalid value 'perhaps' for '--no-auth'"),
    ] {
        assert!(run(value).contains(words), "{value}: {}", run(value));
    }
}

#[test]
fn a_key_is_printed_once_and_its_hash_is_the_line() {
    // As in the container, which names an address in the environment.
    let folder = Folder::new();
    let mut command = folder.command(&["serve", "--new-key", "ada"]);
    let run = command.env("ORATE_SERVE_LISTEN", "0.0.0.0:8880").output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && stderr.contains("orate-"), "{stderr}");
    let line = String::from_utf8(run.stdout).expect("text");
    assert!(line.starts_with("ada:") && line.trim().len() == 68, "{line}");
}

/// A server on a port of this machine, killed at the end of its test.
struct Server {
    child: Child,
    /// Lines of its log, read at once: a server waits while its log is not read.
    log: Option<JoinHandle<Vec<String>>>,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server and waits until it is ready.
    fn start(folder: &Folder, model: &Path, more: &[&str]) -> Server {
        let model = model.to_str().expect("UTF-8");
        let args =
            ["serve", "--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1", "--model", model];
        let mut command = folder.command(&[&args, more].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, ready) = channel();
        let log = std::thread::spawn(move || {
            let lines = log.lines().map_while(Result::ok);
            let lines = lines.inspect(|line| {
                if let Some(address) = line.strip_prefix("ready at http://") {
                    let _ = sender.send(address.to_owned());
                }
            });
            lines.collect()
        });
        let address = ready.recv().expect("it gets ready");
        Server { child, log: Some(log), address }
    }

    fn connect(&self) -> TcpStream {
        self.try_connect().expect("it listens")
    }

    fn try_connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Sends a request.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> TcpStream {
        self.try_send(method, path, kind, body).expect("it reads")
    }

    fn try_send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> std::io::Result<TcpStream> {
        let mut stream = self.try_connect()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
        Ok(stream)
    }

    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
        let mut answer = vec![];
        self.send(method, path, kind, body).read_to_end(&mut answer).expect("it answers");
        answer
    }

    fn get(&self, path: &str) -> String {
        String::from_utf8(self.ask("GET", path, "", b"")).expect("text")
    }

    fn speak(&self, body: &str) -> TcpStream {
        self.send("POST", "/v1/audio/speech", "application/json", body.as_bytes())
    }

    /// Uploads a recording; `None` if the connection breaks.
    #[cfg(unix)]
    fn upload(&self, name: &str, more: &str, recording: &[u8]) -> Option<String> {
        let part = |name: &str| format!("--B\r\ncontent-disposition: form-data; name=\"{name}\"");
        let fields = format!("{}\r\n\r\n{name}\r\n{more}", part("name"));
        let head = format!("{fields}{}; filename=\"a.wav\"\r\n\r\n", part("audio_sample"));
        let body = [head.as_bytes(), recording, b"\r\n--B--\r\n"].concat();
        let mut answer = vec![];
        let kind = "multipart/form-data; boundary=B";
        let mut stream = self.try_send("POST", "/v1/audio/voices", kind, &body).ok()?;
        stream.read_to_end(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned()).filter(|answer| !answer.is_empty())
    }

    /// Sum of a metric.
    fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics");
        let values = metrics.lines().filter(|line| line.starts_with(name));
        values.filter_map(|line| line.rsplit(' ').next()?.trim().parse::<f64>().ok()).sum()
    }

    #[cfg(unix)]
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
    }
}

fn has(answer: &[u8], words: &str) -> bool {
    answer.windows(words.len()).any(|w| w == words.as_bytes())
}

fn long_text() -> String {
    "What a fine day it is for a walk. ".repeat(580)
}

/// A request whose audio, above all silence, does not fit into the buffers of a connection.
fn long_request() -> String {
    let text = long_text();
    format!(r#"{{"model":"tiny","input":"{text}","response_format":"wav","sample_rate":48000,"silence":10}}"#)
}

#[cfg(unix)]
#[test]
fn a_server_answers_and_ends_in_order() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &tiny(2), &[]);
    assert!(server.get("/v1/models").contains("\"id\":\"tiny\""));
    let body = r#"{"model": "tiny", "input": "Secret.", "response_format": "wav", "stream": false}"#;
    let mut sound = vec![];
    server.speak(body).read_to_end(&mut sound).expect("it answers");
    assert!(sound.starts_with(b"HTTP/1.1 200 OK") && has(&sound, "WAVEfmt"));
    // Texts are neither in the metrics nor in the log.
    assert!(!server.get("/metrics").contains("Secret"));
    // A client that leaves is seen in the log.
    let mut left = server.speak(&long_request());
    left.read_exact(&mut [0; 1000]).expect("audio");
    drop(left);
    server.signal("-TERM");
    assert!(server.child.wait().expect("it ends").success());
    let log = server.log.take().expect("a thread").join().expect("no panic");
    assert!(log.iter().any(|line| line.contains("code=\"client\"")), "{log:?}");
    assert!(
        log.iter().any(|line| line.contains("POST /v1/audio/speech") && line.contains("status=200")),
        "{log:?}"
    );
    assert!(!log.iter().any(|line| line.contains("Secret")), "{log:?}");
}

#[cfg(unix)]
#[test]
fn a_model_in_one_file_is_served() {
    let folder = Folder::new();
    let model = tiny(2);
    folder.orate(&["quantize", "--model", model.to_str().expect("UTF-8"), "-o", "own.gguf"]).ok();
    let server = Server::start(&folder, &folder.path("own.gguf"), &[]);
    let models = server.get("/v1/models");
    assert!(models.contains("\"id\":\"own\""), "{models}");
    let body = r#"{"model": "own", "input": "Hi.", "response_format": "wav", "stream": false}"#;
    let mut sound = vec![];
    server.speak(body).read_to_end(&mut sound).expect("it answers");
    assert!(sound.starts_with(b"HTTP/1.1 200 OK") && has(&sound, "WAVEfmt"));
}

/// Keys are needed on loopback too: a proxy may be in front.
#[test]
fn metrics_need_a_key_if_there_are_keys() {
    let folder = Folder::new();
    let line = folder.orate(&["serve", "--new-key", "ada"]).ok();
    let keys = folder.write("keys.txt", line.text());
    let keys = ["--api-key-file", keys.to_str().expect("UTF-8"), "--allow-host", "speech.example.org"];
    let server = Server::start(&folder, &tiny(2), &keys);
    let metrics = server.get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 401 "), "{metrics}");
    assert!(server.get("/ready").starts_with("HTTP/1.1 200 "));
}

/// The second file is elsewhere.
#[cfg(unix)]
#[test]
fn a_model_of_two_files_is_served() {
    use orate_testing::{checkpoints::write_random_qwen3_tts, gguf::write_qwen3tts_cpp};
    use orate_weights::DType;
    let folder = Folder::new();
    write_random_qwen3_tts("custom_voice", &folder.path("model"), 1).expect("room");
    std::fs::create_dir(folder.path("files")).expect("room");
    write_qwen3tts_cpp(&folder.path("model"), &folder.path("files"), DType::F32, false);
    std::fs::rename(folder.path("files/codec.gguf"), folder.path("codec.gguf")).expect("the same disk");
    let talker = folder.path("files/talker.gguf");
    let path = talker.to_str().expect("UTF-8");
    let voices = folder.orate(&["voices", "--model", path, "--codec", "codec.gguf"]).ok();
    assert!(voices.text().contains("(default)"), "{}", voices.text());
    for codec in ["codec.gguf", "codec.gguf=talker"] {
        let server = Server::start(&folder, &talker, &["--codec", codec]);
        assert!(server.get("/v1/models").contains("\"id\":\"talker\""), "{codec}");
    }
}

#[cfg(unix)]
#[test]
fn sigterm_lets_streams_end() {
    let folder = Folder::new();
    // On a busy machine the streams take longer than the default.
    let mut server = Server::start(&folder, &tiny(2), &["--streams", "2", "--drain-timeout", "200"]);
    let body = long_request();
    let mut streams = [server.speak(&body), server.speak(&body)];
    for stream in &mut streams {
        stream.read_exact(&mut [0; 1000]).expect("audio");
    }
    server.signal("-TERM");
    std::thread::sleep(Duration::from_secs(2));
    assert!(server.child.try_wait().expect("a status").is_none(), "it ends before its streams");
    assert!(TcpStream::connect(&server.address).is_err(), "it takes further requests");
    let audio = streams.map(|mut stream| {
        let mut rest = vec![];
        stream.read_to_end(&mut rest).expect("the rest");
        assert!(rest.ends_with(b"\r\n0\r\n\r\n"), "a stream broke off");
        rest
    });
    assert!(audio[0].len() > 1 << 20 && audio[0].len() == audio[1].len());
    assert!(server.child.wait().expect("it ends").success());
}

#[cfg(unix)]
#[test]
fn a_client_that_reads_nothing_does_not_hold_up_the_end() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &tiny(2), &["--drain-timeout", "1"]);
    let body = long_request();
    let _stream = server.speak(&body);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(server.metric("orate_requests_running"), 1.0, "all of it fits into buffers");
    server.signal("-TERM");
    let begun = Instant::now();
    assert!(server.child.wait().expect("it ends").success());
    let seconds = begun.elapsed().as_secs_f64();
    assert!((0.9..10.0).contains(&seconds), "{seconds} s");
    // What was cut is seen in the log.
    let log = server.log.take().expect("a thread").join().expect("no panic");
    let has = |words: &[&str]| log.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["shutting down; 1 requests have up to 1 s to end"]), "{log:?}");
    assert!(has(&["POST /v1/audio/speech", "code=\"draining\""]), "{log:?}");
}

#[test]
fn a_full_queue_refuses_and_frees_its_places() {
    let folder = Folder::new();
    let server = Server::start(&folder, &tiny(2), &["--streams", "1", "--queue", "2"]);
    let until = |what: &str, count: f64| {
        let begun = Instant::now();
        while server.metric(what) != count {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {}", server.get("/metrics"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // One request runs, as nobody reads its answer, and two wait.
    let running = server.speak(&long_request());
    until("orate_requests_running", 1.0);
    let short = r#"{"model": "tiny", "input": "Hello.", "response_format": "wav", "stream": false}"#;
    let waiting = [server.speak(short), server.speak(short)];
    until("orate_requests_waiting", 2.0);
    // All others are refused at once, whatever their route.
    let route = |i: usize| if i.is_multiple_of(2) { "/v1/audio/speech" } else { "/v1/text-to-speech/alloy" };
    let body = |i: usize| if i.is_multiple_of(2) { short } else { r#"{"text": "Hello."}"# };
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for i in 0..32 {
            let server = &server;
            threads.spawn(move || {
                let answer = server.ask("POST", route(i), "application/json", body(i).as_bytes());
                let answer = String::from_utf8(answer).expect("text");
                let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
                assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
                let headers = head.to_ascii_lowercase();
                assert!(headers.contains("\r\nretry-after: 1\r\n"), "{head}");
                assert!(headers.contains("\r\ncontent-type: application/json\r\n"), "{head}");
                let error: serde_json::Value = serde_json::from_str(body).expect("JSON");
                let error = &error["error"];
                assert_eq!((&error["code"], &error["type"]), (&"overloaded".into(), &"server_error".into()));
                assert!(error["message"].as_str().is_some_and(|m| m.contains("2 requests wait")), "{error}");
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(10), "refusals wait: {:?}", begun.elapsed());
    assert_eq!(
        (server.metric("orate_requests_running"), server.metric("orate_requests_waiting")),
        (1.0, 2.0)
    );
    // A client that leaves while it waits frees its place; so does one that is spoken to.
    let [left, waits] = waiting;
    drop(left);
    until("orate_requests_waiting", 1.0);
    let last = server.speak(short);
    until("orate_requests_waiting", 2.0);
    drop(running);
    for mut stream in [waits, last] {
        let mut answer = vec![];
        stream.read_to_end(&mut answer).expect("it answers");
        assert!(answer.starts_with(b"HTTP/1.1 200 OK") && has(&answer, "WAVEfmt"));
    }
    until("orate_requests_running", 0.0);
}

#[cfg(unix)]
#[test]
fn uploads_are_checked_and_a_kill_leaves_whole_voices() {
    let folder = Folder::new();
    orate_testing::checkpoints::write_random_qwen3_tts("base", &folder.path("base"), 1).expect("a model");
    let recording = std::fs::read(repository("oracle/qwen3_tts/golden/cases/ref.wav")).expect("a recording");
    let mut server = Server::start(&folder, &folder.path("base"), &[]);
    let consent = "--B\r\ncontent-disposition: form-data; name=\"consent\"\r\n\r\ngiven by Ada\r\n";
    let made = server.upload("ada", consent, &recording).expect("an answer");
    assert!(made.contains("200 OK") && made.contains("audio.voice"), "{made}");
    let kept = folder.path("voices").join("ada.safetensors");
    assert!(has(&std::fs::read(&kept).expect("a voice"), "given by Ada"));
    // Names are no paths, and what is no speech is refused: 70 s, and bytes of nothing.
    for name in ["../ada2", "/tmp/ada2", "a/b", ".ada", "ada\u{0}"] {
        let refused = server.upload(name, "", &recording).expect("an answer");
        assert!(refused.contains("400 Bad Request"), "{name:?}: {refused}");
    }
    let long: Vec<u8> =
        (0..70 * 24_000).flat_map(|i: i32| (((i * 37) % 9000) as i16).to_le_bytes()).collect();
    let mut wav = recording[..44].to_vec();
    wav[4..8].copy_from_slice(&(36 + long.len() as u32).to_le_bytes());
    wav[40..44].copy_from_slice(&(long.len() as u32).to_le_bytes());
    wav.extend(long);
    for (recording, code) in [(&wav[..], "audio_too_long"), (b"noise", "audio_unreadable")] {
        let refused = server.upload("long", "", recording).expect("an answer");
        assert!(refused.contains("400 Bad Request") && refused.contains(code), "{refused}");
    }
    let taken = server.upload("ada", "", &recording).expect("an answer");
    assert!(taken.contains("409 Conflict") && taken.contains("voice_exists"), "{taken}");
    // Voices are added and replaced while the server is killed.
    let before = std::fs::read(&kept).expect("a voice");
    let replace = "--B\r\ncontent-disposition: form-data; name=\"overwrite\"\r\n\r\ntrue\r\n";
    let mut cut = 0;
    for round in 0..6_u64 {
        std::thread::scope(|threads| {
            let (server, recording) = (&server, &recording);
            let uploads = threads.spawn(move || {
                let mut all =
                    (0..).flat_map(|i| [(format!("b{round}-{i}"), ""), ("ada".to_owned(), replace)]);
                while let Some((name, more)) = all.next()
                    && let Some(answer) = server.upload(&name, more, recording)
                {
                    assert!(answer.contains("200 OK"), "{answer}");
                }
            });
            std::thread::sleep(Duration::from_millis(20 + 31 * round));
            server.signal("-KILL");
            uploads.join().expect("no panic");
        });
        server = Server::start(&folder, &folder.path("base"), &[]);
        let listed = server.get("/v1/audio/voices");
        let files =
            std::fs::read_dir(folder.path("voices")).expect("a folder").map(|e| e.expect("a file").path());
        let (whole, parts): (Vec<_>, Vec<_>) =
            files.partition(|path| path.extension().is_some_and(|e| e == "safetensors"));
        cut = parts.len();
        for path in whole {
            let bytes = std::fs::read(&path).expect("a voice");
            assert!(bytes.len() > before.len() / 2, "{}", path.display());
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            assert!(listed.contains(&format!("\"id\":\"{name}\"")), "{name} is damaged: {listed}");
        }
        let body =
            r#"{"model":"base","input":"Hello.","voice":"ada","max_frames":2,"response_format":"pcm"}"#;
        let mut answer = vec![];
        server.speak(body).read_to_end(&mut answer).expect("it answers");
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    }
    println!("{cut} times a voice was cut off while it was written");
    // Parts of killed servers are deleted when they are old.
    let parts = || {
        let files = std::fs::read_dir(folder.path("voices")).expect("a folder").map(|e| e.expect("a file"));
        files.filter(|file| file.file_name().to_string_lossy().starts_with(".new-")).count()
    };
    let old = std::fs::File::create(folder.path("voices").join(".new-Ab12cd")).expect("writable");
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(2 * 3600)).expect("a time");
    assert_eq!(parts(), cut + 1);
    drop(server);
    let server = Server::start(&folder, &folder.path("base"), &["--no-uploads"]);
    assert_eq!(parts(), cut);
    // Saved voices still speak where clients may not change them, and the page does not offer to.
    assert!(server.get("/v1/models").contains("\"can_clone\":false"));
    assert!(server.get("/v1/audio/voices").contains("\"id\":\"ada\""));
    let refused = server.upload("eve", "", &recording).expect("an answer");
    assert!(refused.contains("403 Forbidden") && refused.contains("--no-uploads"), "{refused}");
}

/// Opens a WebSocket and returns its stream.
fn web_socket(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    let head = "GET /v1/audio/speech/stream HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
                upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 101");
    stream
}

#[cfg(target_os = "linux")]
#[test]
fn a_thousand_idle_sockets_take_little_memory() {
    let folder = Folder::new();
    let server = Server::start(&folder, &tiny(2), &[]);
    let memory = || server.metric("process_resident_memory_bytes") / 1e6;
    drop((0..20).map(|_| web_socket(&server)).collect::<Vec<_>>());
    let before = memory();
    let sockets: Vec<TcpStream> = (0..1000).map(|_| web_socket(&server)).collect();
    let (during, open) = (memory(), server.metric("orate_ws_connections"));
    assert!(open >= 1000.0, "{open} are open");
    assert!(during - before < 50.0, "{before:.0} MB, with idle sockets {during:.0} MB");
    drop(sockets);
    let begun = Instant::now();
    while server.metric("orate_ws_connections") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "sockets are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A frame of a client, masked with zeros.
fn frame(kind: u8, text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    let mut frame = vec![kind, 0xFE];
    frame.extend(length.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text);
    frame
}

/// Writes until the server closes the connection, or all is written. Returns whether it was closed.
fn flood(mut stream: TcpStream, bytes: &[u8], times: usize) -> bool {
    stream.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    (0..times).any(|_| stream.write_all(bytes).is_err())
}

#[cfg(target_os = "linux")]
#[test]
fn abuse_of_sockets_does_not_grow_memory() {
    let folder = Folder::new();
    let server = Server::start(&folder, &tiny(2), &["--stall-timeout", "1"]);
    let post = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let start = |head: &str| {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).expect("it reads");
        stream
    };
    let config = frame(0x81, br#"{"type":"session.config","response_format":"pcm"}"#);
    let text = frame(0x81, format!(r#"{{"type":"input.text","text":"{}"}}"#, long_text()).as_bytes());
    let round = || {
        // A gigabyte with a length, and in chunks.
        let whole = start(&format!("{post}content-length: 1000000000\r\n\r\n"));
        assert!(flood(whole, &[b' '; 1 << 16], 16_000), "it reads a gigabyte");
        let chunk = [b"10000\r\n".to_vec(), vec![b' '; 1 << 16], b"\r\n".to_vec()].concat();
        let chunked = start(&format!("{post}transfer-encoding: chunked\r\n\r\n"));
        assert!(flood(chunked, &chunk, 16_000), "it reads a gigabyte");
        // Headers without end.
        assert!(flood(start("GET / HTTP/1.1\r\n"), "a: b\r\n".repeat(100).as_bytes(), 10_000));
        // Clients that send half of a request and leave.
        for i in 0..100 {
            drop(start(&post[..post.len() * i / 100]));
            drop(start(&format!("{post}content-length: 500\r\n\r\n{{\"model\": \"tiny\", ")));
        }
        // Frames: a gigabyte, fragments without end, no text, reserved bits, a text that is no UTF-8.
        let mut large = web_socket(&server);
        large.write_all(&[0x81, 0xFF, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]).expect("it reads");
        assert!(flood(large, &[b' '; 1 << 16], 1000), "it reads a frame of a gigabyte");
        let mut fragments = web_socket(&server);
        fragments.write_all(&frame(0x01, b"a")).expect("it reads");
        assert!(flood(fragments, &frame(0x00, &[b' '; 60_000]), 1000), "it reads fragments without end");
        for bad in [frame(0xF1, b"a"), frame(0x81, b"\xff\xfe"), vec![0x81, 0x01, b'a']] {
            let mut socket = web_socket(&server);
            socket.write_all(&bad).expect("it reads");
            socket.read_to_end(&mut vec![]).expect("it closes");
        }
        flood(web_socket(&server), &frame(0x89, b"ping").repeat(1000), 20);
        // Texts without a reader: it stops reading, and lets go of the client.
        let mut unread = web_socket(&server);
        unread.write_all(&config).expect("it reads");
        assert!(flood(unread, &text, 20_000), "it reads texts without end");
    };
    let memory = || server.metric("process_resident_memory_bytes") / 1e6;
    round();
    let before = memory();
    (0..3).for_each(|_| round());
    let after = memory();
    assert!(after - before < 20.0, "{before:.0} MB, then {after:.0} MB");
    let begun = Instant::now();
    while server.metric("orate_requests_running") + server.metric("orate_ws_connections") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "work is left: {}", server.get("/metrics"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.metric("orate_panics"), 0.0);
    assert!(server.get("/health").contains("200 OK"));
}

/// What runs as a service has no more rights than it needs.
#[test]
fn containers_are_confined() {
    let read = |path: &str| std::fs::read_to_string(repository(path)).expect("text");
    let (image, compose) = (read("deploy/Dockerfile"), read("deploy/compose.yaml"));
    let user = image.lines().rfind(|line| line.starts_with("USER ")).expect("a user");
    assert!(!["USER root", "USER 0"].contains(&user));
    assert!(image.contains("ENTRYPOINT [\"orate\""), "no shell");
    for words in ["read_only: true", "cap_drop: [ALL]", "no-new-privileges:true", "data:/data"] {
        assert!(compose.contains(words), "{words}");
    }
    let unit = read("deploy/systemd/orate.service");
    for words in ["DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes"] {
        assert!(unit.contains(words), "{words}");
    }
}
