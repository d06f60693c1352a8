//! Limits, timeouts and access of a server.

use orate::VoiceStore;
use std::time::Duration;

/// Settings of a server. The defaults are for a server on loopback.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests that may wait for each model; further ones get 503.
    pub queue: usize,
    /// Longest wait for a thread.
    pub queue_timeout: Duration,
    /// Longest time that a client may read nothing of an answer.
    pub stall_timeout: Duration,
    /// Longest time from a free thread to the end of an answer.
    pub request_timeout: Duration,
    /// Longest time to read the header of a request.
    pub header_timeout: Duration,
    /// Longest time to read the body of a request.
    pub body_timeout: Duration,
    /// Connections at once; further ones wait.
    pub connections: usize,
    /// Most characters of a text.
    pub max_input_chars: usize,
    /// Keys of clients. Without any, no key is needed; otherwise also for metrics, and on loopback.
    pub keys: crate::keys::Keys,
    /// Requests of one key that run or wait; further ones get 429.
    pub max_per_key: Option<usize>,
    /// Serve lists of models and voices without a key.
    pub open_lists: bool,
    /// Host names that requests may have; `None` for any. Guards against DNS rebinding: a page can point a
    /// name of its own at this machine.
    pub hosts: Option<Vec<String>>,
    /// Origins of pages that may send requests (CORS).
    pub cors_origins: Vec<String>,
    /// Kept voices; `None` for none.
    pub voices: Option<VoiceStore>,
    /// Let clients add and delete voices.
    pub uploads: bool,
    /// Most kept voices.
    pub max_voices: usize,
    /// Aliases and their voices: of a model, kept, or mixed.
    pub aliases: Vec<(String, String)>,
    /// Log JSON lines.
    pub log_json: bool,
    /// Log texts.
    pub log_texts: bool,
    /// Log nothing.
    pub quiet: bool,
    /// Send clients the details of model and device errors, which may contain paths.
    pub verbose_errors: bool,
}

impl Settings {
    /// Whether clients may add and delete voices.
    pub fn takes_voices(&self) -> bool {
        self.uploads && self.voices.is_some()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            queue: 64,
            queue_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            connections: 1024,
            max_input_chars: 20_000,
            keys: crate::keys::Keys::default(),
            max_per_key: None,
            open_lists: false,
            hosts: None,
            cors_origins: vec![],
            voices: None,
            uploads: true,
            max_voices: 1000,
            aliases: vec![],
            log_json: false,
            log_texts: false,
            quiet: false,
            verbose_errors: false,
        }
    }
}
