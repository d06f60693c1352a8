//! Logs a line per request to standard error.

use serde_json::{Value, json};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Format of the log.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Lines are JSON objects.
    pub is_json: bool,
    /// Nothing is written.
    pub is_quiet: bool,
}

impl Log {
    /// Logs names and values about a request.
    pub fn request(&self, facts: &[(&str, Value)]) {
        if self.is_quiet {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let line = if self.is_json {
            let mut line = json!({ "time": (time * 1e3).round() / 1e3 });
            for (name, value) in facts {
                line[*name] = value.clone();
            }
            line.to_string()
        } else {
            let fact = |(name, value): &(&str, Value)| match value {
                Value::String(text) => format!("{name}={text:?}"),
                value => format!("{name}={value}"),
            };
            let known = facts.iter().filter(|(_, value)| !value.is_null());
            known.map(fact).collect::<Vec<_>>().join(" ")
        };
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// Logs a problem.
    pub fn problem(&self, text: &str) {
        if self.is_json {
            self.request(&[("error", text.into())]);
        } else if !self.is_quiet {
            let _ = writeln!(std::io::stderr().lock(), "error: {text}");
        }
    }
}
