//! Draws a WAV file: `cargo run -p orate-audio --example plot -- in.wav out.png`

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        return Err("usage: plot IN.wav OUT.png".into());
    };
    let waveform = orate_audio::read_wav(input)?;
    orate_audio::plot_png(&waveform.samples, waveform.sample_rate, input, output)?;
    Ok(())
}
