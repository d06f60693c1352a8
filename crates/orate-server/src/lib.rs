//! The speech server of Orate: HTTP routes that clients of OpenAI, Kokoro-FastAPI, vLLM-Omni and Open WebUI
//! know.
//!
//! ```text
//! handler ── checks ── queue of the model ── thread: Engine::stream ─► encoder ─► channel ─► body
//!                                               ▲ Cancel ◄──────── when the body is dropped
//! ```
//!
//! [`Server`] holds settings and models. [`Server::router`] returns the routes, which need no socket;
//! [`serve`] listens on one.
//!
//! ```no_run
//! use orate_server::{Listener, Served, Server, Settings, serve};
//! use std::time::Duration;
//! use tokio::net::TcpListener;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::new(Settings::default());
//! let engine = orate::Engine::new()?;
//! server.set_models(vec![Served { id: "orate-default".into(), engine, streams: None }])?;
//! let listener = Listener::Tcp(TcpListener::bind("127.0.0.1:8880").await?);
//! let end = async { drop(tokio::signal::ctrl_c().await) };
//! serve(&server, listener, end, Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```

mod alignment;
mod body;
mod elevenlabs;
mod encoding;
mod error;
mod fields;
mod gate;
mod keys;
mod lists;
mod log;
mod metrics;
mod models;
mod omni;
mod page;
mod queue;
mod request;
mod routes;
mod serve;
mod settings;
mod sockets;
mod speech;
mod state;
mod unread;
mod voices;
mod work;
mod wyoming;

pub use keys::Keys;
pub use models::{Served, is_id};
pub use serve::{Listener, serve};
pub use settings::Settings;

use state::Shared;
use std::sync::Arc;

/// A server: settings, models, and the state that requests share. Clones share everything.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<_> = self.0.models().iter().map(|model| &model.id).collect();
        f.debug_struct("Server").field("models", &ids).finish_non_exhaustive()
    }
}

impl Server {
    /// Creates a server without models. It answers, but is not ready.
    pub fn new(settings: Settings) -> Server {
        Server(Arc::new(Shared::new(settings)))
    }

    /// Sets the models, once, and makes the server ready. The first one answers requests for OpenAI's models.
    ///
    /// # Errors
    /// The system has no more threads, or an alias is of a voice that no model has (`InvalidInput`).
    pub fn set_models(&self, models: Vec<Served>) -> std::io::Result<()> {
        self.0.set_models(models)
    }

    /// Returns the routes.
    pub fn router(&self) -> axum::Router {
        routes::router(self.0.clone())
    }

    /// Answers clients of the Wyoming protocol, such as Home Assistant, until [`drain`](Self::drain).
    pub async fn wyoming(&self, listener: tokio::net::TcpListener) {
        wyoming::serve(self.0.clone(), listener).await;
    }

    /// Refuses further requests. Running ones go on; idle sockets are closed.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// Logs an event on standard error: a line `text`, or an object of `facts` where the log is JSON.
    pub fn log(&self, text: &str, facts: &[(&str, serde_json::Value)]) {
        self.0.log.event(text, facts);
    }

    /// Number of requests that run or wait.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}
