//! Requests: who gets the token, which redirects are followed, what statuses mean, and retries.

use crate::settings::{Patience, Settings};
use crate::{Error, ErrorKind, Event, Repo, Result, Watch};
use orate_files::{one_line, quoted};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

/// Most redirects of a request.
const MAX_REDIRECTS: usize = 10;
/// Time to connect.
const CONNECTING: Duration = Duration::from_secs(20);
/// Advice where the first request was not answered.
const NO_NETWORK: &str = "is there a network? HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror";
/// How often a waiting download checks for cancellation.
const TICK: Duration = Duration::from_millis(50);

/// Why an attempt failed.
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Again {
        /// Reason.
        why: String,
        /// `Retry-After` of the hub.
        after: Option<Duration>,
        /// Whether bytes arrived, which resets the count of failures.
        progress: bool,
    },
    /// No attempt will succeed.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Final(error)
    }
}

impl Failure {
    pub(crate) fn again(why: impl Into<String>) -> Failure {
        Failure::Again { why: why.into(), after: None, progress: false }
    }
}

/// Runs `attempt` until it succeeds, fails for good, or fails too often.
pub(crate) fn retry<T>(
    patience: &Patience,
    watch: &mut Watch<'_>,
    mut attempt: impl FnMut(&mut Watch<'_>) -> Result<T, Failure>,
) -> Result<T> {
    let (mut failures, mut wait) = (0, patience.first_wait);
    loop {
        let (why, after) = match attempt(watch) {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again { why, after, progress }) => {
                if progress {
                    (failures, wait) = (0, patience.first_wait);
                }
                (why, after)
            }
        };
        failures += 1;
        let give_up = |more: String| Err(Error::new(ErrorKind::Unreachable, format!("{why}; {more}")));
        if failures >= patience.tries {
            let advice = "run the command again later to resume";
            return give_up(format!("gave up after {failures} tries; {advice}"));
        }
        if let Some(after) = after.filter(|after| *after > patience.longest_wait) {
            return give_up(format!("the hub asks to wait for {} s; try again then", after.as_secs()));
        }
        let pause = after.unwrap_or(wait);
        wait = wait.saturating_mul(2).min(patience.longest_wait);
        notify(watch, &Event::Waiting { why: &why, wait: Some(pause) })?;
        let end = Instant::now() + pause;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            sleep(left.min(TICK));
            notify(watch, &Event::Tick)?;
        }
    }
}

/// Reports an event.
///
/// # Errors
/// The caller wants to stop.
pub(crate) fn notify(watch: &mut Watch<'_>, event: &Event<'_>) -> Result<()> {
    match watch(event).is_break() {
        true => Err(Error::new(ErrorKind::Cancelled, "interrupted; run the command again to resume")),
        false => Ok(()),
    }
}

/// Scheme, host and port of an address, which decide whether it gets the token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        // A user name and password would be part of messages, and `@` can hide the host from a reader.
        let authority = uri.authority().filter(|a| !a.as_str().contains('@'))?;
        let host = authority.host().to_ascii_lowercase();
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        (!host.is_empty()).then_some(Origin { is_https, host, port })
    }

    fn is_loopback(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|ip| ip.is_loopback())
    }
}

/// HTTP client of an endpoint.
pub(crate) struct Client {
    /// For loopback, which bypasses proxies.
    local: Agent,
    outward: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<String>,
    insecure: bool,
    /// Whether any request was answered.
    is_reached: AtomicBool,
    /// Retries and timeouts.
    pub patience: Patience,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Client> {
        let shown = quoted(&settings.endpoint).to_string();
        let bad = |problem: &str| {
            Error::new(ErrorKind::InvalidInput, format!("the endpoint {shown} (HF_ENDPOINT) {problem}"))
        };
        let uri: Uri = settings.endpoint.parse().map_err(|_| bad("is not an address"))?;
        let origin = Origin::of(&uri)
            .filter(|_| uri.query().is_none())
            .ok_or_else(|| bad("must be https://HOST[:PORT][/PATH], without a user name"))?;
        if !origin.is_https && !origin.is_loopback() && !settings.insecure {
            return Err(bad("is not encrypted; use https:, or allow it with --insecure"));
        }
        if settings.token.as_ref().is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            let problem = "the token (HF_TOKEN, or the file of `hf auth login`) has invalid characters";
            return Err(Error::new(ErrorKind::InvalidInput, problem));
        }
        let agent = |proxy| {
            let tls = TlsConfig::builder()
                .root_certs(RootCerts::PlatformVerifier)
                .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .build();
            Agent::config_builder()
                .proxy(proxy)
                .tls_config(tls)
                .http_status_as_error(false)
                // Redirects are followed by hand: each target may or may not get the token.
                .max_redirects(0)
                .max_redirects_will_error(false)
                .redirect_auth_headers(ureq::config::RedirectAuthHeaders::Never)
                .user_agent(concat!("orate/", env!("CARGO_PKG_VERSION")))
                .timeout_resolve(Some(CONNECTING))
                .timeout_connect(Some(CONNECTING))
                .timeout_recv_response(Some(settings.patience.silence * 2))
                .timeout_per_read(Some(settings.patience.silence))
                .timeout_per_write(Some(settings.patience.silence))
                .build()
                .new_agent()
        };
        Ok(Client {
            local: agent(None),
            outward: agent(Proxy::try_from_env()),
            endpoint: settings.endpoint.clone(),
            origin,
            token: settings.token.clone(),
            insecure: settings.insecure,
            is_reached: AtomicBool::new(false),
            patience: settings.patience.clone(),
        })
    }

    /// Web page of a repository.
    pub(crate) fn page(&self, repo: &Repo) -> String {
        format!("{}/{}", self.endpoint, repo.id())
    }

    /// URL of the file list of a revision, with sizes and checksums.
    pub(crate) fn list_url(&self, repo: &Repo) -> String {
        format!("{}/api/models/{}/revision/{}?blobs=true", self.endpoint, repo.id(), encoded(repo.revision()))
    }

    /// URL of a file at a commit.
    pub(crate) fn file_url(&self, repo: &Repo, commit: &str, name: &str) -> String {
        let name: Vec<String> = name.split('/').map(encoded).collect();
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, repo.id(), name.join("/"))
    }

    /// Requests the headers of a file. Redirects to other hosts are not followed: only the hub's checksum
    /// counts.
    pub(crate) fn head(&self, repo: &Repo, url: &str) -> Result<Response<Body>, Failure> {
        self.send(Method::HEAD, repo, url, None)
    }

    /// Requests a file or list, from byte `from` on.
    pub(crate) fn get(&self, repo: &Repo, url: &str, from: Option<u64>) -> Result<Response<Body>, Failure> {
        self.send(Method::GET, repo, url, from)
    }

    fn send(
        &self,
        method: Method,
        repo: &Repo,
        url: &str,
        from: Option<u64>,
    ) -> Result<Response<Body>, Failure> {
        let damaged = |problem: String| Failure::Final(Error::new(ErrorKind::Damaged, problem));
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let uri: Uri = url.parse().map_err(|_| damaged(format!("not an address: {}", quoted(&url))))?;
            let Some(origin) = Origin::of(&uri) else {
                return Err(damaged(format!("redirected to a strange address: {}", quoted(&url))));
            };
            let is_plain = !origin.is_https && (self.origin.is_https || !origin.is_loopback());
            if is_plain && !self.insecure {
                let problem = "the hub redirects to an address without encryption";
                return Err(damaged(format!("{problem}: {}; allow it with --insecure", quoted(&url))));
            }
            let is_own = origin == self.origin;
            let mut request =
                Request::builder().method(method.clone()).uri(uri).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| is_own) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let request = request.body(()).map_err(|e| damaged(e.to_string()))?;
            let agent = if origin.is_loopback() { &self.local } else { &self.outward };
            let host = format!("{}:{}", origin.host, origin.port);
            let response = agent.run(request).map_err(|e| match network(&host, &e) {
                // Nobody waits long for a machine without a network.
                Failure::Again { why, .. } if !self.is_reached.load(Ordering::Relaxed) => {
                    Failure::Final(Error::new(ErrorKind::Unreachable, format!("{why}; {NO_NETWORK}")))
                }
                failure => failure,
            })?;
            self.is_reached.store(true, Ordering::Relaxed);
            let status = response.status();
            let next = response.headers().get(LOCATION).filter(|_| is_redirect(status));
            let Some(next) = next else {
                return self.judge(repo, response, is_own);
            };
            let next = next.to_str().ok().and_then(|next| joined(&url, next));
            let Some(next) = next else {
                return Err(damaged(format!("{}: redirects to nowhere", quoted(&url))));
            };
            let stays = next.parse().ok().and_then(|uri| Origin::of(&uri)).as_ref() == Some(&self.origin);
            if method == Method::HEAD && (!stays || response.headers().contains_key("x-linked-etag")) {
                return Ok(response);
            }
            url = next;
        }
        Err(damaged(format!("{}: more than {MAX_REDIRECTS} redirects", quoted(&url))))
    }

    /// Converts a status to an error.
    fn judge(&self, repo: &Repo, response: Response<Body>, is_own: bool) -> Result<Response<Body>, Failure> {
        let (status, headers) = (response.status(), response.headers());
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(response);
        }
        let again = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
        // URLs on other hosts are signed and expire; the next try gets a new one.
        if again || !is_own && status.is_client_error() {
            let after = header(headers, RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok());
            let why = format!("{repo}: the hub answered {}", reason(status));
            return Err(Failure::Again { why, after: after.map(Duration::from_secs), progress: false });
        }
        let code = header(headers, "x-error-code").unwrap_or_default();
        let page = self.page(repo);
        let set_token = match self.token {
            None => "set HF_TOKEN to a token that may read it",
            Some(_) => "the token of HF_TOKEN may not read it, or is not valid",
        };
        let (kind, problem) = match (status.as_u16(), code) {
            (_, "GatedRepo") | (403, "") => (
                ErrorKind::Refused,
                format!("access must be granted: open {page}, accept its terms, then {set_token}"),
            ),
            (404, "RevisionNotFound") => {
                (ErrorKind::NotFound, format!("there is no revision {}; see {page}", quoted(repo.revision())))
            }
            (404, "EntryNotFound") => (ErrorKind::NotFound, format!("a file is missing there; see {page}")),
            (401, _) => (
                ErrorKind::Refused,
                format!("there is no such repository, or it is private; check the name, or {set_token}"),
            ),
            (404, _) => (ErrorKind::NotFound, format!("there is no such repository; check the name: {page}")),
            _ => (ErrorKind::Refused, format!("the hub refuses the request; see {page}")),
        };
        let said = header(headers, "x-error-message").map(|text| format!(": {}", one_line(text)));
        let said = said.unwrap_or_default();
        Err(Error::new(kind, format!("{repo}: {problem} ({}{said})", reason(status))).into())
    }
}

/// Text of a header.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn reason(status: StatusCode) -> String {
    format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or("?"))
}

/// The address to which `next` leads from `url`.
fn joined(url: &str, next: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    match next {
        next if next.starts_with("https://") || next.starts_with("http://") => Some(next.to_owned()),
        next if next.starts_with("//") => Some(format!("{scheme}:{next}")),
        next if next.starts_with('/') => Some(format!("{scheme}://{host}{next}")),
        _ => None,
    }
}

fn network(host: &str, error: &ureq::Error) -> Failure {
    let unreachable = |advice: &str| {
        let problem = format!("{}: {error}; {advice}", quoted(host));
        Failure::Final(Error::new(ErrorKind::Unreachable, problem))
    };
    const CERTIFICATE: &str = "is the clock right, and does the system trust the certificate (package \
                               ca-certificates, SSL_CERT_FILE)?";
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => unreachable(CERTIFICATE),
        ureq::Error::Io(e) if is_certificate(e) => unreachable(CERTIFICATE),
        ureq::Error::InvalidProxyUrl | ureq::Error::ConnectProxyFailed(_) => {
            unreachable("check HTTPS_PROXY and ALL_PROXY")
        }
        ureq::Error::Io(e) => Failure::again(format!("{}: {e}", quoted(host))),
        _ => Failure::again(format!("{}: {error}", quoted(host))),
    }
}

/// Whether the host could not show a certificate that the system trusts. Other errors of TLS may pass.
fn is_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// A part of a path or a revision, encoded for an address.
fn encoded(part: &str) -> String {
    let mut text = String::new();
    for byte in part.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(endpoint: &str, insecure: bool) -> Result<Client> {
        let settings = Settings::from_variables(&|name| match name {
            "HF_ENDPOINT" => Some(endpoint.into()),
            "HF_HOME" => Some("/nowhere".into()),
            _ => None,
        })?;
        Client::new(&Settings { insecure, ..settings })
    }

    #[test]
    fn endpoints_are_encrypted_or_local() {
        let good = [
            "https://huggingface.co",
            "https://m.example:8443/hf",
            "http://127.0.0.1:8000",
            "http://[::1]:1",
        ];
        for endpoint in good {
            assert!(client(endpoint, false).is_ok(), "{endpoint}");
        }
        assert!(client("http://m.example", true).is_ok());
        let bad = [
            "http://m.example",
            "ftp://m.example",
            "m.example",
            "https://u:p@m.example",
            "https://m.example?x=1",
            "https://",
            "http://localhost.m.example",
            "http://127.0.0.1@m.example",
        ];
        for endpoint in bad {
            let error = client(endpoint, false).err().expect(endpoint);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }

    #[test]
    fn addresses_are_encoded_and_joined() {
        let client = client("https://h.example/p", false).unwrap();
        let repo: Repo = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!(
            client.list_url(&repo),
            "https://h.example/p/api/models/a/b/revision/refs%2Fpr%2F1?blobs=true"
        );
        assert_eq!(
            client.file_url(&repo, "c", "x y/é#?.json"),
            "https://h.example/p/a/b/resolve/c/x%20y/%C3%A9%23%3F.json"
        );
        let cases = [
            ("/y", Some("https://h.example:1/y")),
            ("//k.example/y", Some("https://k.example/y")),
            ("http://k.example/y", Some("http://k.example/y")),
            ("y", None),
            ("file:///etc/passwd", None),
        ];
        for (next, url) in cases {
            assert_eq!(joined("https://h.example:1/a?b", next).as_deref(), url);
        }
    }
}
