//! `orate serve`: a speech server.

use crate::args::{EngineArgs, PlaceArgs};
use crate::failure::UsageError;
use crate::print;
use anyhow::Context;
use orate::{Engine, Options, VoiceStore};
use orate_server::{Keys, Listener, Served, Server, Settings, is_id};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal;

/// Environment variable with keys, as lines or between commas.
const KEYS_VARIABLE: &str = "ORATE_API_KEYS";

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

The page at / speaks what is typed there; /openapi.json describes all routes. Options of the \
server have environment variables, such as ORATE_SERVE_LISTEN.")]
pub struct Args {
    /// Where to listen: address and port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8880", env = "ORATE_SERVE_LISTEN")]
    listen: String,

    /// Where to answer Home Assistant (Wyoming protocol), such as 127.0.0.1:10200
    #[arg(long, value_name = "ADDRESS", env = "ORATE_SERVE_WYOMING")]
    wyoming: Option<String>,

    /// Model to serve, as of other commands, with a name or not; may be repeated
    ///
    /// The first one answers requests for models of OpenAI. Without any, the built-in voice is served.
    #[arg(
        long = "model",
        short,
        value_name = "PATH[=NAME]",
        env = "ORATE_SERVE_MODEL",
        value_delimiter = ','
    )]
    models: Vec<String>,

    /// Texts that a model speaks at once [default: what suits model and device]
    #[arg(long, value_name = "N", env = "ORATE_SERVE_STREAMS", value_parser = clap::value_parser!(u16).range(1..=256))]
    streams: Option<u16>,

    /// Requests that may wait for each model; more get an error
    #[arg(long, value_name = "N", default_value_t = 64, env = "ORATE_SERVE_QUEUE")]
    queue: usize,

    /// Seconds that a request may wait
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_QUEUE_TIMEOUT",
        hide_short_help = true
    )]
    queue_timeout: u64,

    /// Seconds that a request may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        env = "ORATE_SERVE_REQUEST_TIMEOUT",
        hide_short_help = true
    )]
    request_timeout: u64,

    /// Seconds that a client may take nothing of its answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_STALL_TIMEOUT",
        hide_short_help = true
    )]
    stall_timeout: u64,

    /// Seconds that running requests get after a signal to end
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "ORATE_SERVE_DRAIN_TIMEOUT",
        hide_short_help = true
    )]
    drain_timeout: u64,

    /// Connections at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        env = "ORATE_SERVE_CONNECTIONS",
        hide_short_help = true
    )]
    connections: usize,

    /// Most characters of a text
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        env = "ORATE_SERVE_MAX_INPUT_CHARS",
        hide_short_help = true
    )]
    max_input_chars: usize,

    /// Log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "ORATE_SERVE_LOG", value_parser = ["text", "json"])]
    log: String,

    /// Write texts into the log
    #[arg(long, env = "ORATE_SERVE_LOG_TEXTS", hide_short_help = true)]
    log_texts: bool,

    /// Print and log nothing but errors
    #[arg(long, short, env = "ORATE_SERVE_QUIET")]
    quiet: bool,

    /// Tell clients all about failures of model and device; may name paths
    #[arg(long, env = "ORATE_SERVE_VERBOSE_ERRORS", hide_short_help = true)]
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
    /// File of keys, a line NAME:SHA256 for each client; also in ORATE_API_KEYS
    #[arg(long, value_name = "FILE", env = "ORATE_SERVE_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,

    /// Print a new key for a client, and its line for the file of keys
    #[arg(long, value_name = "NAME", exclusive = true)]
    new_key: Option<String>,

    /// Let everyone in who reaches an address that is not of this machine alone
    #[arg(long, env = "ORATE_SERVE_NO_AUTH")]
    no_auth: bool,

    /// List models and voices without a key
    #[arg(long, env = "ORATE_SERVE_OPEN_LISTS", hide_short_help = true)]
    open_lists: bool,

    /// Requests of one key that run or wait [default: all]
    #[arg(long, value_name = "N", env = "ORATE_SERVE_MAX_PER_KEY", hide_short_help = true)]
    max_per_key: Option<usize>,

    /// Name under which the server is asked for besides localhost; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        env = "ORATE_SERVE_ALLOW_HOST",
        value_delimiter = ',',
        hide_short_help = true
    )]
    allow_host: Vec<String>,

    /// Origin of pages that may ask, such as https://example.org; may be repeated
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
    /// Take no recordings, and delete no voices
    #[arg(long, env = "ORATE_SERVE_NO_UPLOADS")]
    no_uploads: bool,

    /// Voices that are kept at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        env = "ORATE_SERVE_MAX_VOICES",
        hide_short_help = true
    )]
    max_voices: usize,

    /// Another name for a voice, such as alloy=F2; may be repeated
    #[arg(
        long,
        value_name = "NAME=VOICE",
        env = "ORATE_SERVE_ALIAS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    alias: Vec<String>,
}

/// Serves until a signal.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = &args.access.new_key {
        if !is_id(name) {
            let problem = "choose 1 to 64 letters, digits, `.`, `_` or `-`";
            return Err(UsageError(format!("--new-key {name:?}: {problem}")).into());
        }
        let [key, line] = Keys::generate(name).context("a key needs random numbers")?;
        print::note(&format!("key of {name}, which is not kept anywhere: {key}"));
        return print::out(&format!("{line}\n"));
    }
    let settings = args.settings()?;
    let models = args.models()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(args, settings, models))
}

async fn serve(args: &Args, settings: Settings, models: Vec<(EngineArgs, String)>) -> anyhow::Result<()> {
    let server = Server::new(settings);
    let (listener, address) = listen(&args.listen).await?;
    if let Some(address) = &args.wyoming {
        let listener = bind("--wyoming", address).await?;
        let server = server.clone();
        tokio::spawn(async move { server.wyoming(listener).await });
    }
    let streams = args.streams.map(usize::from);
    let quiet = args.quiet;
    let loading = server.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        let load = |(engine, id): (EngineArgs, String)| {
            let engine = engine.open()?;
            let served = Served { id, engine, streams };
            warm_up(&served)?;
            if !quiet {
                print::note(&format!(
                    "{}: {} on {}",
                    served.id,
                    served.engine.model_name(),
                    served.engine.device()
                ));
            }
            Ok(served)
        };
        let models = models.into_iter().map(load).collect::<anyhow::Result<Vec<_>>>()?;
        Ok::<_, anyhow::Error>(loading.set_models(models)?)
    });
    let (ended, mut failed) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        match loaded.await.map_err(anyhow::Error::from).and_then(|loaded| loaded) {
            Ok(()) => {
                notify("READY=1");
                if !quiet {
                    print::note(&format!("ready at {address}"));
                }
            }
            Err(e) => {
                let _ = ended.send(e);
            }
        }
    });
    let mut failure = None;
    let end = async {
        tokio::select! {
            () = signalled() => {
                notify("STOPPING=1");
                // A second signal ends at once.
                tokio::spawn(async {
                    signalled().await;
                    std::process::exit(i32::from(crate::failure::INTERRUPTED));
                });
            }
            Ok(e) = &mut failed => failure = Some(e),
        }
    };
    orate_server::serve(&server, listener, end, Duration::from_secs(args.drain_timeout)).await;
    if let Some(path) = args.listen.strip_prefix("unix:") {
        let _ = std::fs::remove_file(path);
    }
    failure.map_or(Ok(()), Err)
}

/// Speaks some words, and compiles the plans of as many callers as are served.
fn warm_up(served: &Served) -> anyhow::Result<()> {
    if !served.engine.facts().can_speak || needs_more_than_a_text(&served.engine) {
        return Ok(());
    }
    Ok(served.engine.warm_up_for_callers(&Options::default(), served.streams())?)
}

/// Whether the model speaks only with a voice or instruction of the request.
fn needs_more_than_a_text(engine: &Engine) -> bool {
    engine.stream("Warm up.", &Options::default()).is_err()
}

impl Args {
    /// Texts that models speak at once, as far as that is known before they are opened.
    pub fn utterances(&self) -> u32 {
        self.streams.map_or(16, u32::from)
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut text = match &self.access.api_key_file {
            Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
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
        check_address("--listen", &self.listen)?;
        self.wyoming.iter().try_for_each(|address| check_address("--wyoming", address))?;
        let is_local = is_local(&self.listen);
        if !is_local && keys.is_empty() && !self.access.no_auth {
            let problem = "others than this machine can reach it, and there are no keys; give --api-key-file \
                           FILE (`orate serve --new-key NAME` makes keys), or let everyone in with --no-auth";
            return Err(UsageError(format!("--listen {}: {problem}", self.listen)).into());
        }
        let alias = |alias: &String| match alias.split_once('=') {
            Some((name, voice)) if !name.is_empty() && !voice.is_empty() => {
                Ok((name.to_owned(), voice.to_owned()))
            }
            _ => Err(UsageError(format!("--alias {alias}: write NAME=VOICE, such as alloy=F2"))),
        };
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let hosts = own.into_iter().chain(self.access.allow_host.iter().cloned()).collect();
        let seconds = Duration::from_secs;
        Ok(Settings {
            queue: self.queue,
            queue_timeout: seconds(self.queue_timeout),
            stall_timeout: seconds(self.stall_timeout),
            request_timeout: seconds(self.request_timeout),
            connections: self.connections.clamp(1, 1 << 16),
            max_input_chars: self.max_input_chars,
            open_lists: self.access.open_lists,
            open_metrics: is_local,
            keys,
            max_per_key: self.access.max_per_key,
            hosts: (is_local && !self.listen.starts_with("unix:")).then_some(hosts),
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

    /// Models, and the names to serve them under.
    fn models(&self) -> anyhow::Result<Vec<(EngineArgs, String)>> {
        let engine = |model| EngineArgs { model, place: self.place.clone() };
        if self.models.is_empty() {
            return Ok(vec![(engine(None), "orate-default".to_owned())]);
        }
        let mut all: Vec<(EngineArgs, String)> = vec![];
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
            all.push((engine(Some(path.into())), id));
        }
        Ok(all)
    }
}

/// Name of a model: that of its folder or file in small letters.
fn id_of(path: &Path) -> String {
    let name = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = if name.is_file() { name.file_stem() } else { name.file_name() };
    name.unwrap_or_default().to_string_lossy().to_lowercase().replace(' ', "-")
}

/// Refuses what is no address with a port.
fn check_address(option: &str, address: &str) -> Result<(), UsageError> {
    let has_port =
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if has_port || address.starts_with("unix:") {
        return Ok(());
    }
    Err(UsageError(format!("{option} {address}: write an address and a port, such as 127.0.0.1:8880")))
}

/// Whether only this machine reaches an address.
fn is_local(listen: &str) -> bool {
    let loopback = |address: std::net::SocketAddr| address.ip().is_loopback();
    listen.starts_with("unix:") || listen.starts_with("localhost:") || listen.parse().is_ok_and(loopback)
}

/// The socket, and how to reach it. A service manager may have opened it already.
async fn listen(address: &str) -> anyhow::Result<(Listener, String)> {
    #[cfg(unix)]
    if let Some(listener) = inherited()? {
        return Ok((listener, "the socket of the service manager".to_owned()));
    }
    if let Some(path) = address.strip_prefix("unix:") {
        #[cfg(unix)]
        {
            // A socket that a killed server has left behind, and nobody listens to.
            if std::os::unix::net::UnixStream::connect(path).is_err()
                && std::fs::symlink_metadata(path)
                    .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()))
            {
                std::fs::remove_file(path)?;
            }
            let listener =
                tokio::net::UnixListener::bind(path).with_context(|| format!("--listen {address}"))?;
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
    let advice = "is another server there? choose another port, or end that one";
    TcpListener::bind(address).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => UsageError(format!("{option} {address}: {e}")).into(),
        _ => anyhow::Error::from(e).context(format!("{option} {address}: cannot listen there; {advice}")),
    })
}

/// The socket that systemd passes (`LISTEN_FDS`), the first of them.
#[cfg(unix)]
fn inherited() -> anyhow::Result<Option<Listener>> {
    use std::os::fd::FromRawFd;
    let of = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    if of("LISTEN_PID") != Some(std::process::id()) || of("LISTEN_FDS").is_none_or(|count| count == 0) {
        return Ok(None);
    }
    // SAFETY: the service manager opened this file for this process, and nothing else takes it.
    let listener = unsafe { std::net::TcpListener::from_raw_fd(3) };
    listener.set_nonblocking(true)?;
    Ok(Some(Listener::Tcp(TcpListener::from_std(listener)?)))
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
