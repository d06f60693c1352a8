//! Units joined into files.

use crate::work_folders::{open, plan};
use orate_audio::{AudioFormat, Loudness, integrated_loudness, read_wav};
use orate_book::{AssembleError, Container, State, Target, assemble};
use serde_json::json;
use std::path::Path;

/// A folder whose units are tones, each of another loudness.
fn with_tones(path: &Path) -> orate_book::WorkFolder {
    let (_, plan) = plan();
    let mut folder = open(path, &plan, &json!({}), false).unwrap();
    while let State::Claimed(mut claim) = folder.claim().unwrap() {
        let amplitude = 0.02 * (claim.index + 1) as f32;
        let tone: Vec<f32> = (0..16_000).map(|i| amplitude * (i as f32 * 0.4).sin()).collect();
        claim.write(&tone).unwrap();
        claim.finish().unwrap();
    }
    folder
}

#[test]
fn chapters_are_equally_loud_and_nothing_is_lost() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = with_tones(&temporary.path().join("parts"));
    let (book, plan) = plan();
    let path = temporary.path().join("a.wav");
    let target =
        Target { path: path.clone(), by_chapter: false, container: Container::Audio(AudioFormat::WavFloat) };
    let join = |loudness| assemble(&folder, (&book, &plan), &target, loudness, &mut |_| true).unwrap();
    let joined = join(None);
    assert_eq!((joined.seconds, joined.files), (8.0, vec![path.clone()]));
    let raw = read_wav(&path).unwrap().samples;
    assert_eq!(raw.len(), 64_000);
    assert!((raw[16_004] - 0.04 * (4.0 * 0.4_f32).sin()).abs() < 1e-7, "as they were");
    join(Some(Loudness::default()));
    let leveled = read_wav(&path).unwrap().samples;
    assert_eq!(leveled.len(), 64_000);
    for chapter in leveled.chunks(32_000) {
        let loudness = integrated_loudness(chapter, 8000).unwrap();
        assert!((loudness + 18.0).abs() < 0.3, "{loudness} LUFS");
        // Inside a chapter, what is louder stays louder.
        let [quiet, loud] =
            [0, 16_000].map(|at| integrated_loudness(&chapter[at..at + 16_000], 8000).unwrap());
        assert!(loud - quiet > 2.0);
    }
}

#[test]
fn a_folder_has_a_file_for_each_chapter() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = with_tones(&temporary.path().join("parts"));
    let (book, plan) = plan();
    let path = temporary.path().join("book");
    let target =
        Target { path: path.clone(), by_chapter: true, container: Container::Audio(AudioFormat::Flac) };
    let stopped = assemble(&folder, (&book, &plan), &target, None, &mut |_| false).unwrap_err();
    assert!(matches!(stopped, AssembleError::Cancelled));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "nothing half-written");
    let joined = assemble(&folder, (&book, &plan), &target, None, &mut |_| true).unwrap();
    assert_eq!(joined.files, [path.join("01 C1.flac"), path.join("02 C2.flac")]);
    for file in &joined.files {
        assert_eq!(orate_audio::read_audio(file, 60.0).unwrap().samples.len(), 32_000);
    }
}

#[cfg(feature = "aac")]
#[test]
fn audiobooks_hold_the_sound_and_its_chapters() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = with_tones(&temporary.path().join("parts"));
    let (book, plan) = plan();
    let path = temporary.path().join("a.m4b");
    let target = Target { path: path.clone(), by_chapter: false, container: Container::M4b };
    assemble(&folder, (&book, &plan), &target, None, &mut |_| true).unwrap();
    let sound = orate_audio::read_audio(&path, 60.0).unwrap();
    assert_eq!(sound.sample_rate, 8000);
    assert!((64_000..68_000).contains(&sound.samples.len()), "{}", sound.samples.len());
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[4..12], b"ftypM4B ");
    let has = |text: &[u8]| bytes.windows(text.len()).filter(|window| *window == text).count();
    // Titles stand in the track and in the list.
    assert_eq!((has(b"\x02C1"), has(b"\x02C2"), has(b"chpl"), has(b"chap")), (2, 2, 1, 1));
    let again = std::fs::read(&path).unwrap();
    assemble(&folder, (&book, &plan), &target, None, &mut |_| true).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), again, "no times or random numbers");
}
