//! Encodes a recording, and prints how fast:
//! `cargo run -p orate-audio --all-features --example encode -- IN OUT [SAMPLE_RATE]`

use orate_audio::{AudioFormat, EncoderSettings, encode, read_audio};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, rate @ ..] = &args[..] else { return Err("IN and OUT are missing".into()) };
    let audio = read_audio(from, 3600.0)?;
    let sample_rate = rate.first().map(|rate| rate.parse()).transpose()?;
    let settings = EncoderSettings { sample_rate, ..Default::default() };
    let start = Instant::now();
    let bytes = encode(&audio.samples, audio.sample_rate, AudioFormat::from_extension(to)?, &settings)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{} bytes, {:.0} times real time", bytes.len(), audio.duration_s() / seconds);
    Ok(std::fs::write(to, bytes)?)
}
