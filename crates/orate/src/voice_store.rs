//! Kept voices: a folder with one file for each.

use crate::{Engine, Error, Options, Result};
use orate_models::{ClonedVoice, ModelError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Environment variable that names the folder of [`VoiceStore::user`].
pub const VOICE_FOLDER_VARIABLE: &str = "ORATE_VOICE_FOLDER";

/// What the names of files end with.
const EXTENSION: &str = "safetensors";

/// Most characters of a name: some file systems have room for 255 bytes.
const MOST_CHARS: usize = 48;

/// What the names of files begin with while they are written.
const PART: &str = ".new-";

/// Age of a part that no running process still writes.
const PART_AGE: Duration = Duration::from_secs(3600);

/// Cloned voices by name, kept as files in a folder. Nothing is cached, so voices that another process adds
/// are seen at once.
///
/// ```
/// let folder = std::env::temp_dir().join("orate-doc-voices");
/// let store = orate::VoiceStore::new(&folder);
/// # let voice = orate::ClonedVoice::new("a-family");
/// // let voice = engine.clone_voice("ada.wav", None)?;
/// store.save("ada", &voice, true)?;
/// assert_eq!(store.names()?, ["ada"]);
/// assert_eq!(*store.load("ada")?, voice);     // for `Options::cloned`
/// store.remove("ada")?;
/// # Ok::<(), orate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceStore {
    folder: PathBuf,
}

impl VoiceStore {
    /// The voices in `folder`, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> VoiceStore {
        VoiceStore { folder: folder.into() }
    }

    /// The user's voices: the folder in [`VOICE_FOLDER_VARIABLE`], or `orate/voices` in the folder for the
    /// user's data.
    ///
    /// # Errors
    /// The system has no such folder.
    pub fn user() -> Result<VoiceStore> {
        match std::env::var_os(VOICE_FOLDER_VARIABLE) {
            Some(folder) if !folder.is_empty() => Ok(VoiceStore::new(folder)),
            _ => match dirs::data_dir() {
                Some(data) => Ok(VoiceStore::new(data.join("orate").join("voices"))),
                None => Err(Error::NoVoice(format!(
                    "this system has no folder for a user's data; set {VOICE_FOLDER_VARIABLE} to one for \
                     voices"
                ))),
            },
        }
    }

    /// Folder of the voices.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of the voices, sorted. Other files are skipped.
    ///
    /// # Errors
    /// The folder cannot be read. A folder that does not exist has no voices.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(|e| failed(&self.folder, e))?,
        };
        let mut names = vec![];
        for entry in entries {
            let path = entry.map_err(|e| failed(&self.folder, e))?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let is_voice = path.extension() == Some(EXTENSION.as_ref()) && !path.is_dir();
            if let Some(name) = name.filter(|name| is_voice && is_name(name)) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Loads a voice, for [`crate::Options::cloned`].
    ///
    /// # Errors
    /// No voice has the name, or its file is damaged.
    pub fn load(&self, name: &str) -> Result<Arc<ClonedVoice>> {
        let path = self.path(name)?;
        match ClonedVoice::load(&path) {
            Err(ModelError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(self.unknown(name))
            }
            Err(_) if path.is_dir() => Err(self.unknown(name)),
            voice => {
                let damaged = |e| Error::DamagedVoice { name: name.to_owned(), source: Box::new(e) };
                Ok(Arc::new(voice.map_err(damaged)?))
            }
        }
    }

    /// Checks that a voice could be saved under this name, before time is spent on making it.
    ///
    /// # Errors
    /// The name is not allowed, or taken and `replace` is false, or the folder cannot be written to or
    /// created.
    pub fn check(&self, name: &str, replace: bool) -> Result<()> {
        let path = self.path(name)?;
        if !replace && path.symlink_metadata().is_ok() {
            return Err(Error::VoiceExists { name: name.to_owned(), path });
        }
        let exists = |folder: &&Path| folder.as_os_str().is_empty() || folder.symlink_metadata().is_ok();
        let folder = self.folder.ancestors().find(exists).unwrap_or(Path::new(""));
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let attempt = tempfile::Builder::new().prefix(PART).tempfile_in(folder);
        attempt.map(drop).map_err(|e| failed(&path, e))
    }

    /// Saves a voice and returns the path of its file. Readers see the old file or the new one, never a part.
    ///
    /// # Errors
    /// As [`VoiceStore::check`]; or a number of the voice is not finite, or the file cannot be written.
    pub fn save(&self, name: &str, voice: &ClonedVoice, replace: bool) -> Result<PathBuf> {
        self.check(name, replace)?;
        let path = self.path(name)?;
        let bytes = voice.to_bytes()?;
        let write = || {
            std::fs::create_dir_all(&self.folder)?;
            self.remove_parts();
            let mut file = tempfile::Builder::new().prefix(PART).tempfile_in(&self.folder)?;
            file.write_all(&bytes)?;
            file.as_file().sync_all()?;
            // Someone else may have taken the name since it was checked.
            let kept = if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
            kept.map(|_| ()).map_err(|e| e.error)
        };
        match write() {
            Ok(()) => Ok(path),
            Err(e) if !replace && e.kind() == io::ErrorKind::AlreadyExists && path.exists() => {
                Err(Error::VoiceExists { name: name.to_owned(), path })
            }
            Err(e) => Err(failed(&path, e)),
        }
    }

    /// Deletes a voice, damaged or not.
    ///
    /// # Errors
    /// No voice has the name, or its file cannot be deleted.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        std::fs::remove_file(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => self.unknown(name),
            _ => failed(&path, e),
        })
    }

    /// Deletes parts of voices that killed processes left over an hour ago. [`VoiceStore::save`] does so too.
    /// Parts that cannot be deleted stay.
    pub fn remove_parts(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let is_part = entry.file_name().to_str().is_some_and(|name| {
                let random = name.strip_prefix(PART).unwrap_or_default();
                random.len() == 6 && random.chars().all(|c| c.is_ascii_alphanumeric())
            });
            // Of the entry itself: a link is no part.
            let is_old = entry.metadata().is_ok_and(|file| {
                file.is_file() && file.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > PART_AGE))
            });
            if is_part && is_old {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        if !is_name(name) {
            return Err(Error::Option {
                option: "name of the voice",
                got: format!("{name:?}"),
                allowed: format!(
                    "choose 1 to {MOST_CHARS} letters, digits, `-` or `_`, of which `-` is not the first, \
                     and no name of a device of Windows, such as `con`"
                ),
            });
        }
        Ok(self.folder.join(format!("{name}.{EXTENSION}")))
    }

    fn unknown(&self, name: &str) -> Error {
        // A folder that cannot be listed is reported where it is listed.
        let known = self.names().unwrap_or_default();
        Error::UnknownKeptVoice { name: name.to_owned(), folder: self.folder.clone(), known, own: vec![] }
    }
}

impl Engine {
    /// Sets the voice that a user names: one of the model's own or, for models that clone, a kept voice of
    /// [`VoiceStore::user`] or the file of one (`.safetensors`).
    ///
    /// # Errors
    /// No kept voice has the name, or the file cannot be read.
    pub fn with_voice(&self, options: Options, name: &str) -> Result<Options> {
        let is_own = self.voices().iter().any(|voice| voice.name == name);
        if is_own || !self.can_clone() {
            return Ok(Options { voice: Some(name.to_owned()), cloned: None, ..options });
        }
        let voices = || self.voices().iter().map(|voice| voice.name.clone()).collect();
        let cloned = if Path::new(name).extension() == Some(EXTENSION.as_ref()) {
            Arc::new(ClonedVoice::load(name)?)
        } else if name.contains([':', '+']) {
            let allowed = format!("{} models cannot mix voices; name one", self.family_name());
            return Err(Error::Option { option: "voice", got: format!("`{name}`"), allowed });
        } else {
            let store = VoiceStore::user()?;
            let family = self.model().files().family().tag;
            let fits = |name: &str| store.load(name).is_ok_and(|voice| voice.family == family);
            store.load(name).map_err(|e| match e {
                Error::UnknownKeptVoice { name, folder, known, .. } => {
                    let known = known.into_iter().filter(|name| fits(name)).collect();
                    Error::UnknownKeptVoice { name, folder, known, own: voices() }
                }
                other => other,
            })?
        };
        Ok(Options { voice: None, cloned: Some(cloned), ..options })
    }
}

/// Whether a name can be a file's, everywhere and without leaving the folder, and cannot be taken for an
/// option or a mix.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    (1..=MOST_CHARS).contains(&name.chars().count())
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !is_device(name)
}

/// Whether Windows opens a device under this name, with any extension.
fn is_device(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let port = name.strip_prefix("com").or_else(|| name.strip_prefix("lpt"));
    let is_port =
        port.is_some_and(|n| n.chars().count() == 1 && n.starts_with(|c| "0123456789¹²³".contains(c)));
    is_port || ["con", "prn", "aux", "nul"].contains(&&*name)
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::VoiceFolder { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_models::VoiceTensor;

    fn voice(x: f32) -> ClonedVoice {
        let mut voice = ClonedVoice::new("a-family");
        voice.tensors.insert("x".to_owned(), VoiceTensor::floats(vec![x; 4]));
        voice
    }

    #[test]
    fn voices_come_and_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = VoiceStore::new(folder.path().join("not/there/yet"));
        assert_eq!(store.names().expect("none"), Vec::<String>::new());
        let e = store.load("ada").expect_err("none").to_string();
        assert!(e.contains("`ada`") && e.contains("none to choose from"), "{e}");
        store.save("ada", &voice(1.0), false).expect("kept");
        store.save("Björk_2", &voice(2.0), false).expect("kept");
        std::fs::write(store.folder().join("notes.txt"), "").expect("writable");
        assert_eq!(store.names().expect("two"), ["Björk_2", "ada"]);
        let e = store.save("ada", &voice(3.0), false).expect_err("taken");
        assert!(matches!(e, Error::VoiceExists { .. }), "{e}");
        assert_eq!(*store.load("ada").expect("kept"), voice(1.0));
        store.save("ada", &voice(3.0), true).expect("replaced");
        assert_eq!(*store.load("ada").expect("kept"), voice(3.0));
        store.remove("ada").expect("there");
        let e = store.remove("ada").expect_err("gone").to_string();
        assert!(e.contains("`ada`") && e.contains("Björk_2"), "{e}");
        assert_eq!(std::fs::read_dir(store.folder()).expect("there").count(), 2, "no temporary file is left");
    }

    #[test]
    fn old_parts_of_killed_processes_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = VoiceStore::new(folder.path());
        let file = |name: &str, minutes: u64| {
            let file = std::fs::File::create(folder.path().join(name)).expect("writable");
            let at = std::time::SystemTime::now() - Duration::from_secs(60 * minutes);
            file.set_modified(at).expect("a time");
        };
        // A part is not deleted while it may still be written, and nothing else is at all.
        let others =
            [".new-Ab12cd", ".new-", ".new-notes", ".new-ab-def", "new-Ab12cd", "Ab12cd.safetensors"];
        others.iter().for_each(|name| file(name, if *name == others[0] { 50 } else { 70 }));
        std::fs::create_dir(folder.path().join(".new-folder")).expect("writable");
        file(".new-xYz123", 70);
        // What tempfile makes has this form.
        let part = tempfile::Builder::new().prefix(PART).tempfile_in(folder.path()).expect("writable");
        let (part, path) = part.keep().expect("kept");
        part.set_modified(std::time::SystemTime::now() - 2 * PART_AGE).expect("a time");
        store.remove_parts();
        assert!(!path.exists() && !folder.path().join(".new-xYz123").exists());
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), others.len() + 1);
        file(".new-xYz123", 70);
        store.save("ada", &voice(1.0), false).expect("kept");
        assert!(!folder.path().join(".new-xYz123").exists());
    }

    #[test]
    fn folders_are_no_voices() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = VoiceStore::new(folder.path());
        std::fs::create_dir(folder.path().join("d.safetensors")).expect("writable");
        assert_eq!(store.names().expect("none"), Vec::<String>::new());
        assert!(matches!(store.load("d"), Err(Error::UnknownKeptVoice { .. })));
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("writable");
        let error = VoiceStore::new(&file).save("ada", &voice(1.0), false).expect_err("not a folder");
        assert!(error.to_string().contains(VOICE_FOLDER_VARIABLE), "{error}");
    }

    #[test]
    fn only_whole_names_are_those_of_devices() {
        assert!(["con", "Aux", "LPT9", "com²"].iter().all(|name| is_device(name)));
        assert!(!["connie", "com", "com10", "comb", "null"].iter().any(|name| is_device(name)));
    }

    #[test]
    fn names_stay_in_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = VoiceStore::new(folder.path());
        let long = "a".repeat(MOST_CHARS + 1);
        for name in [
            "", "..", "a/b", "../a", "/a", "a\\b", "a.b", "-a", "a b", "a\0", "a+b", "a:1", &long, "CON",
            "nul", "Com1",
        ] {
            let e = store.save(name, &voice(1.0), false).expect_err(name).to_string();
            assert!(e.contains("letters, digits"), "{name}: {e}");
            assert!(store.load(name).is_err() && store.remove(name).is_err(), "{name}");
        }
    }
}
