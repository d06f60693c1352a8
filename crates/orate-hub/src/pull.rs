//! Plans and runs downloads.

use crate::cache::{free_space, link, lock, make_parent};
use crate::http::{Client, Failure, header, notify, retry};
use crate::list::{describe, list};
use crate::name::fits;
use crate::part::{CHUNK, Part, Sum};
use crate::{Cache, Error, ErrorKind, Event, Repo, Result, Settings, Watch, default_files};
use orate_files::{quoted, shown};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use ureq::http::StatusCode;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

/// Bytes of an attempt that reset the count of failures.
const PROGRESS: u64 = 1 << 20;
/// Folder of parts and locks of a target folder, as in huggingface_hub.
const FOLDER_PARTS: &str = ".cache/huggingface/download";

/// Where files go.
#[derive(Clone, Debug)]
pub enum Target {
    /// The shared cache.
    Cache,
    /// A folder, under the names that the files have in the repository.
    Folder(PathBuf),
}

/// A file of a [`Plan`].
#[derive(Clone, Debug)]
pub struct File {
    /// Path in the repository.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether it is complete on disk.
    pub is_there: bool,
    /// Checksum; `None` for complete files.
    sum: Option<Sum>,
}

/// What a download will do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The repository.
    pub repo: Repo,
    /// Commit of the revision.
    pub commit: String,
    /// License, as the model card names it.
    pub license: Option<String>,
    /// All files.
    pub files: Vec<File>,
    /// Folder of the files.
    pub folder: PathBuf,
    target: Target,
}

impl Plan {
    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Bytes to download.
    pub fn missing(&self) -> u64 {
        self.files.iter().filter(|file| !file.is_there).map(|file| file.size).sum()
    }
}

/// Whether patterns are those that nobody chose.
fn is_default(repo: &Repo, patterns: &[impl AsRef<str>]) -> bool {
    patterns.iter().map(AsRef::as_ref).eq(default_files(repo))
}

/// The GGUF file of a repository that has one, and no weights that are wanted.
fn only_gguf<'a>(
    repo: &Repo,
    names: impl Iterator<Item = &'a str> + Clone,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<Option<String>> {
    let ends = |name: &str, all: &[&str]| all.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
    if names.clone().any(|name| is_wanted(name) && ends(name, &[".safetensors", ".onnx", ".pt"])) {
        return Ok(None);
    }
    let found: Vec<&str> = names.filter(|name| ends(name, &[".gguf"])).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.to_owned())),
        _ => {
            let named = found[..found.len().min(NAMED)].iter().map(|name| quoted(name).to_string());
            let named = named.collect::<Vec<_>>().join(", ");
            let more = if found.len() > NAMED { ", …" } else { "" };
            let problem = format!(
                "it has {} GGUF files: {named}{more}; choose those of one model with --include",
                found.len()
            );
            Err(Error::new(ErrorKind::NotFound, format!("{repo}: {problem}")))
        }
    }
}

/// Most files that an error names.
const NAMED: usize = 12;

/// Paths of a file.
struct Slot {
    lock: PathBuf,
    part: PathBuf,
    /// Path of the complete file.
    whole: PathBuf,
}

/// A hub, and the cache that its files go to.
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
}

impl Hub {
    /// Creates a hub; does not connect.
    ///
    /// # Errors
    /// The endpoint or the token is not valid.
    pub fn new(settings: &Settings) -> Result<Hub> {
        let cache = Cache::new(&settings.cache);
        Ok(Hub { client: Client::new(settings)?, cache, offline: settings.offline })
    }

    /// Web page of a repository.
    pub fn page(&self, repo: &Repo) -> String {
        self.client.page(repo)
    }

    /// Asks the hub for the files that match one of `patterns`, and checks which are missing. `*` matches any
    /// characters, also `/`, and `?` matches one. If the patterns are those of [`default_files`] and match no
    /// weights, the only GGUF file of the repository is added.
    ///
    /// # Errors
    /// The hub has no such repository, refuses it, cannot be reached, or answers with something hostile; no
    /// file matches, or several GGUF files could be meant.
    pub fn plan(
        &self,
        repo: &Repo,
        patterns: &[impl AsRef<str>],
        target: &Target,
        watch: &mut Watch<'_>,
    ) -> Result<Plan> {
        if self.offline {
            let problem = "it is not in the cache, and HF_HUB_OFFLINE forbids network access";
            return Err(Error::new(ErrorKind::Unreachable, format!("{repo}: {problem}")));
        }
        let mut listing = list(&self.client, repo, watch)?;
        let is_wanted = |name: &str| patterns.iter().any(|pattern| fits(pattern.as_ref(), name));
        let added = match is_default(repo, patterns) {
            true => only_gguf(repo, listing.files.iter().map(|file| &*file.name), &is_wanted)?,
            false => None,
        };
        listing.files.retain(|file| is_wanted(&file.name) || added.as_ref() == Some(&file.name));
        if listing.files.is_empty() {
            let patterns: Vec<&str> = patterns.iter().map(AsRef::as_ref).collect();
            let problem =
                format!("no file matches {}; see {}/tree/main", patterns.join(", "), self.page(repo));
            return Err(Error::new(ErrorKind::NotFound, format!("{repo}: {problem}")));
        }
        let folder = match target {
            Target::Cache => self.cache.of(repo).join("snapshots").join(&listing.commit),
            Target::Folder(folder) => folder.clone(),
        };
        let mut files = vec![];
        for listed in listing.files {
            let path = folder.join(&listed.name);
            let there = fs::metadata(&path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
            let name = listed.name.clone();
            // A snapshot has its commit's files, a folder may have any.
            let same = there.filter(|there| listed.size.is_none_or(|size| size == *there));
            if let (Target::Cache, Some(size)) = (target, same) {
                files.push(File { name, size, is_there: true, sum: None });
                continue;
            }
            let (size, sum) = describe(&self.client, repo, &listing.commit, &listed, watch)?;
            let is_there = match target {
                Target::Cache => false,
                Target::Folder(_) => sum.is_of(&path, size),
            };
            files.push(File { name, size, is_there, sum: Some(sum) });
        }
        let (commit, license) = (listing.commit, listing.license);
        Ok(Plan { repo: repo.clone(), commit, license, files, folder, target: target.clone() })
    }

    /// Downloads what is missing.
    ///
    /// # Errors
    /// The network failed more often than [`crate::Patience`] allows, a file is not what the hub announced,
    /// the disk is full, or `watch` ended it. Complete files and parts stay.
    pub fn fetch(&self, plan: &Plan, watch: &mut Watch<'_>) -> Result<()> {
        self.check_space(plan)?;
        let (mut done, total) = (0, plan.missing());
        for file in plan.files.iter().filter(|file| !file.is_there) {
            let Some(sum) = &file.sum else { continue };
            let slot = self.slot(plan, file, sum);
            make_parent(&slot.whole)?;
            let held = lock(&slot.lock, watch)?;
            let is_whole = match plan.target {
                // A blob is named by its checksum.
                Target::Cache => fs::metadata(&slot.whole).is_ok_and(|found| found.len() == file.size),
                Target::Folder(_) => sum.is_of(&slot.whole, file.size),
            };
            if !is_whole {
                make_parent(&slot.part)?;
                let mut report = |have: u64, watch: &mut Watch<'_>| {
                    notify(watch, &Event::Progress { file: &file.name, done: done + have, total })
                };
                self.download(plan, file, sum, &slot, &mut report, watch)?;
            }
            match &plan.target {
                Target::Cache => {
                    let depth = file.name.matches('/').count();
                    link(&slot.whole, depth, &plan.folder.join(&file.name))?;
                }
                // Deleted while held: a process that waits for it then sees that its name is gone.
                Target::Folder(folder) => tidy(folder, &slot.lock),
            }
            drop(held);
            done += file.size;
            notify(watch, &Event::Progress { file: &file.name, done, total })?;
        }
        match plan.target {
            Target::Cache => self.cache.set_commit(&plan.repo, &plan.commit),
            Target::Folder(_) => Ok(()),
        }
    }

    fn slot(&self, plan: &Plan, file: &File, sum: &Sum) -> Slot {
        let part = format!("{sum}.incomplete");
        match &plan.target {
            Target::Cache => {
                let locks = self.cache.root().join(".locks").join(plan.repo.folder());
                let blobs = self.cache.of(&plan.repo).join("blobs");
                let lock = locks.join(format!("{sum}.lock"));
                Slot { lock, part: blobs.join(part), whole: blobs.join(sum.to_string()) }
            }
            Target::Folder(folder) => {
                let parts = folder.join(FOLDER_PARTS);
                let lock = parts.join(format!("{sum}.lock"));
                Slot { lock, part: parts.join(part), whole: folder.join(&file.name) }
            }
        }
    }

    /// Checks that all missing files fit on the disk.
    fn check_space(&self, plan: &Plan) -> Result<()> {
        let still = |file: &File| {
            let sum = file.sum.as_ref().filter(|_| !file.is_there)?;
            let slot = self.slot(plan, file, sum);
            let length = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            Some(file.size.saturating_sub(length(&slot.part).max(length(&slot.whole))))
        };
        let needed: u64 = plan.files.iter().filter_map(still).sum();
        match free_space(&plan.folder) {
            Some(free) if free < needed => {
                let (needed, free) = (needed.div_ceil(1_000_000), free / 1_000_000);
                let problem = format!("needs {needed} MB, and {free} MB are free; make room, or set HF_HOME");
                Err(Error::new(
                    ErrorKind::System,
                    format!("{}: {} {problem}", shown(&plan.folder), plan.repo),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Downloads a file, or resumes its download.
    fn download(
        &self,
        plan: &Plan,
        file: &File,
        sum: &Sum,
        slot: &Slot,
        report: &mut dyn FnMut(u64, &mut Watch<'_>) -> Result<()>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let url = self.client.file_url(&plan.repo, &plan.commit, &file.name);
        let what = format!("{}: {}", plan.repo, quoted(&file.name));
        let mut part = Part::open(&slot.part, file.size, sum)?;
        let wrong = retry(&self.client.patience, watch, |watch| {
            report(part.have(), watch)?;
            if part.missing() > 0 {
                let before = part.have();
                if let Err(failure) = self.read_on(plan, &url, &what, &mut part, report, watch) {
                    let got = part.have().saturating_sub(before) >= PROGRESS;
                    return Err(match failure {
                        Failure::Again { why, after, .. } => Failure::Again { why, after, progress: got },
                        failure => failure,
                    });
                }
            }
            match part.wrong_sum() {
                // The resumed part may be damaged: try once more from the start.
                Some(_) if part.resumed => {
                    part.restart()?;
                    Err(Failure::again(format!("{what}: the part that was there is damaged")))
                }
                wrong => Ok(wrong),
            }
        })?;
        let Some(wrong) = wrong else { return part.finish(&slot.whole) };
        part.delete()?;
        let advice = "it was deleted. Try again, or use another network or mirror (HF_ENDPOINT)";
        let problem = format!("{what}: its checksum is {wrong}, not {sum}; {advice}");
        Err(Error::new(ErrorKind::Damaged, problem))
    }

    /// Requests the missing part of a file and reads one answer.
    fn read_on(
        &self,
        plan: &Plan,
        url: &str,
        what: &str,
        part: &mut Part,
        report: &mut dyn FnMut(u64, &mut Watch<'_>) -> Result<()>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let from = Some(part.have()).filter(|have| *have > 0);
        let answer = self.client.get(&plan.repo, url, from)?;
        let (status, headers) = (answer.status(), answer.headers());
        let start = header(headers, CONTENT_RANGE.as_str())
            .and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.trim().parse::<u64>().ok());
        match (status, from) {
            (StatusCode::OK, None) => {}
            // The server ignored the range and sends the whole file.
            (StatusCode::OK, Some(_)) => part.restart()?,
            (StatusCode::PARTIAL_CONTENT, Some(_)) if start == from => {}
            _ => {
                part.restart()?;
                let status = status.as_u16();
                return Err(Failure::again(format!(
                    "{what}: the hub answered {status} to a request for the rest"
                )));
            }
        }
        let announced = header(headers, CONTENT_LENGTH.as_str()).and_then(|n| n.parse::<u64>().ok());
        if let Some(other) = announced.filter(|n| *n != part.missing()) {
            let missing = part.missing();
            return Err(Failure::again(format!("{what}: the hub sends {other} bytes instead of {missing}")));
        }
        let (mut reader, mut chunk) = (answer.into_body().into_reader(), vec![0; CHUNK]);
        loop {
            let broken = |why: String| Failure::again(format!("{what}: the connection broke off: {why}"));
            match reader.read(&mut chunk) {
                Ok(0) if part.missing() == 0 => return Ok(()),
                Ok(0) => return Err(broken(format!("{} bytes are missing", part.missing()))),
                Ok(n) if n as u64 > part.missing() => {
                    part.restart()?;
                    return Err(Failure::again(format!("{what}: the hub sends more than it announced")));
                }
                Ok(n) => part.write(&chunk[..n])?,
                Err(e) => return Err(broken(e.to_string())),
            }
            report(part.have(), watch)?;
        }
    }
}

/// Deletes a lock of a folder, and its empty parents.
fn tidy(folder: &Path, lock: &Path) {
    let _ = fs::remove_file(lock);
    // Folders that hold something else stay.
    for inner in Path::new(FOLDER_PARTS).ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let _ = fs::remove_dir(folder.join(inner));
    }
}
