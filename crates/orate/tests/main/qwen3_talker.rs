//! Qwen3-TTS's talker against the official package: a prompt layer by layer, in one pass and in several.

use orate_cpu::{CpuDevice, Isa};
use orate_graph::{CacheFormat, Device, Graph, Memory, ModelOnDevice, Plan};
use orate_models::Loader;
use orate_models::qwen3_tts::{Config, frame, prompt_rows, talker};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::{OnDevice, ReferenceDevice, assert_close, check_all, harvest};
use orate_weights::{SafeTensors, WeightSource};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of each tensor's largest magnitude, as for the other networks.
const TOLERANCE: f64 = 2e-5;

fn json() -> serde_json::Value {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base/config.json");
    serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON")
}

fn config() -> Config {
    Config::from_json(json().to_string().as_bytes()).expect("as the oracle writes it")
}

fn open(file: &str) -> SafeTensors {
    SafeTensors::open(qwen3_tts_goldens().join(file)).expect("committed")
}

/// Rows that the caches hold; fewer than a bucket.
const CAPACITY: usize = 21;

fn graph(c: &Config, time: usize, taps: bool) -> Graph {
    let mut g = Graph::new("talker_prefill");
    if taps {
        g = g.with_taps();
    }
    let sizes = talker::CacheSizes { batch: 1, capacity: CAPACITY, kv: CacheFormat::F32 };
    talker::prefill(&mut g, &c.talker_config, sizes, time).expect("the configuration is consistent");
    g
}

fn model(device: &dyn Device) -> Box<dyn ModelOnDevice> {
    device.open(Arc::new(Loader(Arc::new(open("checkpoints/tiny-base/talker.safetensors")))))
}

/// Reads a prompt, beginning with empty states.
fn prefill(device: &dyn Device, graph: Graph, rows: &[f32]) -> Box<dyn Memory> {
    let mut memory = device.memory();
    for b in graph.buffers().iter().filter(|b| b.kind.is_state()) {
        memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
    }
    go_on(device, graph, rows, 0, &mut *memory);
    memory
}

/// Reads more of a prompt, behind so many rows.
fn go_on(device: &dyn Device, graph: Graph, rows: &[f32], behind: usize, memory: &mut dyn Memory) {
    let shape = graph.buffers()[0].shape.clone();
    let plan = Plan::compile(graph, device).expect("all ops have kernels");
    let plan = model(device).load(plan).expect("all weights are there");
    memory.write_f32("rows", &shape, rows).expect("the declared shape");
    memory.write_i32(talker::POSITION, &[1].into(), &[behind as i32]).expect("has room");
    memory.write_i32(talker::LAST, &[1].into(), &[shape.dims()[1] as i32 - 1]).expect("has room");
    plan.run(memory).expect("runs");
}

#[test]
fn a_prompt_is_read_as_by_the_official_package() {
    let (config, case) = (config(), open("cases/tiny-base/xvector_streaming.safetensors"));
    let want = |name: &str| case.get(name).expect("is there").to_f32();
    let rows = want("prompt_embeds");
    let time = case.info("prompt_embeds").expect("is there").shape[0];
    let mut devices: Vec<(String, Box<dyn Device>)> =
        vec![("reference".to_owned(), Box::new(ReferenceDevice))];
    for isa in Isa::available() {
        for threads in [1, 2] {
            let device = CpuDevice::new(threads, isa).expect("threads start");
            devices.push((format!("{isa}, {threads} threads"), Box::new(device)));
        }
    }
    for (name, device) in devices {
        for taps in [true, false] {
            let mut memory = prefill(&*device, graph(&config, time, taps), &rows);
            let mut check = |buffer: &str, golden: &str| {
                let mut got = vec![];
                memory.read_f32(buffer, &mut got).expect("an output");
                let c = assert_close(&format!("{name}: {golden}"), &got, &want(golden), TOLERANCE);
                println!("{name}: {golden} {:.1e}", c.max_error);
                got
            };
            if taps {
                for i in 0..3 {
                    check(&format!("tap/prefill_layer{i}"), &format!("prefill_layer{i}"));
                }
            }
            check("hidden", "talker_hidden");
            let logits = check("logits", "talker_logits");
            let likeliest = |x: &[f32]| (0..x.len()).max_by(|a, b| x[*a].total_cmp(&x[*b]));
            assert_eq!(likeliest(&logits), likeliest(&want("talker_logits")), "{name}");
        }
    }
}

/// The state of a row depends on those before it alone: the promise that a cache stands on.
#[test]
fn a_prompt_can_be_cut_short() {
    let (config, case) = (config(), open("cases/tiny-base/xvector_streaming.safetensors"));
    let rows = case.get("prompt_embeds").expect("is there").to_f32();
    let layers = case.get("prefill_layer2").expect("is there").to_f32();
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    for time in [1, 4, 9] {
        let mut memory = prefill(&device, graph(&config, time, true), &rows[..64 * time]);
        let mut got = vec![];
        memory.read_f32("tap/prefill_layer2", &mut got).expect("a tap");
        assert_close(&format!("{time} rows"), &got, &layers[..64 * time], TOLERANCE);
    }
}

/// A prompt behind one that was read before ends like the whole, whatever the pieces.
#[test]
fn a_prompt_can_be_read_in_pieces() {
    let (config, case) = (config(), open("cases/tiny-base/xvector_streaming.safetensors"));
    let rows = case.get("prompt_embeds").expect("is there").to_f32();
    let want = case.get("talker_logits").expect("is there").to_f32();
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    for pieces in [vec![1, 9], vec![9, 1], vec![4, 4, 2], vec![1; 10]] {
        let mut memory = prefill(&device, graph(&config, pieces[0], false), &rows[..64 * pieces[0]]);
        let mut at = pieces[0];
        for piece in &pieces[1..] {
            let part = &rows[64 * at..64 * (at + piece)];
            go_on(&device, graph(&config, *piece, false), part, at, &mut *memory);
            at += piece;
        }
        let mut got = vec![];
        memory.read_f32("logits", &mut got).expect("an output");
        assert_close(&format!("{pieces:?}"), &got, &want, TOLERANCE);
    }
}

/// More rows than the caches have are refused, and nothing is written beyond them.
#[test]
fn a_full_cache_is_an_error() {
    let (config, case) = (config(), open("cases/tiny-base/xvector_streaming.safetensors"));
    let rows = case.get("prompt_embeds").expect("is there").to_f32();
    let device = CpuDevice::new(1, Isa::detect().expect("a supported processor")).expect("threads start");
    let mut memory = prefill(&device, graph(&config, 10, false), &rows);
    go_on(&device, graph(&config, 10, false), &rows, 10, &mut *memory);
    let plan = Plan::compile(graph(&config, 2, false), &device).expect("compiles");
    let plan = model(&device).load(plan).expect("loads");
    memory.write_f32("rows", &[1, 2, 64].into(), &rows[..128]).expect("fits");
    memory.write_i32(talker::POSITION, &[1].into(), &[20]).expect("fits");
    memory.write_i32(talker::LAST, &[1].into(), &[1]).expect("fits");
    let e = plan.run(&mut *memory).expect_err("20 + 2 > 21").to_string();
    assert!(e.contains("2 rows from 20 on do not fit into 21"), "{e}");
}

#[test]
fn the_network_names_the_tensors_of_the_checkpoint() {
    let mut used = BTreeSet::new();
    for node in graph(&config(), 3, false).nodes() {
        for w in node.op.weights() {
            w.visit_named(&mut |name, shape| {
                used.insert((name.to_owned(), shape.dims().to_vec()));
            });
        }
    }
    let file = open("checkpoints/tiny-base/talker.safetensors");
    let there =
        file.names().into_iter().map(|n| (n.to_owned(), file.info(n).expect("listed").shape)).collect();
    assert_eq!(used, there);
}

/// The ops at the widths of the released 0.6B and 1.7B models.
#[test]
fn ops_at_the_released_widths() {
    for (width, inner) in [(1024, 3072), (2048, 6144)] {
        let mut json = json();
        let t = &mut json["talker_config"];
        for (key, value) in [
            ("hidden_size", width),
            ("intermediate_size", inner),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 8),
            ("head_dim", 128),
            ("num_hidden_layers", 1),
        ] {
            t[key] = value.into();
        }
        let p = &mut json["talker_config"]["code_predictor_config"];
        for (key, value) in [
            ("hidden_size", 1024),
            ("intermediate_size", 3072),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 8),
            ("head_dim", 128),
            ("num_hidden_layers", 1),
            ("vocab_size", 2048),
        ] {
            p[key] = value.into();
        }
        json["talker_config"]["vocab_size"] = 3072.into();
        json["speaker_encoder_config"]["enc_dim"] = width.into();
        let config = Config::from_json(json.to_string().as_bytes()).expect("as released");
        let mut frame = Graph::new("frame");
        let sizes = talker::CacheSizes { batch: 2, capacity: 40, kv: CacheFormat::F32 };
        frame::build(&mut frame, &config.talker_config, sizes, 5).expect("the configuration is consistent");
        let mut cases = harvest(&graph(&config, 13, false));
        cases.extend(harvest(&frame));
        let mut rows = Graph::new("rows of a prompt");
        prompt_rows::build(&mut rows, &config.talker_config, 20, true)
            .expect("the configuration is consistent");
        cases.extend(harvest(&rows));
        assert!(cases.len() > 100, "only {} cases were harvested", cases.len());
        for isa in Isa::available() {
            let report = check_all(&OnDevice(&CpuDevice::new(2, isa).expect("threads start")), &cases);
            println!("{width}, {isa}: {report}");
            report.assert();
        }
    }
}
