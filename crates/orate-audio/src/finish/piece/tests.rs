use super::*;
use crate::AudioError;

const RATES: [u32; 6] = [8000, 16_000, 22_050, 24_000, 44_100, 48_000];

/// Pseudo-random numbers, uniform in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * end as f64) as usize % end.max(1)
    }
}

/// Builds speech-like signals.
struct Sound {
    rate: u32,
    samples: Vec<f32>,
    noise: Noise,
}

/// RMS level of vowels in dBFS.
const VOWEL: f64 = -15.0;

impl Sound {
    fn new(rate: u32) -> Self {
        Self { rate, samples: vec![], noise: Noise(1) }
    }

    fn here(&self) -> usize {
        self.samples.len()
    }

    fn add(mut self, seconds: f64, dbfs: f64, mut value: impl FnMut(f64, &mut Noise) -> f64) -> Self {
        let rate = f64::from(self.rate);
        let values: Vec<f64> =
            (0..(seconds * rate).round() as usize).map(|i| value(i as f64 / rate, &mut self.noise)).collect();
        let rms = (values.iter().map(|x| x * x).sum::<f64>() / values.len().max(1) as f64).sqrt();
        let gain = 10_f64.powf(dbfs / 20.0) / rms.max(1e-9);
        self.samples.extend(values.iter().map(|x| (gain * x) as f32));
        self
    }

    fn silence(self, seconds: f64) -> Self {
        self.add(seconds, -300.0, |_, _| 0.0)
    }

    /// Harmonics of 120 Hz.
    fn vowel(self, seconds: f64, dbfs: f64) -> Self {
        self.add(seconds, dbfs, |t, _| {
            (1..9).map(|k| (std::f64::consts::TAU * 120.0 * f64::from(k) * t).sin() / f64::from(k)).sum()
        })
    }

    /// Noise without low frequencies.
    fn fricative(self, seconds: f64, dbfs: f64) -> Self {
        let mut last = 0.0;
        self.add(seconds, dbfs, move |_, noise| {
            let next = noise.next();
            next - std::mem::replace(&mut last, next)
        })
    }

    /// The same under a slope up and down, so that it begins and ends quietly.
    fn soft_fricative(self, seconds: f64, dbfs: f64) -> Self {
        let mut last = 0.0;
        self.add(seconds, dbfs, move |t, noise| {
            let next = noise.next();
            (PI * t / seconds).sin() * (next - std::mem::replace(&mut last, next))
        })
    }
}

/// How much longer than its samples sound may seem: the K weighting rings for over 30 ms after a loud vowel.
const SLACK_S: f64 = 0.04;

fn finish(settings: &Finish, rate: u32, samples: &[f32]) -> (Vec<f32>, PieceEdges) {
    let mut finisher = PieceFinisher::new(settings, rate).unwrap();
    let mut out = vec![];
    finisher.push(samples, &mut out);
    let edges = finisher.end_piece(&mut out);
    (out, edges)
}

/// Without fades, so that what is kept can be compared bit for bit.
fn unfaded() -> Finish {
    Finish { fades: false, ..Finish::default() }
}

/// Asserts that samples from `start` to `end` of a clip come out unchanged, with the margins around them, but
/// for up to `slack` seconds more.
fn assert_kept(what: &str, rate: u32, samples: &[f32], start: usize, end: usize, slack: f64) {
    let (out, edges) = finish(&unfaded(), rate, samples);
    let seconds = |s: f64| (s * f64::from(rate)).round() as usize;
    let kept = edges.cut_before..samples.len() - edges.cut_after;
    let what = format!("{what}, {rate} Hz: {edges:?}, speech {start}..{end} of {}", samples.len());
    assert!(kept.start <= start && end <= kept.end, "{what}");
    let speech = &out[edges.padded_before..out.len() - edges.padded_after];
    assert!(speech == &samples[kept.clone()], "{what}");
    let lead = edges.padded_before + start - kept.start;
    let tail = edges.padded_after + kept.end - end;
    assert!(lead <= seconds(0.05 + slack) && tail <= seconds(0.15 + slack), "{what}: {lead}, {tail}");
    assert!(lead + seconds(0.01) >= seconds(0.05) && tail + seconds(0.01) >= seconds(0.15), "{what}");
    assert_eq!(edges.strays, 0, "{what}");
}

#[test]
fn speech_is_kept_and_silence_has_the_set_length() {
    for rate in RATES {
        for (before, after) in [(0.0, 0.0), (0.01, 0.02), (0.05, 0.15), (0.3, 0.5), (2.0, 0.9)] {
            let sound = Sound::new(rate).silence(before);
            let start = sound.here();
            let sound = sound.vowel(0.3, VOWEL).silence(0.12).vowel(0.4, VOWEL);
            let end = sound.here();
            let sound = sound.silence(after);
            let what = format!("{before} s before, {after} s after");
            assert_kept(&what, rate, &sound.samples, start, end, SLACK_S);
        }
    }
}

#[test]
fn weak_consonants_at_both_ends_are_kept() {
    for rate in RATES {
        for below in [20.0, 30.0, 35.0, 40.0] {
            for seconds in [0.06, 0.12, 0.2] {
                for voice in [VOWEL, -30.0, -40.0] {
                    let sound = Sound::new(rate).silence(0.3);
                    let start = sound.here();
                    let sound = sound
                        .fricative(seconds, voice - below)
                        .vowel(0.3, voice)
                        .fricative(seconds, voice - below);
                    let end = sound.here();
                    let what = format!("{seconds} s at {below} dB below {voice} dBFS");
                    assert_kept(&what, rate, &sound.silence(0.5).samples, start, end, SLACK_S);

                    // The level of a real one rises and falls. What is lost is within the margins.
                    let sound = Sound::new(rate).silence(0.3);
                    let start = sound.here();
                    let sound = sound
                        .soft_fricative(seconds, voice - below)
                        .vowel(0.3, voice)
                        .soft_fricative(seconds, voice - below);
                    let end = sound.here();
                    let sound = sound.silence(0.5).samples;
                    let (_, edges) = finish(&unfaded(), rate, &sound);
                    let kept = edges.cut_before..sound.len() - edges.cut_after;
                    assert!(
                        kept.start <= start && end <= kept.end,
                        "soft: {what}: {edges:?}, {start}, {end}"
                    );
                }
            }
        }
    }
}

#[test]
fn releases_of_stops_are_kept() {
    for rate in RATES {
        for closure in [0.05, 0.08, 0.1, 0.12, 0.19] {
            for burst in [0.004, 0.01, 0.03, 0.08] {
                for below in [10.0, 20.0, 30.0, 38.0] {
                    let sound = Sound::new(rate).silence(0.3);
                    let start = sound.here();
                    let sound =
                        sound.vowel(0.3, VOWEL).silence(closure).fricative(burst, VOWEL - below).silence(0.5);
                    let end = sound.here() - (0.5 * f64::from(rate)) as usize;
                    let what = format!("closure {closure} s, burst {burst} s, {below} dB below");
                    assert_kept(&what, rate, &sound.samples, start, end, SLACK_S);

                    // Also before a vowel, as the beginning of a piece.
                    let sound = Sound::new(rate).silence(0.3);
                    let start = sound.here();
                    let sound = sound.fricative(burst, VOWEL - below).silence(closure).vowel(0.3, VOWEL);
                    let end = sound.here();
                    let sound = sound.silence(0.5);
                    assert_kept(&format!("{what}, first"), rate, &sound.samples, start, end, SLACK_S);
                }
            }
        }
    }
}

#[test]
fn strays_are_removed_and_words_are_not() {
    for rate in RATES {
        let seconds = |s: f64| (s * f64::from(rate)).round() as usize;
        for (gap, burst, stray) in [
            (0.24, 0.01, true),
            (0.24, 0.07, true),
            (0.5, 0.05, true),
            (0.9, 0.05, true),
            (1.5, 0.05, true),
            (0.19, 0.05, false),
            (0.24, 0.12, false),
            (0.6, 0.15, false),
        ] {
            for after in [0.0, 0.05, 0.3, 1.5] {
                let what = format!("{rate} Hz, {burst} s {gap} s after speech, {after} s before the end");
                let sound = Sound::new(rate).silence(0.1).vowel(0.5, VOWEL);
                let end = sound.here();
                let sound = sound.silence(gap).fricative(burst, VOWEL - 10.0).silence(after).samples;
                let (out, edges) = finish(&unfaded(), rate, &sound);
                let loudest = out[edges.padded_before..].iter().skip(end - edges.cut_before + seconds(0.01));
                let loudest = loudest.fold(0.0_f32, |a, x| a.max(x.abs()));
                assert_eq!(loudest == 0.0, stray, "{what}: {edges:?}");
                assert_eq!(edges.strays > 0, stray, "{what}: {edges:?}");
                // Silence is released after a second.
                let silence = gap + burst + after;
                if stray && silence < 1.0 {
                    assert!(
                        out.len().abs_diff(seconds(0.05 + 0.5 + 0.15)) < seconds(SLACK_S),
                        "{what}: {edges:?}"
                    );
                }

                let what = format!("{rate} Hz, {burst} s {gap} s before speech, {after} s after the start");
                let sound = Sound::new(rate).silence(after).fricative(burst, VOWEL - 10.0).silence(gap);
                let start = sound.here();
                let sound = sound.vowel(0.5, VOWEL).silence(0.1).samples;
                let (out, edges) = finish(&unfaded(), rate, &sound);
                assert_eq!(edges.strays > 0, stray, "{what}: {edges:?}");
                assert_eq!(start - edges.cut_before < seconds(0.06), stray, "{what}: {edges:?}");
                let loudest = out.iter().take(seconds(0.045)).fold(0.0_f32, |a, x| a.max(x.abs()));
                assert!(loudest == 0.0, "{what}: {edges:?}");

                let kept = Finish { strays: false, ..unfaded() };
                let (_, edges) = finish(&kept, rate, &sound);
                assert!(edges.strays == 0 && start - edges.cut_before > seconds(gap), "{what}: {edges:?}");
            }
        }
    }
}

#[test]
fn bursts_within_a_piece_are_kept() {
    let rate = 24_000;
    for (before, after) in [(0.25, 0.25), (0.5, 0.3), (0.1, 0.6)] {
        let sound = Sound::new(rate).vowel(0.3, VOWEL).silence(before).fricative(0.05, VOWEL - 10.0);
        let sound = sound.silence(after).vowel(0.3, VOWEL).samples;
        let (out, edges) = finish(&unfaded(), rate, &sound);
        assert_eq!(edges.strays, 0);
        assert!(out[edges.padded_before..][..sound.len()] == sound, "{before}, {after}");
    }
    // But not in pauses so long that they cannot be held back. Times stay what they are.
    let sound = Sound::new(rate).vowel(0.3, VOWEL).silence(0.5).fricative(0.05, VOWEL - 10.0).silence(2.0);
    let sound = sound.vowel(0.3, VOWEL).samples;
    let (out, edges) = finish(&unfaded(), rate, &sound);
    assert!((1200..1500).contains(&edges.strays));
    let out = &out[edges.padded_before..][..sound.len()];
    let silence = 7200..7200 + 61_200;
    assert!(out[silence.clone()].iter().all(|&x| x == 0.0));
    assert!(out[..7200] == sound[..7200] && out[silence.end..] == sound[silence.end..]);
}

#[test]
fn a_burst_that_is_all_of_a_piece_is_kept() {
    for after in [0.05, 0.3, 3.0] {
        let sound = Sound::new(24_000).silence(0.4);
        let start = sound.here();
        let sound = sound.fricative(0.05, -30.0);
        let end = sound.here();
        assert_kept("a burst", 24_000, &sound.silence(after).samples, start, end, SLACK_S);
    }
}

#[test]
fn without_trimming_only_strays_become_silence() {
    let rate = 24_000;
    let settings = Finish { trim: None, ..unfaded() };
    for (before, after) in [(0.3, 0.3), (1.5, 2.0), (0.25, 0.0)] {
        let sound = Sound::new(rate).silence(0.1).fricative(0.05, -25.0).silence(before);
        let start = sound.here();
        let sound = sound.vowel(0.5, VOWEL);
        let end = sound.here();
        let sound = sound.silence(before).fricative(0.05, -25.0).silence(after).samples;
        let (out, edges) = finish(&settings, rate, &sound);
        assert!((2400..3000).contains(&edges.strays));
        assert_eq!(edges, PieceEdges { strays: edges.strays, ..PieceEdges::default() });
        assert_eq!(out.len(), sound.len());
        assert!(out[..start].iter().chain(&out[end..]).all(|&x| x == 0.0), "{before}, {after}");
        assert!(out[start..end] == sound[start..end]);
    }
}

#[test]
fn removed_strays_leave_no_steps_in_noise() {
    // Noise is louder at both edges of the stray than a silent sample may be without a fade.
    let rate = 24_000;
    let noise = |s: Sound, seconds| s.fricative(seconds, -72.0);
    let sound = noise(noise(Sound::new(rate), 0.1).vowel(0.5, VOWEL), 0.5).fricative(0.05, -25.0);
    let sound = noise(sound, 0.3).samples;
    let (out, edges) = finish(&Finish { trim: None, ..unfaded() }, rate, &sound);
    assert!((1200..=1440).contains(&edges.strays), "{edges:?}");
    let first = (0.5 + 0.6) * f64::from(rate);
    let first = first as usize - 120..first as usize + 1320;
    let first = first.start - 120..first.end + 120;
    let tail = &out[first.clone()];
    let zero = tail.iter().position(|&x| x == 0.0).unwrap();
    assert!(tail[zero - 1].abs() < 1e-6 && tail[zero - 60].abs() < sound[first.start + zero - 60].abs());
}

#[test]
fn fades_are_where_a_piece_does_not_begin_or_end_at_zero() {
    let rate = 24_000;
    let faded = Finish { trim: None, strays: false, ..Finish::default() };
    for trim in [None, Some(Margins { lead: 0.0, tail: 0.0 }), Some(Margins::default())] {
        let sound = vec![0.25; 4800];
        let (out, edges) = finish(&Finish { trim, ..faded }, rate, &sound);
        let out = &out[edges.padded_before..out.len() - edges.padded_after];
        let steps = out.windows(2).fold(0.0_f32, |a, w| a.max((w[1] - w[0]).abs()));
        assert!(steps < 0.25 * 0.015, "{trim:?}: {steps}");
        assert!(out[0] < 1e-4 && out.last().unwrap() < &1e-4);
        assert!(out[120..out.len() - 120].iter().all(|&x| x == 0.25));
    }
    let mut sound = vec![0.25; 4800];
    (sound[0], sound[4799]) = (0.0, 0.0);
    assert!(finish(&faded, rate, &sound).0 == sound);
}

#[test]
fn none_changes_nothing() {
    let mut sound = Sound::new(24_000).fricative(0.5, -10.0).samples;
    sound.splice(100..103, [f32::NAN, f32::INFINITY, -0.0]);
    let (out, edges) = finish(&Finish::NONE, 24_000, &sound);
    assert_eq!(edges, PieceEdges::default());
    assert!(out.iter().map(|x| x.to_bits()).eq(sound.iter().map(|x| x.to_bits())));
}

#[test]
fn pieces_without_speech() {
    for rate in RATES {
        for settings in [Finish::default(), Finish::NONE, Finish { trim: None, ..Finish::default() }] {
            assert_eq!(finish(&settings, rate, &[]), (vec![], PieceEdges::default()));
            for length in [1, 2, 39, 40, 5000, 100_000] {
                let (out, edges) = finish(&settings, rate, &vec![0.0; length]);
                let most = if settings.trim.is_some() {
                    (0.05 * f64::from(rate)).round() as usize + (0.15 * f64::from(rate)).round() as usize
                } else {
                    length
                };
                assert!(
                    out.len() == length.min(most) && out.iter().all(|&x| x == 0.0),
                    "{rate} Hz, {length}"
                );
                assert_eq!(edges, PieceEdges { cut_before: length - out.len(), ..PieceEdges::default() });
            }
            for x in [1.0, f32::NAN, f32::MAX, f32::INFINITY] {
                let (out, edges) = finish(&settings, rate, &[x]);
                assert_eq!(out.len(), 1 + edges.padded_before + edges.padded_after);
            }
        }
    }
}

#[test]
fn damaged_samples_are_kept_for_the_encoder_to_refuse() {
    for damage in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 100, 4700, 12_000, 30_000, 47_999] {
            let mut sound = Sound::new(24_000).silence(0.2).vowel(0.8, VOWEL).silence(1.0).samples;
            sound[at] = damage;
            let (out, _) = finish(&Finish::default(), 24_000, &sound);
            assert!(out.iter().any(|x| !x.is_finite()), "{damage} at {at}");
        }
    }
    // Absurd samples do not make speech look quiet, except in their own neighborhood.
    let mut sound = Sound::new(24_000).silence(0.2).vowel(0.8, -20.0).silence(0.2).samples;
    sound[5000] = f32::MAX;
    let (_, edges) = finish(&unfaded(), 24_000, &sound);
    assert!(edges.cut_before <= 4800 && edges.cut_after <= 4800, "{edges:?}");
}

/// A piece of vowels, fricatives, bursts, noise and silence.
fn random_piece(rate: u32, noise: &mut Noise) -> Vec<f32> {
    let mut sound = Sound::new(rate);
    sound.noise = Noise(noise.0);
    for _ in 0..noise.below(9) {
        let seconds = noise.below(40) as f64 / 100.0;
        let level = VOWEL - noise.below(70) as f64;
        sound = match noise.below(5) {
            0 => sound.vowel(seconds, level),
            1 => sound.fricative(seconds, level),
            2 => sound.fricative(seconds / 8.0, level),
            3 => sound.silence(seconds),
            _ => sound.silence(4.0 * seconds),
        };
    }
    sound.samples
}

#[test]
fn pushes_do_not_matter() {
    let mut noise = Noise(7);
    for round in 0..150 {
        let rate = RATES[round % RATES.len()];
        let settings = Finish {
            trim: [None, Some(Margins::default()), Some(Margins { lead: 0.003, tail: 0.7 })][noise.below(3)],
            strays: noise.below(3) > 0,
            fades: noise.below(2) > 0,
            loudness: None,
        };
        let piece = random_piece(rate, &mut noise);
        let (want, edges) = finish(&settings, rate, &piece);
        assert_eq!(
            want.len() + edges.cut_before + edges.cut_after,
            piece.len() + edges.padded_before + edges.padded_after,
            "{settings:?}: {edges:?}"
        );
        // The same finisher for all pieces, so `end_piece` has to reset it.
        let mut finisher = PieceFinisher::new(&settings, rate).unwrap();
        for most in [1, 2, 50, 500, 5000, 100_000] {
            let (mut out, mut rest) = (vec![], &piece[..]);
            while !rest.is_empty() {
                let (now, later) = rest.split_at((1 + noise.below(most)).min(rest.len()));
                finisher.push(now, &mut out);
                rest = later;
            }
            assert_eq!(finisher.end_piece(&mut out), edges, "round {round}: {settings:?}");
            assert!(out == want, "round {round}: {settings:?}");
        }
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    let rate = 24_000;
    let seconds = |n: usize| n as f64 / f64::from(rate);
    let mut noise = Noise(3);
    for _ in 0..60 {
        // Sound first: silence before it is cut, not held.
        let sound = Sound::new(rate).vowel(0.3, VOWEL).samples;
        let piece = [sound, random_piece(rate, &mut noise)].concat();
        let mut finisher = PieceFinisher::new(&Finish::default(), rate).unwrap();
        let (mut out, mut taken) = (vec![], 0);
        let mut quiet = 0;
        for frame in piece.chunks(120) {
            finisher.push(frame, &mut out);
            taken += frame.len();
            let loud = frame.iter().any(|x| x.abs() > 0.03);
            quiet = if loud { 0 } else { quiet + frame.len() };
            let held = seconds((taken + 1200).saturating_sub(out.len()));
            assert!(held < 1.02, "{held} s");
            // While speech goes on, only the fade is.
            if taken > 2640 && taken <= 7200 {
                assert!(held <= 0.0101, "{held} s");
            }
        }
        assert!(finisher.state.held.len() < rate as usize * 11 / 10);
    }
    // Silence before the first word is not kept.
    let mut finisher = PieceFinisher::new(&Finish::default(), rate).unwrap();
    for _ in 0..1000 {
        finisher.push(&[0.0; 240], &mut vec![]);
        assert!(finisher.state.held.len() < rate as usize);
    }
}

#[test]
fn a_word_after_a_pause_waits_for_a_tenth_of_a_second() {
    let rate = 24_000;
    let mut finisher = PieceFinisher::new(&Finish::default(), rate).unwrap();
    let mut out = vec![];
    finisher.push(&Sound::new(rate).vowel(0.5, VOWEL).silence(0.5).samples, &mut out);
    let before = out.len();
    finisher.push(&Sound::new(rate).vowel(0.11, VOWEL).samples, &mut out);
    assert!(out.len() - before >= 24_000 * 42 / 100, "{}", out.len() - before);
}

#[test]
fn settings_are_checked() {
    for (lead, tail) in [(-0.1, 0.1), (0.1, f64::NAN), (11.0, 0.1), (0.0, f64::INFINITY)] {
        let finish = Finish { trim: Some(Margins { lead, tail }), ..Finish::default() };
        let error = PieceFinisher::new(&finish, 24_000).unwrap_err();
        assert!(matches!(error, AudioError::Config { .. }), "{error}");
    }
    assert!(matches!(PieceFinisher::new(&Finish::default(), 0), Err(AudioError::SampleRate { .. })));
    for rate in [1, 7, 199, 201, 768_000] {
        finish(&Finish::default(), rate, &vec![0.1; 1000]);
    }
}
