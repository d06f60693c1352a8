//! Models by name: what `--model` means.

use std::path::{Path, PathBuf};

#[cfg(not(feature = "hub"))]
/// Path of the model that the user names.
pub fn path(model: &Path) -> anyhow::Result<PathBuf> {
    Ok(model.to_owned())
}

#[cfg(feature = "hub")]
pub use with_hub::*;

#[cfg(feature = "hub")]
mod with_hub {
    use super::*;
    use crate::failure::UsageError;
    use anyhow::anyhow;
    use orate_hub::{Cache, Found, KNOWN, Known, Repo, known};

    /// A repository, and the known model of it that is meant, if it is one.
    pub struct Named {
        pub repo: Repo,
        pub known: Option<&'static Known>,
    }

    /// Reads `NAME`, `ORG/REPO`, or either with `@REVISION`; `None` if it is neither.
    fn parse(text: &str) -> Option<Named> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        match known(name) {
            Some(known) => {
                let repo = format!("{}@{revision}", known.id).parse().ok()?;
                Some(Named { repo, known: Some(known) })
            }
            None => Some(Named { repo: text.parse().ok()?, known: None }),
        }
    }

    /// The model that a command line names.
    pub fn named(text: &str) -> anyhow::Result<Named> {
        parse(text).ok_or_else(|| {
            let advice = "give a name that `orate models` lists, or ORG/REPO[@REVISION]";
            UsageError(format!("{text}: no known model and no repository; {advice}")).into()
        })
    }

    impl Named {
        /// Where it is in the cache.
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

    /// Path of the model that the user names: a path that exists, or a pulled model.
    ///
    /// # Errors
    /// It is the name of a model that has not been pulled.
    pub fn path(model: &Path) -> anyhow::Result<PathBuf> {
        // Without a home folder there is no cache, and so nothing in it.
        let cache = if model.exists() { None } else { Cache::from_env().ok() };
        let named = model.to_str().and_then(|text| Some((text, parse(text)?)));
        let (Some(cache), Some((text, named))) = (cache, named) else {
            return Ok(model.to_owned());
        };
        let part = match named.find(&cache) {
            Found::Whole { path, .. } => return Ok(path),
            Found::Part => true,
            Found::Nothing => false,
        };
        let cache = cache.root().display();
        Err(match (named.known, part) {
            (_, true) => {
                anyhow!("{text}: only part of it has been pulled; `orate pull {text}` completes it ({cache})")
            }
            (Some(_), false) => {
                anyhow!("{text}: not pulled yet; `orate pull {text}` downloads it ({cache})")
            }
            (None, false) => anyhow!(
                "{text}: no such file or folder, and no pulled model in {cache}; if it is a repository, \
                 `orate pull {text}` downloads it"
            ),
        })
    }
}
