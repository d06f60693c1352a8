//! Texts that arrive at random times, as at a server: how long callers wait, and whether sound stops.

use orate::{Engine, Options, Result};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What arrives, and how much of it is spoken at once.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Texts, which arrive in turn.
    pub texts: &'a [String],
    /// Number of arrivals.
    pub requests: usize,
    /// Arrivals per second in the mean, of a Poisson process.
    pub rate: f64,
    /// Most texts that are spoken at once; others wait, the oldest first.
    pub streams: usize,
}

/// A text that was spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// From its arrival to when it is spoken.
    pub waiting: Duration,
    /// From its arrival to its first audio.
    pub first_audio: Duration,
    /// From its arrival to its last audio.
    pub total: Duration,
    /// Seconds of audio.
    pub seconds: f64,
    /// Chunks after the first one.
    pub chunks: usize,
    /// How many of them came after a player that began with the first chunk had played all before them.
    pub late: usize,
}

/// What a load took.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals {
    /// From the first arrival to the last audio.
    pub total: Duration,
    /// Each text, in the order of arrival.
    pub served: Vec<Served>,
}

/// Speaks texts that arrive at random times. The times depend on the seed of `options` alone, and so do the
/// samples.
///
/// # Errors
/// As [`Engine::stream`], for the first text that fails.
pub fn speak_arrivals(engine: &Engine, load: Load<'_>, options: &Options) -> Result<Arrivals> {
    let times = arrivals(load, options.seed);
    let waiting = Mutex::new((VecDeque::new(), false));
    let came = Condvar::new();
    let lock = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let served = std::thread::scope(|threads| {
        let work = || {
            let mut served = vec![];
            loop {
                let mut queue = lock();
                let request = loop {
                    if let Some(request) = queue.0.pop_front() {
                        break request;
                    }
                    if queue.1 {
                        return Ok(served);
                    }
                    queue = came.wait(queue).unwrap_or_else(PoisonError::into_inner);
                };
                drop(queue);
                let (i, arrived): (usize, Instant) = request;
                let seed = options.seed.wrapping_add(i as u64);
                let text = &load.texts[i % load.texts.len()];
                let result = serve(engine, text, &Options { seed, ..options.clone() }, arrived);
                if result.is_err() {
                    lock().0.clear();
                }
                served.push((i, result?));
            }
        };
        let workers: Vec<_> = (0..load.streams).map(|_| threads.spawn(work)).collect();
        for (i, time) in times.into_iter().enumerate() {
            let arrival = start + time;
            std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
            lock().0.push_back((i, arrival));
            came.notify_one();
        }
        lock().1 = true;
        came.notify_all();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<Vec<_>>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let total = start.elapsed();
    let mut served: Vec<(usize, Served)> = served.into_iter().flatten().collect();
    served.sort_by_key(|(i, _)| *i);
    Ok(Arrivals { total, served: served.into_iter().map(|(_, served)| served).collect() })
}

fn serve(engine: &Engine, text: &str, options: &Options, arrived: Instant) -> Result<Served> {
    let waiting = arrived.elapsed();
    let mut served = Served { waiting, ..Served::default() };
    for chunk in engine.stream(text, options)? {
        let samples = chunk?.samples.len();
        if samples == 0 {
            continue;
        }
        let now = arrived.elapsed();
        if served.first_audio.is_zero() {
            served.first_audio = now;
        } else {
            served.chunks += 1;
            served.late += usize::from((now - served.first_audio).as_secs_f64() > served.seconds);
        }
        served.seconds += samples as f64 / f64::from(engine.sample_rate());
    }
    served.total = arrived.elapsed();
    Ok(served)
}

/// Times of arrivals since the start.
fn arrivals(load: Load<'_>, seed: u64) -> Vec<Duration> {
    let mut state = seed;
    let mut time = 0.0;
    let next = |_| {
        // SplitMix64 (Steele et al. 2014).
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let uniform = ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        time -= (1.0 - uniform).ln() / load.rate;
        Duration::from_secs_f64(time)
    };
    (0..load.requests).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate::{DeviceChoice, EngineOptions, ModelSource};

    #[test]
    fn arrivals_are_a_poisson_process() {
        let texts = [String::new()];
        let load = Load { texts: &texts, requests: 20_000, rate: 8.0, streams: 1 };
        let times = arrivals(load, 7);
        assert!(times.is_sorted() && times == arrivals(load, 7) && times != arrivals(load, 8));
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Of an exponential distribution both are those of the rate.
        assert!((mean - 0.125).abs() < 0.004 && (variance.sqrt() - 0.125).abs() < 0.006, "{mean} {variance}");
    }

    #[test]
    fn every_text_is_served_once() {
        let voice = concat!(env!("CARGO_MANIFEST_DIR"), "/../../voices/orate-default/orate-default.gguf");
        let (model, device) = (ModelSource::Path(voice.into()), DeviceChoice::Cpu);
        let options = EngineOptions { model, device, ..EngineOptions::default() };
        let engine = Engine::with_options(options).expect("the built-in voice");
        let texts = ["One.", "Two and three."].map(str::to_owned);
        let load = Load { texts: &texts, requests: 5, rate: 200.0, streams: 2 };
        let all = speak_arrivals(&engine, load, &Options::default()).expect("speaks");
        assert_eq!(all.served.len(), 5);
        for served in &all.served {
            assert!(served.waiting <= served.first_audio && served.first_audio <= served.total);
            assert!(served.seconds > 0.2 && served.late <= served.chunks, "{served:?}");
        }
        let longest =
            |parity: usize| all.served.iter().skip(parity).step_by(2).map(|s| s.seconds).sum::<f64>();
        assert!(longest(1) / 2.0 > longest(0) / 3.0, "texts come in turn: {all:?}");
        let bad = [String::from("漢")];
        let load = Load { texts: &bad, ..load };
        assert!(speak_arrivals(&engine, load, &Options::default()).is_err());
    }
}
