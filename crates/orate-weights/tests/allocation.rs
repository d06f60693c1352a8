//! Damaged files must not make the readers allocate much more than the file's own size.

use orate_testing::Counting;
use orate_weights::{DType, GgufFile, GgufWriter, OnnxModel, SafeTensors};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

/// Peak memory may be this many times the file, for names kept in several tables and numbers that the file packs.
const MAX_GROWTH: usize = 12;
/// And this much for anything of fixed size.
const FIXED: usize = 64 << 10;

/// What as many empty messages as are allowed may take.
const MAX_EMPTY: usize = 100 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn gguf() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.name", "test").set("names", vec!["a".to_owned(); 200]);
    for i in 0..20 {
        writer.tensor(&format!("layer.{i}.weight"), DType::F16, &[4, 8], vec![0; 64]);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    bytes
}

fn safetensors() -> Vec<u8> {
    let data = [0; 64];
    let view = || TensorView::new(Dtype::F16, vec![4, 8], &data).unwrap();
    safetensors::serialize((0..20).map(|i| (format!("layer.{i}.weight"), view())), None).unwrap()
}

fn onnx() -> Vec<u8> {
    let golden = "../../oracle/supertonic/golden/tiny/onnx/vocoder.onnx";
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden)).unwrap()
}

/// An ONNX file of nothing but `count` empty messages: fields number `field` of the graph.
fn empty_messages(field: u8, count: usize) -> Vec<u8> {
    let mut file = vec![7 << 3 | 2];
    let mut len = 2 * count;
    while len >= 0x80 {
        file.push(len as u8 | 0x80);
        len >>= 7;
    }
    file.push(len as u8);
    file.extend([field << 3 | 2, 0].repeat(count));
    file
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn damage_does_not_cost_memory() {
    type Read = fn(Vec<u8>) -> bool;
    let formats: [(&str, Vec<u8>, usize, Read); 3] = [
        ("gguf", gguf(), 4000, |bytes| GgufFile::from_bytes("test", bytes).is_ok()),
        ("safetensors", safetensors(), 4000, |bytes| SafeTensors::from_bytes("test", bytes).is_ok()),
        ("onnx", onnx(), 1000, |bytes| OnnxModel::from_bytes("test", bytes).is_ok()),
    ];
    let mut random = 0x0a7e_u64;
    let mut next = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    for (format, valid, rounds, read) in formats {
        let limit = FIXED + MAX_GROWTH * valid.len();
        let check = |bytes: Vec<u8>, what: &str| {
            let used = Counting::peak(|| {
                read(bytes);
            });
            assert!(used <= limit, "{format}, {what}: {used} bytes for a file of {}", valid.len());
        };
        assert!(read(valid.clone()), "{format}");
        check(valid.clone(), "undamaged");
        let step = if valid.len() > 10_000 { 67 } else { 1 };
        for len in (0..valid.len()).step_by(step) {
            check(valid[..len].to_vec(), "truncated");
        }
        for round in 0..rounds {
            let mut damaged = valid.clone();
            for _ in 0..=next(8) {
                let at = next(damaged.len());
                damaged[at] = [0xff, 0x7f, next(256) as u8, damaged[at] ^ (1 << next(8))][next(4)];
            }
            check(damaged, &format!("round {round}"));
        }
    }
    // Nodes, initialisers, inputs: two bytes each in the file, hundreds in memory.
    for field in [1, 5, 11] {
        let file = empty_messages(field, 4_000_000);
        let used = Counting::peak(|| assert!(OnnxModel::from_bytes("test", file).is_err()));
        assert!(used <= FIXED, "too many empty fields {field}: {used} bytes");
        let file = empty_messages(field, 200_000);
        let used = Counting::peak(|| assert!(OnnxModel::from_bytes("test", file).is_err()));
        assert!(used <= MAX_EMPTY, "empty fields {field}: {used} bytes");
    }
}
