//! `orate bench --streams`: many simultaneous streams of one engine, compared with one.

use super::{Args, Texts, ms};
use crate::engine_report::{engine_json, precision_text, with};
use crate::measure::peak_rss_mb;
use crate::print;
use orate::{Engine, Options};
use orate_tools::bench::{StreamsTimes, TEXT, median, speak_in_streams};
use serde_json::{Value, json};

/// Columns of the table that are about frames.
const OF_FRAMES: [usize; 3] = [1, 3, 4];

/// Medians of runs with `streams` streams.
struct Speed {
    streams: usize,
    frames: f64,
    total_ms: f64,
    first_audio_ms: f64,
    /// Seconds of audio.
    duration: f64,
}

impl Speed {
    fn new(streams: usize, runs: &[StreamsTimes], sample_rate: u32) -> Speed {
        Speed {
            streams,
            frames: median(runs.iter().map(|r| r.frames as f64)),
            total_ms: median(runs.iter().map(|r| ms(r.total))),
            first_audio_ms: median(runs.iter().map(|r| ms(r.first_audio))),
            duration: median(runs.iter().map(|r| r.samples as f64 / f64::from(sample_rate))),
        }
    }

    fn frames_per_second(&self) -> f64 {
        self.frames / self.total_ms * 1e3
    }

    /// Seconds of audio generated per second.
    fn audio_per_second(&self) -> f64 {
        self.duration / self.total_ms * 1e3
    }

    /// Real-time factor of one stream while all speak: computing time over playing time.
    fn rtf(&self) -> f64 {
        self.total_ms / 1e3 / (self.duration / self.streams as f64)
    }

    fn json(&self) -> Value {
        json!({
            "streams": self.streams,
            "frames": self.frames,
            "total_ms": self.total_ms,
            "frames_per_second": self.frames_per_second(),
            "frames_per_second_of_a_stream": self.frames_per_second() / self.streams as f64,
            "audio_s_per_second": self.audio_per_second(),
            "first_audio_ms": self.first_audio_ms,
            "rtf": self.rtf(),
        })
    }

    fn row(&self) -> Vec<String> {
        let speed = self.frames_per_second();
        let of_one = speed / self.streams as f64;
        let numbers = [
            self.frames,
            self.total_ms,
            speed,
            of_one,
            self.audio_per_second(),
            self.first_audio_ms,
            self.rtf(),
        ];
        let digits = [0, 1, 1, 1, 2, 1, 4];
        let cells = numbers.iter().zip(digits).map(|(x, digits)| format!("{x:.digits$}"));
        [self.streams.to_string()].into_iter().chain(cells).collect()
    }
}

/// Runs the benchmark and prints the result. Runs of one stream alternate with runs of all.
pub fn run(args: &Args, engine: &Engine, options: &Options, streams: usize) -> anyhow::Result<()> {
    let texts = match args.texts {
        Texts::Count(count) => count as usize,
        Texts::File(_) => 1,
    };
    let counts = [1, streams];
    let text = args.text.as_deref().unwrap_or(TEXT);
    // As a server does: plans that are compiled meanwhile would count as speech.
    engine.warm_up_for_callers(options, streams)?;
    for count in counts {
        speak_in_streams(engine, text, options, (count, texts.min(2)))?;
    }
    let mut runs = [vec![], vec![]];
    for _ in 0..args.runs {
        for (runs, count) in runs.iter_mut().zip(counts) {
            runs.push(speak_in_streams(engine, text, options, (count, texts))?);
        }
    }
    let speed = |i: usize| Speed::new(counts[i], &runs[i], engine.sample_rate());
    let (one, all) = (speed(0), speed(1));
    let ratio = all.audio_per_second() / one.audio_per_second();
    let peak_rss_mb = peak_rss_mb();
    if args.json {
        let report = json!({
            "one": one.json(),
            "all": all.json(),
            "throughput_ratio": ratio,
            "peak_rss_mb": peak_rss_mb,
            "runs": args.runs,
            "texts": texts,
            "kv": engine.kv().map(orate::CacheFormat::name),
            "threads": engine.threads(),
        });
        return print::json(&with(report, engine_json(engine)));
    }
    let head = ["streams", "frames", "ms", "frames/s", "of a stream", "audio s/s", "first audio ms", "RTF"];
    let mut rows = [head.map(str::to_owned).to_vec(), one.row(), all.row()];
    if all.frames == 0.0 {
        // Models that make no frames one by one.
        rows.iter_mut().for_each(|row| {
            let mut column = 0..;
            row.retain(|_| column.next().is_none_or(|i| !OF_FRAMES.contains(&i)));
        });
    }
    let memory = peak_rss_mb.map_or_else(|| "unknown".to_owned(), |mb| format!("{mb:.1} MB"));
    print::out(&format!(
        "{}\n{}\n{}{}\n\n{}\nthroughput      {ratio:.2} times that of one stream\npeak memory     {memory}\n",
        print::visible(engine.model_name()),
        engine.device(),
        precision_text(engine),
        engine.kv().map_or_else(String::new, |kv| format!(", keys and values in {kv}")),
        print::table(&rows, &[]),
    ))
}
