//! `orate bench --arrivals`: texts that arrive at random times, as at a server.

use super::{Args, ms};
use crate::engine_report::{engine_json, precision_text, with};
use crate::failure::UsageError;
use crate::input;
use crate::measure::peak_rss_mb;
use crate::print;
use orate::{Engine, Options};
use orate_tools::bench::{Arrivals, Load, TEXT, speak_arrivals};
use serde_json::json;
use std::path::Path;

/// Arrivals per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(f64);

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let rate = text.strip_prefix("poisson:").and_then(|rate| rate.parse().ok());
        rate.filter(|rate| (1e-3..=1e6).contains(rate)).map(Rate).ok_or_else(|| {
            "use poisson:RATE with 0.001 to 1000000 arrivals per second, such as poisson:4".into()
        })
    }
}

/// Value at a share of sorted numbers, 0 to 1: the nearest rank.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Median, 95th and 99th percentile.
fn quantiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    [0.5, 0.95, 0.99].map(|share| quantile(&sorted, share))
}

/// Runs the benchmark and prints the result.
pub fn run(
    args: &Args,
    engine: &Engine,
    options: &Options,
    (Rate(rate), streams): (Rate, usize),
    file: Option<&Path>,
) -> anyhow::Result<()> {
    let all = match file {
        Some(file) => input::read(&[], Some(file))?,
        None => args.text.clone().unwrap_or_else(|| TEXT.to_owned()),
    };
    let texts: Vec<String> =
        all.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if texts.is_empty() {
        let file = file.unwrap_or(Path::new("--text"));
        return Err(UsageError(format!("{}: no text in it; give one in each line", file.display())).into());
    }
    for text in &texts {
        // What cannot be spoken is an error before anything is timed.
        drop(engine.stream(text, options)?);
    }
    engine.warm_up_for_callers(options, streams)?;
    let requests = texts.len() * args.runs as usize;
    let load = Load { texts: &texts, requests, rate, streams };
    let Arrivals { total, served } = speak_arrivals(engine, load, options)?;
    let seconds: f64 = served.iter().map(|s| s.seconds).sum();
    let (chunks, late) = served.iter().fold((0, 0), |(all, late), s| (all + s.chunks, late + s.late));
    let underruns = if chunks == 0 { 0.0 } else { late as f64 / chunks as f64 };
    let times = [
        ("waiting", quantiles(served.iter().map(|s| ms(s.waiting)))),
        ("first audio", quantiles(served.iter().map(|s| ms(s.first_audio)))),
        ("whole text", quantiles(served.iter().map(|s| ms(s.total)))),
    ];
    let (per_second, requests_per_second) =
        (seconds / total.as_secs_f64(), requests as f64 / total.as_secs_f64());
    if args.json {
        let of = |[p50, p95, p99]: [f64; 3]| json!({ "p50": p50, "p95": p95, "p99": p99 });
        let mut report = json!({
            "requests": requests,
            "texts": texts.len(),
            "streams": streams,
            "arrivals_per_second": rate,
            "requests_per_second": requests_per_second,
            "audio_s_per_second": per_second,
            "duration_s": seconds,
            "total_ms": ms(total),
            "chunks": chunks,
            "late_chunks": late,
            "underruns": underruns,
            "peak_rss_mb": peak_rss_mb(),
            "threads": engine.threads(),
        });
        for (name, quantiles) in times {
            report[format!("{}_ms", name.replace(' ', "_"))] = of(quantiles);
        }
        return print::json(&with(report, engine_json(engine)));
    }
    let head = ["ms", "median", "95 %", "99 %"].map(str::to_owned).to_vec();
    let row = |(name, quantiles): (&str, [f64; 3])| {
        [name.to_owned()].into_iter().chain(quantiles.map(|ms| format!("{ms:.1}"))).collect()
    };
    let rows: Vec<Vec<String>> = [head].into_iter().chain(times.map(row)).collect();
    print::out(&format!(
        "{}\n{}\n{}\n\n{}\nrequests        {requests} of {} texts, {rate} arrivals per second, at most {streams} at once\n\
         throughput      {requests_per_second:.2} requests and {per_second:.2} s of audio per second\n\
         underruns       {late} of {chunks} chunks came after the sound before them was played ({:.2} %)\n",
        print::visible(engine.model_name()),
        engine.device(),
        precision_text(engine),
        print::table(&rows, &[]),
        texts.len(),
        100.0 * underruns,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_quantiles() {
        assert_eq!("poisson:2.5".parse(), Ok(Rate(2.5)));
        for wrong in
            ["", "poisson", "poisson:", "poisson:0", "poisson:-1", "poisson:NaN", "even:2", "poisson:inf"]
        {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantiles(hundred.into_iter()), [50.0, 95.0, 99.0]);
        assert_eq!(quantiles([7.0].into_iter()), [7.0; 3]);
    }
}
