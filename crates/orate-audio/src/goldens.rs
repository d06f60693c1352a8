//! Features compared with those of the packages that they are named after; see `oracle/chatterbox/README.md`.

use crate::{
    LogMel, LogMelConfig, MelConfig, MelFilterBank, SincFilter, Spectrogram, Stft, StftConfig,
    normalize_loudness, read_wav, resample, resample_sinc, snr_db, trim_silence,
};
use orate_testing::Random;
use orate_testing::checkpoints::chatterbox_goldens;
use orate_weights::{SafeTensors, WeightSource};

/// `signal` of `oracle/chatterbox/dump_golden.py`.
pub(crate) fn signal(seed: u64, seconds: f64, rate: u32, gain: f64) -> Vec<f32> {
    let n = (seconds * f64::from(rate)) as usize;
    let mut random = Random::new(seed);
    let mut value = |i: usize| {
        let mut x = gain * (2.0 * random.unit() - 1.0);
        x *= if i < n / 8 { 0.01 } else { 1.0 };
        x *= if i >= n / 2 { 0.1 } else { 1.0 };
        if i >= n - n.div_ceil(8) { 0.0 } else { x as f32 }
    };
    (0..n).map(&mut value).collect()
}

fn golden(file: &str) -> SafeTensors {
    SafeTensors::open(chatterbox_goldens().join(format!("{file}.safetensors"))).expect("is there")
}

fn floats(file: &SafeTensors, name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = file.get(name).expect("is there");
    (tensor.shape.to_vec(), tensor.to_f32())
}

fn recording() -> Vec<f32> {
    read_wav(chatterbox_goldens().join("ref.wav")).expect("is there").samples
}

/// The mel spectrum of the VoiceEncoder: powers without a logarithm.
fn voice_encoder_mel(samples: &[f32]) -> Spectrogram {
    let stft = Stft::new(StftConfig { power: true, ..StftConfig::new(400, 160) }).expect("sound settings");
    let bank = MelFilterBank::new(&MelConfig::new(16_000, 400, 40)).expect("sound settings");
    bank.apply(&stft.spectrum(samples))
}

fn features(config: &LogMelConfig, samples: &[f32]) -> Spectrogram {
    LogMel::new(config).expect("sound settings").apply(samples)
}

fn campplus(samples: &[f32]) -> Spectrogram {
    let mut mel = features(&LogMelConfig::kaldi_fbank(80), samples);
    mel.subtract_mean();
    mel
}

fn prompt_mel(samples: &[f32]) -> Spectrogram {
    features(&LogMelConfig::hifi_gan(24_000, 1920, 480, 80, 8000.0), samples)
}

/// First and last frames, as many as the golden kept.
fn edges(mel: &Spectrogram, frames: usize) -> Vec<f32> {
    let half = frames / 2 * mel.bins;
    [&mel.data[..half], &mel.data[mel.data.len() - half..]].concat()
}

/// `[bands, frames]` to `[frames, bands]`.
fn frames_first(bands: usize, data: &[f32]) -> Vec<f32> {
    let frames = data.len() / bands;
    (0..frames).flat_map(|t| (0..bands).map(move |b| data[b * frames + t])).collect()
}

/// Compares values: errors up to `limit` of the largest.
fn check(what: &str, got: &[f32], want: &[f32], limit: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let error = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: {error:.1e} of {largest:.2}");
    assert!(error <= limit * largest, "{what}: {error:e} of {largest}");
}

/// Compares logarithms. torchaudio computes Kaldi's filters in `f32`, which is worth 2e-4. The lower half of
/// the range is where rounding of the transform shows, relative to the loudest bin: torch itself is off by
/// 7e-4 there.
fn check_logs(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let (mut loud, mut quiet) = (0.0_f32, 0.0_f32);
    for (a, b) in got.iter().zip(want) {
        let error = if *b > (low + high) / 2.0 { &mut loud } else { &mut quiet };
        *error = error.max((a - b).abs());
    }
    println!("{what}: {loud:.1e}, quiet bins {quiet:.1e}, from {low:.2} to {high:.2}");
    assert!(loud <= 3e-4 && quiet <= 2e-3, "{what}: {loud:e}, quiet bins {quiet:e}");
}

#[test]
fn features_of_short_signals() {
    let file = golden("front_ends");
    for (name, seconds) in [("short", 0.06), ("odd", 0.28123)] {
        let (slow, fast) = (signal(1, seconds, 16_000, 0.5), signal(1, seconds, 24_000, 0.5));
        for (kind, got) in [
            ("s3tok", features(&LogMelConfig::whisper(128), &slow)),
            ("ve", voice_encoder_mel(&slow)),
            ("campplus", campplus(&slow)),
            ("prompt", prompt_mel(&fast)),
        ] {
            let what = format!("{name}.{kind}");
            let (shape, want) = floats(&file, &what);
            assert_eq!(shape, [got.frames, got.bins], "{what}");
            match kind {
                "ve" => check(&what, &got.data, &want, 1e-5),
                _ => check_logs(&what, &got.data, &want),
            }
        }
    }
}

#[test]
fn features_of_a_recording() {
    let (file, samples) = (golden("reference_en"), recording());
    let (_, slow) = floats(&file, "s3tok.t3_wav16");

    let (shape, want) = floats(&file, "gen.prompt_feat");
    let mel = prompt_mel(&samples);
    assert_eq!(mel.frames, 252);
    check_logs("prompt", &edges(&mel, shape[1]), &want);

    // S3Gen's own 16 kHz wave
    let again = resample_sinc(&samples, 24_000, 16_000, SincFilter::Torchaudio).expect("sound rates");
    let (_, want) = floats(&file, "campplus.wav16_from_40000");
    check("torchaudio", &again[40_000..40_800], &want, 1e-5);
    let (shape, want) = floats(&file, "s3tok.log_mel");
    let mel = features(&LogMelConfig::whisper(128), &again);
    check_logs("s3tok", &edges(&mel, shape[2]), &frames_first(128, &want));
    let (shape, want) = floats(&file, "campplus.fbank_minus_mean");
    check_logs("campplus", &edges(&campplus(&again), shape[1]), &want);

    let range = trim_silence(&slow, 20.0);
    let want = file.get("ve.trim").expect("is there");
    let want: Vec<i64> = want.bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().expect("8"))).collect();
    assert_eq!([range.start as i64, range.end as i64], want[..]);
    let mel = voice_encoder_mel(&slow[range]);
    let (shape, want) = floats(&file, "ve.mel");
    check("ve", &edges(&mel, shape[1]), &frames_first(40, &want), 1e-5);
    let (windows, _) = mel.windows(160, 77, 0.8);
    assert_eq!(windows, file.get("ve.partial_embeds").expect("is there").shape[0]);
}

/// The 16 kHz wave that VoiceEncoder and T3 prompt hear was made by soxr. The recording is noise in part, and
/// [`resample`] passes more of its top frequencies.
#[test]
fn resampling_is_close_to_soxr() {
    let (_, want) = floats(&golden("reference_en"), "s3tok.t3_wav16");
    let sinc = resample_sinc(&recording(), 24_000, 16_000, SincFilter::SoxrHq).expect("sound rates");
    let fft = resample(&recording(), 24_000, 16_000).expect("sound rates");
    let [sinc, fft] = [sinc, fft].map(|got| snr_db(&want, &got).expect("equally long"));
    println!("SNR {sinc:.1} dB, FFT resampler {fft:.1} dB");
    assert!(sinc > 65.0 && fft > 25.0, "SNR {sinc:.1} dB, FFT resampler {fft:.1} dB");
}

#[test]
fn loudness_of_turbo_references() {
    let mut samples = recording();
    normalize_loudness(&mut samples, 24_000, -27.0).expect("a sound rate");
    let (shape, want) = floats(&golden("reference_turbo"), "gen.prompt_feat");
    check_logs("prompt", &edges(&prompt_mel(&samples), shape[1]), &want);
}

#[test]
fn resampling_as_torchaudio() {
    let file = golden("front_ends");
    for (from, to) in [(24_000, 16_000), (16_000, 24_000), (44_100, 24_000)] {
        let input = signal(2, 0.03, from, 0.5);
        let got = resample_sinc(&input, from, to, SincFilter::Torchaudio).expect("sound rates");
        let (_, want) = floats(&file, &format!("resample.{from}_{to}"));
        check(&format!("{from} to {to}"), &got, &want, 1e-5);
    }
}

/// `runs.front_ends` of `manifest.json`.
#[test]
fn trimming_and_windows() {
    for (seed, seconds, range) in
        [(4, 1.0, 1024..9216), (5, 0.1, 0..1600), (6, 2.7, 4608..23_040), (7, 0.02, 0..320)]
    {
        assert_eq!(trim_silence(&signal(seed, seconds, 16_000, 0.5), 20.0), range, "{seconds} s");
    }
    for (frames, want) in [
        (1, 1),
        (83, 1),
        (160, 1),
        (204, 1),
        (205, 2),
        (237, 2),
        (281, 2),
        (282, 3),
        (314, 3),
        (1000, 12),
        (3001, 38),
    ] {
        let mel = Spectrogram { frames, bins: 2, data: vec![1.0; 2 * frames] };
        let (count, windows) = mel.windows(160, 77, 0.8);
        assert_eq!((count, windows.len()), (want, want * 320), "{frames} frames");
    }
}
