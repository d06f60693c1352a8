//! What a server allows, and how long it waits.

use orate::VoiceStore;
use std::time::Duration;

/// Settings of a server. The defaults suit a machine of one's own.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests of a model that wait for its threads; more are refused.
    pub queue: usize,
    /// Longest wait for a thread.
    pub queue_timeout: Duration,
    /// Longest time that a client may take nothing of an answer.
    pub stall_timeout: Duration,
    /// Longest time from a thread to the end of an answer.
    pub request_timeout: Duration,
    /// Longest time to read the header of a request.
    pub header_timeout: Duration,
    /// Longest time to read the body of a request.
    pub body_timeout: Duration,
    /// Connections at once; more wait.
    pub connections: usize,
    /// Characters of a text.
    pub max_input_chars: usize,
    /// Keys of clients. Without any, all are let in.
    pub keys: crate::keys::Keys,
    /// Requests of one key that run or wait; more are refused.
    pub max_per_key: Option<usize>,
    /// Whether lists of models and voices need no key.
    pub open_lists: bool,
    /// Whether metrics need no key.
    pub open_metrics: bool,
    /// Names under which the server may be asked for; `None` for any. Guards against pages of other origins
    /// that reach a local server through a name of their own (DNS rebinding).
    pub hosts: Option<Vec<String>>,
    /// Origins of pages that may send requests.
    pub cors_origins: Vec<String>,
    /// Where kept voices are; `None` for none.
    pub voices: Option<VoiceStore>,
    /// Whether clients may add and remove voices.
    pub uploads: bool,
    /// Voices that are kept at most.
    pub max_voices: usize,
    /// Names of voices for other names, such as OpenAI's.
    pub aliases: Vec<(String, String)>,
    /// Whether logs are JSON.
    pub log_json: bool,
    /// Whether logs have the texts.
    pub log_texts: bool,
    /// Whether nothing is logged.
    pub quiet: bool,
    /// Whether errors of the model and device have their details, which may name paths.
    pub verbose_errors: bool,
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
            open_metrics: true,
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
