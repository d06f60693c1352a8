//! What all requests share.

use crate::error::{ApiError, Result};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::models::{Model, Served};
use crate::settings::Settings;
use crate::voices;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// Settings, models and metrics of a server.
pub struct Shared {
    /// The settings.
    pub settings: Settings,
    /// The metrics.
    pub metrics: Metrics,
    /// The log.
    pub log: Log,
    /// Start of the server, in seconds since 1970.
    pub started: u64,
    /// Places for connections.
    pub connections: Arc<Semaphore>,
    /// Whether the time to finish requests is over, so that those that still run are cut.
    pub is_over: AtomicBool,
    models: OnceLock<Vec<Arc<Model>>>,
    is_draining: watch::Sender<bool>,
    by_key: Mutex<HashMap<String, usize>>,
}

impl Shared {
    /// Creates a server without models, which is not ready.
    pub fn new(settings: Settings) -> Shared {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let log = Log { is_json: settings.log_json, is_quiet: settings.quiet };
        let connections = Arc::new(Semaphore::new(settings.connections));
        let (metrics, (is_over, models, is_draining, by_key)) = (Metrics::new(), Default::default());
        Shared { settings, metrics, log, started, connections, is_over, models, is_draining, by_key }
    }

    /// Sets the models, once, and makes the server ready.
    ///
    /// # Errors
    /// The system has no more threads, or an alias is of a voice that no model has (`InvalidInput`).
    pub fn set_models(&self, served: Vec<Served>) -> std::io::Result<()> {
        let make = |served| Model::new(served, self.settings.queue, self.started).map(Arc::new);
        let models = served.into_iter().map(make).collect::<std::io::Result<Vec<_>>>()?;
        let checked = voices::check_aliases(&models, &self.settings);
        checked.map_err(|problem| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem))?;
        let _ = self.models.set(models);
        Ok(())
    }

    /// The models; none while they are loaded.
    pub fn models(&self) -> &[Arc<Model>] {
        self.models.get().map_or(&[], Vec::as_slice)
    }

    /// Refuses further requests.
    pub fn drain(&self) {
        self.is_draining.send_replace(true);
    }

    /// Waits until [`drain`](Self::drain).
    pub async fn drained(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.is_draining.subscribe().wait_for(|is_draining| *is_draining).await;
    }

    /// The models, if requests can be answered.
    ///
    /// # Errors
    /// Models are being loaded, or the server is shutting down: 503.
    pub fn ready(&self) -> Result<&[Arc<Model>]> {
        if *self.is_draining.borrow() {
            return Err(ApiError::unavailable("draining", "the server is shutting down"));
        }
        self.loaded()
    }

    /// The models, for what was begun before the server shut down.
    ///
    /// # Errors
    /// Models are being loaded: 503.
    pub fn loaded(&self) -> Result<&[Arc<Model>]> {
        match self.models.get() {
            Some(models) => Ok(models),
            None => Err(ApiError::unavailable("loading", "models are being loaded; try again shortly")),
        }
    }

    /// Requests that run or wait.
    pub fn in_flight(&self) -> usize {
        self.models().iter().map(|model| model.queue.counts().iter().sum::<usize>()).sum()
    }

    /// Takes one of the places of a key.
    ///
    /// # Errors
    /// All are taken: 429.
    pub fn enter(self: &Arc<Self>, key: Option<&str>) -> Result<Option<KeyPlace>> {
        let (Some(most), Some(key)) = (self.settings.max_per_key, key) else { return Ok(None) };
        let mut all = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(key.to_owned()).or_default();
        if *count >= most {
            let message = format!("{most} requests of this key run or wait already");
            let error = ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "rate_limited", message);
            return Err(error.after(1));
        }
        *count += 1;
        Ok(Some(KeyPlace { shared: self.clone(), key: key.to_owned() }))
    }
}

/// One of the places of a key, given back when it is dropped.
pub struct KeyPlace {
    shared: Arc<Shared>,
    key: String,
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        let mut all = self.shared.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
            }
        }
    }
}
