//! The speech server of Orate: HTTP routes that clients of OpenAI, Kokoro-FastAPI, vLLM-Omni and Open WebUI
//! know.
//!
//! ```text
//! handler (async) ── checks ── queue of the model ── thread: Engine::stream ─► encoder ─► channel ─► body
//!                                                        ▲ Cancel ◄──────── when the body is dropped
//! ```
//!
//! [`Server`] has settings and models, [`Server::router`] the routes, which need no socket, and [`serve`]
//! answers on one.

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
mod page;
mod queue;
mod request;
mod routes;
mod serve;
mod settings;
mod sockets;
mod speech;
mod state;
mod voices;
mod work;
mod wyoming;

pub use keys::Keys;
pub use models::{Served, is_id};
pub use serve::{Listener, serve};
pub use settings::Settings;

use state::Shared;
use std::sync::Arc;

/// A server: settings, models, and everything that requests share. Clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<_> = self.0.models().iter().map(|model| &model.id).collect();
        f.debug_struct("Server").field("models", &ids).finish_non_exhaustive()
    }
}

impl Server {
    /// A server without models. It answers, but is not ready.
    pub fn new(settings: Settings) -> Server {
        Server(Arc::new(Shared::new(settings)))
    }

    /// Makes it ready, with these models; the first one speaks where clients ask for a model of OpenAI.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn set_models(&self, models: Vec<Served>) -> std::io::Result<()> {
        self.0.set_models(models)
    }

    /// The routes.
    pub fn router(&self) -> axum::Router {
        routes::router(self.0.clone())
    }

    /// Answers clients of the Wyoming protocol, such as Home Assistant, until it is dropped.
    pub async fn wyoming(&self, listener: tokio::net::TcpListener) {
        wyoming::serve(self.0.clone(), listener).await;
    }

    /// Lets no more requests in; those that run go on.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// Requests that run or wait.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}
