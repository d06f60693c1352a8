//! Where the time to the first sentence of a new process goes.
//!
//! ```sh
//! cargo run --release -p orate --features cuda,gpu --example start -- cuda:0
//! ```
//!
//! Prints what the engine notes on its way, each line with the milliseconds since the process began to run
//! this program, and as the last lines how long opening, speaking and closing took.

use orate::{Engine, EngineOptions, Options};
use std::fmt::{Debug, Write as _};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Prints events and knows no spans.
struct Lines {
    start: Instant,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, "  {name} {value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("orate")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        println!("{:8.1}  {}", self.start.elapsed().as_secs_f64() * 1e3, text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    tracing::subscriber::set_global_default(Lines { start })?;
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".to_owned()).parse()?;
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let engine = Engine::with_options(EngineOptions { device, ..Default::default() })?;
    println!("{:8.1}  opened", ms(start));
    let audio = engine.speak("Hello.", &Options::default())?;
    println!("{:8.1}  spoke {:.2} s", ms(start), audio.samples.len() as f64 / f64::from(audio.sample_rate));
    drop(engine);
    println!("{:8.1}  closed", ms(start));
    Ok(())
}
