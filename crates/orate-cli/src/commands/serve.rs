//! `orate serve`: a speech server.

use crate::args::{EngineArgs, ModelArgs, PlaceArgs, within};
use crate::failure::UsageError;
use crate::print;
use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::{Args as _, FromArgMatches};
use orate::{Cancel, Engine, Options, VoiceStore};
use orate_server::{Keys, Listener, Served, Server, Settings, is_id};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal;
use tokio::sync::oneshot;

/// Environment variable with keys, as lines or between commas.
const KEYS_VARIABLE: &str = "ORATE_API_KEYS";

/// Name of the built-in voice for clients.
const BUILT_IN: &str = "orate-default";

/// Time between looks at a server that closes.
const CLOSING: Duration = Duration::from_millis(5);

/// Serve speech over HTTP, with the routes of OpenAI's API
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate serve                                      the built-in voice at http://127.0.0.1:8880
  orate serve --model supertonic-3 --model Qwen3-TTS-12Hz-0.6B-CustomVoice=qwen
  orate serve --new-key alice >> keys.txt          prints a new key for a client
  orate serve --listen 0.0.0.0:8880 --api-key-file keys.txt

  curl http://127.0.0.1:8880/v1/audio/speech -o hello.wav -H 'Content-Type: application/json' \\
       -d '{\"model\": \"tts-1\", \"input\": \"Hello.\", \"response_format\": \"wav\"}'

The page at / is a playground; /openapi.json describes the routes. Options have environment \
variables, such as ORATE_SERVE_LISTEN.")]
pub struct Args {
    /// Address to listen on: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8880", env = "ORATE_SERVE_LISTEN")]
    listen: String,

    /// Address for Home Assistant (Wyoming protocol), such as 127.0.0.1:10200
    #[arg(long, value_name = "ADDRESS", env = "ORATE_SERVE_WYOMING")]
    wyoming: Option<String>,

    /// Model to serve, with an optional name; may be repeated [default: built-in voice]
    ///
    /// The first one answers requests for OpenAI's models.
    #[arg(
        long = "model",
        short,
        value_name = "PATH[=NAME]",
        env = "ORATE_SERVE_MODEL",
        value_delimiter = ','
    )]
    models: Vec<String>,

    /// Codec or S3Gen of a model of two GGUF files [default: the one beside it]
    ///
    /// The name is that of the model, which may be left out if there is only one; may be repeated.
    #[arg(
        long = "codec",
        value_name = "FILE[=NAME]",
        env = "ORATE_SERVE_CODEC",
        value_delimiter = ',',
        hide_short_help = true
    )]
    codecs: Vec<String>,

    /// Texts that a model speaks at once [default: by model and device]
    #[arg(
        long,
        value_name = "N",
        env = "ORATE_SERVE_STREAMS",
        allow_negative_numbers = true,
        value_parser = within(1..=256_u16)
    )]
    streams: Option<u16>,

    /// Requests that may wait for each model, 0 for none; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 64, env = "ORATE_SERVE_QUEUE",
        allow_negative_numbers = true,
        value_parser = within(0..=1_000_000_usize)
    )]
    queue: usize,

    /// Most seconds that a request waits
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_QUEUE_TIMEOUT",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(0..=1_000_000_u64)
    )]
    queue_timeout: u64,

    /// Most seconds from a free thread to the end of an answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        env = "ORATE_SERVE_REQUEST_TIMEOUT",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(1..=1_000_000_u64)
    )]
    request_timeout: u64,

    /// Most seconds that a client may read nothing of its answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_STALL_TIMEOUT",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(1..=1_000_000_u64)
    )]
    stall_timeout: u64,

    /// Seconds to finish running requests after SIGTERM or Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_DRAIN_TIMEOUT",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(0..=1_000_000_u64)
    )]
    drain_timeout: u64,

    /// Most connections at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        env = "ORATE_SERVE_CONNECTIONS",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(1..=65_536_usize)
    )]
    connections: usize,

    /// Most characters of a text
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        env = "ORATE_SERVE_MAX_INPUT_CHARS",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(1..=100_000_000_usize)
    )]
    max_input_chars: usize,

    /// Format of the log: text or json
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        env = "ORATE_SERVE_LOG",
        value_parser = ["text", "json"]
    )]
    log: String,

    /// Log the texts of requests
    #[arg(long, env = "ORATE_SERVE_LOG_TEXTS", hide_short_help = true, value_parser = switch())]
    log_texts: bool,

    /// Print and log nothing but errors
    #[arg(long, short, env = "ORATE_SERVE_QUIET", value_parser = switch())]
    quiet: bool,

    /// Send clients details of model and device errors, which may contain paths
    #[arg(long, env = "ORATE_SERVE_VERBOSE_ERRORS", hide_short_help = true, value_parser = switch())]
    verbose_errors: bool,

    #[command(flatten)]
    access: Access,

    #[command(flatten)]
    voices: Voices,

    #[command(flatten)]
    place: PlaceArgs,
}

/// Who may ask.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Access")]
struct Access {
    /// File of keys, a line NAME:SHA256 each; further ones in ORATE_API_KEYS
    #[arg(long, value_name = "FILE", env = "ORATE_SERVE_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,

    /// Print a new key and its line for the file of keys
    #[arg(long, value_name = "NAME")]
    new_key: Option<String>,

    /// Serve without keys on an address that other machines can reach
    #[arg(long, env = "ORATE_SERVE_NO_AUTH", value_parser = switch())]
    no_auth: bool,

    /// List models and voices without a key
    #[arg(long, env = "ORATE_SERVE_OPEN_LISTS", hide_short_help = true, value_parser = switch())]
    open_lists: bool,

    /// Most requests of a key that run or wait [default: no limit]
    #[arg(long, value_name = "N", env = "ORATE_SERVE_MAX_PER_KEY", hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(1..=1_000_000_usize)
    )]
    max_per_key: Option<usize>,

    /// Further host name that requests to a loopback address may have; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        env = "ORATE_SERVE_ALLOW_HOST",
        value_delimiter = ',',
        hide_short_help = true
    )]
    allow_host: Vec<String>,

    /// Origin of pages that may send requests, such as https://example.org; may be repeated
    #[arg(
        long,
        value_name = "ORIGIN",
        env = "ORATE_SERVE_CORS_ORIGIN",
        value_delimiter = ',',
        hide_short_help = true
    )]
    cors_origin: Vec<String>,
}

/// Voices of clients.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Voices")]
struct Voices {
    /// Let clients neither add nor delete voices
    #[arg(long, env = "ORATE_SERVE_NO_UPLOADS", value_parser = switch())]
    no_uploads: bool,

    /// Most kept voices
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        env = "ORATE_SERVE_MAX_VOICES",
        hide_short_help = true,
        allow_negative_numbers = true,
        value_parser = within(0..=1_000_000_usize)
    )]
    max_voices: usize,

    /// Alias of a voice, a kept one or a mix, such as alloy=F2; may be repeated
    #[arg(
        long,
        value_name = "NAME=VOICE",
        env = "ORATE_SERVE_ALIAS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    alias: Vec<String>,
}

/// Parses switches in environment variables: 1, true, yes, on, and their opposites.
fn switch() -> BoolishValueParser {
    BoolishValueParser::new()
}

/// Serves until a signal.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = &args.access.new_key {
        if !is_id(name) {
            let problem = "choose 1 to 64 letters, digits, `.`, `_` or `-`";
            return Err(UsageError(format!("--new-key {name:?}: {problem}")).into());
        }
        let [key, line] = Keys::generate(name).context("a key needs random numbers")?;
        print::note(&format!("key of {name}, shown only once: {key}"));
        return print::out(&format!("{line}\n"));
    }
    run_with(args, args.models()?)
}

/// A model for [`serve_models`].
pub enum Model {
    /// An open one.
    Open(Engine),
    /// One by path or name.
    Named(PathBuf),
}

/// Serves models as `orate serve` with these arguments (without the name of the command), and returns after
/// an interrupt or termination signal. Models may have names for clients. Without models, those of the
/// arguments are served.
///
/// # Errors
/// As `orate serve`; [`UsageError`] for arguments.
pub fn serve_models(args: Vec<OsString>, models: Vec<(Option<String>, Model)>) -> anyhow::Result<()> {
    let args = parse(args)?;
    let models = opening(&args, models)?;
    run_with(&args, models)
}

/// As [`serve_models`], on a thread. Returns when the models are loaded. Signals have no effect.
///
/// # Errors
/// As [`serve_models`].
pub fn start_server(args: Vec<OsString>, models: Vec<(Option<String>, Model)>) -> anyhow::Result<Background> {
    let args = parse(args)?;
    let models = opening(&args, models)?;
    let settings = prepare(&args, &Place::of(&args.listen))?;
    let (ready, became_ready) = std::sync::mpsc::channel();
    let ((end, ended), (at_once, ended_at_once)) = (oneshot::channel(), oneshot::channel());
    let work = move || {
        let runtime = runtime()?;
        let serve = async {
            let (listener, address) = open(&args.listen).await?;
            let is_ready = move |_: &Server| drop(ready.send(address));
            serve(&args, settings, models, listener, is_ready, async { drop(ended.await) }).await
        };
        let served = runtime.block_on(async {
            tokio::select! {
                served = serve => served,
                Ok(()) = ended_at_once => Ok(()),
            }
        });
        runtime.shutdown_background();
        served
    };
    let thread = std::thread::Builder::new().name("orate-serve".to_owned()).spawn(work)?;
    match became_ready.recv() {
        Ok(url) => Ok(Background { url, end, at_once, thread }),
        Err(_) => {
            let served = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            Err(served.err().context("the server ended before it was ready")?)
        }
    }
}

/// A server on a thread. Dropping it closes it without waiting.
pub struct Background {
    url: String,
    end: oneshot::Sender<()>,
    at_once: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Background {
    /// Where it listens, such as `http://127.0.0.1:8880`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Refuses further requests and waits for running ones, for as long as `--drain-timeout` says, or until
    /// `hurry` is flipped.
    ///
    /// # Errors
    /// The server has failed.
    pub fn close(self, hurry: &Cancel) -> anyhow::Result<()> {
        let Background { end, at_once, thread, .. } = self;
        let _ = end.send(());
        let mut at_once = Some(at_once);
        while !thread.is_finished() {
            if hurry.is_cancelled()
                && let Some(at_once) = at_once.take()
            {
                let _ = at_once.send(());
            }
            std::thread::sleep(CLOSING);
        }
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn parse(args: Vec<OsString>) -> Result<Args, UsageError> {
    let command = Args::augment_args(clap::Command::new("serve").no_binary_name(true));
    let parsed = command.try_get_matches_from(args).and_then(|matches| Args::from_arg_matches(&matches));
    parsed.map_err(|e| UsageError(first_paragraph(&e.to_string())))
}

/// Models with names for clients; those of the arguments if there are none.
fn opening(args: &Args, models: Vec<(Option<String>, Model)>) -> anyhow::Result<Vec<(Open, String)>> {
    if models.is_empty() {
        return args.models();
    }
    let mut all: Vec<(Model, String)> = vec![];
    for (id, model) in models {
        let usual = match &model {
            Model::Named(path) => id_of(path),
            Model::Open(engine) => match Path::new(engine.model_name()) {
                origin if origin.exists() => id_of(origin),
                _ => BUILT_IN.to_owned(),
            },
        };
        let id = id.unwrap_or(usual);
        if !is_id(&id) {
            let problem = "is not a name of 1 to 64 letters, digits, `.`, `_` or `-`; give the model one";
            return Err(UsageError(format!("{id:?} {problem}")).into());
        }
        if all.iter().any(|(_, known)| *known == id) {
            return Err(UsageError(format!("two models are called {id}; give them names")).into());
        }
        all.push((model, id));
    }
    let to_open = all.iter().filter(|(model, _)| matches!(model, Model::Named(_)));
    args.check_codecs(&to_open.map(|(_, id)| &**id).collect::<Vec<_>>())?;
    let open = |(model, id): (Model, String)| match model {
        Model::Open(engine) => (Box::new(move || Ok(engine)) as Open, id),
        Model::Named(path) => (args.engine(Some(path), &id), id),
    };
    Ok(all.into_iter().map(open).collect())
}

/// What an error of clap says, without usage and hints at flags.
fn first_paragraph(error: &str) -> String {
    error.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Names of the options of `orate serve` without their dashes, such as `queue-timeout`.
pub fn serve_options() -> Vec<String> {
    let command = Args::augment_args(clap::Command::new("serve"));
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

/// Opens a model.
type Open = Box<dyn FnOnce() -> anyhow::Result<Engine> + Send>;

fn run_with(args: &Args, models: Vec<(Open, String)>) -> anyhow::Result<()> {
    let inherited = inherited()?;
    let place = inherited.as_ref().map_or_else(|| Place::of(&args.listen), Inherited::place);
    let settings = prepare(args, &place)?;
    runtime()?.block_on(async {
        let (listener, address) = match inherited {
            Some(inherited) => (inherited.listener()?, place.name),
            None => open(&args.listen).await?,
        };
        let is_ready = move |server: &Server| {
            notify("READY=1");
            let text = format!("ready at {}", print::visible(&address));
            server.log(&text, &[("ready", address.as_str().into())]);
        };
        let end = async {
            signalled().await;
            notify("STOPPING=1");
            // A second signal ends at once.
            tokio::spawn(async {
                signalled().await;
                std::process::exit(i32::from(crate::failure::INTERRUPTED));
            });
        };
        serve(args, settings, models, listener, is_ready, end).await
    })
}

fn prepare(args: &Args, place: &Place) -> anyhow::Result<Settings> {
    let settings = args.settings(place)?;
    settings.voices.iter().for_each(VoiceStore::remove_parts);
    #[cfg(unix)]
    raise_file_limit();
    Ok(settings)
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Serves until `end`. `is_ready` is called when the models are loaded.
async fn serve(
    args: &Args,
    settings: Settings,
    models: Vec<(Open, String)>,
    listener: Listener,
    is_ready: impl FnOnce(&Server) + Send + 'static,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let server = Server::new(settings);
    if let Some(address) = &args.wyoming {
        let listener = bind("--wyoming", address).await?;
        let server = server.clone();
        tokio::spawn(async move { server.wyoming(listener).await });
    }
    let streams = args.streams.map(usize::from);
    let loading = server.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        let load = |(open, id): (Open, String)| {
            let served = Served { id, engine: open()?, streams };
            warm_up(&served)?;
            let (name, device) = (served.engine.model_name(), served.engine.device());
            let text = format!("{}: {name} on {device}", served.id);
            let facts =
                [("model", served.id.as_str().into()), ("name", name.into()), ("device", device.into())];
            loading.log(&print::visible(&text), &facts);
            Ok(served)
        };
        let models = models.into_iter().map(load).collect::<anyhow::Result<Vec<_>>>()?;
        loading.set_models(models).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidInput => UsageError(format!("--alias {e}")).into(),
            _ => anyhow::Error::from(e),
        })
    });
    let (ended, mut failed) = oneshot::channel();
    let ready = server.clone();
    tokio::spawn(async move {
        match loaded.await.map_err(anyhow::Error::from).and_then(|loaded| loaded) {
            Ok(()) => is_ready(&ready),
            Err(e) => {
                let _ = ended.send(e);
            }
        }
    });
    let mut failure = None;
    let end = async {
        tokio::select! {
            () = end => {}
            Ok(e) = &mut failed => failure = Some(e),
        }
    };
    orate_server::serve(&server, listener, end, Duration::from_secs(args.drain_timeout)).await;
    if let Some(path) = args.listen.strip_prefix("unix:") {
        let _ = std::fs::remove_file(path);
    }
    failure.map_or(Ok(()), Err)
}

/// Speaks a text and compiles plans for as many callers as are served.
fn warm_up(served: &Served) -> anyhow::Result<()> {
    if !served.engine.facts().can_speak || needs_more_than_a_text(&served.engine) {
        return Ok(());
    }
    Ok(served.engine.warm_up_for_callers(&Options::default(), served.streams())?)
}

/// Whether the model needs a voice or instruction in each request.
fn needs_more_than_a_text(engine: &Engine) -> bool {
    engine.stream("Warm up.", &Options::default()).is_err()
}

impl Args {
    /// Texts that models speak at once, as far as known before they are opened.
    pub fn utterances(&self) -> u32 {
        self.streams.map_or(16, u32::from)
    }

    fn settings(&self, place: &Place) -> anyhow::Result<Settings> {
        let mut text = match &self.access.api_key_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("--api-key-file {}: cannot read it", path.display()))?,
            None => String::new(),
        };
        let name = self.access.api_key_file.as_ref().map(|path| path.display().to_string());
        let mut keys = Keys::parse(&text)
            .map_err(|e| UsageError(format!("{}: {e}", name.as_deref().unwrap_or_default())))?;
        if let Ok(more) = std::env::var(KEYS_VARIABLE) {
            text = text + "\n" + &more;
            Keys::parse(&more).map_err(|e| UsageError(format!("{KEYS_VARIABLE}: {e}")))?;
            keys = Keys::parse(&text).map_err(UsageError)?;
        }
        if let Some(name) = name.filter(|_| keys.is_empty() && !self.access.no_auth) {
            let problem = "it has no key, so everyone could ask; `orate serve --new-key NAME` makes keys and their \
                           lines, --no-auth serves without keys";
            return Err(UsageError(format!("--api-key-file {name}: {problem}")).into());
        }
        check_address("--listen", &self.listen, ", or unix:PATH")?;
        self.wyoming.iter().try_for_each(|address| check_address("--wyoming", address, ""))?;
        let &Place { is_local, is_file, .. } = place;
        if !is_local && keys.is_empty() && !self.access.no_auth {
            let problem = "other machines can reach it, and there are no keys; give --api-key-file FILE \
                           (`orate serve --new-key NAME` makes keys), or serve without keys by --no-auth";
            return Err(UsageError(format!("{}: {problem}", place.name)).into());
        }
        let alias = |alias: &String| match alias.split_once('=') {
            Some((name, voice)) if !name.is_empty() && !voice.is_empty() => {
                Ok((name.to_owned(), voice.to_owned()))
            }
            _ => Err(UsageError(format!("--alias {alias}: write NAME=VOICE, such as alloy=F2"))),
        };
        let is_origin = |origin: &String| {
            origin.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'))
        };
        if let Some(origin) = self.access.cors_origin.iter().find(|origin| !is_origin(origin)) {
            let problem = "write each origin as pages have it, such as https://example.org";
            return Err(UsageError(format!("--cors-origin {origin}: {problem}")).into());
        }
        if let Some(host) = self.access.allow_host.iter().find(|host| !is_host(host)) {
            let problem = "write a host name, without scheme, port and path, such as speech.example.org";
            return Err(UsageError(format!("--allow-host {host}: {problem}")).into());
        }
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let hosts = own.into_iter().chain(self.access.allow_host.iter().cloned()).collect();
        let seconds = Duration::from_secs;
        Ok(Settings {
            queue: self.queue,
            queue_timeout: seconds(self.queue_timeout),
            stall_timeout: seconds(self.stall_timeout),
            request_timeout: seconds(self.request_timeout),
            connections: self.connections,
            max_input_chars: self.max_input_chars,
            open_lists: self.access.open_lists,
            keys,
            max_per_key: self.access.max_per_key,
            hosts: (is_local && !is_file).then_some(hosts),
            cors_origins: self.access.cors_origin.clone(),
            voices: Some(VoiceStore::user()?),
            uploads: !self.voices.no_uploads,
            max_voices: self.voices.max_voices,
            aliases: self.voices.alias.iter().map(alias).collect::<Result<_, _>>()?,
            log_json: self.log == "json",
            log_texts: self.log_texts,
            quiet: self.quiet,
            verbose_errors: self.verbose_errors,
            ..Settings::default()
        })
    }

    /// Opens a model by path or name; the built-in voice without.
    fn engine(&self, model: Option<PathBuf>, id: &str) -> Open {
        let model = ModelArgs { model, codec: self.codec(id) };
        let args = EngineArgs { model, place: self.place.clone() };
        Box::new(move || args.open())
    }

    /// Values of `--codec`, with the names of models.
    fn codecs(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.codecs.iter().map(|codec| match codec.rsplit_once('=') {
            Some((file, id)) => (file, Some(id)),
            None => (&**codec, None),
        })
    }

    /// Codec of a model. One without a name is for the only model.
    fn codec(&self, id: &str) -> Option<PathBuf> {
        self.codecs().find(|(_, name)| name.is_none_or(|name| name == id)).map(|(file, _)| file.into())
    }

    /// Refuses a codec of no model that is opened, a second one of a model, and one without a name where
    /// there are several.
    fn check_codecs(&self, ids: &[&str]) -> Result<(), UsageError> {
        for (i, (file, id)) in self.codecs().enumerate() {
            let is_same = |other: Option<&str>| other.is_none() || id.is_none() || other == id;
            let problem = match id {
                None if ids.len() != 1 => "it needs the name of a model: FILE=NAME".to_owned(),
                Some(id) if !ids.contains(&id) => format!("no model is called {id}"),
                _ if self.codecs().take(i).any(|(_, other)| is_same(other)) => {
                    "the model has another codec".to_owned()
                }
                _ => continue,
            };
            return Err(UsageError(format!("--codec {file}: {problem}")));
        }
        Ok(())
    }

    /// Models, and the names to serve them under.
    fn models(&self) -> anyhow::Result<Vec<(Open, String)>> {
        if self.models.is_empty() {
            self.check_codecs(&[BUILT_IN])?;
            return Ok(vec![(self.engine(None, BUILT_IN), BUILT_IN.to_owned())]);
        }
        let mut all: Vec<(&str, String)> = vec![];
        for model in &self.models {
            let (path, id) = match model.rsplit_once('=') {
                Some((path, id)) => (path, id.to_owned()),
                None => (model.as_str(), id_of(Path::new(model))),
            };
            if !is_id(&id) {
                let problem = "the name is not 1 to 64 letters, digits, `.`, `_` or `-`; give one: PATH=NAME";
                return Err(UsageError(format!("--model {model}: {problem}")).into());
            }
            if all.iter().any(|(_, known)| *known == id) {
                let problem = format!("two models are called {id}; give names: PATH=NAME");
                return Err(UsageError(format!("--model {model}: {problem}")).into());
            }
            all.push((path, id));
        }
        self.check_codecs(&all.iter().map(|(_, id)| &**id).collect::<Vec<_>>())?;
        Ok(all.into_iter().map(|(path, id)| (self.engine(Some(path.into()), &id), id)).collect())
    }
}

/// Name of a model: that of its folder or file in small letters.
fn id_of(path: &Path) -> String {
    let name = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = if name.is_file() { name.file_stem() } else { name.file_name() };
    name.unwrap_or_default().to_string_lossy().to_lowercase().replace(' ', "-")
}

/// Whether requests can have this name in `Host`, without the port: a name, or an address, that of IPv6 in
/// brackets.
fn is_host(name: &str) -> bool {
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    }
}

/// Refuses what is no address with a port, nor the path of a socket. `or_path` says that there may be one, or
/// is empty.
fn check_address(option: &str, address: &str, or_path: &str) -> Result<(), UsageError> {
    let has_port =
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let has_path = address.strip_prefix("unix:").is_some_and(|path| !path.is_empty());
    if (has_path && !or_path.is_empty()) || (has_port && !address.starts_with("unix:")) {
        return Ok(());
    }
    let problem = format!("write an address and a port, such as 127.0.0.1:8880{or_path}");
    Err(UsageError(format!("{option} {address}: {problem}")))
}

/// Where a server listens, as far as access depends on it.
struct Place {
    /// Its name in messages.
    name: String,
    /// Whether only this machine reaches it.
    is_local: bool,
    /// Whether it is a file, a Unix socket.
    is_file: bool,
}

impl Place {
    /// That of `--listen`.
    fn of(listen: &str) -> Place {
        let loopback = |address: SocketAddr| address.ip().is_loopback();
        let is_file = listen.starts_with("unix:");
        let is_local = is_file || listen.starts_with("localhost:") || listen.parse().is_ok_and(loopback);
        Place { name: format!("--listen {listen}"), is_local, is_file }
    }
}

/// A socket that a service manager has opened.
enum Inherited {
    Tcp(std::net::TcpListener, SocketAddr),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl Inherited {
    fn place(&self) -> Place {
        let (address, is_local, is_file) = match self {
            Inherited::Tcp(_, address) => (format!(" {address}"), address.ip().is_loopback(), false),
            #[cfg(unix)]
            Inherited::Unix(_) => (String::new(), true, true),
        };
        Place { name: format!("the socket of the service manager{address}"), is_local, is_file }
    }

    fn listener(self) -> std::io::Result<Listener> {
        match self {
            Inherited::Tcp(listener, _) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Listener::Tcp)
            }
            #[cfg(unix)]
            Inherited::Unix(listener) => {
                listener.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(listener).map(Listener::Unix)
            }
        }
    }
}

/// Opens a socket; returns also how to reach it.
async fn open(address: &str) -> anyhow::Result<(Listener, String)> {
    if let Some(path) = address.strip_prefix("unix:") {
        #[cfg(unix)]
        {
            // A stale socket of a killed server.
            if std::os::unix::net::UnixStream::connect(path).is_err()
                && std::fs::symlink_metadata(path)
                    .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()))
            {
                std::fs::remove_file(path)?;
            }
            let listener = tokio::net::UnixListener::bind(path).map_err(|e| {
                let advice = match e.kind() {
                    std::io::ErrorKind::AddrInUse => "; a server or a file is there: choose another path",
                    std::io::ErrorKind::NotFound => "; create its folder first",
                    _ => "",
                };
                anyhow::Error::from(e).context(format!("--listen {address}: cannot listen there{advice}"))
            })?;
            return Ok((Listener::Unix(listener), address.to_owned()));
        }
        #[cfg(not(unix))]
        return Err(UsageError(format!("--listen unix:{path}: this system has no such sockets")).into());
    }
    let listener = bind("--listen", address).await?;
    let address = listener.local_addr()?;
    Ok((Listener::Tcp(listener), format!("http://{address}")))
}

async fn bind(option: &str, address: &str) -> anyhow::Result<TcpListener> {
    use std::io::ErrorKind;
    TcpListener::bind(address).await.map_err(|e| {
        let advice = match e.kind() {
            ErrorKind::InvalidInput => return UsageError(format!("{option} {address}: {e}")).into(),
            ErrorKind::AddrInUse => "; another server is there: end it, or choose another port",
            ErrorKind::AddrNotAvailable => "; this machine has no such address",
            ErrorKind::PermissionDenied => "; ports below 1024 need rights: choose another port",
            _ => "",
        };
        anyhow::Error::from(e).context(format!("{option} {address}: cannot listen there{advice}"))
    })
}

/// The socket that systemd passes (`LISTEN_FDS`), the first of them.
#[cfg(unix)]
fn inherited() -> anyhow::Result<Option<Inherited>> {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::UnixListener;
    let of = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    if of("LISTEN_PID") != Some(std::process::id()) || of("LISTEN_FDS").is_none_or(|count| count == 0) {
        return Ok(None);
    }
    // SAFETY: the service manager opened this file for this process, and nothing else takes it.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    let listener = std::net::TcpListener::from(socket);
    if let Ok(address) = listener.local_addr() {
        return Ok(Some(Inherited::Tcp(listener, address)));
    }
    let listener = UnixListener::from(OwnedFd::from(listener));
    let problem = "the socket of the service manager (LISTEN_FDS) is neither TCP nor a Unix socket";
    listener.local_addr().context(problem)?;
    Ok(Some(Inherited::Unix(listener)))
}

/// Service managers pass no sockets here.
#[cfg(not(unix))]
fn inherited() -> anyhow::Result<Option<Inherited>> {
    Ok(None)
}

/// Tells a service manager how the server is (`NOTIFY_SOCKET`), if there is one.
fn notify(state: &str) {
    #[cfg(unix)]
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET")
        && let Ok(socket) = std::os::unix::net::UnixDatagram::unbound()
    {
        let _ = socket.send_to(state.as_bytes(), path);
    }
    #[cfg(not(unix))]
    let _ = state;
}

/// Allows as many open files as the system does: a usual limit of 1024 is less than the connections.
#[cfg(unix)]
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write this struct only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Waits for Ctrl-C or a termination signal.
async fn signalled() {
    #[cfg(unix)]
    {
        use signal::unix::{SignalKind, signal};
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = signal::ctrl_c().await;
}
