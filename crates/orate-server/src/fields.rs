//! Fields of a JSON object, taken one by one with their types checked.

use crate::error::{ApiError, Result};
use serde_json::{Map, Value};

/// Fields of an object that were not taken yet.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Fields of a value.
    ///
    /// # Errors
    /// It is not an object.
    pub fn of(value: Value) -> Result<Fields> {
        match value {
            Value::Object(fields) => Ok(Fields(fields)),
            _ => {
                let message = "the body is JSON, but not an object such as {\"input\": \"Hello.\"}";
                Err(ApiError::new(axum::http::StatusCode::BAD_REQUEST, "invalid_json", message))
            }
        }
    }

    /// Takes a field; `null` counts as missing.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Adds fields that are missing.
    pub fn fill(&mut self, defaults: &Map<String, Value>) {
        for (name, value) in defaults {
            self.0.entry(name).or_insert_with(|| value.clone());
        }
    }

    fn typed<T>(&mut self, name: &str, kind: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || {
            let got = value.to_string().chars().take(60).collect::<String>();
            ApiError::field("invalid_value", name, format!("`{name}` is {got}, not {kind}"))
        };
        read(&value).map(Some).ok_or_else(wrong)
    }

    /// Takes a text.
    ///
    /// # Errors
    /// It is of another type.
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.typed(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// As [`Fields::text`].
    pub fn number(&mut self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// Takes a whole number that is not negative.
    ///
    /// # Errors
    /// As [`Fields::text`].
    pub fn whole(&mut self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a whole number of at least 0", |value| {
            let whole = |x: f64| (x >= 0.0 && x.fract() == 0.0 && x < 9e15).then_some(x as u64);
            value.as_u64().or_else(|| value.as_f64().and_then(whole))
        })
    }

    /// Takes a switch.
    ///
    /// # Errors
    /// As [`Fields::text`].
    pub fn switch(&mut self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// Returns the fields that were not taken.
    pub fn rest(self) -> Map<String, Value> {
        self.0
    }
}
