//! Errors as a user sees them: a message with its causes, and an exit status.

use crate::own_options::flag_of;
use crate::print;
use orate::{ErrorKind, ModelError, TextError, WeightError};
use std::io;

/// Exit status of a failure: text, model, file or system.
pub const FAILED: u8 = 1;
/// Exit status of a wrong command line or option value, the same as clap's.
const USAGE: u8 = 2;
/// Exit status after a signal: 128 + SIGINT, as shells report it.
pub const INTERRUPTED: u8 = 130;

/// An invalid command line.
#[derive(Debug)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A command ran successfully, and its result is negative. It has printed the result itself.
#[derive(Debug)]
pub struct Rejected;

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not passed")
    }
}

impl std::error::Error for Rejected {}

/// Prints the error and returns the exit status.
pub fn report(error: &anyhow::Error) -> u8 {
    if is_broken_pipe(error) {
        return 0; // the reader of the pipe has closed it
    }
    if !error.is::<Rejected>() {
        print::notes(&message(error));
    }
    exit_status(error)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Lines to print: the message with a hint, then its causes, without those that an earlier line contains.
/// Long texts from damaged files are shortened here, for all errors.
fn message(error: &anyhow::Error) -> Vec<String> {
    let (mut seen, mut lines) = (String::new(), vec![]);
    for cause in error.chain().map(as_typed).filter(|cause| !cause.is_empty()) {
        if !seen.contains(&cause) {
            let start = if lines.is_empty() { "error: " } else { "  cause: " };
            lines.push(format!("{start}{}", print::shorten(&cause)));
            seen.push_str(&cause);
        }
    }
    if let (Some(last), Some(hint)) = (lines.last_mut(), hint(error)) {
        last.push_str(hint);
    }
    lines
}

/// An error with options under their names on the command line, as the library does not know the flags.
fn as_typed(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = cause.to_string();
    let Some(error) = cause.downcast_ref::<orate::Error>() else { return text };
    let option = match error {
        orate::Error::Option { option, .. } => *option,
        orate::Error::Model(e) => match &**e {
            ModelError::Option { option, .. } => *option,
            ModelError::UnknownOption { option, .. } => option.as_str(),
            _ => return with_flags(&text),
        },
        _ => return with_flags(&text),
    };
    flag_of(option).map_or_else(|| with_flags(&text), |flag| text.replacen(option, &flag, 1))
}

/// A text with options that it advises, such as `codec`, under their names on the command line.
pub fn with_flags(text: &str) -> String {
    ["codec", "instruct"]
        .iter()
        .fold(text.to_owned(), |text, option| text.replace(&format!("`{option}`"), &format!("--{option}")))
}

/// A hint at the option that helps; the library does not know the flags.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    #[cfg(feature = "books")]
    if let Some(orate_book::WorkError::Other { .. } | orate_book::WorkError::Damaged { .. }) =
        error.chain().find_map(|cause| cause.downcast_ref())
    {
        return Some(" with --restart");
    }
    match error.chain().find_map(|cause| cause.downcast_ref())? {
        orate::Error::Model(e) if matches!(**e, ModelError::Text(TextError::Unsupported { .. })) => {
            Some("; or leave them out with --skip-unknown, if other words remain")
        }
        orate::Error::VoiceExists { .. } => Some(" with --force"),
        orate::Error::Weights(WeightError::Malformed { problem, .. }) if !problem.contains("again") => {
            Some("; if the file is damaged or cut short, download or copy it again")
        }
        orate::Error::Option { option: "precision_allow" | "precision_deny", .. } => {
            Some("; `orate inspect --tensors` lists names")
        }
        orate::Error::Model(e) if matches!(&**e, ModelError::NotAModel { path, .. } if !path.exists()) => {
            Some(match cfg!(feature = "hub") {
                true => ", or the name of a pulled model; `orate models` lists names",
                false => "; names of models need a build with the feature `hub`",
            })
        }
        _ => None,
    }
}

fn exit_status(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<UsageError>() {
            return USAGE;
        }
        #[cfg(feature = "hub")]
        if let Some(error) = cause.downcast_ref::<orate_hub::Error>() {
            return match error.kind() {
                orate_hub::ErrorKind::InvalidInput => USAGE,
                orate_hub::ErrorKind::Cancelled => INTERRUPTED,
                _ => FAILED,
            };
        }
        if let Some(error) = cause.downcast_ref::<orate::Error>() {
            return match error {
                // Texts and recordings are no options, so errors in them are not usage errors.
                orate::Error::Model(e) if is_about_the_text(e) => FAILED,
                orate::Error::Option { option: "rate" | "sum of pauses", .. } => FAILED,
                orate::Error::Audio(_) => FAILED,
                e if e.kind() == ErrorKind::InvalidInput => USAGE,
                e if e.kind() == ErrorKind::Cancelled => INTERRUPTED,
                _ => FAILED,
            };
        }
    }
    FAILED
}

fn is_about_the_text(e: &ModelError) -> bool {
    use ModelError as E;
    matches!(
        e,
        E::EmptyText { .. }
            | E::Text(_)
            | E::LongText { .. }
            | E::TooLong { .. }
            | E::TooShort { .. }
            | E::Audio(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_printed_once() {
        let cases = [
            (anyhow!("disk full").context("a.wav"), "error: a.wav\n  cause: disk full"),
            (anyhow!("disk full").context("a.wav: disk full"), "error: a.wav: disk full"),
        ];
        for (error, expected) in cases {
            assert_eq!(message(&error).join("\n"), expected);
        }
    }

    #[test]
    fn long_names_do_not_hide_the_advice() {
        let name = "x".repeat(100_000);
        let error = anyhow!("`{name}` is damaged; take another").context(format!("{name}: cannot read"));
        let lines = message(&error);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("x: cannot read") && lines[1].ends_with("is damaged; take another"));
        assert!(lines.iter().all(|line| line.len() < 2500));
    }

    #[test]
    fn options_have_the_names_of_their_flags() {
        let option = |option| {
            let error = ModelError::Option { option, got: "9".into(), allowed: "choose less".into() };
            message(&orate::Error::from(error).into()).concat()
        };
        assert_eq!(option("flow_guidance"), "error: --flow-guidance is 9; choose less");
        assert_eq!(option("trim"), "error: --no-trim is 9; choose less");
        assert_eq!(option("language"), "error: --lang is 9; choose less");
        assert_eq!(option("voice"), "error: --voice is 9; choose less");
        assert_eq!(option("name of the voice"), "error: name of the voice is 9; choose less");
        let (option, model, families) = ("top_k".to_owned(), "this".to_owned(), vec![]);
        let unknown = orate::Error::from(ModelError::UnknownOption { option, model, families });
        assert_eq!(message(&unknown.into()).concat(), "error: `--top-k` is not an option of this");
        assert_eq!(with_flags("name one as `codec`"), "name one as --codec");
    }

    #[test]
    fn the_status_says_what_is_at_fault() {
        let option = || ModelError::Option { option: "speed", got: "0".into(), allowed: "more".into() };
        let language = ModelError::UnknownLanguage { name: "xx".into(), known: vec![] };
        let cases = [
            (anyhow!("anything"), FAILED),
            (UsageError("--json".into()).into(), USAGE),
            (orate::Error::from(option()).into(), USAGE),
            (anyhow::Error::from(orate::Error::from(option())).context("wrapped"), USAGE),
            (orate::Error::from(language).into(), USAGE),
            (orate::Error::from(ModelError::Text(TextError::Empty)).into(), FAILED),
            (orate::Error::from(ModelError::LongText { got: 2, most: 1 }).into(), FAILED),
            (orate::Error::from(ModelError::TooShort { got: 1, least: 2 }).into(), FAILED),
            (orate::Error::Cancelled.into(), INTERRUPTED),
        ];
        for (error, expected) in cases {
            assert_eq!(exit_status(&error), expected, "{error:?}");
        }
    }
}
