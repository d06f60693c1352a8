//! Validates the WGSL of every variant of every kernel, without a device.

use super::matmul::Normed::{Layer, No, Rms};
use super::matmul::{DEEP, TILES};
use super::*;
use crate::adapters::Matrices;
use crate::variant::Variant;
use crate::weights::Element;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use orate_graph::blocks::{BlockFormat, SuperFormat};
use orate_graph::{Activation, AttentionMask, DType, Edges, Epilogue, First, Padding, Weight};

fn activations() -> Vec<Option<Activation>> {
    let all = Activation::all(Weight::fill(0.1, [1]));
    std::iter::once(None).chain(all.into_iter().map(Some)).collect()
}

fn variants() -> Vec<Variant> {
    let mut all = vec![
        tables::time_variant(),
        tables::random_variant(),
        tables::rotary_variant(tables::Rotary::Turn),
        tables::rotary_variant(tables::Rotary::Table),
        tables::rotary_variant(tables::Rotary::Rope),
        movement::copy_variant(false),
        movement::copy_variant(true),
        movement::gather_variant(None),
        movement::gather_variant(Some(DType::F16)),
        movement::gather_variant(Some(DType::BF16)),
        movement::row_at_variant(),
        movement::concat_variant(3),
        movement::concat_variant(movement::CONCATENATED),
        movement::write_cache_variant(DType::F16, true),
        movement::write_cache_variant(DType::BF16, false),
        movement::write_cache_variant(DType::Q8_0, true),
        movement::write_cache_variant(DType::Q8_0, false),
        movement::write_variant(true, false),
        movement::write_variant(false, true),
        movement::write_variant(false, false),
        encoders::pad_variant(Padding::Zero),
        encoders::pad_variant(Padding::Repeat),
        encoders::pad_variant(Padding::Reflect),
        encoders::statistics_variant(false),
        encoders::statistics_variant(true),
        encoders::codes_variant(256),
        encoders::overlap_variant(),
        encoders::lstm_variant(256),
        encoders::segment_variant(),
        encoders::source_variant(9),
        attention::scores_variant(),
        movement::embedding_sum_variant(),
    ];
    for bits in 0..16 {
        let [seen, guided, penalty_last, held] = [1, 2, 4, 8].map(|bit| bits & bit > 0);
        let ids = if held { 3072 } else { 8194 };
        let threads = if held { 1024 } else { 256 };
        let draws = sample::variant(ids, sample::Sampling { seen, guided, penalty_last, held, threads });
        let reads = draws.clone().set("READS", true).set("ADDS", seen).set("HALVES", guided).set("F16", held);
        all.extend([draws, reads]);
    }
    for d in [4, 16, 48, 128, 256] {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            let subgroups =
                [(256, 32), (512, 64)].map(|(threads, lanes)| attention::Subgroups { threads, lanes });
            let fits = subgroups.into_iter().filter(|s| s.lanes >= d / 4);
            for subgroups in fits.map(Some).chain([None]) {
                let prepares = subgroups.is_some() && d % 8 == 0 && d <= attention::HEADS_WIDTH;
                for heads in [false].into_iter().chain(prepares.then_some(true)) {
                    let with = |positions| attention::row_variant(d, positions, dtype, subgroups, heads);
                    all.extend([false, true].map(with));
                }
            }
        }
    }
    for lanes in [8, 32, 64] {
        all.extend([32, 36, 256].map(|c| rows::subgroup_norm_variant(c, lanes)));
    }
    for (i, a) in activations().iter().enumerate() {
        let norms = [rows::subgroup_norm_variant(256, 32), rows::norm_variant(1, false)];
        all.extend(norms.map(|v| rows::finished(v, a.as_ref(), i % 2 == 0)));
    }
    for subgroups in [false, true] {
        for kept in 0..=4 {
            all.push(rows::norm_variant(kept, subgroups));
            for edges in [Edges::Repeat, Edges::Zero, Edges::History, Edges::Lengths] {
                all.extend([1, 5, 16].map(|taps| rows::depthwise_variant(taps, kept, edges, subgroups)));
            }
        }
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            all.extend([1, 2, 3].map(|values| heads::variant(values, 128, dtype, subgroups)));
        }
        all.extend([false, true].map(|fours| rows::rms_variant(fours, subgroups)));
    }
    for four in [false, true] {
        let functions = pointwise::FUNCTIONS.into_iter().filter(|f| !four || *f != "MASK");
        all.extend(functions.map(|f| pointwise::variant(f, None, four)));
        all.extend(activations().iter().skip(1).map(|a| pointwise::variant("", a.as_ref(), four)));
    }
    for d in [1, 2, 33, 64, 128, 256] {
        for mask in [
            AttentionMask::None,
            AttentionMask::Causal,
            AttentionMask::Window(3),
            AttentionMask::Cached(First::Operand),
            AttentionMask::Stream(3),
        ] {
            for bits in 0..4 {
                let parts = attention::Parts { lens: bits & 1 > 0, relative: bits & 2 > 0, bias: false };
                all.push(attention::variant(d, mask, parts, DType::F32));
            }
            if let AttentionMask::Cached(_) = mask {
                all.extend(
                    DType::COMPACT
                        .map(|dtype| attention::variant(d, mask, attention::Parts::default(), dtype)),
                );
            }
        }
    }
    let biased = attention::Parts { bias: true, ..attention::Parts::default() };
    all.extend([33, 64].map(|d| attention::variant(d, AttentionMask::None, biased, DType::F32)));
    let lens = attention::Parts { lens: true, ..attention::Parts::default() };
    let both = attention::Parts { lens: true, ..biased };
    all.extend([33, 64].map(|d| attention::variant(d, AttentionMask::None, both, DType::F32)));
    for parts in [biased, lens, both, attention::Parts::default()] {
        all.extend([4, 48, 64, 128].map(|d| attention::tile_variant(d, parts)));
    }
    for has in [Matrices { fragment: 16, lanes: 32 }, Matrices { fragment: 8, lanes: 8 }] {
        all.extend([32, 64].map(|d| attention_cooperative::scores_variant(has, d)));
        for (d, queries) in [(32, 704), (64, 704), (64, 128)] {
            let t = attention_cooperative::tile_for(8, queries, d, has, 48 << 10).expect("a tile");
            for (parts, halves) in [(attention::Parts::default(), false), (lens, true), (both, false)] {
                all.push(attention_cooperative::variant(t, has, d, parts, halves));
            }
        }
    }
    let blocks = [BlockFormat::Q8_0, BlockFormat::Q4_0].map(Element::Blocks);
    let elements = [Element::F32, Element::F16, Element::Bf16, blocks[0], blocks[1]];
    let supers = [SuperFormat::Q6K, SuperFormat::Q5K, SuperFormat::Q4K].map(Element::Super);
    let halved = [Element::F16].into_iter().chain(blocks).chain(supers);
    for (activation, element) in activations().into_iter().zip(elements.into_iter().cycle()) {
        for fused in [false, true] {
            let bias = fused.then(|| Weight::fill(0.0, [4]));
            let e = Epilogue { bias, activation: activation.clone(), residual: fused };
            for (parts, gated, norm) in [
                (1, false, No),
                (1, false, Rms),
                (2, false, Rms),
                (2, false, Layer),
                (3, false, No),
                (2, true, Rms),
                (2, true, Layer),
            ] {
                for (rows, unroll, lanes) in [
                    (1, 6, Some(32)),
                    (2, 3, Some(8)),
                    (1, 1, None),
                    (2, 4, None),
                    (7, 2, Some(64)),
                    (16, 1, None),
                ] {
                    let is_normed = if norm == Layer { lanes.is_some() && rows <= 2 } else { rows <= 4 };
                    let norm = if is_normed { norm } else { No };
                    let odd = parts == 1 && rows != 2;
                    let what = |quads| matmul::Vector {
                        rows,
                        quads,
                        unroll,
                        element,
                        parts,
                        gated,
                        norm,
                        odd,
                        lanes,
                    };
                    all.extend([2, 4].map(|quads| matmul::vector_variant(what(quads), &e)));
                }
            }
        }
    }
    for (activation, edges) in
        activations().into_iter().zip([Edges::Repeat, Edges::Zero, Edges::History].into_iter().cycle())
    {
        for bias in [None, Some(Weight::fill(0.0, [1]))] {
            let e = Epilogue { bias, activation: activation.clone(), residual: false };
            all.push(matmul::narrow_variant(edges, &e));
        }
    }
    let convolutions = [None, Some(Edges::Repeat), Some(Edges::Zero), Some(Edges::History)];
    for tile in TILES.into_iter().map(|(_, t)| t).chain([DEEP]) {
        assert!(tile.shared() <= 32 << 10, "Metal and DX12 share no more: {tile:?}");
        for (activation, conv) in activations().into_iter().zip(convolutions.into_iter().cycle()) {
            for odd in [false, true] {
                for fused in [false, true] {
                    let bias = fused.then(|| Weight::fill(0.0, [4]));
                    let e = Epilogue { bias, activation: activation.clone(), residual: fused };
                    let e = (&e, conv.is_some() && activation.is_none());
                    all.extend(elements.map(|element| matmul::variant(tile, element, fused, odd, conv, e)));
                }
            }
        }
    }
    for has in [Matrices { fragment: 16, lanes: 32 }, Matrices { fragment: 8, lanes: 8 }] {
        let terms = [64, 100, 128, 384, 512, 1024, 4096];
        let sizes = [(17, 64), (72, 1024), (100, 2048), (200, 1024), (400, 1024), (800, 768), (4000, 384)];
        let tiles = terms.map(|k| sizes.map(|(m, n)| cooperative::tile_for([m, n, k], has)));
        let more = [
            [700, 512, 64],
            [500, 1536, 100],
            [1408, 1536, 256],
            [2400, 768, 5376],
            [3000, 768, 5376],
            [6400, 768, 5376],
            [40_000, 192, 1344],
            [48_000, 96, 672],
        ];
        let more = more.map(|sizes| cooperative::tile_for(sizes, has));
        let kinds = convolutions.map(|conv| [(conv, true), (conv, false)]).into_iter().flatten();
        for ((tile, activation), (conv, fused)) in
            tiles.into_iter().flatten().chain(more).zip(activations().into_iter().cycle()).zip(kinds.cycle())
        {
            assert!(tile.divides(has) && tile.shared(has) <= 48 << 10, "{tile:?}");
            let bias = fused.then(|| Weight::fill(0.0, [4]));
            let e = Epilogue { bias, activation, residual: fused };
            let snakes = conv.is_some() && e.activation.is_none();
            for element in halved.clone() {
                let plain = cooperative::Extras { snakes, ..Default::default() };
                all.push(cooperative::variant((tile, has), 256, element, conv, plain, &e));
                let halves = cooperative::Extras { half_out: true, ..plain };
                all.push(cooperative::variant((tile, has), 256, element, conv, halves, &e));
                if conv.is_some() || fused {
                    continue;
                }
                for (parts, gated, norm) in [
                    (true, false, No),
                    (true, false, Rms),
                    (false, true, No),
                    (false, true, Rms),
                    (true, false, Layer),
                    (false, true, Layer),
                ] {
                    let tile = match norm {
                        Layer => cooperative::norming_tile([704, 1024], gated, has),
                        _ => tile.suited(gated, norm, has),
                    };
                    assert!(tile.divides(has) && tile.shared_with(has, norm) <= 48 << 10, "{tile:?}");
                    assert!(norm != Rms || tile.results(has)[0] <= tile.threads(has), "{tile:?}");
                    assert!(norm != Layer || tile.norms(256, has), "{tile:?}");
                    let half_out = parts;
                    let extras = cooperative::Extras { parts, gated, norm, half_out, ..Default::default() };
                    all.push(cooperative::variant((tile, has), 256, element, conv, extras, &e));
                }
            }
        }
    }
    all
}

/// A variant as a module, with naga's validation result.
fn validated(v: &Variant) -> (naga::Module, naga::valid::ModuleInfo) {
    let text = v.wgsl().unwrap_or_else(|e| panic!("{e}"));
    let module =
        naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{v:?}\n{}", e.emit_to_string(&text)));
    let mut capabilities =
        Capabilities::IMMEDIATES | Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if v.is_cooperative() {
        capabilities |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
    }
    let stages = naga::valid::ShaderStages::COMPUTE;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(stages).subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{v:?}\n{}", e.emit_to_string(&text)));
    (module, info)
}

#[test]
fn every_variant_is_valid_wgsl() {
    variants().iter().for_each(|v| drop(validated(v)));
}

/// The sizes are those of the op cases.
#[test]
fn many_workgroups_have_the_tile_that_takes_the_shortest_time() {
    let has = Matrices { fragment: 16, lanes: 32 };
    let many = [(2400, 768), (3100, 768), (17_100, 96), (16_900, 192)];
    let chosen = many.map(|(m, n)| cooperative::tile_for([m, n, 720], has));
    let found = chosen.map(|t| cooperative::MANY.iter().position(|(.., of_many)| *of_many == t));
    assert_eq!(found, [2, 3, 4, 1].map(Some), "{chosen:?}");
    let [.., a, b] = many.map(|(m, n)| cooperative::tile_for([m, n, 240], has));
    assert_eq!([a, b], [cooperative::SHORT.1; 2]);
}

#[cfg(not(any(target_os = "wasi", target_vendor = "apple")))]
#[test]
fn kernels_on_cooperative_matrices_become_spirv() {
    for v in variants().into_iter().filter(Variant::is_cooperative) {
        let text = v.wgsl().unwrap_or_else(|e| panic!("{e}"));
        crate::spirv::words(&text).unwrap_or_else(|e| panic!("{v:?}: {e}"));
    }
}

/// Translates as wgpu does for Metal, with the first version that has subgroups in compute shaders, and for
/// the compiler of shader model 6.
#[test]
fn every_variant_becomes_a_shader_of_metal_and_dx12() {
    use naga::back::{hlsl, msl};
    let metal = msl::Options { lang_version: (2, 1), fake_missing_bindings: true, ..Default::default() };
    let target = hlsl::BindTarget { space: 1, ..Default::default() };
    let dx12 = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        immediates_target: Some(target),
        special_constants_binding: Some(hlsl::BindTarget { space: 2, ..Default::default() }),
        ..Default::default()
    };
    for v in variants().into_iter().filter(|v| !v.is_cooperative()) {
        let (module, info) = validated(&v);
        let written = msl::write_string(&module, &info, &metal, &Default::default());
        let (text, entry) = written.unwrap_or_else(|e| panic!("Metal: {v:?}: {e}"));
        assert!(
            entry.entry_point_names.iter().all(Result::is_ok) && text.contains("kernel void"),
            "Metal: {v:?}"
        );
        let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
        let written = hlsl::Writer::new(&mut text, &dx12, &pipeline).write(&module, &info, None);
        let entry = written.unwrap_or_else(|e| panic!("DX12: {v:?}: {e}"));
        assert!(
            entry.entry_point_names.iter().all(Result::is_ok) && text.contains("[numthreads("),
            "DX12: {v:?}"
        );
    }
}
