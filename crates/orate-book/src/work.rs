//! The work folder: finished units on disk, shared by processes.
//!
//! | file | content |
//! | --- | --- |
//! | `plan.json` | what is being spoken, with which model and options |
//! | `00012.f32` | sound of a finished unit: a header of 24 bytes, then 32-bit floats |
//! | `00012.json` | what else is known of it, such as when its words are spoken |
//! | `00012.part` | sound of a unit that is being spoken; an unfinished one is written anew |
//! | `00012.lock` | locked by the process that speaks the unit |
//! | `folder.lock`, `assembly.lock` | locked while the folder is set up or removed, and while units are joined |
//! | `complete` | the output is complete, and the folder is being removed |
//!
//! Locks are those of the system, which end with their process however it ends. Everything that counts gets
//! its name by a rename.

use crate::plan::{Plan, Unit};
use orate_files::shown;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Version of the folder.
const VERSION: u64 = 1;

/// First bytes of a unit's sound.
const MAGIC: &[u8; 8] = b"orate-u1";
/// Bytes before its samples: these, sample rate, zeros, number of samples.
const HEADER: u64 = 24;

/// Largest plan in bytes, and largest notes of a unit.
const MAX_PLAN: u64 = 64 << 20;
const MAX_NOTES: u64 = 16 << 20;

/// Why a work folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WorkError {
    /// The folder is of other work.
    #[error(
        "{}: this folder has parts of another run; these differ: {}. Finish that run with its own command, name \
         another output, or discard the folder",
        shown(path), differs.join(", ")
    )]
    Other { path: PathBuf, differs: Vec<String> },
    /// A process works with the folder, which was to be discarded.
    #[error("{}: another process is speaking in this folder; wait for it, or stop it first", shown(path))]
    InUse { path: PathBuf },
    /// The plan is damaged.
    #[error("{}: this plan is damaged ({problem}); discard the folder", shown(path))]
    Damaged { path: PathBuf, problem: String },
    /// Reading or writing failed.
    #[error("{}: {problem}", shown(path))]
    Io { path: PathBuf, problem: &'static str, source: io::Error },
}

type Result<T, E = WorkError> = std::result::Result<T, E>;

fn failed(path: &Path, problem: &'static str) -> impl FnOnce(io::Error) -> WorkError {
    move |source| WorkError::Io { path: path.to_owned(), problem, source }
}

const CANNOT_WRITE: &str = "cannot write here; check permissions and free space";
const CANNOT_READ: &str =
    "cannot read this file of a part; discard the folder, and the parts are spoken again";
const CANNOT_LOCK: &str = "cannot lock this file; put the output on a local disk";

/// A folder of units, opened for a plan.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    sample_rate: u32,
    /// Characters of each unit.
    chars: Vec<usize>,
    /// Samples of each unit that is known to be finished.
    done: Vec<Option<u64>>,
}

/// A folder that was opened.
#[derive(Debug)]
pub enum Opened {
    /// There is work left.
    Work(WorkFolder),
    /// An earlier run has completed the output, and was killed while it removed the folder. That is done now.
    Finished,
}

/// What is there to do.
#[derive(Debug)]
pub enum State {
    /// This unit, which no other process speaks.
    Claimed(Claim),
    /// Nothing now: other processes speak the units that are left.
    Busy,
    /// All units are finished.
    Complete,
    /// The folder is gone: another process has joined the units.
    Gone,
}

/// How much of a plan is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Finished units.
    pub units: usize,
    /// Characters of these.
    pub chars: usize,
    /// Samples of these.
    pub samples: u64,
}

impl WorkFolder {
    /// Opens or makes the folder. `key` says in an object what else the sound depends on; other values for
    /// the same plan are refused. With `restart` finished units are discarded.
    ///
    /// # Errors
    /// The folder is of another plan or key, in use (with `restart`), damaged, or cannot be written.
    pub fn open(path: &Path, plan: &Plan, key: &Value, sample_rate: u32, restart: bool) -> Result<Opened> {
        let chars = plan.units.iter().map(|unit| unit.chars).collect::<Vec<_>>();
        let done = vec![None; chars.len()];
        let mut folder = WorkFolder { path: path.to_owned(), sample_rate, chars, done };
        let manifest = json!({
            "version": VERSION,
            "key": key,
            "sample_rate": sample_rate,
            "chapters": plan.chapters.iter().map(|chapter| json!({
                "title": chapter.title,
                "units": [chapter.units.start, chapter.units.end],
            })).collect::<Vec<_>>(),
            "characters": folder.chars,
        });
        let setup = folder.lock_folder()?;
        let plan_file = path.join("plan.json");
        if path.join("complete").exists() {
            let is_same = read_plan(&plan_file)?.is_some_and(|found| check(path, &found, &manifest).is_ok());
            folder.remove_files()?;
            if is_same && !restart {
                folder.remove_folder(setup);
                return Ok(Opened::Finished);
            }
        } else if restart {
            folder.check_idle()?;
            folder.remove_files()?;
        }
        match read_plan(&plan_file)? {
            Some(found) => check(path, &found, &manifest)?,
            None => {
                folder.remove_files()?;
                let temporary = path.join("plan.part");
                let text = serde_json::to_vec_pretty(&manifest).expect("values are JSON");
                write_synced(&temporary, &text)
                    .and_then(|()| fs::rename(&temporary, &plan_file))
                    .map_err(failed(&plan_file, CANNOT_WRITE))?;
            }
        }
        folder.progress();
        Ok(Opened::Work(folder))
    }

    /// Samples of each finished unit in a folder of this plan and key, which is not made and not changed.
    ///
    /// # Errors
    /// The folder is of another plan or key, or damaged.
    pub fn look(path: &Path, plan: &Plan, key: &Value, sample_rate: u32) -> Result<Vec<Option<u64>>> {
        let chars = plan.units.iter().map(|unit| unit.chars).collect::<Vec<_>>();
        let done = vec![None; chars.len()];
        let mut folder = WorkFolder { path: path.to_owned(), sample_rate, chars, done };
        if let Some(found) = read_plan(&path.join("plan.json"))? {
            let wanted = json!({ "version": VERSION, "key": key, "sample_rate": sample_rate });
            check(path, &found, &wanted)?;
            folder.progress();
        }
        Ok(folder.done)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Samples per second of all units.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// A handle for another thread.
    pub fn another(&self) -> WorkFolder {
        WorkFolder { path: self.path.clone(), chars: self.chars.clone(), done: self.done.clone(), ..*self }
    }

    /// Looks which units are finished, by whichever process.
    pub fn progress(&mut self) -> Progress {
        for index in 0..self.done.len() {
            self.is_done(index);
        }
        let finished =
            || self.done.iter().zip(&self.chars).filter_map(|(done, chars)| Some(((*done)?, chars)));
        Progress {
            units: finished().count(),
            chars: finished().map(|(_, chars)| chars).sum(),
            samples: finished().map(|(samples, _)| samples).sum(),
        }
    }

    /// Claims the first unit that is neither finished nor being spoken.
    ///
    /// # Errors
    /// The folder cannot be written, or its file system has no locks.
    pub fn claim(&mut self) -> Result<State> {
        if !self.is_live() {
            return Ok(State::Gone);
        }
        let mut is_busy = false;
        for index in 0..self.done.len() {
            if self.is_done(index) {
                continue;
            }
            let path = self.file(index, "lock");
            let lock = match open_lock(&path) {
                Ok(lock) => lock,
                Err(_) if !self.is_live() => return Ok(State::Gone),
                Err(e) => return Err(failed(&path, CANNOT_WRITE)(e)),
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    is_busy = true;
                    continue;
                }
                Err(TryLockError::Error(e)) => return Err(failed(&path, CANNOT_LOCK)(e)),
            }
            // Another process may have finished it before the lock was free.
            if self.is_done(index) {
                continue;
            }
            // A finished unit is missing only if the folder is being removed.
            if !self.is_live() {
                return Ok(State::Gone);
            }
            let part = self.file(index, "part");
            let file = File::create(&part).map_err(failed(&part, CANNOT_WRITE))?;
            let mut file = BufWriter::with_capacity(1 << 16, file);
            file.write_all(&[0; HEADER as usize]).map_err(failed(&part, CANNOT_WRITE))?;
            let target = self.file(index, "f32");
            let sample_rate = self.sample_rate;
            return Ok(State::Claimed(Claim {
                index,
                file,
                part,
                target,
                sample_rate,
                samples: 0,
                _lock: lock,
            }));
        }
        Ok(if is_busy { State::Busy } else { State::Complete })
    }

    /// Whether a unit is finished.
    fn is_done(&mut self, index: usize) -> bool {
        if self.done[index].is_none() {
            self.done[index] = self.length(index);
        }
        self.done[index].is_some()
    }

    /// Samples of a finished unit; `None` if it is not finished, or damaged.
    pub fn length(&self, index: usize) -> Option<u64> {
        let mut file = File::open(self.file(index, "f32")).ok()?;
        let mut header = [0; HEADER as usize];
        file.read_exact(&mut header).ok()?;
        let (rate, samples) = (header[8..12].try_into().ok()?, header[16..24].try_into().ok()?);
        let samples = u64::from_le_bytes(samples);
        let size = samples.checked_mul(4)?.checked_add(HEADER)?;
        let is_whole = file.metadata().ok()?.len() == size;
        let is_right = header[..8] == *MAGIC && u32::from_le_bytes(rate) == self.sample_rate;
        (is_whole && is_right).then_some(samples)
    }

    /// The notes of a finished unit.
    ///
    /// # Errors
    /// It has none, or they cannot be read.
    pub fn notes(&self, index: usize) -> Result<Vec<u8>> {
        let path = self.file(index, "json");
        orate_files::read(&path, MAX_NOTES).map_err(failed(&path, CANNOT_READ))
    }

    /// Reads the samples of a finished unit in blocks.
    pub(crate) fn read(&self, index: usize, mut each: impl FnMut(&[f32])) -> Result<()> {
        let path = self.file(index, "f32");
        let cannot = || failed(&path, CANNOT_READ);
        let mut file = BufReader::with_capacity(1 << 16, File::open(&path).map_err(cannot())?);
        file.seek(SeekFrom::Start(HEADER)).map_err(cannot())?;
        let (mut bytes, mut samples) = ([0; 1 << 14], Vec::with_capacity(1 << 12));
        let mut left = self.length(index).unwrap_or(0) * 4;
        while left > 0 {
            let now = left.min(bytes.len() as u64) as usize;
            file.read_exact(&mut bytes[..now]).map_err(cannot())?;
            samples.clear();
            samples
                .extend(bytes[..now].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            each(&samples);
            left -= now as u64;
        }
        Ok(())
    }

    /// The right to join the units; `None` while another process does.
    ///
    /// # Errors
    /// As for [`WorkFolder::claim`].
    pub fn try_assembly(&self) -> Result<Option<AssemblyLock>> {
        let path = self.path.join("assembly.lock");
        let lock = match open_lock(&path) {
            Ok(lock) => lock,
            // Another process has just removed the folder.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(&path, CANNOT_WRITE)(e)),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(AssemblyLock(lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(failed(&path, CANNOT_LOCK)(e)),
        }
    }

    /// Whether the folder is there, and its output is not complete.
    pub fn is_live(&self) -> bool {
        self.path.join("plan.json").exists() && !self.path.join("complete").exists()
    }

    /// Removes the folder once the output is complete. A process that is killed meanwhile leaves a note that
    /// lets the next one go on removing.
    ///
    /// # Errors
    /// The folder cannot be changed.
    pub fn remove(&self, _assembly: AssemblyLock) -> Result<()> {
        let setup = self.lock_folder()?;
        let note = self.path.join("complete");
        File::create(&note).map_err(failed(&note, CANNOT_WRITE))?;
        self.remove_files()?;
        self.remove_folder(setup);
        Ok(())
    }

    /// Removes the empty folder.
    fn remove_folder(&self, _setup: File) {
        let _ = fs::remove_file(self.path.join("folder.lock"));
        // Files that are not ours stay, and with them the folder.
        let _ = fs::remove_dir(&self.path);
    }

    fn file(&self, index: usize, extension: &str) -> PathBuf {
        self.path.join(format!("{index:05}.{extension}"))
    }

    /// Makes the folder and locks it.
    fn lock_folder(&self) -> Result<File> {
        let path = self.path.join("folder.lock");
        loop {
            match fs::create_dir(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(&self.path, "cannot make this folder for parts of the book")(e));
                }
                _ => {}
            }
            let lock = match open_lock(&path) {
                Ok(lock) => lock,
                // Removed by another process between the two calls.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(&path, CANNOT_WRITE)(e)),
            };
            lock.lock().map_err(failed(&path, CANNOT_LOCK))?;
            if path.exists() {
                return Ok(lock);
            }
        }
    }

    /// Refuses a folder that another process is using.
    fn check_idle(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path).map_err(failed(&self.path, "cannot list this folder"))? {
            let path = entry.map_err(failed(&self.path, "cannot list this folder"))?.path();
            let is_lock = path.extension().is_some_and(|e| e == "lock");
            if is_lock && path.file_name().is_some_and(|name| name != "folder.lock") {
                let lock = File::open(&path).map_err(failed(&path, CANNOT_LOCK))?;
                if let Err(TryLockError::WouldBlock) = lock.try_lock() {
                    return Err(WorkError::InUse { path: self.path.clone() });
                }
            }
        }
        Ok(())
    }

    /// Removes everything that belongs to a work folder but its lock. The plan goes last, but for the note
    /// that the output is complete, so that units never count for another plan.
    fn remove_files(&self) -> Result<()> {
        let entries = fs::read_dir(&self.path).map_err(failed(&self.path, "cannot list this folder"))?;
        let is_unit = |path: &Path| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            stem.len() >= 5
                && stem.bytes().all(|b| b.is_ascii_digit())
                && ["f32", "json", "part", "lock"].contains(&ending)
        };
        let units = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_unit(path));
        let named = ["assembly.lock", "plan.part", "plan.json", "complete"].map(|name| self.path.join(name));
        for path in units.chain(named) {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&path, "cannot remove this file")(e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The right to join the units.
#[derive(Debug)]
pub struct AssemblyLock(#[expect(dead_code, reason = "dropping it unlocks")] File);

/// A unit that this process speaks. Dropped before [`Claim::finish`], the unit is free again.
#[derive(Debug)]
pub struct Claim {
    /// Number of the unit.
    pub index: usize,
    file: BufWriter<File>,
    part: PathBuf,
    target: PathBuf,
    sample_rate: u32,
    samples: u64,
    _lock: File,
}

impl Claim {
    /// The unit of a plan.
    pub fn unit<'a>(&self, plan: &'a Plan) -> &'a Unit {
        &plan.units[self.index]
    }

    /// Appends samples.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(&mut self, samples: &[f32]) -> Result<()> {
        self.samples += samples.len() as u64;
        let mut write = || samples.iter().try_for_each(|x| self.file.write_all(&x.to_le_bytes()));
        write().map_err(failed(&self.part, CANNOT_WRITE))
    }

    /// Keeps notes with the unit, for [`WorkFolder::notes`].
    ///
    /// # Errors
    /// The disk is full.
    pub fn keep_notes(&self, notes: &[u8]) -> Result<()> {
        // The unit counts once its samples have their name, which they get later.
        let path = self.target.with_extension("json");
        write_synced(&path, notes).map_err(failed(&path, CANNOT_WRITE))
    }

    /// Completes the unit: its samples are on the disk, and other processes see it.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(mut self) -> Result<()> {
        let mut header = MAGIC.to_vec();
        header.extend(self.sample_rate.to_le_bytes());
        header.extend([0; 4]);
        header.extend(self.samples.to_le_bytes());
        let mut write = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)?;
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            fs::rename(&self.part, &self.target)
        };
        write().map_err(failed(&self.part, CANNOT_WRITE))?;
        // A process that waits at this lock finds the unit finished.
        let _ = fs::remove_file(self.target.with_extension("lock"));
        Ok(())
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The plan of a folder, if it has one.
fn read_plan(path: &Path) -> Result<Option<Value>> {
    let damaged = |problem: String| WorkError::Damaged { path: path.to_owned(), problem };
    match orate_files::read(path, MAX_PLAN) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(e.to_string())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(damaged(e.to_string())),
    }
}

/// Compares the plan of a folder with the wanted one.
fn check(path: &Path, found: &Value, wanted: &Value) -> Result<()> {
    let mut differs = vec![];
    for (name, value) in wanted.as_object().into_iter().flatten() {
        if name != "key" && found[name] != *value {
            differs.push(name.replace('_', " "));
        }
    }
    let (found, wanted) = (&found["key"], &wanted["key"]);
    let names = [found, wanted].into_iter().filter_map(Value::as_object).flat_map(|key| key.keys());
    for name in names {
        if found[name] != wanted[name] && !differs.contains(name) {
            differs.push(name.clone());
        }
    }
    match differs.is_empty() {
        true => Ok(()),
        false => Err(WorkError::Other { path: path.to_owned(), differs }),
    }
}
