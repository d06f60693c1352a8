//! One line for each request, on standard error.

use serde_json::{Value, json};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// How lines are written.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Whether a line is a JSON object.
    pub is_json: bool,
    /// Whether nothing is written.
    pub is_quiet: bool,
}

impl Log {
    /// A request and how it ended: names and values.
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

    /// Something that an operator has to know.
    pub fn problem(&self, text: &str) {
        if self.is_json {
            self.request(&[("error", text.into())]);
        } else if !self.is_quiet {
            let _ = writeln!(std::io::stderr().lock(), "error: {text}");
        }
    }
}
