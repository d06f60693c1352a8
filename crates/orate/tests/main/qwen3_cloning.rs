//! The networks of Qwen3-TTS that listen to a voice, against the official package: stage by stage, and at
//! their true widths op by op.

use orate_audio::{LogMel, Spectrogram, read_wav};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{Device, Graph, Memory, Plan, Shape};
use orate_models::Loader;
use orate_models::qwen3_tts::{
    CodecConfig, Past, SpeakerEncoderConfig, VoiceEncoder, codec_encoder, layout, speaker_encoder,
};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::{OnDevice, ReferenceDevice, assert_close, check_all, harvest};
use orate_weights::{SafeTensors, WeightSource};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of each tensor's largest magnitude, as for the codec decoder.
const TOLERANCE: f64 = 2e-5;
/// Logarithms of magnitudes that a transform in single precision made, of size 11.
const LOG_MEL: f64 = 5e-5;

fn json(file: &str) -> serde_json::Value {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base").join(file);
    serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON")
}

fn codec_config() -> CodecConfig {
    CodecConfig::from_json(json("speech_tokenizer/config.json").to_string().as_bytes()).expect("as written")
}

fn speaker_config() -> SpeakerEncoderConfig {
    serde_json::from_value(json("config.json")["speaker_encoder_config"].clone()).expect("as written")
}

fn open(file: &str) -> SafeTensors {
    SafeTensors::open(qwen3_tts_goldens().join(file)).expect("committed")
}

/// The recording that goldens were made from, at 24 kHz.
fn recording() -> Vec<f32> {
    let wave = read_wav(qwen3_tts_goldens().join("cases/ref.wav")).expect("committed");
    assert_eq!((wave.samples.len(), wave.sample_rate), (36_720, 24_000));
    wave.samples
}

fn devices() -> Vec<(String, Box<dyn Device>)> {
    let cpu = |isa, threads| -> (String, Box<dyn Device>) {
        (format!("{isa}, {threads} threads"), Box::new(CpuDevice::new(threads, isa).expect("threads start")))
    };
    let mut all: Vec<_> = Isa::available().into_iter().flat_map(|isa| [cpu(isa, 1), cpu(isa, 2)]).collect();
    all.push(("reference".to_owned(), Box::new(ReferenceDevice)));
    all
}

fn fastest() -> CpuDevice {
    CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start")
}

/// Runs `graph` on what is in `memory`.
fn run(device: &dyn Device, weights: &str, graph: Graph, memory: &mut dyn Memory) {
    let weights = Arc::new(Loader(Arc::new(open(weights))));
    let plan = Plan::compile(graph, device).expect("all ops have kernels");
    device.open(weights).load(plan).expect("weights are there").run(memory).expect("runs");
}

fn read(memory: &mut dyn Memory, name: &str) -> Vec<f32> {
    let mut data = vec![];
    memory.read_f32(name, &mut data).expect("an output");
    data
}

/// Compares a tap `[…, columns]` with a golden, of whose columns only the first and last may be kept.
fn compare_tap(device: &str, memory: &mut dyn Memory, case: &SafeTensors, name: &str) -> f64 {
    let want = case.get(name).expect("a golden of this name");
    let got = read(memory, &format!("tap/{name}"));
    let kept = want.shape[1];
    let columns = got.len() / want.shape[0];
    let got = ends_of(&got, columns, kept);
    assert_close(&format!("{device}: {name}"), &got, &want.to_f32(), TOLERANCE).max_error
}

fn ends_of(x: &[f32], columns: usize, kept: usize) -> Vec<f32> {
    let ends = |row: &[f32]| match columns {
        n if n == kept => row.to_vec(),
        n => [&row[..kept / 2], &row[n - kept / 2..]].concat(),
    };
    x.chunks_exact(columns).flat_map(ends).collect()
}

fn log_mel() -> Spectrogram {
    LogMel::new(&speaker_encoder::mel(&speaker_config())).expect("sound settings").apply(&recording())
}

#[test]
fn the_features_are_those_of_the_official_package() {
    let case = open("cases/speaker_encoder.safetensors");
    let want = case.get("log_mel").expect("is there");
    let got = log_mel();
    assert_eq!((got.frames, got.bins, want.shape[0]), (143, 128, 128));
    let by_band: Vec<f32> = (0..got.bins)
        .flat_map(|band| (0..got.frames).map(move |t| (t, band)))
        .map(|(t, b)| got.frame(t)[b])
        .collect();
    let c = assert_close("log_mel", &ends_of(&by_band, 143, want.shape[1]), &want.to_f32(), LOG_MEL);
    println!("log_mel: {:.1e}", c.max_error);
}

#[test]
fn the_speaker_encoder_is_that_of_the_official_package() {
    let (case, mel, config) = (open("cases/speaker_encoder.safetensors"), log_mel(), speaker_config());
    for (device, on) in devices() {
        for taps in [true, false] {
            let mut g = Graph::new("speaker_encoder");
            if taps {
                g = g.with_taps();
            }
            speaker_encoder::build(&mut g, &config, mel.frames).expect("consistent");
            let mut memory = on.memory();
            let shape = Shape::from([1, mel.frames, mel.bins]);
            memory.write_f32("log_mel", &shape, &mel.data).expect("has room");
            run(&*on, "checkpoints/tiny-base/speaker_encoder.safetensors", g, &mut *memory);
            let mut worst = 0f64;
            for name in ["block0", "block1", "block2", "block3", "mfa"].into_iter().filter(|_| taps) {
                worst = worst.max(compare_tap(&device, &mut *memory, &case, name));
            }
            if taps {
                let want = case.get("pooled").expect("is there").to_f32();
                assert_close(
                    &format!("{device}: pooled"),
                    &read(&mut *memory, "tap/pooled"),
                    &want,
                    TOLERANCE,
                );
            }
            let want = case.get("embedding").expect("is there").to_f32();
            let got = read(&mut *memory, "x_vector");
            let c = assert_close(&format!("{device}: x_vector"), &got, &want, TOLERANCE);
            println!("{device}: stages {worst:.1e}, x_vector {:.1e}", c.max_error);
        }
    }
}

/// Features of a recording, in one pass or in pieces of so many samples.
fn features(device: &dyn Device, samples: &[f32], piece: Option<usize>) -> Vec<f32> {
    let c = codec_config().encoder_config;
    let past = if piece.is_some() { Past::Stream } else { Past::Silence };
    let mut memory = device.memory();
    let mut all = vec![];
    for part in samples.chunks(piece.unwrap_or(samples.len())) {
        let mut g = Graph::new("codec_encoder.features");
        codec_encoder::features(&mut g, &c, past, 1, part.len()).expect("consistent");
        if all.is_empty() {
            for b in g.buffers().iter().filter(|b| b.kind.is_state()) {
                memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
            }
        }
        memory.write_f32("samples", &Shape::from([1, part.len()]), part).expect("has room");
        run(device, "checkpoints/tiny-base/speech_tokenizer/encoder.safetensors", g, &mut *memory);
        all.extend(read(&mut *memory, "features"));
    }
    all
}

#[test]
fn the_codec_encoder_is_that_of_the_official_package() {
    let (case, samples, config) = (open("cases/codec_encode.safetensors"), recording(), codec_config());
    let want_codes = case.get("codes").expect("is there");
    assert_eq!(want_codes.shape, [20, 16]);
    for (device, on) in devices() {
        let mut g = Graph::new("codec_encoder.features").with_taps();
        codec_encoder::features(&mut g, &config.encoder_config, Past::Silence, 1, samples.len())
            .expect("consistent");
        let mut memory = on.memory();
        memory.write_f32("samples", &Shape::from([1, samples.len()]), &samples).expect("has room");
        run(&*on, "checkpoints/tiny-base/speech_tokenizer/encoder.safetensors", g, &mut *memory);
        let mut worst = compare_tap(&device, &mut *memory, &case, "seanet");

        // The second network reads the first one's buffer.
        let mut g = Graph::new("codec_encoder.codes").with_taps();
        codec_encoder::codes(&mut g, &config, 1, 39).expect("consistent");
        run(&*on, "checkpoints/tiny-base/speech_tokenizer/encoder.safetensors", g, &mut *memory);
        for name in ["transformer", "downsample"] {
            worst = worst.max(compare_tap(&device, &mut *memory, &case, name));
        }
        println!("{device}: worst of 3 stages {worst:.1e}");
        let mut codes = vec![];
        memory.read_i32("codes", &mut codes).expect("an output");
        let want: Vec<i32> = want_codes.to_f32().iter().map(|x| *x as i32).collect();
        assert_eq!(codes, want, "{device}: codes");
    }
}

#[test]
fn features_of_pieces_are_those_of_the_whole() {
    let (device, samples) = (fastest(), recording());
    let whole = features(&device, &samples, None);
    // One row of features at a time, some, and a last piece that ends within a stride.
    for piece in [960, 1920, 24_000] {
        let pieces = features(&device, &samples, Some(piece));
        assert_close(&format!("pieces of {piece}"), &pieces, &whole, TOLERANCE);
    }
}

/// A recording of five seconds goes through in pieces.
#[test]
fn a_voice_is_what_its_networks_say() {
    let weights = |file: &str| Arc::new(Loader(Arc::new(open(file))));
    let voice = VoiceEncoder::new(
        Arc::new(fastest()),
        Some((speaker_config(), weights("checkpoints/tiny-base/speaker_encoder.safetensors"))),
        (codec_config(), weights("checkpoints/tiny-base/speech_tokenizer/encoder.safetensors")),
    );
    let (speaker, codec) =
        (open("cases/speaker_encoder.safetensors"), open("cases/codec_encode.safetensors"));
    let whole = |x: Vec<f32>| x.into_iter().map(|x| x as i32).collect::<Vec<_>>();
    let x_vector = voice.x_vector(&recording()).expect("runs").expect("this is a Base model");
    assert_close("x_vector", &x_vector, &speaker.get("embedding").expect("is there").to_f32(), TOLERANCE);
    assert_eq!(
        voice.codes(&recording()).expect("runs"),
        whole(codec.get("codes").expect("is there").to_f32())
    );

    let long = recording().repeat(4);
    assert_eq!(voice.codes(&long).expect("runs").len(), 16 * long.len().div_ceil(1920));
    assert!(voice.codes(&[]).is_err());
    let e = voice.x_vector(&[0.1; 1000]).expect_err("too short").to_string();
    assert!(e.contains("1000 samples is too short") && e.contains("1280"), "{e}");
}

/// The networks read every tensor that the checkpoints have for them, in its shape, but for what only
/// training needs.
#[test]
fn the_networks_read_the_whole_checkpoint() {
    let (codec, speaker) = (codec_config(), speaker_config());
    let mut graphs = [Graph::new("a"), Graph::new("b"), Graph::new("c")];
    codec_encoder::features(&mut graphs[0], &codec.encoder_config, Past::Silence, 1, 1920)
        .expect("consistent");
    codec_encoder::codes(&mut graphs[1], &codec, 1, 2).expect("consistent");
    speaker_encoder::build(&mut graphs[2], &speaker, 9).expect("consistent");
    let mut used = BTreeSet::new();
    for node in graphs.iter().flat_map(Graph::nodes) {
        for w in node.op.weights() {
            w.visit_named(&mut |name, shape| {
                used.insert((name.to_owned(), shape.dims().to_vec()));
            });
        }
    }
    let unread = |name: &str| {
        let book = name.split("acoustic_residual_vector_quantizer.layers.").nth(1);
        let book = book.and_then(|n| n.split('.').next()?.parse::<usize>().ok());
        name.ends_with(".initialized")
            || name.ends_with("output_proj.weight")
            || book.is_some_and(|n| n >= 15)
    };
    let mut wanted: BTreeSet<_> = layout::codec(&codec)
        .expect("consistent")
        .into_iter()
        .map(|e| (e.name, e.shape))
        .filter(|(n, _)| n.starts_with("encoder."))
        .collect();
    wanted.retain(|(name, _)| !unread(name));
    let config = orate_models::qwen3_tts::Config::from_json(json("config.json").to_string().as_bytes());
    let model = layout::model(&config.expect("as written")).expect("consistent");
    wanted.extend(
        model.into_iter().map(|e| (e.name, e.shape)).filter(|(n, _)| n.starts_with("speaker_encoder.")),
    );
    assert_eq!(used, wanted);
}

#[test]
fn what_is_too_short_to_mirror_is_an_error() {
    let config = speaker_config();
    let least = speaker_encoder::least_frames(&config);
    assert_eq!(least, 5);
    let build = |frames| speaker_encoder::build(&mut Graph::new("speaker_encoder"), &config, frames);
    assert!(build(least).is_ok());
    let e = build(least - 1).expect_err("too short").to_string();
    assert!(e.contains("at least 5 rows"), "{e}");
}

/// Every op at the widths that ship, for a quarter of a second.
#[test]
fn ops_at_the_released_widths() {
    let mut codec = json("speech_tokenizer/config.json");
    let sizes = serde_json::json!({
        "num_filters": 64, "hidden_size": 512, "intermediate_size": 2048, "head_dim": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 8, "num_hidden_layers": 1, "codebook_dim": 256, "codebook_size": 2048,
        "vector_quantization_hidden_dimension": 256, "num_quantizers": 32,
    });
    for (key, value) in sizes.as_object().expect("an object") {
        codec["encoder_config"][key] = value.clone();
    }
    codec["decoder_config"]["codebook_size"] = 2048.into();
    let codec = CodecConfig::from_json(codec.to_string().as_bytes()).expect("as released");
    let mut speaker = json("config.json")["speaker_encoder_config"].clone();
    let sizes = serde_json::json!({
        "enc_dim": 1024, "enc_channels": [512, 512, 512, 512, 1536], "enc_attention_channels": 128,
        "enc_se_channels": 128,
    });
    for (key, value) in sizes.as_object().expect("an object") {
        speaker[key] = value.clone();
    }
    let speaker: SpeakerEncoderConfig = serde_json::from_value(speaker).expect("as released");
    let mut graphs = [Graph::new("features"), Graph::new("codes"), Graph::new("speaker")];
    codec_encoder::features(&mut graphs[0], &codec.encoder_config, Past::Silence, 1, 961)
        .expect("consistent");
    codec_encoder::codes(&mut graphs[1], &codec, 1, 7).expect("consistent");
    speaker_encoder::build(&mut graphs[2], &speaker, 24).expect("consistent");
    let cases: Vec<_> = graphs.iter().flat_map(harvest).collect();
    assert!(cases.len() > 60, "only {} cases were harvested", cases.len());
    for isa in Isa::available() {
        let report = check_all(&OnDevice(&CpuDevice::new(2, isa).expect("threads start")), &cases);
        println!("{isa}: {report}");
        report.assert();
    }
}
