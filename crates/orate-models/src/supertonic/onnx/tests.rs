//! On small models of the official structure, and on damaged ones.

use super::*;
use orate_testing::Random;
use orate_weights::OnnxModel;
use std::collections::HashSet;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../oracle/supertonic/golden");

type Files = [Vec<u8>; 4];

fn files(model: &str) -> Files {
    Stage::ALL.map(|stage| {
        let path = Path::new(GOLDEN).join(model).join("onnx").join(format!("{}.onnx", stage.name()));
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    })
}

fn import(files: &Files) -> Result<OnnxWeights, ModelError> {
    let file = |(stage, bytes): (Stage, &Vec<u8>)| {
        let model = OnnxModel::from_bytes(&format!("{}.onnx", stage.name()), bytes.clone())?;
        Ok(OnnxFile::new(stage, model))
    };
    let files = Stage::ALL.into_iter().zip(files).map(file).collect::<Result<_, WeightError>>()?;
    OnnxWeights::import("test".to_owned(), files)
}

/// Overwrites the first place where `old` stands.
fn patch(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let at = bytes.windows(old.len()).position(|window| window == old).expect("the pattern is in the file");
    bytes[at..at + new.len()].copy_from_slice(new);
}

#[test]
fn all_versions_get_the_same_names() {
    let open_golden = |model| open(&Path::new(GOLDEN).join(model).join("onnx")).unwrap();
    let (v1, v2, v3) = (open_golden("tiny1"), open_golden("tiny"), open_golden("tiny3"));
    assert_eq!(v1.names(), v2.names());
    let names =
        |weights: &OnnxWeights| weights.names().into_iter().map(str::to_owned).collect::<HashSet<_>>();
    let (v2_names, v3_names) = (names(&v2), names(&v3));
    // Apart from sizes (one ConvNeXt block more or less would show here), only these differ.
    for name in v2_names.difference(&v3_names) {
        assert!(name.ends_with(".tanh_key"), "{name}");
    }
    for name in v3_names.difference(&v2_names) {
        assert!(name.contains(".uncond_masker.") || name.contains(".W_key.linear."), "{name}");
    }
    for weights in [&v1, &v2, &v3] {
        for name in weights.names() {
            assert!(name.starts_with("tts."), "{name}");
            let tensor = weights.get(name).unwrap();
            assert_eq!(weights.info(name), Some(tensor.info()), "{name}");
            assert!(tensor.to_f32().iter().all(|v| v.is_finite()), "{name}");
        }
    }
    assert!(v2.get("tts.nothing").is_err());
}

#[test]
fn anonymous_weights() {
    let weights = import(&files("tiny")).unwrap();
    let shape = |name: &str| weights.info(name).unwrap_or_else(|| panic!("{name}")).shape;
    let block = "tts.ttl.vector_field.main_blocks.3.attn";
    let latent = shape("tts.ttl.vector_field.proj_in.net.weight")[0];
    let text = shape("tts.ttl.text_encoder.text_embedder.char_embedder.weight")[1];
    assert_ne!(latent, text);
    assert_eq!(shape(&format!("{block}.W_query.linear.weight")), [text, latent]);
    assert_eq!(shape(&format!("{block}.out_fc.linear.weight")), [latent, text]);
    let keys = shape("tts.ttl.speech_prompted_text_encoder.attention2.tanh_key");
    assert_eq!(shape(STYLE_KEY), [1, keys[3], text]);
    assert_eq!(keys[..3], [2, 1, text / 2]);
    let embed = shape("tts.ae.decoder.embed.net.weight");
    assert_eq!(shape("tts.ae.decoder.embed.net.bias"), embed[..1]);
    assert_eq!(shape("tts.ae.decoder.head.act.weight"), [1]);

    // Row r of the logical weight is column r of the stored one.
    let linear = weights.get(&format!("{block}.W_query.linear.weight")).unwrap();
    let stored = weights.files[2].model.get("onnx::MatMul_3101").unwrap();
    assert_eq!(stored.shape, [latent, text]);
    let (linear, stored) = (linear.to_f32(), stored.to_f32());
    assert!((0..text).all(|r| (0..latent).all(|c| linear[r * latent + c] == stored[c * text + r])));
}

#[test]
fn facts() {
    let v2 = import(&files("tiny")).unwrap().facts().clone();
    assert_eq!((v2.opset, v2.text_dim, v2.guidance), (19, 32, None));
    assert_eq!((v2.normalizer_scale, v2.rotary_scale, v2.rotary_base), (0.25, 10.0, 10_000.0));
    for (stack, dilations) in [
        ("tts.ae.decoder.convnext", [1, 2, 4, 1].as_slice()),
        ("tts.ttl.vector_field.main_blocks.6.convnext", &[1, 2, 4, 8]),
        ("tts.ttl.vector_field.last_convnext.convnext", &[1, 1]),
        ("tts.ttl.text_encoder.convnext.convnext", &[1, 1, 1]),
        ("tts.dp.sentence_encoder.convnext.convnext", &[1, 1]),
    ] {
        assert_eq!(v2.dilations[stack], dilations, "{stack}");
    }

    let v3 = import(&files("tiny3")).unwrap().facts().clone();
    assert_eq!(v3.guidance, Some(Guidance { conditional: 4.0, unconditional: 3.0 }));
    assert_eq!(v3.text_dim, 32);
    assert_eq!(v3.dilations["tts.ttl.text_encoder.convnext.convnext"], [1, 2, 4]);
}

#[test]
fn other_graphs_are_refused() {
    let number = |model, stage: usize, old: f32, new: f32, expected| {
        (model, stage, old.to_le_bytes().to_vec(), new.to_le_bytes().to_vec(), expected)
    };
    let text = |stage: usize, old: &str, new: &str, expected| {
        ("tiny", stage, old.as_bytes().to_vec(), new.as_bytes().to_vec(), expected)
    };
    let key = |n| format!("/speech_prompted_text_encoder/attention{n}/tanh/Tanh_output_0");
    let cases = [
        number("tiny", 0, 1e-6, 1e-5, "LayerNormalization): epsilon"),
        number("tiny", 1, 1e-6, 1e-5, "LayerNormalization): epsilon"),
        number("tiny", 3, 1e-5, 1e-6, "BatchNormalization): epsilon"),
        number("tiny", 1, std::f32::consts::SQRT_2, 1.5, "act/Div (Div): the divisor"),
        number("tiny", 1, 32f32.sqrt(), 4.0, "attention1/Div (Div): the divisor"),
        number("tiny", 2, 32f32.sqrt(), 4.0, "attn/Div_4 (Div): the divisor"),
        number("tiny", 0, 8f32.sqrt(), 4.0, "attn_layers.0/Div (Div): the divisor"),
        number("tiny", 1, -1e4, -1e5, "the masked score"),
        number("tiny", 2, f32::NEG_INFINITY, -1e4, "the masked score"),
        number("tiny", 2, 1000.0, 100.0, "the time's scale"),
        number("tiny3", 2, 3.0, 2.0, "the difference of both factors"),
        text(0, "edge", "wrap", "Pad): mode"),
        text(3, "edge", "wrap", "Pad): mode"),
        text(2, "\"\u{3}Sin", "\"\u{3}Cos", "not from Sin"), // field 4: the operation,
        text(3, "tts.ae.latent_std", "tts.dp.latent_std", "should be read by"),
        text(1, &key(1), &key(2), "attention"),
        text(2, "\"\u{4}Tanh", "\"\u{4}Relu", "by one Tanh"),
    ];
    for (model, stage, old, new, expected) in cases {
        let mut files = files(model);
        patch(&mut files[stage], &old, &new);
        let message = import(&files).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let mut swapped = files("tiny");
    swapped.swap(1, 3);
    assert!(import(&swapped).unwrap_err().to_string().contains("does not belong"));
}

#[test]
fn style_keys_must_agree() {
    let mut files = files("tiny3");
    let weights = import(&files).unwrap();
    let key = weights.get(STYLE_KEY).unwrap().bytes[..16].to_vec();
    patch(&mut files[2], &key, &[0; 16]);
    assert!(import(&files).unwrap_err().to_string().contains("do all four files come from the same model?"));
}

#[test]
fn survives_damage() {
    let mut random = Random::new(0x0a7e);
    let mut next = |n: usize| random.below(n);
    let originals = [files("tiny"), files("tiny3")];
    for _ in 0..400 {
        let mut files = originals[next(2)].clone();
        let stage = next(4);
        for _ in 0..=next(20) {
            let at = next(files[stage].len());
            files[stage][at] = next(256) as u8;
        }
        if next(4) == 0 {
            let len = next(files[stage].len());
            files[stage].truncate(len);
        }
        if let Ok(weights) = import(&files) {
            for name in weights.names() {
                let _ = weights.get(name).map(|tensor| tensor.to_f32());
            }
        }
    }
}
