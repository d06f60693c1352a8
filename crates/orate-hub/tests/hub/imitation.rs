//! A hub on this machine, with a second server for large files, which misbehaves as told.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The repository and its commit.
pub const REPO: &str = "Supertone/supertonic-2";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What a client asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whether the second server was asked.
    pub is_storage: bool,
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    /// How often this method and path were asked before.
    pub before: usize,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body after which the connection breaks off.
    pub breaks_at: Option<usize>,
    /// Pause after each kilobyte.
    pub pause: Duration,
    /// Sends the body again and again.
    pub is_endless: bool,
}

impl Reply {
    pub fn new(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Reply {
        self.headers.retain(|(n, _)| n != name);
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Reply {
        self.body = body.into();
        self
    }

    fn send(self, mut to: TcpStream, method: &str) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", self.status);
        let is_framed = self.is_endless || self.headers.iter().any(|(name, _)| name == "Content-Length");
        for (name, value) in self.headers.iter().filter(|(_, value)| value != "none") {
            head += &format!("{name}: {value}\r\n");
        }
        if !is_framed {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        to.write_all((head + "\r\n").as_bytes())?;
        if method != "HEAD" {
            let end = self.breaks_at.unwrap_or(self.body.len());
            loop {
                for chunk in self.body[..end].chunks(1024) {
                    to.write_all(chunk)?;
                    thread::sleep(self.pause);
                }
                if !self.is_endless {
                    break;
                }
            }
        }
        to.shutdown(Shutdown::Both)
    }
}

type Misbehave = dyn Fn(&Request, Option<Reply>) -> Option<Reply> + Send + Sync;

pub struct Imitation {
    /// Address of the hub.
    pub endpoint: String,
    log: Arc<Mutex<Vec<Request>>>,
}

/// SHA-256 of a content.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Id of a content in git.
pub fn git(bytes: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that look like weights.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

impl Imitation {
    /// Serves files; those named `*.onnx` are large ones.
    pub fn good(files: &[(&str, Vec<u8>)]) -> Imitation {
        Self::new(files, |_, good| good)
    }

    /// Serves files. `misbehave` gets each request and the good answer; without an answer, the connection is
    /// closed after a while.
    pub fn new(
        files: &[(&str, Vec<u8>)],
        misbehave: impl Fn(&Request, Option<Reply>) -> Option<Reply> + Send + Sync + 'static,
    ) -> Imitation {
        let [hub, storage] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |of: &TcpListener| format!("http://{}", of.local_addr().unwrap());
        let (endpoint, storage_address) = (address(&hub), address(&storage));
        let log: Arc<Mutex<Vec<Request>>> = Arc::default();
        let files: Arc<Vec<(String, Vec<u8>)>> =
            Arc::new(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect());
        let misbehave: Arc<Misbehave> = Arc::new(misbehave);
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let (log, files, misbehave) = (log.clone(), files.clone(), misbehave.clone());
            let storage = storage_address.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (log, files, misbehave) = (log.clone(), files.clone(), misbehave.clone());
                    let storage = storage.clone();
                    thread::spawn(move || {
                        let Some(request) = read(&stream, is_storage, &log) else { return };
                        let good = answer(&request, &files, &storage);
                        match misbehave(&request, good) {
                            // The client may be gone.
                            Some(reply) => drop(reply.send(stream, &request.method)),
                            None => thread::sleep(Duration::from_secs(20)),
                        }
                    });
                }
            });
        }
        Imitation { endpoint, log }
    }

    /// Requests so far.
    pub fn log(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Requests for the content of a file, from the server that has it.
    pub fn downloads(&self, name: &str, bytes: &[u8]) -> Vec<Request> {
        let end = if name.ends_with(".onnx") { sha256(bytes) } else { format!("/{name}") };
        let is_own = |r: &Request| r.method == "GET" && r.path.ends_with(&end);
        let is_storage = name.ends_with(".onnx");
        self.log().into_iter().filter(|r| is_own(r) && r.is_storage == is_storage).collect()
    }
}

fn read(stream: &TcpStream, is_storage: bool, log: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let headers = headers.collect();
    let mut log = log.lock().unwrap();
    let before = log.iter().filter(|r| r.method == method && r.path == path).count();
    let request = Request { is_storage, method, path, headers, before };
    log.push(request.clone());
    Some(request)
}

/// The answer of a hub without faults.
fn answer(request: &Request, files: &[(String, Vec<u8>)], storage: &str) -> Option<Reply> {
    let path = request.path.as_str();
    if request.is_storage {
        let (_, bytes) = files.iter().find(|(_, bytes)| path.ends_with(&sha256(bytes)))?;
        return Some(content(request, bytes));
    }
    if let Some(revision) = path.strip_prefix(&format!("/api/models/{REPO}/revision/")) {
        let revision = revision.split('?').next().unwrap_or_default();
        return Some(match revision {
            "main" | "v1" | COMMIT => Reply::new(200).body(list(files)),
            _ => Reply::new(404).with("X-Error-Code", "RevisionNotFound"),
        });
    }
    let missing = || Some(Reply::new(404).with("X-Error-Code", "RepoNotFound"));
    let Some(name) = path.strip_prefix(&format!("/{REPO}/resolve/{COMMIT}/")) else { return missing() };
    let Some((_, bytes)) = files.iter().find(|(own, _)| own == name) else {
        return Some(Reply::new(404).with("X-Error-Code", "EntryNotFound"));
    };
    if name.ends_with(".onnx") {
        let sum = sha256(bytes);
        return Some(
            Reply::new(302)
                .with("X-Repo-Commit", COMMIT)
                .with("X-Linked-ETag", format!("\"{sum}\""))
                .with("X-Linked-Size", bytes.len())
                .with("Location", format!("{storage}/signed/{sum}")),
        );
    }
    Some(content(request, bytes).with("X-Repo-Commit", COMMIT).with("ETag", format!("\"{}\"", git(bytes))))
}

fn content(request: &Request, bytes: &[u8]) -> Reply {
    let range =
        request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let Some(from) = range.and_then(|from| from.parse::<usize>().ok()) else {
        let length = bytes.len();
        return Reply::new(200).body(bytes).with("Content-Length", length);
    };
    if from >= bytes.len() {
        return Reply::new(416).with("Content-Range", format!("bytes */{}", bytes.len()));
    }
    let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
    Reply::new(206)
        .body(&bytes[from..])
        .with("Content-Range", range)
        .with("Content-Length", bytes.len() - from)
}

fn list(files: &[(String, Vec<u8>)]) -> String {
    let file = |(name, bytes): &(String, Vec<u8>)| {
        let (size, sum) = (bytes.len(), sha256(bytes));
        let name = name.replace('\\', "\\\\");
        match name.ends_with(".onnx") {
            true => format!(
                r#"{{"rfilename":"{name}","size":{size},"blobId":"{}","lfs":{{"sha256":"{sum}","size":{size}}}}}"#,
                "e".repeat(40)
            ),
            false => format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{}"}}"#, git(bytes)),
        }
    };
    let files: Vec<String> = files.iter().map(file).collect();
    format!(
        r#"{{"id":"{REPO}","sha":"{COMMIT}","cardData":{{"license":"openrail"}},"siblings":[{}]}}"#,
        files.join(",")
    )
}
