//! Qwen3-TTS's codec decoder against the official package, stage by stage, and at its true widths op by op.

use orate_audio::snr_db;
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{DType, Device, Graph, Memory, Op, Plan, Precision, PrecisionPolicy, Shape};
use orate_models::Loader;
use orate_models::qwen3_tts::{
    CodecConfig, CodecDecoder, CodecDecoderConfig, CodecStream, Past, codec_decoder, layout,
};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::{OnDevice, RandomWeights, ReferenceDevice, assert_close, check_all, compare, harvest};
use orate_weights::{SafeTensors, WeightSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// As for Supertonic: of each tensor's largest magnitude. Measured: 1.2e-5 on the CPU, and 8e-6 between the
/// official package in single precision and the interpreter in double.
const TOLERANCE: f64 = 2e-5;

fn config() -> CodecConfig {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base/speech_tokenizer/config.json");
    CodecConfig::from_json(&std::fs::read(path).expect("committed")).expect("as the oracle writes it")
}

fn open(file: &str) -> SafeTensors {
    SafeTensors::open(qwen3_tts_goldens().join(file)).expect("committed")
}

fn graph(c: &CodecDecoderConfig, frames: usize, taps: bool) -> Graph {
    let mut g = Graph::new("codec_decoder");
    if taps {
        g = g.with_taps();
    }
    codec_decoder::build(&mut g, c, Past::Silence, 1, frames).expect("the configuration is consistent");
    g
}

/// The codes of a case, `[F, 16]`.
fn codes(case: &SafeTensors) -> (usize, Vec<i32>) {
    let t = case.get("codes").expect("every case has codes");
    assert_eq!((t.dtype.name(), t.shape[1]), ("i64", 16));
    (t.shape[0], t.to_f32().iter().map(|x| *x as i32).collect())
}

/// The memory after decoding.
fn decode(device: &dyn Device, graph: Graph, codes: &[i32]) -> Result<Box<dyn Memory>, String> {
    let weights = Arc::new(open("checkpoints/tiny-base/speech_tokenizer/decoder.safetensors"));
    let shape = graph.buffers()[0].shape.clone();
    let plan = Plan::compile(graph, device).map_err(|e| e.to_string())?;
    let plan = device.open(Arc::new(Loader(weights))).load(plan).map_err(|e| e.to_string())?;
    let mut memory = device.memory();
    memory.write_i32("codes", &shape, codes).map_err(|e| e.to_string())?;
    plan.run(memory.as_mut()).map_err(|e| e.to_string())?;
    Ok(memory)
}

fn samples(memory: &mut dyn Memory) -> Vec<f32> {
    let mut samples = vec![];
    memory.read_f32("samples", &mut samples).expect("an output");
    samples
}

/// The CPU with every instruction set, and the interpreter.
fn devices() -> Vec<(String, Box<dyn Device>)> {
    let cpu = |isa, threads| -> (String, Box<dyn Device>) {
        (format!("{isa}, {threads} threads"), Box::new(CpuDevice::new(threads, isa).expect("threads start")))
    };
    let mut all: Vec<_> = Isa::available().into_iter().flat_map(|isa| [cpu(isa, 1), cpu(isa, 2)]).collect();
    all.push(("reference".to_owned(), Box::new(ReferenceDevice)));
    all
}

#[test]
fn every_stage_is_that_of_the_official_package() {
    let (config, case) = (config(), open("cases/codec_decode.safetensors"));
    let (frames, codes) = codes(&case);
    let waveform = case.get("waveform").expect("is there").to_f32();
    assert_eq!(waveform.len(), 1920 * frames);
    for (device, on) in devices() {
        let mut memory = decode(&*on, graph(&config.decoder_config, frames, true), &codes).expect("runs");
        let mut stages = 0;
        let mut worst = 0f64;
        for name in case.names().into_iter().filter(|n| !["codes", "waveform"].contains(n)) {
            let want = case.get(name).expect("listed");
            let mut got = vec![];
            let shape = memory.read_f32(&format!("tap/{name}"), &mut got).expect("a tap of this name");
            // Long stages keep their first and last columns.
            let &[.., rows, columns] = shape.dims() else { panic!("{name}: {shape}") };
            let kept = want.shape[1];
            assert_eq!(want.shape[0], rows, "{name}");
            let ends = |row: &[f32]| match columns {
                n if n == kept => row.to_vec(),
                n => [&row[..kept / 2], &row[n - kept / 2..]].concat(),
            };
            let got: Vec<f32> = got.chunks_exact(columns).flat_map(ends).collect();
            let c = assert_close(&format!("{device}: {name}"), &got, &want.to_f32(), TOLERANCE);
            worst = worst.max(c.max_error);
            stages += 1;
        }
        assert_eq!(stages, 13);
        let c = assert_close(&format!("{device}: waveform"), &samples(&mut *memory), &waveform, TOLERANCE);
        println!("{device}: worst of {stages} stages {worst:.1e}, waveform {:.1e}", c.max_error);

        // Fused, nothing is kept but the samples.
        let mut memory = decode(&*on, graph(&config.decoder_config, frames, false), &codes).expect("runs");
        assert_close(&format!("{device}: fused"), &samples(&mut *memory), &waveform, TOLERANCE);
    }
}

/// 310 frames in one pass: more than a window of keys, and than the 300 that the official package decodes at
/// once. Its pieces and one pass agree up to the seam at frame 300; after it `whole` is its own single pass.
#[test]
fn long_sequences_in_one_pass() {
    let (config, case) = (config(), open("cases/codec_decode_long.safetensors"));
    let (frames, codes) = codes(&case);
    assert_eq!(frames, 310);
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    let mut memory = decode(&device, graph(&config.decoder_config, frames, false), &codes).expect("runs");
    let got = samples(&mut *memory);
    assert_eq!(got.len(), 1920 * frames);
    let want = |name: &str| case.get(name).expect("is there").to_f32();
    assert_close("head", &got[..1920], &want("head"), TOLERANCE);
    assert_close("around frame 300", &got[299 * 1920..303 * 1920], &want("whole"), TOLERANCE);
    let pieces = compare(&got[got.len() - 1920..], &want("tail"), TOLERANCE);
    assert!(pieces.is_err(), "the goldens tell one pass from pieces: {pieces:?}");
}

fn decoder(device: Box<dyn Device>) -> Arc<CodecDecoder> {
    let weights =
        Arc::new(Loader(Arc::new(open("checkpoints/tiny-base/speech_tokenizer/decoder.safetensors"))));
    Arc::new(CodecDecoder::new(config().decoder_config, Arc::from(device), weights))
}

/// Bits of samples, for comparison to the last one.
fn bits(samples: &[f32]) -> Vec<u32> {
    samples.iter().map(|x| x.to_bits()).collect()
}

/// Sizes of pushes that are `frames` in total, none above `most`.
fn random_split(state: &mut u32, frames: usize, most: usize) -> Vec<usize> {
    let (mut split, mut rest) = (vec![], frames);
    while rest > 0 {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        split.push((1 + (*state >> 16) as usize % most).min(rest));
        rest -= split[split.len() - 1];
    }
    split
}

/// The samples of `codes`, pushed in such pieces.
fn in_pieces(stream: &mut CodecStream, codes: &[i32], split: &[usize]) -> Vec<f32> {
    stream.restart().expect("has room");
    let (mut got, mut rest) = (vec![], codes);
    for n in split {
        let (piece, behind) = rest.split_at(16 * n);
        stream.push(piece, &mut got).expect("runs");
        rest = behind;
    }
    assert!(rest.is_empty());
    got
}

/// On the CPU, pieces joined are the single pass to the last bit: with every instruction set and format of
/// weights, however they are cut.
#[test]
fn pieces_joined_are_the_whole_byte_for_byte() {
    let (config, case) = (config(), open("cases/codec_decode.safetensors"));
    let (frames, codes) = codes(&case);
    let mut state = 5;
    for (i, (isa, precision)) in Isa::available()
        .into_iter()
        .flat_map(|isa| {
            [Precision::F32, Precision::F16, Precision::Bf16, Precision::Q8_0, Precision::Q4_0]
                .map(|p| (isa, p))
        })
        .enumerate()
    {
        let threads = 1 + i % 2;
        let device = CpuDevice::new(threads, isa).expect("threads start");
        let device = device.with_precision(PrecisionPolicy::uniform(precision)).expect("is one of a CPU");
        let one_pass = graph(&config.decoder_config, frames, false);
        let whole = bits(&samples(&mut *decode(&device, one_pass, &codes).expect("runs")));
        let decoder = decoder(Box::new(device));
        let mut stream = decoder.stream().expect("has room");
        let random = [3, 7, frames].map(|most| random_split(&mut state, frames, most));
        for split in [vec![1; frames]].into_iter().chain(random) {
            let got = bits(&in_pieces(&mut stream, &codes, &split));
            let differs = got.iter().zip(&whole).position(|(a, b)| a != b);
            let what = format!("{isa}, {precision}, {threads} threads, pieces of {split:?}");
            assert!(got.len() == whole.len() && differs.is_none(), "{what}: from sample {differs:?} on");
        }
    }
}

/// The same over many windows of keys, and over more frames than are summed in one run.
#[test]
fn long_sequences_in_pieces_are_the_whole_byte_for_byte() {
    let (config, case) = (config(), open("cases/codec_decode_long.safetensors"));
    let (frames, codes) = codes(&case);
    let mut state = 11;
    for isa in Isa::available() {
        let device = CpuDevice::new(2, isa).expect("threads start");
        let one_pass = graph(&config.decoder_config, frames, false);
        let whole = bits(&samples(&mut *decode(&device, one_pass, &codes).expect("runs")));
        let decoder = decoder(Box::new(device));
        let mut stream = decoder.stream().expect("has room");
        let split = random_split(&mut state, frames, 40);
        assert!(bits(&in_pieces(&mut stream, &codes, &split)) == whole, "{isa}, pieces of {split:?}");
    }
}

/// At the released widths, where matrix tiles take over from vectors, in pieces of every size below those
/// that tiles are made for.
#[test]
fn released_widths_in_pieces_are_the_whole_byte_for_byte() {
    let c = released();
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    let weights = Arc::new(RandomWeights::of_graph(&graph(&c, 1, false), 1));
    let model = device.open(weights);
    let codes: Vec<i32> = (0..16 * 7).map(|i| i * 733 % 2048).collect();
    let mut memory = device.memory();
    let mut run = |past: Past, codes: &[i32]| {
        let (frames, mut g) = (codes.len() / 16, Graph::new("codec_decoder"));
        codec_decoder::build(&mut g, &c, past, 1, frames).expect("consistent");
        let plan = model.load(Plan::compile(g, &device).expect("has kernels")).expect("random weights");
        memory.write_i32("codes", &[1, frames, 16].into(), codes).expect("the shape");
        for b in plan.plan().buffers().iter().filter(|b| b.kind.is_state() && codes.len() == 16) {
            memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
        }
        plan.run(&mut *memory).expect("runs");
        bits(&samples(&mut *memory))
    };
    let whole = run(Past::Silence, &codes);
    // The first piece, of one frame, clears the states.
    let pieces =
        [0..1, 1..3, 3..7].map(|frames| run(Past::Stream, &codes[16 * frames.start..16 * frames.end]));
    assert!(pieces.concat() == whole, "pieces of 1, 2 and 4 frames");
    let spread = whole.iter().map(|x| f32::from_bits(*x).abs()).fold(0.0, f32::max);
    assert!(spread > 0.0, "the network says something");
}

/// Pushes of any size, joined, are the official package's single pass; on a device with other orders of
/// summation within the tolerance.
#[test]
fn pieces_joined_are_the_whole() {
    let case = open("cases/codec_decode.safetensors");
    let (frames, codes) = codes(&case);
    let waveform = case.get("waveform").expect("is there").to_f32();
    for (name, device) in devices() {
        let decoder = decoder(device);
        let mut stream = decoder.stream().expect("has room");
        // All at once is a piece of 25 and one of 1; 26 and more are past the window of 20.
        for pushes in [vec![frames], vec![1; frames], vec![1, 2, 3, 7, 13], vec![4, 0, 22], vec![25, 1]] {
            let got = in_pieces(&mut stream, &codes, &pushes);
            assert_eq!(got.len(), 1920 * stream.frames() as usize);
            assert_close(&format!("{name}: {pushes:?}"), &got, &waveform, TOLERANCE);
        }
    }
}

#[test]
fn two_streams_do_not_meet_and_long_ones_do_not_drift() {
    let case = open("cases/codec_decode_long.safetensors");
    let (frames, codes) = codes(&case);
    let decoder =
        decoder(Box::new(CpuDevice::new(2, Isa::detect().expect("supported")).expect("threads start")));
    let (mut a, mut b) = (decoder.stream().expect("has room"), decoder.stream().expect("has room"));
    let (mut x, mut y, mut z) = (vec![], vec![], vec![]);
    for (i, frame) in codes.chunks_exact(16 * 5).enumerate() {
        a.push(frame, &mut x).expect("runs");
        // Something else in between, from another place.
        b.push(&codes[16 * ((i * 7) % (frames - 1))..][..16], &mut y).expect("runs");
    }
    assert_eq!((x.len(), y.len()), (1920 * frames, 1920 * frames / 5));
    let want = |name: &str| case.get(name).expect("is there").to_f32();
    assert_close("head", &x[..1920], &want("head"), TOLERANCE);
    assert_close("around frame 300", &x[299 * 1920..303 * 1920], &want("whole"), TOLERANCE);
    drop(b);
    // Memory of a finished stream is used again, and nothing of it is heard.
    decoder.stream().expect("has room").push(&codes, &mut z).expect("runs");
    assert_eq!(bits(&z), bits(&x), "again");
}

/// Weights of fewer bits, by how far the waveform is from that of the official package. Random weights
/// enlarge every error a hundredfold: single precision has 102 dB here.
#[test]
fn smaller_weights_are_heard_this_little() {
    let case = open("cases/codec_decode.safetensors");
    let (_, codes) = codes(&case);
    let waveform = case.get("waveform").expect("is there").to_f32();
    for isa in Isa::available() {
        for (precision, least) in [(Precision::F16, 40.0), (Precision::Bf16, 20.0)] {
            let device = CpuDevice::new(2, isa).expect("threads start");
            let device = device.with_precision(PrecisionPolicy::uniform(precision)).expect("is one of a CPU");
            let got = decoder(Box::new(device)).decode(&codes).expect("runs");
            let snr = snr_db(&waveform, &got).expect("one length");
            println!("{isa}, {precision}: {snr:.1} dB");
            assert!(snr > least, "{isa}, {precision}: {snr:.1} dB");
        }
    }
}

#[test]
fn half_a_frame_is_an_error() {
    let decoder = decoder(Box::new(ReferenceDevice));
    let e = decoder.decode(&[1; 17]).expect_err("17 codes").to_string();
    assert!(e.contains("17 codes are not whole frames of 16"), "{e}");
}

#[test]
fn a_reference_is_cut_off_as_by_the_official_package() {
    for (reference, total, samples, want) in
        [(0, 5, 9600, 0), (20, 46, 88_320, 38_400), (23, 82, 157_440, 44_160), (15, 22, 42_240, 28_799)]
    {
        assert_eq!(
            codec_decoder::reference_samples(reference, total, samples),
            want,
            "{reference} of {total}"
        );
    }
}

/// What comes later changes nothing: the promise that decoding in pieces stands on.
#[test]
fn a_beginning_is_decoded_as_in_the_whole() {
    let (config, case) = (config(), open("cases/codec_decode.safetensors"));
    let (_, codes) = codes(&case);
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    let decoded = |frames: usize| {
        let mut memory = decode(&device, graph(&config.decoder_config, frames, false), &codes[..16 * frames])
            .expect("runs");
        samples(&mut *memory)
    };
    let whole = decoded(26);
    for frames in [1, 2, 21] {
        assert_eq!(bits(&decoded(frames)), bits(&whole[..1920 * frames]), "{frames} frames");
    }
}

#[test]
fn rows_of_a_batch_do_not_meet() {
    let (config, case) = (config(), open("cases/codec_decode.safetensors"));
    let (_, codes) = codes(&case);
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    let run = |batch: usize, codes: &[i32]| {
        let mut g = Graph::new("codec_decoder");
        codec_decoder::build(&mut g, &config.decoder_config, Past::Silence, batch, 13).expect("consistent");
        samples(&mut *decode(&device, g, codes).expect("runs"))
    };
    let together = run(2, &codes);
    for (row, codes) in codes.chunks_exact(16 * 13).enumerate() {
        let own = &together[row * 13 * 1920..][..13 * 1920];
        assert_eq!(bits(own), bits(&run(1, codes)), "row {row}");
    }
}

#[test]
fn a_code_that_no_codebook_has_is_an_error() {
    let (config, case) = (config(), open("cases/codec_decode.safetensors"));
    let (_, mut codes) = codes(&case);
    let device = CpuDevice::new(1, Isa::detect().expect("a supported processor")).expect("a thread");
    for bad in [128, -1] {
        codes[37] = bad;
        let e =
            decode(&device, graph(&config.decoder_config, 26, false), &codes).err().expect("out of range");
        assert!(e.contains(&format!("id {bad} at position 37")) && e.contains("128 rows"), "{e}");
    }
}

/// The network reads every tensor that the checkpoint has for it, in its shape, but for two that only
/// training needs.
#[test]
fn the_network_reads_the_whole_checkpoint() {
    let config = config();
    let mut used = BTreeSet::new();
    for node in graph(&config.decoder_config, 3, false).nodes() {
        for w in node.op.weights() {
            w.visit_named(&mut |name, shape| {
                used.insert((name.to_owned(), shape.dims().to_vec()));
            });
        }
    }
    let layout = layout::codec(&config).expect("consistent").into_iter().map(|e| (e.name, e.shape));
    let unread = |name: &str| name.starts_with("decoder.quantizer.") && name.ends_with("input_proj.weight");
    let wanted: BTreeSet<_> = layout.filter(|(n, _)| n.starts_with("decoder.") && !unread(n)).collect();
    assert_eq!(used, wanted);
}

/// The sizes of the released codec.
fn released() -> CodecDecoderConfig {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base/speech_tokenizer/config.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON");
    let sizes = serde_json::json!({
        "latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 8, "sliding_window": 72,
    });
    for (key, value) in sizes.as_object().expect("an object") {
        json["decoder_config"][key] = value.clone();
    }
    json["encoder_config"]["codebook_size"] = 2048.into();
    CodecConfig::from_json(json.to_string().as_bytes()).expect("as released").decoder_config
}

/// Every op at the widths that ship: one frame of all, and a hundred of what is cheap, so that the window
/// slides.
#[test]
fn ops_at_the_released_widths() {
    let c = released();
    let mut cases = harvest(&graph(&c, 1, false));
    let cheap = |op: &Op| {
        !matches!(op, Op::MatMul { .. } | Op::Conv1d { .. } | Op::Snake { .. } | Op::DepthwiseConv1d { .. })
    };
    let small =
        |g: &Graph| g.buffers().iter().filter(|b| b.dtype == DType::F32).all(|b| b.shape.len() <= 102_400);
    let long = harvest(&graph(&c, 100, false)).into_iter();
    cases.extend(long.filter(|c| c.graph.nodes().iter().all(|n| cheap(&n.op)) && small(&c.graph)));
    // In a stream: what keeps histories, keys and the position.
    for frames in [1, 4] {
        let mut g = Graph::new("codec_stream");
        codec_decoder::build(&mut g, &c, Past::Stream, 1, frames).expect("consistent");
        cases.extend(harvest(&g).into_iter().filter(|c| c.graph.nodes().iter().all(|n| cheap(&n.op))));
    }
    assert!(cases.len() > 60, "only {} cases were harvested", cases.len());
    for isa in Isa::available() {
        let report = check_all(&OnDevice(&CpuDevice::new(2, isa).expect("threads start")), &cases);
        println!("{isa}: {report}");
        report.assert();
    }
}

/// Time that this thread has computed, where the system tells.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// How long a frame takes at the released widths, in pieces of a stream, and which steps take it.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench() {
    let c = released();
    let isa = Isa::detect().expect("a supported processor");
    let detailed = std::env::var("STEPS").is_ok();
    let one = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let named = |name: String| Precision::ALL.into_iter().find(|p| p.name() == name).expect("a precision");
    let precision = std::env::var("PRECISION").map_or(Precision::F32, named);
    let chosen = one("FRAMES").zip(one("THREADS")).map(|chosen| vec![chosen]);
    for (frames, threads) in chosen.unwrap_or(vec![(1, 2), (4, 1), (4, 2), (8, 1), (8, 2), (25, 1), (25, 2)])
    {
        let device = CpuDevice::new(threads, isa).expect("threads start");
        let device = device.with_precision(PrecisionPolicy::uniform(precision)).expect("is one of a CPU");
        let mut g = Graph::new("codec_decoder");
        codec_decoder::build(&mut g, &c, Past::Stream, 1, frames).expect("consistent");
        let weights = Arc::new(RandomWeights::of_graph(&g, 1));
        let plan = Plan::compile(g, &device).expect("all ops have kernels");
        let plan = device.open(weights).load(plan).expect("weights are random");
        let mut memory = device.memory();
        memory.write_i32("codes", &Shape::from([1, frames, 16]), &vec![7; 16 * frames]).expect("the shape");
        for b in plan.plan().buffers().iter().filter(|b| b.kind.is_state()) {
            memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
        }
        plan.run(memory.as_mut()).expect("runs");
        // The least of several runs of each step: others use this machine, too.
        let mut times = vec![f64::INFINITY; plan.plan().steps().len()];
        let (mut whole, mut computed) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..200usize.div_ceil(4 * frames).max(8) {
            let before = thread_seconds();
            let run = plan.profile(memory.as_mut()).expect("runs");
            computed = computed.min(thread_seconds() - before);
            whole = whole.min(run.iter().sum());
            times.iter_mut().zip(run).for_each(|(least, t)| *least = least.min(t));
        }
        let mut kernels = BTreeMap::<String, (f64, f64)>::new();
        for (step, time) in plan.plan().steps().iter().zip(&times) {
            let k = kernels.entry(step.describe()).or_default();
            *k = (k.0 + time, k.1 + step.cost.flops as f64);
            if detailed {
                let shape = &plan.plan().info(step.node.output).shape;
                println!(
                    "  {:>8.0} us {:>6.1} GFLOP/s {:>6.1} GB/s  {} {shape} {}",
                    time * 1e6,
                    step.cost.flops as f64 / time / 1e9,
                    step.cost.bytes as f64 / time / 1e9,
                    step.describe(),
                    step.label().unwrap_or("-"),
                );
            }
        }
        let least: f64 = times.iter().sum();
        let flops: u64 = plan.plan().steps().iter().map(|s| s.cost.flops).sum();
        println!(
            "{isa}, {precision}, {threads} threads, pieces of {frames}: {:.1} ms per frame (the caller's \
             processor time {:.1}, sum of \
             the least of each step {:.1}), {:.0} GFLOP/s, arena {:.0} MB",
            whole / frames as f64 * 1e3,
            computed / frames as f64 * 1e3,
            least / frames as f64 * 1e3,
            flops as f64 / whole / 1e9,
            plan.plan().arena_bytes() as f64 / 1e6
        );
        let mut kernels: Vec<_> = kernels.into_iter().collect();
        kernels.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
        for (name, (time, flops)) in kernels.iter().take(7) {
            let per_frame = time / frames as f64 * 1e3;
            println!(
                "  {name}: {per_frame:.2} ms, {:.0} %, {:.0} GFLOP/s",
                100.0 * time / least,
                flops / time / 1e9
            );
        }
    }
}
