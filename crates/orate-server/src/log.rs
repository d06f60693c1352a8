//! Logs a line per request to standard error.

use serde_json::{Value, json};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Format of the log.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Lines are JSON objects.
    pub is_json: bool,
    /// Nothing but problems is written.
    pub is_quiet: bool,
}

impl Log {
    /// Logs names and values about a request.
    pub fn request(&self, facts: &[(&str, Value)]) {
        self.write(&self.line(facts));
    }

    /// Logs an event of the server: `text`, or `facts` in JSON.
    pub fn event(&self, text: &str, facts: &[(&str, Value)]) {
        self.write(&self.event_line(text, facts));
    }

    /// Logs a problem.
    pub fn problem(&self, text: &str) {
        let line = self.event_line(&format!("error: {text}"), &[("error", text.into())]);
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    fn write(&self, line: &str) {
        if !self.is_quiet {
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }

    fn event_line(&self, text: &str, facts: &[(&str, Value)]) -> String {
        if self.is_json { self.line(facts) } else { text.to_owned() }
    }

    fn line(&self, facts: &[(&str, Value)]) -> String {
        if self.is_json {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_text_or_json() {
        let line = |is_json| {
            let log = Log { is_json, is_quiet: false };
            log.event_line("ready at a", &[("ready", "a".into())])
        };
        assert_eq!(line(false), "ready at a");
        let json: Value = serde_json::from_str(&line(true)).expect("JSON");
        assert!(json["ready"] == "a" && json["time"].is_number(), "{json}");
    }
}
