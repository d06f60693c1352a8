use super::*;
use crate::compare::snr_db;
use crate::decode::read_audio;
use crate::read::Waveform;

/// Speech-like: a gliding tone with overtones, and pauses.
fn speech(length: usize, sample_rate: u32) -> Vec<f32> {
    let mut phase = 0.0_f64;
    (0..length)
        .map(|i| {
            let t = i as f64 / f64::from(sample_rate);
            phase += std::f64::consts::TAU * (140.0 + 40.0 * (3.0 * t).sin()) / f64::from(sample_rate);
            let voice: f64 = (1..20).map(|k| (phase * f64::from(k)).sin() / f64::from(k)).sum();
            let loudness = (0.5 - 0.5 * (std::f64::consts::TAU * 2.3 * t).cos()).powi(2);
            (0.3 * loudness * voice) as f32
        })
        .collect()
}

fn new(format: AudioFormat, rate: u32) -> StreamEncoder {
    StreamEncoder::new(format, rate, &EncoderSettings::default()).unwrap()
}

/// The stream of samples in pieces of these lengths, in turn.
fn stream(mut encoder: StreamEncoder, mut samples: &[f32], pieces: &[usize]) -> Vec<u8> {
    let mut bytes = vec![];
    for &piece in pieces.iter().cycle() {
        let (now, later) = samples.split_at(piece.min(samples.len()));
        encoder.push(now, &mut bytes).unwrap();
        samples = later;
        if samples.is_empty() {
            break;
        }
    }
    encoder.finish(&mut bytes).unwrap();
    bytes
}

/// Decodes a stream, or part of one, with decoders of others.
fn decode(bytes: &[u8], format: AudioFormat) -> Waveform {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip").with_extension(format.extension());
    let bytes = match format {
        AudioFormat::Raw16 => [wav_header(WavFormat::Pcm16), bytes.to_vec()].concat(),
        AudioFormat::RawFloat => [wav_header(WavFormat::Float32), bytes.to_vec()].concat(),
        _ => bytes.to_vec(),
    };
    std::fs::write(&path, bytes).unwrap();
    read_audio(&path, 1e4).unwrap_or_else(|error| panic!("{format:?}: {error:?}"))
}

fn wav_header(format: WavFormat) -> Vec<u8> {
    crate::stream::wav_stream_header(24_000, format)
}

/// Rates that the tests use: those of models, and of telephones.
fn rates(format: AudioFormat) -> Vec<u32> {
    let all = [8000, 16_000, 22_050, 24_000, 44_100, 48_000];
    match format {
        AudioFormat::Raw16 | AudioFormat::RawFloat => vec![24_000],
        _ => all
            .into_iter()
            .filter(|rate| format.sample_rates().is_none_or(|all| all.contains(rate)))
            .collect(),
    }
}

/// Least SNR in dB of the decoded stream.
fn least_snr(format: AudioFormat) -> f64 {
    match format {
        AudioFormat::WavFloat | AudioFormat::RawFloat => 300.0,
        AudioFormat::Wav16 | AudioFormat::Flac | AudioFormat::Raw16 => 75.0,
        _ => 20.0,
    }
}

#[test]
fn pieces_joined_are_one_piece() {
    for format in AudioFormat::available() {
        for rate in rates(format) {
            let samples = speech(rate as usize / 2 + 17, rate);
            let whole = stream(new(format, rate), &samples, &[samples.len()]);
            for pieces in [&[1][..], &[2047], &[2048], &[960, 1, 0, 5000], &[577, 3]] {
                let parts = stream(new(format, rate), &samples, pieces);
                assert!(parts == whole, "{format:?} at {rate} Hz, pieces of {pieces:?}");
            }
            // Also through a resampler.
            let from = if rate == 44_100 { 24_000 } else { 44_100 };
            let settings = EncoderSettings { sample_rate: Some(rate), ..Default::default() };
            let encoder = || StreamEncoder::new(format, from, &settings).unwrap();
            let whole = stream(encoder(), &samples, &[samples.len()]);
            assert!(
                stream(encoder(), &samples, &[123, 4567, 1]) == whole,
                "{format:?} from {from} to {rate} Hz"
            );
        }
    }
}
