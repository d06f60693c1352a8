//! Reads audio of all common kinds: WAV, FLAC, MP3, Vorbis and Opus in Ogg, and AAC in MP4.
//!
//! The content determines the kind of a file; its extension is only a hint. Several channels are averaged to
//! one.

use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::core::meta::MetadataOptions;

use orate_files::shown;

use crate::error::{AudioError, Cause, MAX_SAMPLE_RATE, Result, check_sample_rate};
use crate::read::Waveform;
use crate::wav_length::{HEADER, OpenEnd};

/// Maximum bytes of a recording; four hours of CD audio are less.
const MAX_BYTES: u64 = 4 << 30;

/// What is accepted of a recording.
#[derive(Clone, Copy)]
struct Limits {
    seconds: f64,
    channels: usize,
    /// In Hz.
    sample_rate: u32,
    /// For decoding.
    time: Duration,
}

impl Limits {
    fn of_a_file(seconds: f64) -> Limits {
        Limits { seconds, channels: usize::MAX, sample_rate: MAX_SAMPLE_RATE, time: Duration::MAX }
    }

    fn of_bytes(seconds: f64) -> Limits {
        Limits { seconds, channels: 8, sample_rate: 192_000, time: Duration::from_secs(10) }
    }
}

/// Reads an audio file or pipe, at most `max_seconds` of it. A streamed WAV file, whose header says "length
/// unknown", is read to its end.
///
/// # Errors
///
/// [`AudioError::OpenAudio`] if the file is missing, a folder, a device or larger than 4 GiB,
/// [`AudioError::ReadAudio`] if it is damaged or of an unknown kind, [`AudioError::CutShort`] if it ends
/// before the length that its header states or inside a page of Opus (MP3 and Vorbis state no length, and are
/// read as far as they go), [`AudioError::TooLong`] as soon as more than `max_seconds` have been decoded.
pub fn read_audio(path: impl AsRef<Path>, max_seconds: f64) -> Result<Waveform> {
    let path = path.as_ref();
    let file = open(path).map_err(|source| AudioError::OpenAudio { path: path.to_owned(), source })?;
    decode_safely(path, || source(file, max_seconds), Limits::of_a_file(max_seconds))
}

/// As [`read_audio`], from a stream such as standard input. `name` stands for its path in errors.
///
/// # Errors
///
/// As [`read_audio`].
pub fn read_audio_from(
    name: &str,
    mut reader: impl Read + Send + Sync + 'static,
    max_seconds: f64,
) -> Result<Waveform> {
    let source = || stream(beginning(&mut reader)?, reader, max_seconds);
    decode_safely(Path::new(name), source, Limits::of_a_file(max_seconds))
}

/// As [`read_audio`], for the bytes of a file, which may be a stranger's: at most 8 channels, 192 kHz, and 10
/// seconds of decoding. `name` stands for its path in errors; its extension is a hint.
///
/// # Errors
///
/// As [`read_audio`].
pub fn read_audio_bytes(name: &str, mut bytes: Vec<u8>, max_seconds: f64) -> Result<Waveform> {
    if let Some(open) = OpenEnd::find(&bytes) {
        open.close(&mut bytes);
    }
    decode_safely(Path::new(name), || Ok(Box::new(Cursor::new(bytes))), Limits::of_bytes(max_seconds))
}

fn decode_safely(
    path: &Path,
    source: impl FnOnce() -> io::Result<Box<dyn MediaSource>>,
    limits: Limits,
) -> Result<Waveform> {
    // Decoders panic on some damaged files, such as a WAV file with 65,535 channels in a build with overflow
    // checks.
    catch_unwind(AssertUnwindSafe(|| decode(path, source, limits)))
        .unwrap_or_else(|_| Err(recording_error(path, "the decoder failed on damaged data".into())))
}

fn decode(
    path: &Path,
    source: impl FnOnce() -> io::Result<Box<dyn MediaSource>>,
    limits: Limits,
) -> Result<Waveform> {
    let mut recording = Recording::new(path, limits);
    let failed = |source: Cause| recording_error(path, source);
    let (is_opus, source) = source().and_then(opus_in_ogg).map_err(|error| failed(error.into()))?;
    if is_opus {
        return decode_opus(source, recording);
    }
    let mut hint = Hint::new();
    if let Some(ending) = path.extension().and_then(|e| e.to_str()) {
        hint.with_extension(ending);
    }
    let stream = MediaSourceStream::new(source, Default::default());
    let mut format = symphonia::default::get_probe()
        .probe(&hint, stream, FormatOptions::default(), MetadataOptions::default())
        .map_err(|error| failed(error.into()))?;
    let track = format.default_track(TrackType::Audio);
    let (id, params) = track
        .and_then(|track| Some((track.id, track.codec_params.as_ref()?.audio()?.clone())))
        .ok_or_else(|| failed("there is no audio in it".into()))?;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(&params, &AudioDecoderOptions::default())
        .map_err(|error| failed(error.into()))?;

    let broken = |error: Error| match error {
        Error::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            AudioError::CutShort { path: path.to_owned() }
        }
        error => failed(error.into()),
    };
    let mut interleaved = Vec::new();
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) if packet.track_id == id => packet,
            Ok(Some(_)) => continue,
            // End of the recording, even if another stream follows in the same file.
            Ok(None) | Err(Error::ResetRequired) => break,
            Err(error) => return Err(broken(error)),
        };
        let decoded = decoder.decode(&packet).map_err(broken)?;
        let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
        decoded.copy_to_vec_interleaved(&mut interleaved);
        recording.add(rate, channels, &interleaved)?;
    }
    Ok(recording.waveform)
}

/// Whether a stream is Opus in Ogg, and the stream from its beginning. The first page of such a stream has
/// one packet, which begins so.
fn opus_in_ogg(mut source: Box<dyn MediaSource>) -> io::Result<(bool, Box<dyn MediaSource>)> {
    let mut first = vec![];
    source.by_ref().take(64).read_to_end(&mut first)?;
    let is_opus = first.starts_with(b"OggS") && first.windows(8).any(|bytes| bytes == b"OpusHead");
    if source.is_seekable() {
        source.rewind()?;
        return Ok((is_opus, source));
    }
    Ok((is_opus, Box::new(ReadOnlySource::new(Cursor::new(first).chain(source)))))
}

#[cfg(not(feature = "opus"))]
fn decode_opus(_: Box<dyn MediaSource>, recording: Recording<'_>) -> Result<Waveform> {
    Err(recording_error(recording.path, "Opus is read with the feature `opus` only".into()))
}

/// Decodes Opus in Ogg to 48 kHz. A recording whose last page is not marked as the last is read as far as it
/// goes; one that ends inside of a page is cut short.
#[cfg(feature = "opus")]
fn decode_opus(source: Box<dyn MediaSource>, mut recording: Recording<'_>) -> Result<Waveform> {
    use opus_pure::{Error, MAX_PACKET_SAMPLES, OggOpusReader, OggPacket, Trim};

    const RATE: u32 = 48_000;
    let path = recording.path;
    let failed = |error: Error| match error {
        Error::InvalidStream(why) if why.starts_with("stream ends") => {
            AudioError::CutShort { path: path.to_owned() }
        }
        error => recording_error(path, error.into()),
    };
    let mut reader = OggOpusReader::new(source).map_err(failed)?;
    let channels = usize::from(reader.head().channel_count);
    if channels > 2 {
        let problem = format!("it has {channels} channels; of Opus, 2 are the most");
        return Err(recording_error(path, problem.into()));
    }
    let mut decoder = reader.head().decoder(RATE as i32).map_err(failed)?;
    let mut trim = Trim::new(reader.head(), RATE as i32, channels).map_err(failed)?;
    let (mut packet, mut block) = (OggPacket::default(), vec![0.0; MAX_PACKET_SAMPLES * channels]);
    while reader.read_packet_into(&mut packet).map_err(failed)? {
        let count = decoder.decode(&packet.data, MAX_PACKET_SAMPLES, &mut block).map_err(failed)?;
        recording.add(RATE, channels, trim.keep(&packet, &block[..count * channels]))?;
    }
    Ok(recording.waveform)
}

fn recording_error(path: &Path, source: Cause) -> AudioError {
    AudioError::ReadAudio { path: path.to_owned(), source }
}

/// What is decoded of a recording so far.
struct Recording<'a> {
    path: &'a Path,
    limits: Limits,
    begun: Instant,
    waveform: Waveform,
}

impl<'a> Recording<'a> {
    fn new(path: &'a Path, limits: Limits) -> Self {
        Recording { path, limits, begun: Instant::now(), waveform: Waveform::default() }
    }

    /// Adds the mean of all channels.
    fn add(&mut self, rate: u32, channels: usize, interleaved: &[f32]) -> Result<()> {
        let failed = |source: Cause| recording_error(self.path, source);
        check_sample_rate(rate).map_err(|error| failed(error.into()))?;
        let before = self.waveform.sample_rate;
        let problem = match self.limits {
            l if rate > l.sample_rate => format!("it has {rate} Hz; {} are the most", l.sample_rate),
            l if channels > l.channels => format!("it has {channels} channels; {} are the most", l.channels),
            l if self.begun.elapsed() > l.time => format!("decoding it took more than {:?}", l.time),
            _ if channels == 0 => "it has no channels".to_owned(),
            _ if before != 0 && before != rate => {
                format!("its sample rate changes from {before} to {rate} Hz")
            }
            _ => String::new(),
        };
        if !problem.is_empty() {
            return Err(failed(problem.into()));
        }
        self.waveform.sample_rate = rate;
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() / channels as f32;
        match channels {
            1 => self.waveform.samples.extend_from_slice(interleaved),
            n => self.waveform.samples.extend(interleaved.chunks_exact(n).map(mean)),
        }
        if self.waveform.duration_s() > self.limits.seconds {
            let (what, limit_s) = (shown(self.path).to_string(), self.limits.seconds);
            return Err(AudioError::TooLong { what, limit_s });
        }
        Ok(())
    }
}

/// Opens a file or pipe. Devices are refused, as they may never end.
fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?;
    if kind.len() > MAX_BYTES {
        let problem = format!("{} bytes; recordings have at most {MAX_BYTES}", kind.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    if !kind.is_file() && !is_pipe(&kind) {
        let problem = if kind.is_dir() { "this is a folder" } else { "neither a file nor a pipe" };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    File::open(path)
}

#[cfg(unix)]
fn is_pipe(kind: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &fs::Metadata) -> bool {
    false
}

/// Input of the decoder: the file, or what [`stream`] makes of it.
fn source(mut file: File, max_seconds: f64) -> io::Result<Box<dyn MediaSource>> {
    let beginning = beginning(&mut file)?;
    if OpenEnd::find(&beginning).is_none() && file.rewind().is_ok() {
        return Ok(Box::new(file));
    }
    stream(beginning, file, max_seconds)
}

/// First bytes of a recording, in which headers are looked for.
fn beginning(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    reader.take(HEADER as u64).read_to_end(&mut bytes)?;
    match bytes.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty")),
        false => Ok(bytes),
    }
}

/// Input of the decoder where `rest` follows `beginning`: as it comes, or a copy. The copy of a WAV stream
/// has its length in the header.
fn stream(
    mut beginning: Vec<u8>,
    rest: impl Read + Send + Sync + 'static,
    max_seconds: f64,
) -> io::Result<Box<dyn MediaSource>> {
    if let Some(open) = OpenEnd::find(&beginning) {
        // One second more, to detect that a recording is too long.
        open.read_rest(&mut beginning, rest, max_seconds + 1.0)?;
        open.close(&mut beginning);
        return Ok(Box::new(Cursor::new(beginning)));
    }
    let mut rest = rest.take(MAX_BYTES);
    // The index of an MP4 file may come last.
    if beginning.get(4..8) == Some(b"ftyp") {
        rest.read_to_end(&mut beginning)?;
        return Ok(Box::new(Cursor::new(beginning)));
    }
    Ok(Box::new(ReadOnlySource::new(Cursor::new(beginning).chain(rest))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    /// A second of silence.
    fn wav(channels: u16, sample_rate: u32) -> Vec<u8> {
        let spec = hound::WavSpec {
            channels,
            sample_rate,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut bytes = vec![];
        let mut writer = hound::WavWriter::new(Cursor::new(&mut bytes), spec).unwrap();
        (0..u32::from(channels) * sample_rate).for_each(|_| writer.write_sample(0_i16).unwrap());
        writer.finalize().unwrap();
        bytes
    }

    #[test]
    fn bytes_of_strangers_have_limits() {
        let read = |bytes| read_audio_bytes("a.wav", bytes, 60.0);
        assert_eq!(read(wav(8, 192_000)).unwrap().sample_rate, 192_000);
        for (bytes, problem) in [
            (wav(9, 8_000), "it has 9 channels; 8 are the most"),
            (wav(1, 192_001), "it has 192001 Hz; 192000 are the most"),
        ] {
            let error = read(bytes.clone()).unwrap_err();
            assert_eq!(error.source().unwrap().to_string(), problem);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.wav");
            fs::write(&path, bytes).unwrap();
            read_audio(&path, 60.0).unwrap();
        }
    }

    /// In all ways to read, and of all kinds that state their length.
    #[test]
    fn a_recording_that_is_cut_short_is_an_error_that_says_so() {
        use crate::AudioFormat;
        let tone: Vec<f32> = (0..24_000).map(|i| (i as f32 * 0.05).sin() * 0.3).collect();
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in [("a.wav", AudioFormat::Wav16), ("a.flac", AudioFormat::Flac)] {
            let path = folder.path().join(name);
            crate::write_audio(&path, &tone, 24_000, format).unwrap();
            let whole = fs::read(&path).unwrap();
            assert_eq!(read_audio(&path, 60.0).unwrap().samples.len(), 24_000);
            let half = whole[..whole.len() / 2].to_vec();
            fs::write(&path, &half).unwrap();
            for cut in [
                read_audio(&path, 60.0),
                read_audio_bytes(name, half.clone(), 60.0),
                read_audio_from(name, Cursor::new(half), 60.0),
            ] {
                let error = cut.unwrap_err().to_string();
                assert!(error.contains(&format!("{name}: this recording is cut short")), "{error}");
            }
        }
    }

    /// A tone of one or two channels, of which the second is silent, as Opus in Ogg.
    #[cfg(feature = "opus")]
    fn opus(channels: usize, tone: &[f32]) -> Vec<u8> {
        use opus_pure::{Application, MAX_PACKET_BYTES, OggOpusWriter, OpusEncoder, OpusHead};
        let mut encoder = OpusEncoder::new(48_000, channels, Application::Audio).unwrap();
        encoder.bitrate_bps = 96_000;
        let mut writer = OggOpusWriter::new(vec![], OpusHead::for_encoder(&encoder, 48_000)).unwrap();
        let mut packet = vec![0; MAX_PACKET_BYTES];
        for block in tone.chunks_exact(960) {
            let all: Vec<f32> = block.iter().flat_map(|x| [*x, 0.0].into_iter().take(channels)).collect();
            let size = encoder.encode(&all, 960, &mut packet).unwrap();
            writer.write_packet(&packet[..size]).unwrap();
        }
        writer.finish().unwrap()
    }

    #[cfg(feature = "opus")]
    #[test]
    fn opus_in_ogg_is_read() {
        let tone: Vec<f32> = (0..48_000).map(|i| (i as f32 * 0.03).sin() * 0.3).collect();
        for channels in [1, 2] {
            let bytes = opus(channels, &tone);
            for read in [
                read_audio_bytes("a.ogg", bytes.clone(), 60.0),
                // The extension is only a hint, and a pipe cannot go back.
                read_audio_from("a.wav", Cursor::new(bytes.clone()), 60.0),
            ] {
                let read = read.unwrap();
                assert_eq!(read.sample_rate, 48_000);
                // What the encoder delays is left out at the beginning; it is not told where the tone ends.
                let samples = &read.samples;
                assert!((47_000..=48_000).contains(&samples.len()), "{}", samples.len());
                let gain = channels as f32;
                let n = samples.len() - 960;
                let error: f32 = (960..n).map(|i| (gain * samples[i] - tone[i]).powi(2)).sum();
                let power: f32 = tone[960..n].iter().map(|x| x * x).sum();
                assert!(error < 0.02 * power, "{channels} channels: {}", error / power);
            }
            let cut = bytes[..bytes.len() * 2 / 3].to_vec();
            let error = read_audio_bytes("a.opus", cut, 60.0).unwrap_err().to_string();
            assert!(error.contains("a.opus: this recording is cut short"), "{error}");
            let mut damaged = bytes;
            let middle = damaged.len() / 2;
            damaged[middle] ^= 1;
            assert!(matches!(read_audio_bytes("a.opus", damaged, 60.0), Err(AudioError::ReadAudio { .. })));
        }
    }

    #[test]
    fn decoding_is_given_up_when_its_time_is_over() {
        let source = || Ok(Box::new(Cursor::new(wav(1, 8_000))) as Box<dyn MediaSource>);
        let limits = Limits { time: Duration::ZERO, ..Limits::of_bytes(60.0) };
        let error = decode_safely(Path::new("a.wav"), source, limits).unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "decoding it took more than 0ns");
    }
}
