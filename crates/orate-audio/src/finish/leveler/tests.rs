use std::f64::consts::{PI, TAU};

use super::*;
use crate::{AudioError, peak_dbfs, resample, true_peak_dbtp};

const RATES: [u32; 4] = [8000, 24_000, 44_100, 48_000];

/// How far an ideal meter may find peaks above the ceiling, in dB, in sound with nothing above 0.45 of the
/// sample rate.
const IDEAL_DB: f64 = 0.0;
/// The same for steps, and for white noise: values between samples depend on hundreds around them.
const IDEAL_STEPS_DB: f64 = 0.1;
const IDEAL_WHITE_DB: f64 = 1.3;

/// Pseudo-random numbers, uniform in -1..1.
fn noise(length: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 / f64::from(1_u32 << 30) - 1.0) as f32
    };
    (0..length).map(|_| next()).collect()
}

fn tone(length: usize, cycles_per_sample: f64, phase: f64, amplitude: f64) -> Vec<f32> {
    (0..length).map(|i| (amplitude * (TAU * (cycles_per_sample * i as f64) + phase).sin()) as f32).collect()
}

/// Syllables of a vowel with pauses: peaks of about -3 dBFS at a `gain` of 1.
fn speech(rate: u32, seconds: f64, gain: f64) -> Vec<f32> {
    let value = |i: usize| {
        let t = i as f64 / f64::from(rate);
        let envelope = (PI * 3.0 * t).sin().powi(2) * if t % 2.0 < 1.6 { 1.0 } else { 0.0 };
        let vowel: f64 = (1..20).map(|k| (TAU * 130.0 * f64::from(k) * t).sin() / f64::from(k)).sum();
        (gain * 0.4 * envelope * vowel) as f32
    };
    (0..(seconds * f64::from(rate)) as usize).map(value).collect()
}

/// The largest absolute value at 16 positions between any two samples, by a sum over 400 of them in f64. Only
/// where samples are large, which is where values between them can be.
fn oversampled_peak_db(samples: &[f32]) -> f64 {
    const HALF: i64 = 200;
    let largest = samples.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let sample = |i: i64| usize::try_from(i).ok().and_then(|i| samples.get(i)).map_or(0.0, |&x| f64::from(x));
    let weights: Vec<Vec<f64>> = (1..16)
        .map(|k| {
            let weight = |j: i64| {
                let d = f64::from(k) / 16.0 - j as f64;
                let window = 0.5 + 0.5 * (PI * d / (HALF as f64 + 1.0)).cos();
                (PI * d).sin() / (PI * d) * window
            };
            (1 - HALF..=HALF).map(weight).collect()
        })
        .collect();
    let mut peak = f64::from(largest);
    for i in -1..samples.len() as i64 {
        if sample(i).abs().max(sample(i + 1).abs()) < 0.6 * f64::from(largest) {
            continue;
        }
        for weights in &weights {
            let sum: f64 = weights.iter().zip(1 - HALF..).map(|(w, j)| w * sample(i + j)).sum();
            peak = peak.max(sum.abs());
        }
    }
    20.0 * peak.log10()
}

fn level(loudness: &Loudness, start: Level, rate: u32, samples: &[f32]) -> Vec<f32> {
    let mut leveler = Leveler::new(loudness, start, rate).unwrap();
    let mut out = vec![];
    leveler.push(samples, &mut out);
    leveler.finish(&mut out);
    assert_eq!(out.len(), samples.len());
    out
}

#[test]
fn no_true_peak_is_above_the_ceiling() {
    let square: Vec<f32> = (0..6000).map(|i| if i / 37 % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let mut clicks = vec![0.0; 6000];
    for (i, at) in (0..6000).step_by(531).enumerate() {
        clicks[at] = if i % 2 == 0 { 1.0 } else { -0.7 };
        clicks[at + i % 3] = 0.9;
    }
    let mut lonely = vec![0.0; 6000];
    (lonely[0], lonely[3000], lonely[5999]) = (1.0, -1.0, 1.0);
    let mut chirp = 0.0;
    let chirp: Vec<f32> = (0..12_000)
        .map(|i| {
            chirp += 0.47 * TAU * f64::from(i) / 12_000.0;
            chirp.sin() as f32
        })
        .collect();
    let band = resample(&noise(7200), 21_600, 24_000).unwrap();
    let loud = band.iter().map(|x| 3.0 * x).collect();
    let signals = [
        ("white noise", noise(8000), IDEAL_WHITE_DB),
        ("square wave", square, IDEAL_STEPS_DB),
        ("clicks", clicks, IDEAL_DB),
        ("lonely clicks", lonely, IDEAL_DB),
        ("noise", band, IDEAL_DB),
        ("loud noise", loud, IDEAL_DB),
        ("a quarter of the rate, samples 3 dB below the peak", tone(6000, 0.25, PI / 4.0, 1.0), IDEAL_DB),
        ("a sixth of the rate", tone(6000, 1.0 / 6.0, PI / 6.0, 1.0), IDEAL_DB),
        ("chirp", chirp, IDEAL_DB),
        ("constant", vec![1.0; 3000], IDEAL_DB),
        ("speech", speech(24_000, 1.0, 1.0), IDEAL_DB),
    ];
    for (name, signal, ideal_db) in signals {
        for (gain, most_peak) in [(0.0, -1.0), (12.0, -1.0), (30.0, -1.0), (3.0, -6.0)] {
            let loudness = Loudness { most_peak, ..Loudness::default() };
            let out = level(&loudness, Level::Fixed(gain), 24_000, &signal);
            let (samples, standard, ideal) =
                (peak_dbfs(&out), true_peak_dbtp(&out), oversampled_peak_db(&out));
            let what =
                format!("{name} with {gain} dB: {samples:.3}, {standard:.3}, {ideal:.3} of {most_peak}");
            assert!(samples <= most_peak && standard <= most_peak && ideal <= most_peak + ideal_db, "{what}");
            // Nor is more taken away than needed.
        }
    }
}

#[test]
fn without_peaks_samples_are_only_multiplied() {
    for rate in RATES {
        let sound = speech(rate, 1.5, 0.5);
        assert!(level(&Loudness::default(), Level::Fixed(0.0), rate, &sound) == sound);
        let out = level(&Loudness::default(), Level::Fixed(3.0), rate, &sound);
        assert!(out.iter().zip(&sound).all(|(y, x)| *y == x * ratio(3.0)));
    }
}

/// What is to be quiet stays so, however the gain is found.
#[test]
fn volume_is_not_made_up_for() {
    let (rate, loudness) = (24_000, Loudness::default());
    let sound = speech(rate, 20.0, 0.1);
    for start in [Level::Fixed(3.0), Level::Prior(-30.0)] {
        let want = level(&loudness, start, rate, &sound);
        let (mut leveler, mut out) = (Leveler::new(&loudness, start, rate).unwrap(), vec![]);
        leveler.push_at(&sound, 0.1, &mut out);
        leveler.finish(&mut out);
        assert!(out.iter().zip(&want).all(|(y, x)| (y - 0.1 * x).abs() < 1e-6), "{start:?}");
    }
}

#[test]
fn a_peak_lowers_the_gain_shortly_and_smoothly() {
    let rate = 48_000;
    let mut sound = tone(48_000, 0.01, 0.0, 0.3);
    sound[24_000] = 2.0;
    let out = level(&Loudness::default(), Level::Fixed(0.0), rate, &sound);
    let gains: Vec<f32> = out.iter().zip(&sound).filter(|(_, x)| **x != 0.0).map(|(y, x)| y / x).collect();
    let steps = gains.windows(2).fold(0.0_f32, |a, w| a.max((w[1] - w[0]).abs()));
    assert!(steps < 0.012, "{steps}");
    // Unchanged until 5 ms before, and again after ten time constants.
    assert!(out[..24_000 - 250] == sound[..24_000 - 250] && out[24_000 - 200] != sound[24_000 - 200]);
    assert!(
        out[24_000 + 29_000 - 12_000..]
            .iter()
            .zip(&sound[24_000 + 17_000..])
            .all(|(y, x)| (y - x).abs() < 2e-3)
    );
    assert!(out[47_900..] != [0.0; 100]);
}

#[test]
fn pushes_do_not_matter() {
    let mut state = 9_usize;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    for rate in RATES {
        for start in [Level::Fixed(15.0), Level::Fixed(-3.5), Level::Prior(-28.0), Level::Prior(-10.0)] {
            let mut sound = speech(rate, 2.3, 0.8);
            let at = sound.len() / 2;
            sound.splice(at..at + 500, noise(500));
            sound[at / 2] = f32::NAN;
            sound[at / 3] = f32::MAX;
            let want = level(&Loudness::default(), start, rate, &sound);
            // One leveler for all, so `finish` has to reset it.
            let mut leveler = Leveler::new(&Loudness::default(), start, rate).unwrap();
            for most in [1, 3, 70, 700, 5000] {
                let (mut out, mut rest) = (vec![], &sound[..]);
                let mut taken = 0;
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(below(most).min(rest.len()));
                    leveler.push(now, &mut out);
                    taken += now.len();
                    assert_eq!(
                        out.len(),
                        taken.saturating_sub((0.005 * f64::from(rate)).round() as usize + 12)
                    );
                    rest = if most == 1 && later.len() == rest.len() { &rest[1..] } else { later };
                    if most == 1 {
                        break;
                    }
                }
                if most == 1 {
                    sound.iter().for_each(|&x| leveler.push(&[x], &mut out));
                }
                leveler.finish(&mut out);
                assert!(
                    out.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())),
                    "{rate} Hz, {start:?}, up to {most}"
                );
            }
        }
    }
}

#[test]
fn samples_that_are_not_finite_pass_and_nothing_panics() {
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for start in [Level::Fixed(6.0), Level::Prior(-30.0)] {
            let mut sound = speech(24_000, 0.6, 0.2);
            let want = level(&Loudness::default(), start, 24_000, &sound);
            sound[0] = 0.0;
            sound[5000] = x;
            let out = level(&Loudness::default(), start, 24_000, &sound);
            assert_eq!(out[5000].to_bits(), x.to_bits());
            // The others are as if it were silence.
            assert!(out[..5000] == want[..5000]);
            assert!(out.iter().enumerate().all(|(i, y)| i == 5000 || y.is_finite()));
            assert!(gain_for(&sound, 24_000, &Loudness::default()).unwrap().is_finite());
            assert!(gain_for(&[x; 20_000], 24_000, &Loudness::default()).unwrap() == 0.0);
        }
    }
    for x in [f32::MAX, -f32::MAX, 1e20, f32::MIN_POSITIVE, 1e-42] {
        let out = level(&Loudness::default(), Level::Fixed(60.0), 24_000, &[x; 1000]);
        assert!(out.iter().all(|y| y.is_finite() && y.abs() < 0.9), "{x}");
        gain_for(&[x; 1000], 24_000, &Loudness::default()).unwrap();
    }
    for rate in [1, 100, 8000, 768_000] {
        for length in [0, 1, 2, 11, 12, 13, 500] {
            for start in [Level::Fixed(20.0), Level::Prior(-60.0)] {
                let out = level(&Loudness::default(), start, rate, &vec![0.5; length]);
                assert!(true_peak_dbtp(&out) <= -1.0, "{rate} Hz, {length} samples, {start:?}");
                assert_eq!(level(&Loudness::default(), start, rate, &vec![0.0; length]), vec![0.0; length]);
            }
            gain_for(&vec![0.5; length], rate, &Loudness::default()).unwrap();
        }
    }
}

#[test]
fn whole_clips_get_the_loudness() {
    for rate in RATES {
        for gain in [1.0, 0.3, 0.05] {
            for target in [-18.0, -16.0, -23.0] {
                let loudness = Loudness { target, most_gain: 40.0, ..Loudness::default() };
                let sound = speech(rate, 3.0, gain);
                let db = gain_for(&sound, rate, &loudness).unwrap();
                let out = level(&loudness, Level::Fixed(db), rate, &sound);
                let got = integrated_loudness(&out, rate).unwrap();
                assert!((got - target).abs() < 0.1, "{rate} Hz, {gain}: {got}, not {target}");
                assert!(true_peak_dbtp(&out) <= -1.0);
            }
        }
    }
    // With clicks that must be limited. They weigh little.
    let mut sound = speech(24_000, 3.0, 0.1);
    (0..70_000).step_by(20_000).for_each(|i| sound[i] = 0.8);
    let db = gain_for(&sound, 24_000, &Loudness::default()).unwrap();
    let out = level(&Loudness::default(), Level::Fixed(db), 24_000, &sound);
    let got = integrated_loudness(&out, 24_000).unwrap();
    assert!((got + 18.0).abs() < 0.1, "{got}");
}

#[test]
fn gains_are_bounded() {
    let quiet = Loudness { most_gain: 10.0, ..Loudness::default() };
    assert_eq!(gain_for(&speech(24_000, 1.0, 0.01), 24_000, &quiet).unwrap(), 10.0);
    assert_eq!(gain_for(&speech(24_000, 1.0, 100.0), 24_000, &quiet).unwrap(), -10.0);
    for silence in [vec![], vec![0.0], vec![0.0; 100_000], vec![1e-6; 50_000]] {
        assert_eq!(gain_for(&silence, 24_000, &quiet).unwrap(), 0.0);
    }
    // Noise cannot have -3 LUFS below -20 dBTP. The gain stops 3 dB beyond.
    let dense = Loudness { target: -3.0, most_peak: -20.0, most_gain: 60.0 };
    let sound = noise(50_000);
    let missing = -3.0 - integrated_loudness(&sound, 24_000).unwrap();
    assert!((gain_for(&sound, 24_000, &dense).unwrap() - missing - 3.0).abs() < 1e-9);
}

#[test]
fn a_stream_with_a_right_prior_keeps_its_gain_and_one_with_a_wrong_prior_finds_it() {
    let rate = 24_000;
    let sound = speech(rate, 60.0, 0.3);
    let usual = integrated_loudness(&sound, rate).unwrap();
    for error in [0.0, 3.0, -3.0, 10.0, -10.0] {
        let out = level(&Loudness::default(), Level::Prior(usual + error), rate, &sound);
        let second = |i: usize| i * rate as usize..(i + 4) * rate as usize;
        let loudness = |i| integrated_loudness(&out[second(i)], rate).unwrap();
        let early = integrated_loudness(&sound[second(0)], rate).unwrap() - usual;
        // The first 4 s: at most 4 dB nearer.
        let first = loudness(0) - early;
        assert!((first + 18.0).abs() <= f64::abs(error) + 0.3, "{error}: {first}");
        let last = loudness(55);
        assert!((last + 18.0).abs() < 0.3 + 0.13 * f64::abs(error), "{error}: {last}");
    }
    // The gain changes by at most 1 dB per second and 12 dB in all, up to the largest.
    let sound = tone(40 * rate as usize, 0.02, 0.0, 0.001);
    let out = level(&Loudness::default(), Level::Prior(-38.0), rate, &sound);
    let gains: Vec<f64> = (0..40 * 8)
        .map(|i| i * rate as usize / 8..(i + 1) * rate as usize / 8)
        .map(|part| peak_dbfs(&out[part.clone()]) - peak_dbfs(&sound[part]))
        .collect();
    assert!((gains[0] - 20.0).abs() < 0.01);
    assert!(gains.windows(2).all(|w| (-0.001..0.13).contains(&(w[1] - w[0]))), "{gains:?}");
    assert!((gains.last().unwrap() - 24.0).abs() < 0.01, "{gains:?}");
}

#[test]
fn bounded_memory_measures_the_same_loudness() {
    for (rate, gain) in [(8000, 1.0), (24_000, 0.1), (48_000, 0.01)] {
        let mut sound = speech(rate, 20.0, gain);
        sound.extend(speech(rate, 10.0, 0.2 * gain));
        let (mut blocks, mut heard) = (LoudnessBlocks::new(rate), LoudnessHistogram::new());
        sound.iter().filter_map(|&x| blocks.push(x.into())).for_each(|power| heard.push(power));
        let want = integrated_loudness(&sound, rate).unwrap();
        assert!((heard.integrated().0 - want).abs() < 0.1, "{:?}, {want}", heard.integrated());
    }
    assert_eq!(LoudnessHistogram::new().integrated(), (f64::NEG_INFINITY, 0));
}

#[test]
fn settings_are_checked() {
    let good = Loudness::default();
    for (loudness, start, rate) in [
        (Loudness { target: f64::NAN, ..good }, Level::Fixed(0.0), 24_000),
        (Loudness { target: 1.0, ..good }, Level::Fixed(0.0), 24_000),
        (Loudness { most_peak: 0.1, ..good }, Level::Fixed(0.0), 24_000),
        (Loudness { most_gain: -1.0, ..good }, Level::Fixed(0.0), 24_000),
        (good, Level::Fixed(f64::INFINITY), 24_000),
        (good, Level::Prior(f64::NEG_INFINITY), 24_000),
    ] {
        let error = Leveler::new(&loudness, start, rate).unwrap_err();
        assert!(matches!(error, AudioError::Config { .. }), "{error}");
    }
    assert!(matches!(Leveler::new(&good, Level::Fixed(0.0), 0), Err(AudioError::SampleRate { .. })));
    let error = Leveler::new(&Loudness { most_peak: 3.0, ..good }, Level::Fixed(0.0), 1).unwrap_err();
    assert_eq!(error.to_string(), "largest peak is 3 dBTP, but it must be -40 to 0.");
}
