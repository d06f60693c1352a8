use std::fs;
use std::path::PathBuf;

use super::*;
use crate::read_wav;

/// Half a 16-bit step, plus f32 rounding.
const PCM16_ERROR: f32 = 0.501 / 32768.0;

const FORMATS: [AudioFormat; 3] = [AudioFormat::Wav16, AudioFormat::WavFloat, AudioFormat::Flac];

fn tone(length: usize) -> Vec<f32> {
    (0..length).map(|i| 0.7 * (i as f32 * 0.05).sin() + 0.1 * (i as f32 * 1.7).cos()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Samples and rate of a file; FLAC is read by an independent decoder.
fn read_back(path: &Path, format: AudioFormat) -> (Vec<f32>, u32) {
    if format != AudioFormat::Flac {
        let waveform = read_wav(path).unwrap();
        return (waveform.samples, waveform.sample_rate);
    }
    let mut reader = claxon::FlacReader::open(path).unwrap();
    let info = reader.streaminfo();
    assert_eq!((info.channels, info.bits_per_sample), (1, 16));
    let samples: Vec<f32> = reader.samples().map(|x| x.unwrap() as f32 / 32768.0).collect();
    assert_eq!(info.samples.unwrap_or(0), samples.len() as u64);
    (samples, info.sample_rate)
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for format in FORMATS {
        for length in [0, 1, 2, 15, 16, 17, 4095, 4096, 4097, 30_001] {
            for (rate, piece) in [(24_000, 1000), (44_100, 4096), (8000, 40_000), (192_000, 7)] {
                let case = format!("{format:?}, {length} samples at {rate} Hz, {piece} at a time");
                let path = folder.path().join("clip");
                let samples = tone(length);
                let mut writer = AudioWriter::create(&path, rate, format).unwrap();
                samples.chunks(piece).for_each(|chunk| writer.write(chunk).unwrap());
                assert_eq!(writer.samples_written(), length as u64, "{case}");
                writer.finish().unwrap();

                let (got, got_rate) = read_back(&path, format);
                assert_eq!((got.len(), got_rate), (length, rate), "{case}");
                let error = got.iter().zip(&samples).fold(0.0_f32, |e, (a, b)| e.max((a - b).abs()));
                let limit = if format == AudioFormat::WavFloat { 0.0 } else { PCM16_ERROR };
                assert!(error <= limit, "{case}: {error}");
                assert_eq!(names(folder.path()), ["clip"], "{case}");
            }
        }
    }
}

#[test]
fn flac_is_smaller() {
    let folder = tempfile::tempdir().unwrap();
    let size = |format| {
        let path = folder.path().join("clip");
        write_audio(&path, &tone(48_000), 48_000, format).unwrap();
        fs::metadata(path).unwrap().len()
    };
    let (wav, flac) = (size(AudioFormat::Wav16), size(AudioFormat::Flac));
    assert_eq!(wav, 44 + 2 * 48_000);
    assert!(flac < wav * 8 / 10, "{flac} bytes of FLAC, {wav} of WAV");
}

#[test]
fn sixteen_bits_survive_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip");
    let all: Vec<f32> = (-32768..32768).map(|x| x as f32 / 32768.0).collect();
    write_audio(&path, &all, 8000, AudioFormat::Wav16).unwrap();
    assert_eq!(read_wav(&path).unwrap().samples, all);
    write_audio(&path, &[3.0], 8000, AudioFormat::WavFloat).unwrap();
    assert_eq!(read_wav(&path).unwrap().samples, [3.0]);
}

#[test]
fn samples_that_are_not_finite_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip");
    for format in FORMATS {
        for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let mut writer = AudioWriter::create(&path, 8000, format).unwrap();
            writer.write(&[0.5, 0.25]).unwrap();
            let error = writer.write(&[0.0, bad]).unwrap_err();
            assert!(error.to_string().contains(&format!("sample 3 is {shown}")), "{error}");
            assert!(matches!(writer.finish(), Err(AudioError::Abandoned { .. })));
            assert!(names(folder.path()).is_empty());
        }
    }
}

#[test]
fn an_unfinished_file_never_appears() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clip");
        let mut writer = AudioWriter::create(&path, 8000, format).unwrap();
        writer.write(&tone(50_000)).unwrap();
        assert!(!path.exists());
        drop(writer);
        assert!(names(folder.path()).is_empty(), "{format:?}");

        fs::write(&path, "what was here before").unwrap();
        let mut writer = AudioWriter::create(&path, 8000, format).unwrap();
        writer.write(&tone(50_000)).unwrap();
        drop(writer);
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was here before");
        assert_eq!(names(folder.path()), ["clip"]);
    }
}

#[test]
fn places_that_cannot_be_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let mut cases = vec![
        folder.path().join("no/such/folder/a.wav"),
        folder.path().to_owned(),
        file.join("a.wav"),
        PathBuf::new(),
        PathBuf::from("/"),
        folder.path().join(".."),
    ];
    if cfg!(target_os = "linux") {
        // Not even root may create files here.
        cases.push(PathBuf::from("/proc/a.wav"));
    }
    for path in cases {
        for format in FORMATS {
            let error = AudioWriter::create(&path, 8000, format).unwrap_err();
            assert!(matches!(error, AudioError::Create { .. }), "{path:?}: {error:?}");
        }
    }
    assert_eq!(names(folder.path()), ["file"]);
    for rate in [0, u32::MAX] {
        let error = AudioWriter::create(&file, rate, AudioFormat::Wav16).unwrap_err();
        assert!(matches!(error, AudioError::SampleRate { .. }));
    }
}

#[test]
fn wav_files_stop_before_4_gib() {
    let folder = tempfile::tempdir().unwrap();
    for (format, samples) in [(AudioFormat::Wav16, 500), (AudioFormat::WavFloat, 250)] {
        let path = folder.path().join("clip");
        let mut writer = AudioWriter::create(&path, 8000, format).unwrap();
        writer.wav_limit_bytes = 1000;
        writer.write(&tone(samples)).unwrap();
        let error = writer.write(&[0.0]).unwrap_err();
        assert!(matches!(error, AudioError::WavTooLong { limit_bytes: 1000, .. }), "{error:?}");
        assert!(matches!(writer.write(&[0.0]), Err(AudioError::Abandoned { .. })));
        assert!(matches!(writer.finish(), Err(AudioError::Abandoned { .. })));
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn long_names_have_room_for_the_temporary_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ä".repeat(125) + ".wav");
    write_audio(&path, &[0.0], 8000, AudioFormat::Wav16).unwrap();
    assert!(path.exists());
}

#[cfg(unix)]
mod unix {
    use std::io::{self, Read};
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_and_permissions_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        write_audio(&link, &[0.5], 8000, AudioFormat::Wav16).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read_wav(&file).unwrap().samples, [0.5]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_new_file_is_as_readable_as_any_other() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, clip) = (folder.path().join("plain"), folder.path().join("clip"));
        fs::write(&plain, "").unwrap();
        write_audio(&clip, &[0.5], 8000, AudioFormat::Wav16).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&plain), mode(&clip));
    }

    #[test]
    fn devices_are_written_directly() {
        for format in FORMATS {
            write_audio("/dev/null", &tone(30_000), 8000, format).unwrap();
            assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_even_at_the_very_end() {
        for format in FORMATS {
            for length in [0, 1, 100, 300_000] {
                let error = write_audio("/dev/full", &tone(length), 8000, format).unwrap_err();
                let AudioError::Write { source, .. } = &error else { panic!("{error:?}") };
                assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{format:?}, {length}");
            }
        }
    }

    #[test]
    fn a_fifo_carries_a_playable_stream() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(status.success());
        for format in FORMATS {
            let reader = std::thread::spawn({
                let fifo = fifo.clone();
                move || {
                    let mut bytes = Vec::new();
                    fs::File::open(fifo).unwrap().read_to_end(&mut bytes).unwrap();
                    bytes
                }
            });
            let samples = tone(30_000);
            write_audio(&fifo, &samples, 8000, format).unwrap();
            let copy = folder.path().join("copy");
            fs::write(&copy, reader.join().unwrap()).unwrap();
            let got = match format {
                AudioFormat::Flac => {
                    let mut reader = claxon::FlacReader::open(&copy).unwrap();
                    assert_eq!(reader.streaminfo().samples, None);
                    reader.samples().map(|x| x.unwrap() as f32 / 32768.0).collect()
                }
                _ => read_wav(&copy).unwrap().samples,
            };
            assert_eq!(got.len(), samples.len(), "{format:?}");
            assert!(got.iter().zip(&samples).all(|(a, b)| (a - b).abs() <= PCM16_ERROR));
        }
        assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    }
}
