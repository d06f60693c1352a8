//! What the server costs beside the engine alone, both in one process and in turn: time to first audio, CPU
//! time, and requests per second.
//!
//! ```text
//! cargo run --release -p orate-server --example overhead [MODEL] [TEXTS]
//! ```

use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Options};
use orate_server::{Listener, Served, Server, Settings, serve};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TEXT: &str = "The kettle is on, and the day is yours.";

/// Speaks a text, and returns the time to its first audio and to its end.
type Speak<'a> = &'a (dyn Fn() -> [Duration; 2] + Sync);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().map_or(ModelSource::BuiltIn, |path| ModelSource::Path(path.into()));
    let texts = args.next().map_or(Ok(40), |texts| texts.parse())?;
    let engine =
        Engine::with_options(EngineOptions { model, device: DeviceChoice::Cpu, ..EngineOptions::default() })?;
    let served = Served { id: "model".to_owned(), engine: engine.clone(), streams: None };
    let streams = served.streams();
    engine.warm_up_for_callers(&Options::default(), streams)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::new(Settings { quiet: true, ..Settings::default() });
    server.set_models(vec![served])?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        serve(&server, Listener::Tcp(listener), std::future::pending(), Duration::ZERO).await;
    });

    let rate = engine.sample_rate();
    let other = if rate == 24_000 { 44_100 } else { 24_000 };
    // As in the server, on another thread than that which waits.
    let alone = || std::thread::scope(|threads| threads.spawn(|| speak(&engine)).join().expect("no panic"));
    let (own, resampled) = (|| ask(address, rate), || ask(address, other));
    println!("{}, {}, {rate} Hz, {streams} streams", engine.model_name(), engine.device());
    let ways: [(&str, Speak<'_>); 3] =
        [("engine alone", &alone), ("server, pcm", &own), ("server, resampled", &resampled)];
    // Each text is spoken in every way in turn, so that other load on the machine meets all alike.
    let [mut first, mut cpu] = [0; 2].map(|_| vec![vec![]; ways.len()]);
    for _ in 0..texts {
        for (i, (_, speak)) in ways.iter().enumerate() {
            let before = cpu_time();
            first[i].push(speak()[0]);
            cpu[i].push(cpu_time() - before);
        }
    }
    println!("one caller: first audio (best, median) and CPU time of a text (best, median)");
    for (i, (name, _)) in ways.iter().enumerate() {
        let [audio, compute] = [&mut first[i], &mut cpu[i]]
            .map(|times| [0.0, 0.5].map(|part| format!("{:8.2} ms", ms(quantile(times, part)))).concat());
        println!("  {name:18}{audio}    {compute}");
    }
    println!("{streams} callers: requests per second, time of a request (median, 95 %)");
    let mut all = vec![(Duration::ZERO, vec![]); 2];
    for _ in 0..4 {
        for (i, (_, speak)) in ways[..2].iter().enumerate() {
            let (time, mut times) = at_once(*speak, streams, texts / 4 + 1);
            all[i].0 += time;
            all[i].1.append(&mut times);
        }
    }
    for ((name, _), (time, times)) in ways.iter().zip(&mut all) {
        let rate = times.len() as f64 / time.as_secs_f64();
        let [median, late] = [0.5, 0.95].map(|part| ms(quantile(times, part)));
        println!("  {name:18} {rate:7.2} /s {median:7.1} ms {late:7.1} ms");
    }
    Ok(())
}

fn speak(engine: &Engine) -> [Duration; 2] {
    let begun = Instant::now();
    let mut stream = engine.stream(TEXT, &Options::default()).expect("speaks");
    let mut samples = stream.next().expect("audio").expect("speaks").samples.len();
    let first = begun.elapsed();
    samples += stream.map(|chunk| chunk.expect("speaks").samples.len()).sum::<usize>();
    assert!(samples > 1000);
    [first, begun.elapsed()]
}

fn ask(address: SocketAddr, rate: u32) -> [Duration; 2] {
    let body =
        format!(r#"{{"model":"model","input":"{TEXT}","response_format":"pcm","sample_rate":{rate}}}"#);
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let head = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let (mut answer, mut buffer) = (vec![], vec![0; 1 << 16]);
    let mut first = Duration::ZERO;
    loop {
        let count = stream.read(&mut buffer).expect("it answers");
        if count == 0 {
            break;
        }
        if first.is_zero() {
            first = begun.elapsed();
        }
        answer.extend_from_slice(&buffer[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\r\n0\r\n\r\n"));
    [first, begun.elapsed()]
}

/// Speaks `count` texts from `callers` threads; returns the time of all, and of each.
fn at_once(speak: Speak<'_>, callers: usize, count: usize) -> (Duration, Vec<Duration>) {
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let work = || {
        let mut times = vec![];
        while next.fetch_add(1, Ordering::Relaxed) < count {
            times.push(speak()[1]);
        }
        times
    };
    let times = std::thread::scope(|threads| {
        let callers: Vec<_> = (0..callers).map(|_| threads.spawn(work)).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    (begun.elapsed(), times)
}

fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part).round() as usize]
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes this struct only.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
