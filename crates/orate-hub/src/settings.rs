//! Settings, from the environment variables that huggingface_hub reads.

use crate::{Error, ErrorKind, Result};
use orate_files::shown;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file with a token.
const MAX_TOKEN: u64 = 64 << 10;

/// Where models come from and where they are kept.
#[derive(Clone)]
pub struct Settings {
    /// Address of the hub or of a mirror, without a slash at its end.
    pub endpoint: String,
    /// Access token, sent to the host of `endpoint` only.
    pub token: Option<String>,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Do not use the network.
    pub offline: bool,
    /// Allow addresses with `http:` that are not on this machine.
    pub insecure: bool,
    /// Retries and timeouts.
    pub patience: Patience,
}

/// Retries and timeouts.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Tries without progress before giving up, at least 1.
    pub tries: u32,
    /// Time before the second try; doubles with each further one.
    pub first_wait: Duration,
    /// Longest `Retry-After` that is waited for.
    pub longest_wait: Duration,
    /// Longest time without a byte from a connection.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            tries: 5,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(120),
            silence: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .field("insecure", &self.insecure)
            .field("patience", &self.patience)
            .finish()
    }
}

impl Settings {
    /// Settings of this process: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_CACHE`, `HF_HOME` and
    /// `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// There is no folder for the cache, or the file with the token cannot be read.
    pub fn from_env() -> Result<Settings> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    /// As [`Settings::from_env`], from other variables.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| get(name).and_then(|value| value.into_string().ok());
        let home = cache_home(&get);
        let cache = cache(&get)?;
        let token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => cleaned(&token),
            None => match path(&get, "HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token"))) {
                Some(path) => token_of(&path)?,
                None => None,
            },
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Ok(Settings {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache,
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            insecure: false,
            patience: Patience::default(),
        })
    }
}

type Get<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Folder of the cache.
fn cache(get: &Get<'_>) -> Result<PathBuf> {
    let named = path(get, "HF_HUB_CACHE").or_else(|| path(get, "HUGGINGFACE_HUB_CACHE"));
    named.or_else(|| Some(cache_home(get)?.join("hub"))).ok_or_else(|| {
        let problem = "there is no home folder for the model cache; set HF_HOME";
        Error::new(ErrorKind::InvalidInput, problem)
    })
}

/// Folder of this process's cache.
pub(crate) fn cache_of_env() -> Result<PathBuf> {
    cache(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

/// `HF_HOME`, or its default.
fn cache_home(get: &Get<'_>) -> Option<PathBuf> {
    let user = || get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
    let caches = || path(get, "XDG_CACHE_HOME").or_else(|| Some(user()?.join(".cache")));
    path(get, "HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// Path in a variable; `~` at its start is the user's folder.
fn path(get: &Get<'_>, name: &str) -> Option<PathBuf> {
    let value = PathBuf::from(get(name)?);
    match (value.strip_prefix("~"), get("HOME").or_else(|| get("USERPROFILE"))) {
        (Ok(rest), Some(home)) => Some(Path::new(&home).join(rest)),
        _ => Some(value),
    }
}

fn token_of(path: &Path) -> Result<Option<String>> {
    match orate_files::read(path, MAX_TOKEN) {
        Ok(bytes) => Ok(cleaned(&String::from_utf8_lossy(&bytes))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => {
            let advice = "make the token file readable, or set HF_TOKEN";
            Err(Error::new(ErrorKind::InvalidInput, format!("{}: {e}; {advice}", shown(path))))
        }
    }
}

fn cleaned(token: &str) -> Option<String> {
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

fn is_true(value: &str) -> bool {
    matches!(&*value.to_ascii_uppercase(), "1" | "ON" | "YES" | "TRUE")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn settings(variables: Variables<'_>) -> Result<Settings> {
        Settings::from_variables(&|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn folders_are_those_of_huggingface_hub() {
        let cases: [(Variables<'_>, &str); 6] = [
            (&[("HOME", "/u")], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/h")], "/u/h/hub"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/hub"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
        ];
        for (variables, cache) in cases {
            assert_eq!(settings(variables).unwrap().cache, Path::new(cache), "{variables:?}");
        }
        assert_eq!(settings(&[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn tokens_come_from_a_variable_or_a_file_and_are_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), " hf_file\r\n").unwrap();
        std::fs::write(folder.path().join("other"), "hf_other").unwrap();
        let other = format!("{home}/other");
        let cases: [(Variables<'_>, Option<&str>); 4] = [
            (&[("HF_HOME", home)], Some("hf_file")),
            (&[("HF_HOME", home), ("HF_TOKEN", "hf_env")], Some("hf_env")),
            (&[("HF_HOME", home), ("HF_TOKEN_PATH", &other)], Some("hf_other")),
            (&[("HF_HOME", "/nowhere")], None),
        ];
        for (variables, token) in cases {
            let settings = settings(variables).unwrap();
            assert_eq!(settings.token.as_deref(), token, "{variables:?}");
            assert!(!format!("{settings:?}").contains("hf_"), "{settings:?}");
        }
    }

    #[test]
    fn an_endpoint_ends_without_a_slash_and_offline_has_many_words() {
        let base = ("HF_HOME", "/h");
        assert_eq!(settings(&[base]).unwrap().endpoint, "https://huggingface.co");
        let mirror = settings(&[base, ("HF_ENDPOINT", "https://m.example/hf/")]).unwrap();
        assert_eq!(mirror.endpoint, "https://m.example/hf");
        for (value, offline) in [("1", true), ("true", true), ("On", true), ("0", false), ("", false)] {
            assert_eq!(settings(&[base, ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline);
        }
    }
}
