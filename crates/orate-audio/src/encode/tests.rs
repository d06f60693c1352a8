use super::*;
use crate::compare::snr_db;

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

/// Decodes a stream or its beginning as far as that goes; returns the rate, too. The decoders are of others,
/// except that of Opus; `scripts/audio-check` has another for that.
fn decode(bytes: &[u8], format: AudioFormat) -> (Vec<f32>, u32) {
    let int =
        |b: &[u8]| b.as_chunks().0.iter().map(|&b| f32::from(i16::from_le_bytes(b)) / 32768.0).collect();
    let float = |b: &[u8]| b.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let rate = || u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    match format {
        AudioFormat::Wav16 => (int(&bytes[44..]), rate()),
        AudioFormat::WavFloat => (float(&bytes[68..]), rate()),
        AudioFormat::Raw16 => (int(bytes), 24_000),
        AudioFormat::RawFloat => (float(bytes), 24_000),
        #[cfg(feature = "opus")]
        AudioFormat::Opus => decode_opus(bytes),
        _ => decode_compressed(bytes, format),
    }
}

fn decode_compressed(bytes: &[u8], format: AudioFormat) -> (Vec<f32>, u32) {
    use symphonia::core::codecs::audio::AudioDecoderOptions;
    use symphonia::core::formats::{TrackType, probe::Hint};
    use symphonia::core::io::{MediaSourceStream, ReadOnlySource};

    let source = ReadOnlySource::new(std::io::Cursor::new(bytes.to_vec()));
    let stream = MediaSourceStream::new(Box::new(source), Default::default());
    let mut hint = Hint::new();
    hint.with_extension(format.extension());
    let probe = symphonia::default::get_probe();
    let mut reader = probe
        .probe(&hint, stream, Default::default(), Default::default())
        .unwrap_or_else(|error| panic!("{format:?}, {} bytes: {error}", bytes.len()));
    let track = reader.default_track(TrackType::Audio).unwrap();
    let params = track.codec_params.as_ref().unwrap().audio().unwrap().clone();
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(&params, &AudioDecoderOptions::default()).unwrap();
    let (mut samples, mut piece) = (vec![], vec![]);
    while let Ok(Some(packet)) = reader.next_packet() {
        let Ok(decoded) = decoder.decode(&packet) else { break };
        assert_eq!(decoded.spec().channels().count(), 1);
        decoded.copy_to_vec_interleaved(&mut piece);
        samples.extend_from_slice(&piece);
    }
    (samples, params.sample_rate.unwrap())
}

#[cfg(feature = "opus")]
fn decode_opus(bytes: &[u8]) -> (Vec<f32>, u32) {
    use opus_pure::{MAX_PACKET_SAMPLES, OggOpusReader, Trim};

    let mut reader = OggOpusReader::new(bytes).unwrap();
    let rate = reader.head().input_sample_rate;
    let mut decoder = reader.head().decoder(rate as i32).unwrap();
    let mut trim = Trim::new(reader.head(), rate as i32, 1).unwrap();
    let mut block = vec![0.0; MAX_PACKET_SAMPLES];
    let mut samples = vec![];
    while let Ok(Some(packet)) = reader.read_packet() {
        let n = decoder.decode(&packet.data, MAX_PACKET_SAMPLES, &mut block).unwrap();
        samples.extend_from_slice(trim.keep(&packet, &block[..n]));
    }
    (samples, rate)
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

/// Samples that a decoded stream has before the first of the input.
fn delay(format: AudioFormat) -> usize {
    match format {
        AudioFormat::Mp3 => 1057,
        AudioFormat::Aac => 1024,
        _ => 0,
    }
}

/// Samples a frame, which streams are padded to.
fn frame(format: AudioFormat, rate: u32) -> usize {
    match format {
        AudioFormat::Mp3 => 576 << u32::from(rate >= 32_000),
        AudioFormat::Aac => 1024,
        _ => 0,
    }
}

/// Least SNR in dB of the decoded stream.
fn least_snr(format: AudioFormat) -> f64 {
    match format {
        AudioFormat::WavFloat | AudioFormat::RawFloat => 300.0,
        AudioFormat::Wav16 | AudioFormat::Flac | AudioFormat::Raw16 => 80.0,
        // Opus codes what is heard, not the waveform.
        AudioFormat::Opus => 14.0,
        AudioFormat::Mp3 => 35.0,
        AudioFormat::Aac => 20.0,
    }
}

/// Decodes a whole stream, checks its rate and length, and takes the delay away.
fn round_trip(format: AudioFormat, samples: &[f32], rate: u32) -> Vec<f32> {
    let bytes = stream(new(format, rate), samples, &[samples.len()]);
    let (got, got_rate) = decode(&bytes, format);
    let case = format!("{format:?} at {rate} Hz: {} samples of {}", got.len(), samples.len());
    let least = samples.len() + delay(format);
    // Players accept MP3 only after two frames.
    let most = (least + frame(format, rate)).max(2 * frame(format, rate));
    assert!(got_rate == rate && (least..=most).contains(&got.len()), "{case}");
    got[delay(format)..][..samples.len()].to_vec()
}

#[test]
fn decoders_of_others_return_the_audio() {
    for format in AudioFormat::available() {
        for rate in rates(format) {
            let samples = speech(2 * rate as usize + 17, rate);
            let got = round_trip(format, &samples, rate);
            let snr = snr_db(&samples, &got).unwrap();
            println!("{format:?} at {rate} Hz: {snr:.1} dB");
            assert!(snr > least_snr(format), "{format:?} at {rate} Hz: SNR {snr:.1} dB");
        }
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
            let whole =
                stream(StreamEncoder::new(format, from, &settings).unwrap(), &samples, &[samples.len()]);
            let resampler = StreamResampler::new(from, rate).unwrap();
            for _ in 0..2 {
                let encoder = StreamEncoder::with_resampler(format, resampler.clone(), None).unwrap();
                let parts = stream(encoder, &samples, &[123, 4567, 1]);
                assert!(parts == whole, "{format:?} from {from} to {rate} Hz");
            }
        }
    }
}

#[test]
fn bytes_go_out_at_once() {
    for format in AudioFormat::available() {
        for rate in rates(format) {
            // A resampler comes on top.
            let from = if rate == 44_100 { 48_000 } else { 44_100 };
            let settings = EncoderSettings { sample_rate: Some(rate), ..Default::default() };
            let mut encoder = StreamEncoder::new(format, from, &settings).unwrap();
            let mut bytes = vec![];
            encoder.begin(&mut bytes).unwrap();
            let header = bytes.len();
            let samples = speech(from as usize, from);
            for piece in samples.chunks(from as usize / 1000) {
                encoder.push(piece, &mut bytes).unwrap();
                if bytes.len() > header {
                    break;
                }
            }
            let ms = encoder.samples() * 1000 / u64::from(from);
            // Below 11 kHz one frame of MP3 takes 72 ms, and the resampler 12 ms. AAC looks two frames ahead.
            let most = match format {
                AudioFormat::Mp3 if rate < 11_000 => 90,
                AudioFormat::Aac => 15 + 3 * 1024 * 1000 / u64::from(rate),
                _ => 60,
            };
            assert!(ms <= most, "{format:?} at {rate} Hz: {ms} ms");
        }
    }
}

#[test]
fn a_stream_that_breaks_off_plays_up_to_there() {
    for format in AudioFormat::available() {
        let rate = 24_000;
        let samples = speech(2 * rate as usize, rate);
        let bytes = stream(new(format, rate), &samples, &[rate as usize]);
        let (whole, _) = decode(&bytes, format);
        for part in 2..40 {
            let cut = bytes.len() * part / 40 + part % 3;
            let (got, _) = decode(&bytes[..cut.min(bytes.len())], format);
            assert!(whole.starts_with(&got), "{format:?} cut at {cut}");
            // Sizes vary, but by less than a third; and up to 220 ms are on a page of Opus.
            let least = (whole.len() * part / 40) * 2 / 3;
            let lost = least.saturating_sub(got.len() + 6000);
            assert_eq!(lost, 0, "{format:?} cut at {cut} of {}: {} samples", bytes.len(), got.len());
        }
    }
}

#[test]
fn silence_a_sample_and_nothing() {
    for format in AudioFormat::available() {
        for rate in rates(format) {
            for length in [0, 1, 2, 1151, 1152, 1153, 4096] {
                // FLAC cannot be told from nothing without a frame.
                if length == 0 && format == AudioFormat::Flac {
                    continue;
                }
                let got = round_trip(format, &vec![0.0; length], rate);
                assert!(got.iter().all(|x| x.abs() < 1e-4), "{format:?}, {length} samples");
            }
            let loud = round_trip(format, &[1.0], rate);
            assert!(loud[0].is_finite());
        }
    }
}

#[test]
fn full_scale_and_beyond() {
    let rate = 24_000;
    for format in AudioFormat::available() {
        let float = matches!(format, AudioFormat::WavFloat | AudioFormat::RawFloat);
        let sine = |peak: f32| -> Vec<f32> { (0..rate).map(|i| peak * (i as f32 * 0.05).sin()).collect() };
        let snr = snr_db(&sine(1.0), &round_trip(format, &sine(1.0), rate)).unwrap();
        assert!(snr > least_snr(format), "{format:?}: SNR {snr:.1} dB at full scale");
        let clipped: Vec<f32> =
            sine(8.0).iter().map(|x| if float { *x } else { x.clamp(-1.0, 1.0) }).collect();
        let got = round_trip(format, &sine(8.0), rate);
        let snr = snr_db(&clipped, &got).unwrap();
        assert!(snr > least_snr(format).min(15.0), "{format:?}: SNR {snr:.1} dB beyond full scale");
    }
}

#[test]
fn what_is_not_finite_is_refused_and_leaves_the_stream_as_it_was() {
    for format in AudioFormat::available() {
        let samples = speech(5000, 24_000);
        let want = stream(new(format, 24_000), &samples, &[5000]);
        let mut encoder = new(format, 24_000);
        let mut bytes = vec![];
        encoder.push(&samples[..2500], &mut bytes).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = encoder.push(&[0.5, bad], &mut bytes).unwrap_err();
            assert!(matches!(error, AudioError::BadSample { position: 2501, .. }), "{error:?}");
        }
        encoder.push(&samples[2500..], &mut bytes).unwrap();
        encoder.finish(&mut bytes).unwrap();
        assert!(bytes == want, "{format:?}");
    }
}

#[test]
fn the_header_of_a_wav_stream_is_as_players_expect() {
    let header = |format| {
        let mut bytes = vec![];
        new(format, 24_000).begin(&mut bytes).unwrap();
        bytes
    };
    let bytes = header(AudioFormat::Wav16);
    assert_eq!(&bytes[..16], b"RIFF\xff\xff\xff\xffWAVEfmt ");
    assert_eq!(bytes[22..24], [1, 0]);
    assert_eq!(bytes[24..28], 24_000_u32.to_le_bytes());
    assert_eq!(bytes[28..32], 48_000_u32.to_le_bytes());
    assert_eq!(&bytes[36..], b"data\xff\xff\xff\xff");
    assert_eq!(header(AudioFormat::WavFloat).last_chunk(), Some(b"data\xff\xff\xff\xff"));
}

#[test]
fn whole_files_have_true_lengths() {
    let samples = speech(30_001, 24_000);
    let settings = EncoderSettings::default();
    let folder = tempfile::tempdir().unwrap();
    for format in [AudioFormat::Wav16, AudioFormat::WavFloat] {
        let bytes = encode(&samples, 24_000, format, &settings).unwrap();
        assert_eq!(bytes[4..8], (bytes.len() as u32 - 8).to_le_bytes());
        let reader = hound::WavReader::new(&bytes[..]).unwrap();
        assert_eq!(reader.duration(), 30_001);
    }
    let path = folder.path().join("a.flac");
    std::fs::write(&path, encode(&samples, 24_000, AudioFormat::Flac, &settings).unwrap()).unwrap();
    assert_eq!(claxon::FlacReader::open(&path).unwrap().streaminfo().samples, Some(30_001));
    // The MD5 of the samples is right, too.
    assert!(matches!(flac_codec::decode::verify(&path).unwrap(), flac_codec::decode::Verified::MD5Match));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for format in AudioFormat::available() {
        for rate in [0, u32::MAX] {
            let error = StreamEncoder::new(format, rate, &EncoderSettings::default()).unwrap_err();
            assert!(matches!(error, AudioError::SampleRate { .. }), "{format:?}: {error:?}");
        }
        if format.sample_rates().is_some() {
            let settings = EncoderSettings { sample_rate: Some(24_001), ..Default::default() };
            let error = StreamEncoder::new(format, 24_000, &settings).unwrap_err().to_string();
            assert!(error.contains("sample_rate is 24001") && error.contains("24000, "), "{error}");
            for bit_rate in [0, 1, 63_999, u32::MAX] {
                let settings = EncoderSettings { bit_rate: Some(bit_rate), ..Default::default() };
                let made = StreamEncoder::new(format, 24_000, &settings);
                assert_eq!(made.is_err(), bit_rate != 63_999 || format == AudioFormat::Mp3, "{format:?}");
            }
        }
    }
    for &format in AudioFormat::ALL.iter().filter(|format| !format.is_available()) {
        let error = StreamEncoder::new(format, 24_000, &EncoderSettings::default()).unwrap_err();
        assert!(error.to_string().contains("it has wav, wav-float, flac"), "{error}");
    }
}
