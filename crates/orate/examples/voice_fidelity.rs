//! How near an engine's speech is to the PyTorch reference of our voices, given the same noise.
//!
//! ```sh
//! python training/reference.py VOICE_FOLDER REFERENCES        # speaks 30 sentences with PyTorch
//! cargo run --release -p orate --example voice_fidelity -- REFERENCES MODEL OUT
//! python training/wer.py REFERENCES/sentences.txt OUT         # word error rate of what was spoken
//! ```
//!
//! For each sentence: the largest difference between the waveforms as a share of the largest sample, the
//! signal-to-noise ratio, and the log-spectral distance. `OUT` gets a file for each sentence.

use orate::{Audio, Engine};
use orate_audio::{log_spectral_distance_db, snr_db};
use orate_models::supertonic::Noise;
use orate_weights::{SafeTensors, WeightSource};
use std::error::Error;
use std::path::{Path, PathBuf};

/// What the reference computed for one sentence.
struct Reference {
    ids: Vec<i32>,
    frames: usize,
    /// `[L, D·K]`, channels last.
    noise: Vec<f32>,
    steps: usize,
    /// Seconds.
    duration: f32,
    wav: Vec<f32>,
}

impl Reference {
    fn open(path: &Path) -> Result<Reference, Box<dyn Error>> {
        let file = SafeTensors::open(path)?;
        let floats = |name: &str| Ok::<_, Box<dyn Error>>(file.get(name)?.to_f32());
        let shape = file.get("noise")?.shape.clone();
        let &[1, channels, frames] = shape.as_slice() else {
            return Err(format!("{}: noise of shape {shape:?}", path.display()).into());
        };
        let noise = floats("noise")?;
        let channels_last = (0..frames * channels).map(|i| noise[i % channels * frames + i / channels]);
        Ok(Reference {
            ids: floats("text_ids")?.iter().map(|x| *x as i32).collect(),
            frames,
            noise: channels_last.collect(),
            steps: (1..).take_while(|k| file.contains(&format!("latent_{k}"))).count(),
            duration: floats("duration")?[0],
            wav: floats("wav")?,
        })
    }
}

/// Speaks the reference's ids with its noise and length; also the predicted duration in seconds.
fn speak(engine: &Engine, r: &Reference) -> Result<(Vec<f32>, f32), Box<dyn Error>> {
    let model = engine.model_as::<orate::supertonic::Supertonic>().expect("a Supertonic model");
    let voice = model.voice(model.files().default_voice())?;
    let mut s = model.session();
    s.set_text(&[(&r.ids, &voice)])?;
    let duration = s.durations()?[0];
    s.encode_text()?;
    s.prepare(&[r.frames], r.steps, Noise::Given(&r.noise))?;
    s.denoise(&|| true)?;
    let mut wav = vec![];
    s.vocode(&mut wav)?;
    Ok((wav, duration))
}

/// Mean, least and largest.
fn summary(name: &str, values: &[f64]) -> String {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    format!("{name:<32} mean {mean:10.3e}  least {least:10.3e}  most {most:10.3e}")
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(PathBuf::from);
    let (Some(references), Some(model), Some(out)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: voice_fidelity REFERENCES MODEL OUT".into());
    };
    let engine = Engine::open(model)?;
    std::fs::create_dir_all(&out)?;
    let rate = engine.sample_rate();
    let (mut waveform, mut durations, mut snr, mut distance) = (vec![], vec![], vec![], vec![]);
    let sentences = std::fs::read_to_string(references.join("sentences.txt"))?;
    for i in 0..sentences.lines().count() {
        let r = Reference::open(&references.join(format!("{i:03}.safetensors")))?;
        let (wav, duration) = speak(&engine, &r)?;
        if wav.len() != r.wav.len() {
            return Err(
                format!("sentence {i}: {} samples, the reference has {}", wav.len(), r.wav.len()).into()
            );
        }
        let largest = r.wav.iter().fold(0f32, |m, x| m.max(x.abs()));
        let difference = wav.iter().zip(&r.wav).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        let spoken = (r.duration * rate as f32) as usize;
        waveform.push(f64::from(difference / largest));
        durations.push(f64::from((duration / r.duration - 1.0).abs()));
        snr.push(snr_db(&r.wav[..spoken], &wav[..spoken])?);
        distance.push(log_spectral_distance_db(&r.wav[..spoken], &wav[..spoken])?);
        Audio { samples: wav[..spoken].to_vec(), sample_rate: rate }
            .write(out.join(format!("{i:03}.wav")))?;
    }
    println!("{} on {}, {} sentences", engine.model_name(), engine.device(), waveform.len());
    println!("{}", summary("largest difference, share of peak", &waveform));
    println!("{}", summary("duration, share", &durations));
    println!("{}", summary("signal to noise, dB", &snr));
    println!("{}", summary("log-spectral distance, dB", &distance));
    Ok(())
}
