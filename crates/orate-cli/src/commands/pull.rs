//! `orate pull`: downloads a model.

use crate::interrupt::Interrupt;
use crate::{model_path, print};
use anyhow::{anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use orate_hub::{Cache, Event, Found, Hub, Named, Plan, Settings, Target, Watch, default_files, missing};
use serde_json::json;
use std::cell::OnceCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Download a model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate pull supertonic-3
  orate pull Qwen/Qwen3-TTS-12Hz-0.6B-Base@main
  orate pull Serveurperso/Qwen3-TTS-GGUF --include '*0.6b-base-Q8_0*' --include '*12hz-Q8_0*'
  orate pull chatterbox-turbo --to models/turbo
  HF_ENDPOINT=https://mirror.example orate pull supertonic-2

The folder of the model is printed; `--model NAME` finds it in every command. A download that was \
interrupted resumes, and every file is compared with its checksum.

Environment:
  HF_HOME         folder of the cache and the token [default: ~/.cache/huggingface]
  HF_HUB_CACHE    folder of the cache [default: hub in HF_HOME]
  HF_TOKEN        access token, for private repositories and those with terms to accept
  HF_TOKEN_PATH   file with the token [default: token in HF_HOME]
  HF_ENDPOINT     address of the hub or of a mirror [default: https://huggingface.co]
  HF_HUB_OFFLINE  1 is --offline
  HTTPS_PROXY, ALL_PROXY, NO_PROXY")]
pub struct Args {
    /// A name that `orate models` lists, or a repository of the Hugging Face Hub
    #[arg(value_name = "NAME|ORG/REPO[@REVISION]")]
    model: String,

    /// Download files that fit this pattern instead of the usual ones; may be repeated
    ///
    /// `*` stands for any characters, also `/`, and `?` for one.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,

    /// Put the files into this folder, instead of the cache that Python shares
    #[arg(long, value_name = "DIR", conflicts_with = "offline")]
    to: Option<PathBuf>,

    /// Use no network: only look into the cache
    #[arg(long)]
    offline: bool,

    /// Only list what would be downloaded
    #[arg(long)]
    dry_run: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Allow addresses without encryption (http:) on other machines
    #[arg(long, hide_short_help = true)]
    insecure: bool,
}

/// Downloads and prints where the model is.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let named: Named = args.model.parse()?;
    let mut settings = Settings::from_env()?;
    settings.insecure = args.insecure;
    if args.offline || settings.offline {
        return look(args, &named, &Cache::new(&settings.cache));
    }
    let cancel = Interrupt::new().cancel();
    let bar = Bar::default();
    let mut watch = |event: &Event<'_>| {
        bar.show(event);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let plan = download(args, &named, &settings, &mut watch, true)?;
    drop(bar);
    report(args, &named, &plan, settings.cache)
}

/// Downloads a model without printing, as `orate pull`, and returns its path. `to` and `include` are the
/// options of these names.
///
/// # Errors
/// No model or repository has the name; [`orate_hub::Error`] if the download failed or `watch` ended it.
pub fn pull(
    model: &str,
    to: Option<PathBuf>,
    include: Vec<String>,
    watch: &mut Watch<'_>,
) -> anyhow::Result<PathBuf> {
    let args = Args {
        model: model.to_owned(),
        include,
        to,
        offline: false,
        dry_run: false,
        json: false,
        insecure: false,
    };
    let (named, settings): (Named, _) = (model.parse()?, Settings::from_env()?);
    if settings.offline {
        return Ok(model_path(Path::new(model))?);
    }
    let plan = download(&args, &named, &settings, watch, false)?;
    Ok(path_of(&args, &named, &plan, &settings.cache))
}

/// Downloads what is missing, and returns what there is then.
fn download(
    args: &Args,
    named: &Named,
    settings: &Settings,
    watch: &mut Watch<'_>,
    prints: bool,
) -> anyhow::Result<Plan> {
    let hub = Hub::new(settings)?;
    let target = args.to.clone().map_or(Target::Cache, Target::Folder);
    let patterns: Vec<&str> = match (&args.include[..], named.known) {
        ([], Some(known)) => known.files.to_vec(),
        ([], None) => default_files(&named.repo),
        (include, _) => include.iter().map(String::as_str).collect(),
    };
    let plan = hub.plan(&named.repo, &patterns, &target, watch)?;
    check_needs(args, named, &plan)?;
    if prints && plan.files.iter().any(|file| !file.is_there) {
        announce(args, named, &plan, &hub.page(&named.repo));
    }
    if !args.dry_run {
        // Also if nothing is missing: the revision may be new.
        hub.fetch(&plan, watch)?;
    }
    Ok(plan)
}

/// Checks that the repository has what the model needs.
fn check_needs(args: &Args, named: &Named, plan: &Plan) -> anyhow::Result<()> {
    let Some(known) = named.known.filter(|_| args.include.is_empty()) else { return Ok(()) };
    let lacks = missing(known, |name| plan.files.iter().any(|file| file.name == name));
    if lacks.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: the repository lacks {}, without which the model cannot be opened; is HF_ENDPOINT a whole mirror?",
        plan.repo,
        lacks.join(", ")
    )
}

/// Prints the license and what comes, before it does.
fn announce(args: &Args, named: &Named, plan: &Plan, page: &str) {
    let license = plan.license.as_deref().or(named.known.map(|known| known.license));
    let license = license.unwrap_or("none is named");
    print::note(&format!("{}: license {license}; read it at {page}", args.model));
    let count = plan.files.iter().filter(|file| !file.is_there).count();
    let (missing, all) = (print::bytes(plan.missing()), plan.files.len());
    let verb = if args.dry_run { "would download" } else { "downloading" };
    print::note(&format!("{verb} {missing}, {count} of {all} files, to {}", plan.folder.display()));
}

/// Path that stands for the model: a folder, or a file in a repository of several models.
fn path_of(args: &Args, named: &Named, plan: &Plan, cache: &Path) -> PathBuf {
    match named.find(&Cache::new(cache)) {
        Found::Whole { path, .. } if args.to.is_none() && path.starts_with(&plan.folder) => path,
        _ => plan.folder.clone(),
    }
}

fn report(args: &Args, named: &Named, plan: &Plan, cache: PathBuf) -> anyhow::Result<()> {
    let path = path_of(args, named, plan, &cache).display().to_string();
    if args.json {
        let files: Vec<_> = plan
            .files
            .iter()
            .map(|file| json!({ "name": file.name, "bytes": file.size, "was_there": file.is_there }))
            .collect();
        return print::json(&json!({
            "model": named.known.map(|known| known.name),
            "repository": plan.repo.id(),
            "revision": plan.repo.revision(),
            "commit": plan.commit,
            "license": plan.license.as_deref().or(named.known.map(|known| known.license)),
            "path": path,
            "bytes": plan.size(),
            "missing_bytes": plan.missing(),
            "dry_run": args.dry_run,
            "files": files,
        }));
    }
    if args.dry_run {
        let row = |file: &orate_hub::File| {
            let state = if file.is_there { "there" } else { "missing" };
            vec![file.name.clone(), print::bytes(file.size), state.to_owned()]
        };
        let rows: Vec<_> = plan.files.iter().map(row).collect();
        return print::out(&print::table(&rows, &[2]));
    }
    print::out(&format!("{}\n", print::visible(&path)))
}

/// `--offline`: prints where the model is in the cache.
fn look(args: &Args, named: &Named, cache: &Cache) -> anyhow::Result<()> {
    let root = cache.root().display();
    let problem = match named.find(cache) {
        Found::Whole { path, .. } => {
            let path = path.display().to_string();
            return match args.json {
                true => print::json(&json!({
                    "model": named.known.map(|known| known.name),
                    "repository": named.repo.id(),
                    "revision": named.repo.revision(),
                    "path": path,
                })),
                false => print::out(&format!("{}\n", print::visible(&path))),
            };
        }
        Found::Part => "only part of it is",
        Found::Nothing => "it is not",
    };
    let advice = "run the command again with a network, without --offline and HF_HUB_OFFLINE";
    Err(anyhow!("{}: {problem} in {root}; {advice}", named.repo))
}

/// A bar on standard error, if that is a terminal. Appears with the first bytes, removed when dropped.
#[derive(Default)]
struct Bar(OnceCell<ProgressBar>);

impl Bar {
    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Progress { file, done, total } => {
                let bar = self.0.get_or_init(|| bar(*done, *total));
                bar.set_message(print::visible(file).into_owned());
                bar.set_position(*done);
            }
            Event::Waiting { why, wait } => {
                let wait = wait.map_or_else(String::new, |wait| format!("; next try in {}", seconds(wait)));
                let note = || print::note(&format!("{why}{wait}"));
                match self.0.get() {
                    Some(bar) => bar.suspend(note),
                    None => note(),
                }
            }
            _ => {}
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}

/// A bar that starts at `done`, so that its speed is that of this run.
fn bar(done: u64, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_position(done);
    let line = "{bar:30} {percent:>3} %  {decimal_bytes} of {decimal_total_bytes}  \
                {decimal_bytes_per_sec}  {eta} left  {msg}";
    bar.set_style(ProgressStyle::with_template(line).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset_eta();
    bar
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f32().ceil())
}
