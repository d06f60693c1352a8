//! Reads files of every kind, made by other programs; bad ones are refused.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use orate_testing::Counting;
use orate_testing::fuzz::{Limits, fuzz};

use orate_audio::{
    AudioFormat, EncoderSettings, ReferenceOptions, StreamEncoder, Waveform, read_audio, read_audio_from,
    read_reference, read_wav, resample, snr_db, write_audio,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

/// The signal of the files `tone.*`: 0.8 s, with 0.1 s of silence at each end.
fn tone(rate: u32) -> Vec<f32> {
    let one = |i: u32| {
        let t = f64::from(i) / f64::from(rate);
        let envelope = ((t - 0.1) / 0.05).min((0.7 - t) / 0.05).clamp(0.0, 1.0);
        let turn = std::f64::consts::TAU * t;
        (envelope * (0.3 * (330.0 * turn).sin() + 0.15 * (1234.0 * turn + 1.0).sin())) as f32
    };
    (0..rate * 4 / 5).map(one).collect()
}

/// Signal-to-noise ratio at the best alignment, up to `most` samples apart, and that shift.
fn best_snr(want: &[f32], got: &[f32], most: usize) -> (f64, usize) {
    let at = |shift: usize| {
        let n = want.len().min(got.len() - shift);
        snr_db(&want[..n], &got[shift..shift + n]).expect("one length")
    };
    (0..=most.min(got.len() - 1)).map(|s| (at(s), s)).max_by(|a, b| a.0.total_cmp(&b.0)).expect("one shift")
}

#[test]
fn compressed_files_hold_what_was_put_in() {
    // The MP4 does not state the number of padding samples from its encoder.
    for (file, rate, factor, most) in
        [("tone.mp3", 22_050, 1.0, 0), ("tone.ogg", 44_100, 0.75, 0), ("tone.m4a", 32_000, 1.0, 2200)]
    {
        let got = read_audio(data(file), 60.0).expect(file);
        assert_eq!(got.sample_rate, rate, "{file}");
        let want: Vec<f32> = tone(rate).iter().map(|x| factor * x).collect();
        let (snr, shift) = best_snr(&want, &got.samples, most);
        println!("{file}: {} of {} samples, SNR {snr:.1} dB at {shift}", got.samples.len(), want.len());
        assert!(snr > 20.0, "{file}: SNR {snr:.1} dB");
    }
}

#[test]
fn what_we_write_we_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, limit) in [("a.wav", 4e-5), ("a.flac", 4e-5)] {
        let path = folder.path().join(file);
        write_audio(&path, &tone(24_000), 24_000, AudioFormat::from_extension(&path).expect("known"))
            .expect("writes");
        let got = read_audio(&path, 60.0).expect(file);
        assert_eq!(got.samples.len(), 19_200, "{file}");
        let worst = tone(24_000).iter().zip(&got.samples).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < limit, "{file}: {worst}");
        // The extension is only a hint.
        let renamed = folder.path().join("renamed.mp3");
        fs::rename(&path, &renamed).expect("renames");
        assert_eq!(read_audio(&renamed, 60.0).expect("as it is"), got, "{file} with another ending");
    }
}

#[test]
fn wav_files_are_read_as_by_the_reader_of_wav_files() {
    for file in ["resample-16k.wav", "resample-24k-middle.wav"] {
        assert_eq!(read_audio(data(file), 60.0).expect(file), read_wav(data(file)).expect(file), "{file}");
    }
}

/// A stream whose header says that the length is unknown.
fn streamed(samples: &[f32], sample_rate: u32, format: AudioFormat) -> Vec<u8> {
    let mut encoder = StreamEncoder::new(format, sample_rate, &EncoderSettings::default()).expect("begins");
    let mut bytes = vec![];
    encoder.push(samples, &mut bytes).expect("encodes");
    encoder.finish(&mut bytes).expect("ends");
    bytes
}

/// As written by `ffmpeg -f wav -` and `orate say -o -`: a header without a length.
#[test]
fn a_wav_stream_that_was_saved_is_read_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stream.wav");
    for format in [AudioFormat::Wav16, AudioFormat::WavFloat] {
        let bytes = streamed(&tone(24_000), 24_000, format);
        for (whole, data) in [(u32::MAX, u32::MAX), (0, 0), (bytes.len() as u32 - 8, u32::MAX)] {
            let mut bytes = bytes.clone();
            let size = bytes.windows(4).position(|w| w == b"data").expect("there are samples") + 4;
            bytes[4..8].copy_from_slice(&whole.to_le_bytes());
            bytes[size..size + 4].copy_from_slice(&data.to_le_bytes());
            bytes.push(0); // Not a whole sample.
            fs::write(&path, &bytes).expect("writes");
            let got = read_audio(&path, 60.0).expect("reads");
            assert_eq!(got, read_wav(&path).expect("reads"), "{format:?} {whole} {data}");
            assert_eq!(got.samples.len(), 19_200, "{format:?} {whole} {data}");
            assert!(read_reference(&path, &ReferenceOptions::new(24_000)).is_ok());
            let error = read_audio(&path, 0.5).expect_err("it is longer");
            assert!(error.to_string().contains("longer than 0.5 s"), "{error}");
        }
    }
}

/// A stream cannot be rewound, and the index of an MP4 file may come last.
#[test]
fn streams_hold_what_files_hold() {
    for file in ["tone.mp3", "tone.ogg", "tone.m4a", "resample-16k.wav"] {
        let bytes = fs::read(data(file)).expect(file);
        let got = read_audio_from("standard input", Cursor::new(bytes), 60.0).expect(file);
        assert_eq!(got, read_audio(data(file), 60.0).expect(file), "{file}");
    }
    let stream = streamed(&tone(24_000), 24_000, AudioFormat::Wav16);
    let got = read_audio_from("standard input", Cursor::new(stream), 60.0).expect("reads");
    assert_eq!(got.samples.len(), 19_200);
    for bad in ["", "no sound"] {
        let error = read_audio_from("standard input", bad.as_bytes(), 60.0).expect_err("no audio");
        assert!(error.to_string().starts_with("standard input: cannot read this as audio"), "{error}");
    }
}

/// Data from a pipe cannot be read twice.
#[cfg(unix)]
#[test]
fn recordings_come_through_pipes_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = streamed(&tone(24_000), 24_000, AudioFormat::Wav16);
    let complete = fs::read(write_wav(&folder.path().join("tone.wav"))).expect("reads");
    for (bytes, samples) in [(stream, 19_200), (complete, 6400)] {
        let pipe = folder.path().join(format!("pipe of {samples}.wav"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
        assert!(made.success());
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::write(pipe, bytes)
        });
        assert_eq!(read_audio(&pipe, 60.0).expect("reads").samples.len(), samples);
        writer.join().expect("writes").expect("writes");
    }
}

/// Removes frequencies above `hz`: a windowed sinc of 401 taps, only where all of them are inside.
fn below(hz: f64, rate: f64, x: &[f32]) -> Vec<f32> {
    const REACH: i32 = 200;
    let tap = |i: i32| {
        let (t, cut) = (f64::from(i), 2.0 * hz / rate);
        let sinc =
            if i == 0 { cut } else { (std::f64::consts::PI * cut * t).sin() / (std::f64::consts::PI * t) };
        sinc * (0.5 + 0.5 * (std::f64::consts::PI * t / f64::from(REACH + 1)).cos())
    };
    let taps: Vec<f64> = (-REACH..=REACH).map(tap).collect();
    x.windows(taps.len())
        .map(|w| w.iter().zip(&taps).map(|(x, t)| f64::from(*x) * t).sum::<f64>() as f32)
        .collect()
}

/// Compared with librosa's `soxr_hq`, which Qwen3-TTS's package uses. Its filter starts at 7.3 kHz, ours just
/// below 8, and the signal has noise up to there.
#[test]
fn resampling_is_close_to_that_of_the_official_package() {
    let read = |file| read_wav(data(file)).expect("committed").samples;
    let got = resample(&read("resample-16k.wav"), 16_000, 24_000).expect("resamples");
    assert_eq!(got.len(), 12_000);
    let want = read("resample-24k-middle.wav");
    let whole = snr_db(&want, &got[4000..8000]).expect("one length");
    let shared = |x: &[f32]| below(6500.0, 24_000.0, x);
    let snr = snr_db(&shared(&want), &shared(&got[4000..8000])).expect("one length");
    println!("SNR {whole:.1} dB, below 6.5 kHz {snr:.1} dB");
    assert!(whole > 25.0 && snr > 70.0, "SNR {whole:.1} dB, below 6.5 kHz {snr:.1} dB");
}

#[test]
fn a_reference_is_brought_to_the_rate_that_is_asked_for() {
    for file in ["tone.mp3", "tone.ogg", "tone.m4a"] {
        let got = read_reference(data(file), &ReferenceOptions::new(24_000)).expect(file);
        let seconds = got.len() as f64 / 24_000.0;
        // 0.6 s of tone, 0.05 s before it, 0.2 s after it.
        assert!((0.75..0.9).contains(&seconds), "{file}: {seconds} s");
    }
}

/// A second of tone, at its path.
fn write_wav(path: &Path) -> &Path {
    write_audio(path, &tone(8000), 8000, AudioFormat::Wav16).expect("writes");
    path
}

#[test]
fn what_is_not_audio_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("writes");
        path
    };
    let options = ReferenceOptions::new(24_000);
    let refused = |path: &Path| read_reference(path, &options).expect_err("refused").to_string();
    for path in [folder.path().join("missing.wav"), folder.path().to_owned()] {
        let message = refused(&path);
        assert_eq!(
            message,
            format!(
                "{}: cannot open this recording. Check its name, and that it may be read.",
                path.display()
            )
        );
    }
    let mut no_rate = fs::read(write_wav(&folder.path().join("tone.wav"))).expect("reads");
    no_rate[24..28].fill(0);
    for path in [
        write("empty.wav", &[]),
        write("no_rate.wav", &no_rate),
        write(
            "text.mp3",
            b"It was a bright cold day in April, and the clocks were striking thirteen. "
                .repeat(50)
                .as_slice(),
        ),
        write(
            "noise.flac",
            &(0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>(),
        ),
    ] {
        let message = refused(&path);
        let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(message.contains(name), "{message}");
        assert!(message.contains("WAV, FLAC, MP3, Vorbis or Opus in Ogg, or AAC"), "{message}");
    }
    let long = Waveform { samples: vec![0.1; 8000 * 600], sample_rate: 8000 };
    let path = folder.path().join("long.flac");
    write_audio(&path, &long.samples, 8000, AudioFormat::from_extension(&path).expect("known"))
        .expect("writes");
    let message = refused(&path);
    assert!(message.contains("long.flac") && message.contains("longer than 60 s"), "{message}");
}

#[test]
fn damaged_files_never_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut samples: Vec<Vec<u8>> =
        ["tone.mp3", "tone.ogg", "tone.m4a"].map(|file| fs::read(data(file)).expect("committed")).into();
    for format in [AudioFormat::Wav16, AudioFormat::WavFloat, AudioFormat::Flac] {
        let path = folder.path().join("sample");
        write_audio(&path, &tone(8000)[..2000], 8000, format).expect("writes");
        samples.push(fs::read(&path).expect("reads"));
    }
    samples.push(streamed(&tone(8000)[..2000], 8000, AudioFormat::Wav16));
    // Enough for sixty seconds of many channels, and a resampler.
    let limits = Limits { growth: 0, fixed: 256 << 20 };
    for (name, sample) in
        ["mp3", "ogg", "m4a", "wav16", "wav-float", "flac", "wav-stream"].iter().zip(&samples)
    {
        let path = folder.path().join(name);
        fuzz(name, std::slice::from_ref(sample), limits, |bytes| {
            fs::write(&path, bytes).expect("writes");
            let _ = read_reference(&path, &ReferenceOptions::new(24_000)).map_err(|e| e.to_string());
            if name.starts_with("wav") {
                let _ = read_wav(&path);
            }
        });
        for cut in (0..sample.len()).step_by(sample.len() / 60) {
            fs::write(&path, &sample[..cut]).expect("writes");
            let _ = read_reference(&path, &ReferenceOptions::new(24_000));
        }
    }
}

/// Found by mutation: the product of channels and bytes overflowed in the decoder.
#[test]
fn a_file_of_too_many_channels_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("channels.wav");
    let mut bytes = fs::read(write_wav(&path)).expect("reads");
    bytes[22..24].fill(0xff);
    fs::write(&path, bytes).expect("writes");
    let message = read_audio(&path, 60.0).expect_err("refused").to_string();
    assert!(message.contains("channels.wav: cannot read this as audio"), "{message}");
}

/// Devices may never end.
#[cfg(unix)]
#[test]
fn devices_are_not_recordings() {
    for device in ["/dev/zero", "/dev/null"] {
        let error = read_audio(device, 60.0).expect_err("refused");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert_eq!(cause, "neither a file nor a pipe", "{device}");
    }
}
