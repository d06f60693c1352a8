//! Whole networks on the reference device, which runs the same plans with the interpreter in double
//! precision, against the CPU.

use crate::common::golden;
use orate_cpu::{CpuDevice, Isa};
use orate_graph::Device;
use orate_models::Options;
use orate_models::supertonic::{Files, Noise, Supertonic, Voice};
use orate_testing::{ReferenceDevice, assert_close, tolerance};
use std::path::Path;
use std::sync::Arc;

/// What the stages leave behind.
#[derive(Default)]
struct Values {
    durations: Vec<f32>,
    text: Vec<f32>,
    noise: Vec<f32>,
    latents: Vec<Vec<f32>>,
    wav: Vec<f32>,
}

/// Runs all stages on the rows. Every device gets the same `noise`, if there is one; else it makes its own.
fn run(
    model: &Supertonic,
    rows: &[(&[i32], &Voice)],
    frames: &[usize],
    steps: usize,
    noise: Option<&[f32]>,
) -> Values {
    let mut v = Values::default();
    let mut s = model.session();
    s.set_text(rows).expect("ids and voices fit");
    v.durations = s.durations().expect("durations");
    s.encode_text().expect("text encoder");
    s.read("text_emb", &mut v.text).expect("stored");
    s.prepare(frames, steps, noise.map_or(Noise::Seed(17), Noise::Given)).expect("lengths fit");
    s.read("latent", &mut v.noise).expect("stored");
    for step in 0..steps {
        s.step(step).expect("a step");
        let mut latent = vec![];
        s.read("latent", &mut latent).expect("stored");
        v.latents.push(latent);
    }
    s.vocode(&mut v.wav).expect("vocoder");
    v
}

fn compare(open: impl Fn() -> Files, rows: &[(&[i32], &Voice)], frames: &[usize], steps: usize) {
    let model = |device: Arc<dyn Device>| Supertonic::new(open(), device).expect("a whole model");
    let reference = model(Arc::new(ReferenceDevice));
    let want = run(&reference, rows, frames, steps, None);
    assert!(want.wav.iter().all(|x| x.is_finite()) && want.wav.iter().any(|x| *x != 0.0));
    for isa in Isa::available() {
        let cpu = model(Arc::new(CpuDevice::new(2, isa).expect("threads start")));
        let check = |what: &str, got: &[f32], want: &[f32], limit: f64| {
            let c = assert_close(&format!("{isa}: {what}"), got, want, limit);
            println!("{isa}: {what}: {c}");
        };
        let own = run(&cpu, rows, frames, 1, None);
        // Philox gives the same bits everywhere; the normal numbers made of them are rounded.
        check("noise", &own.noise, &want.noise, tolerance::RANDOM);
        let got = run(&cpu, rows, frames, steps, Some(&want.noise));
        check("durations", &got.durations, &want.durations, tolerance::NETWORK);
        check("text_emb", &got.text, &want.text, tolerance::NETWORK);
        for (i, (got, want)) in got.latents.iter().zip(&want.latents).enumerate() {
            check(&format!("latent after step {i}"), got, want, tolerance::END_TO_END);
        }
        check("wav", &got.wav, &want.wav, tolerance::END_TO_END);
    }
}

fn ids(files: &Files, text: &str) -> Vec<i32> {
    let pieces = files.pieces(text, &Options::default()).expect("text can be spoken");
    assert_eq!(pieces.len(), 1, "one piece");
    pieces[0].ids.clone()
}

fn voice(files: &Files, name: &str) -> Voice {
    files.voice(name).expect("has this voice")
}

fn tiny(name: &str) -> Files {
    Files::open(&golden(name)).expect("committed")
}

#[test]
fn committed_models() {
    for name in ["tiny", "tiny1", "tiny3"] {
        let files = tiny(name);
        let (ids, voice) = (ids(&files, "The quick brown fox."), voice(&files, "F1"));
        compare(|| tiny(name), &[(&ids, &voice)], &[7], 3);
        compare(|| tiny(name), &[(&ids[..1], &voice)], &[1], 1);
    }
}

#[test]
fn padded_batches() {
    for name in ["tiny", "tiny3"] {
        let files = tiny(name);
        let (a, b) = (ids(&files, "The quick brown fox."), ids(&files, "Hi."));
        let (f, m) = (voice(&files, "F1"), voice(&files, "M1"));
        compare(|| tiny(name), &[(&b, &m), (&a, &f), (&b, &f)], &[3, 6, 1], 2);
    }
}

#[test]
fn built_in_voice() {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../voices/orate-default/orate-default.gguf");
    let open = || Files::open(&packed).expect("committed");
    let files = open();
    let (ids, voice) = (ids(&files, "Hi there."), voice(&files, files.default_voice()));
    compare(open, &[(&ids, &voice)], &[4], 2);
}
