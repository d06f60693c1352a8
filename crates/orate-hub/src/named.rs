//! Models as users name them: by a known name, or by their repository.

use crate::{Cache, Error, ErrorKind, Found, KNOWN, Known, Repo, Result, known};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A repository, and the known model of it that is meant, if it is one: `NAME`, `ORG/REPO`, or either with
/// `@REVISION`.
///
/// ```
/// let named: orate_hub::Named = "supertonic-3@v1".parse()?;
/// assert_eq!(named.repo.to_string(), "Supertone/supertonic-3@v1");
/// # Ok::<(), orate_hub::Error>(())
/// ```
#[derive(Debug)]
pub struct Named {
    /// The repository.
    pub repo: Repo,
    /// The known model.
    pub known: Option<&'static Known>,
}

impl FromStr for Named {
    type Err = Error;

    fn from_str(text: &str) -> Result<Named> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let known = known(name);
        let repo = match known {
            Some(known) => format!("{}@{revision}", known.id).parse(),
            None => text.parse(),
        };
        let repo = repo.map_err(|_| {
            let advice = "give a name that `orate models` lists, or ORG/REPO[@REVISION]";
            Error::new(ErrorKind::InvalidInput, format!("{text}: no known model and no repository; {advice}"))
        })?;
        Ok(Named { repo, known })
    }
}

impl Named {
    /// Looks for it in a cache.
    pub fn find(&self, cache: &Cache) -> Found {
        if let Some(known) = self.known {
            return known.find(cache, &self.repo);
        }
        // Of a repository of known models, a snapshot in which one is whole is preferred.
        let models = KNOWN.iter().filter(|known| known.id == self.repo.id());
        let whole = models.filter_map(|known| match known.find(cache, &self.repo) {
            Found::Whole { path, .. } if path.is_file() => path.parent().map(Path::to_owned),
            Found::Whole { path, .. } => Some(path),
            _ => None,
        });
        match whole.chain(cache.snapshot(&self.repo)).next() {
            Some(path) => Found::Whole { path, bytes: 0 },
            None if cache.snapshots(&self.repo).is_empty() => Found::Nothing,
            None => Found::Part,
        }
    }
}

/// Path of the model that a user names: a path that exists, or a pulled model. What is neither is returned as
/// it is, and an error when it is opened.
///
/// # Errors
/// It is the name of a model that has not been pulled.
pub fn model_path(model: &Path) -> Result<PathBuf> {
    // Without a home folder there is no cache, and so nothing in it.
    let cache = if model.exists() { None } else { Cache::from_env().ok() };
    let named = model.to_str().and_then(|text| Some((text, text.parse::<Named>().ok()?)));
    let (Some(cache), Some((text, named))) = (cache, named) else {
        return Ok(model.to_owned());
    };
    let part = match named.find(&cache) {
        Found::Whole { path, .. } => return Ok(path),
        Found::Part => true,
        Found::Nothing => false,
    };
    let cache = cache.root().display();
    let problem = match (named.known, part) {
        (_, true) => {
            format!("{text}: only part of it has been pulled; `orate pull {text}` completes it ({cache})")
        }
        (Some(_), false) => {
            format!("{text}: not pulled yet; `orate pull {text}` downloads it ({cache})")
        }
        (None, false) => format!(
            "{text}: no such file or folder, and no pulled model in {cache}; if it is a repository, \
             `orate pull {text}` downloads it"
        ),
    };
    Err(Error::new(ErrorKind::NotFound, problem))
}
