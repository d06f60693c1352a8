//! Where the time to the first sentence of a new process goes.
//!
//! ```sh
//! cargo run --release -p orate --features cuda,gpu --example start -- DEVICE [MODEL CALLERS]
//! ```
//!
//! With CALLERS, as many threads speak at once then, twice, and each notes its first audio.
//!
//! Prints what the engine notes on its way, each line with the milliseconds since the process began to run
//! this program, and as the last lines how long opening, speaking and closing took.

use orate::{Engine, EngineOptions, ModelSource, Options};
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
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_else(|| "auto".to_owned()).parse()?;
    let model = arguments.next().map_or(ModelSource::default(), |path| ModelSource::Path(path.into()));
    let callers: usize = arguments.next().map_or(Ok(0), |n| n.parse())?;
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let engine = Engine::with_options(EngineOptions { device, model, ..Default::default() })?;
    println!("{:8.1}  opened", ms(start));
    let audio = engine.speak("Hello.", &Options::default())?;
    println!("{:8.1}  spoke {:.2} s", ms(start), audio.samples.len() as f64 / f64::from(audio.sample_rate));
    for _ in 0..if callers > 0 { 2 } else { 0 } {
        let speak = |caller: usize| -> orate::Result<()> {
            let options = Options { seed: caller as u64, ..Options::default() };
            let first = engine.stream("All of them begin at the same moment.", &options)?.next();
            first.transpose()?;
            println!("{:8.1}  caller {caller} has audio", ms(start));
            Ok(())
        };
        println!("{:8.1}  {callers} callers", ms(start));
        std::thread::scope(|threads| {
            let all: Vec<_> = (0..callers).map(|i| threads.spawn(move || speak(i))).collect();
            all.into_iter().try_for_each(|caller| caller.join().expect("does not panic"))
        })?;
    }
    drop(engine);
    println!("{:8.1}  closed", ms(start));
    Ok(())
}
