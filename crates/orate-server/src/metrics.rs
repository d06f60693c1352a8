//! Metrics for Prometheus.

use crate::state::Shared;
use crate::work::Summary;
use orate::FinishReason;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;
type Counts = Family<Labels, Counter>;
type Sums = Family<Labels, Counter<f64, AtomicU64>>;
type Times = Family<Labels, Histogram, fn() -> Histogram>;

/// Buckets of times in seconds.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Buckets of compute time by audio length.
const FACTORS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Metrics of a server.
pub struct Metrics {
    registry: Registry,
    requests: Counts,
    seconds: Times,
    queue: Times,
    first_audio: Times,
    factor: Times,
    audio: Sums,
    characters: Counts,
    cancelled: Counts,
    runaway: Counts,
    /// Open WebSockets.
    pub sockets: Gauge,
}

impl Metrics {
    /// Creates metrics, all 0.
    pub fn new() -> Metrics {
        let times: fn() -> Histogram = || Histogram::new(SECONDS);
        let factors: fn() -> Histogram = || Histogram::new(FACTORS);
        let mut metrics = Metrics {
            registry: Registry::with_prefix("orate"),
            requests: Counts::default(),
            seconds: Times::new_with_constructor(times),
            queue: Times::new_with_constructor(times),
            first_audio: Times::new_with_constructor(times),
            factor: Times::new_with_constructor(factors),
            audio: Sums::default(),
            characters: Counts::default(),
            cancelled: Counts::default(),
            runaway: Counts::default(),
            sockets: Gauge::default(),
        };
        let r = &mut metrics.registry;
        r.register("requests", "Answered requests", metrics.requests.clone());
        r.register("request_seconds", "Time from a request to its last byte", metrics.seconds.clone());
        r.register("queue_seconds", "Time that requests waited for a thread", metrics.queue.clone());
        let help = "Time from a request to its first audio";
        r.register("time_to_first_audio_seconds", help, metrics.first_audio.clone());
        r.register("real_time_factor", "Compute time by audio length", metrics.factor.clone());
        r.register("audio_seconds", "Seconds of spoken audio", metrics.audio.clone());
        r.register("characters", "Characters of all texts", metrics.characters.clone());
        r.register("cancelled", "Requests that ended early", metrics.cancelled.clone());
        r.register("runaway", "Requests with runaway generation", metrics.runaway.clone());
        r.register("ws_connections", "Open WebSockets", metrics.sockets.clone());
        metrics
    }

    /// Counts an answer, complete or not.
    pub fn answered(&self, route: &str, status: u16, time: Duration) {
        let labels = vec![("route", route.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&vec![("route", route.to_owned())]).observe(time.as_secs_f64());
    }

    /// Counts a request that got a thread.
    pub fn waited(&self, model: &str, time: Duration) {
        self.queue.get_or_create(&of(model)).observe(time.as_secs_f64());
    }

    /// Counts the first audio of an answer.
    pub fn first_audio(&self, model: &str, time: Duration) {
        self.first_audio.get_or_create(&of(model)).observe(time.as_secs_f64());
    }

    /// Counts an accepted text.
    pub fn accepted(&self, model: &str, text: &str) {
        self.characters.get_or_create(&of(model)).inc_by(text.chars().count() as u64);
    }

    /// Counts a spoken text.
    pub fn spoken(&self, model: &str, summary: &Summary) {
        self.audio.get_or_create(&of(model)).inc_by(summary.audio_seconds);
        if summary.audio_seconds > 0.0 {
            let factor = summary.compute_seconds / summary.audio_seconds;
            self.factor.get_or_create(&of(model)).observe(factor);
        }
        if summary.finish == Some(FinishReason::Runaway) {
            self.runaway.get_or_create(&of(model)).inc();
        }
    }

    /// Counts a request that ended early.
    pub fn cancelled(&self, reason: &'static str) {
        self.cancelled.get_or_create(&vec![("reason", reason.to_owned())]).inc();
    }

    /// Formats all metrics, with those of models and process.
    pub fn text(&self, shared: &Shared) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        let end = "# EOF\n";
        text.truncate(text.len() - if text.ends_with(end) { end.len() } else { 0 });
        let mut gauge = |name: &str, help: &str, values: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} gauge");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let models = shared.models();
        let each = |value: &dyn Fn(&crate::models::Model) -> f64| -> Vec<(String, f64)> {
            models.iter().map(|m| (format!("{{model=\"{}\"}}", m.id), value(m))).collect()
        };
        gauge("orate_requests_running", "Requests that speak", &each(&|m| m.queue.counts()[0] as f64));
        gauge("orate_requests_waiting", "Requests that wait", &each(&|m| m.queue.counts()[1] as f64));
        gauge("orate_panics", "Requests that ended in a panic", &each(&|m| m.queue.panics() as f64));
        gauge("orate_plans_made", "Plans compiled", &each(&|m| m.engine.plans_made() as f64));
        let info = models.iter().map(|m| {
            let device = m.engine.device().replace(['"', '\\', '\n'], " ");
            let precision = m.engine.precision().to_string();
            let labels = format!("{{model=\"{}\",device=\"{device}\",precision=\"{precision}\"}}", m.id);
            (labels, 1.0)
        });
        gauge("orate_model_info", "Models and where they run", &info.collect::<Vec<_>>());
        if let Some(bytes) = resident_bytes() {
            gauge("process_resident_memory_bytes", "Memory in use", &[(String::new(), bytes)]);
        }
        gauge(
            "process_start_time_seconds",
            "Start of the process since 1970",
            &[(String::new(), shared.started as f64)],
        );
        text + end
    }
}

fn of(model: &str) -> Labels {
    vec![("model", model.to_owned())]
}

/// Resident memory of this process; `None` where `/proc` is missing.
fn resident_bytes() -> Option<f64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096.0)
}
