//! Damaged files must not make the readers panic, hang, or allocate much more than the file's own size.

use orate_testing::Counting;
use orate_testing::fuzz::{Limits, fuzz};
use orate_weights::voice_pack::{self, PackedVoice};
use orate_weights::{DType, GgufFile, GgufWriter, Joined, OnnxModel, PtFile, SafeTensors, WeightSource};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

/// Names are kept in several tables, and files pack their numbers. Mutated inputs come as a slice and are
/// copied.
const LIMITS: Limits = Limits { growth: 16, fixed: 64 << 10 };

/// Most memory for as many empty messages as are allowed.
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

fn pt() -> [Vec<u8>; 3] {
    ["values.pt", "training.pt", "protocol4.pt"].map(|file| {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)).unwrap()
    })
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

/// Reads everything that a file offers. Errors must print in a bounded line.
fn read_all(file: Result<impl WeightSource, orate_weights::WeightError>) {
    match file {
        Ok(file) => file.names().into_iter().for_each(|name| {
            let _ = file.get(name).map(|tensor| tensor.bytes.len());
        }),
        Err(e) => {
            let message = e.to_string();
            assert!(message.len() < 10_000, "{} bytes of message", message.len());
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}

fn packed_voice() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", voice_pack::ARCHITECTURE).set(voice_pack::TTS_JSON, "{\"ae\":1}");
    writer.set(voice_pack::UNICODE_INDEXER, "[-1,0,1]").set(voice_pack::VOICES, vec!["a".to_owned()]);
    writer.set(&format!("{}a", voice_pack::VOICE_PREFIX), "{}");
    writer.tensor("tts.weight", DType::Q8_0, &[2, 32], vec![1; 68]);
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn safetensors_survive_damage() {
    fuzz("safetensors", &[safetensors()], LIMITS, |b| read_all(SafeTensors::from_bytes("test", b.to_vec())));
}

#[test]
fn gguf_files_survive_damage() {
    fuzz("gguf", &[gguf(), packed_voice()], LIMITS, |b| read_all(GgufFile::from_bytes("test", b.to_vec())));
}

#[test]
fn packed_voices_survive_damage() {
    fuzz("packed-voice", &[packed_voice()], LIMITS, |bytes| {
        let voice = GgufFile::from_bytes("test", bytes.to_vec()).and_then(PackedVoice::new);
        read_all(voice.map(PackedVoice::into_weights));
    });
}

#[test]
fn onnx_files_survive_damage() {
    // A node or an initializer of two bytes takes hundreds in memory.
    let limits = Limits { growth: 600, ..LIMITS };
    fuzz("onnx", &[onnx()], limits, |bytes| read_all(OnnxModel::from_bytes("test", bytes.to_vec())));
}

#[test]
fn pt_files_survive_damage() {
    // An instruction of one byte makes a value, and may make an object.
    let limits = Limits { growth: 200, ..LIMITS };
    fuzz("pt", &pt(), limits, |bytes| read_all(PtFile::from_bytes("test", bytes.to_vec())));
}

#[test]
fn values_of_a_pickle_are_bounded() {
    let program = [b"}".repeat(1 << 20), b".".to_vec()].concat();
    for (what, program) in [("dictionaries", program), ("marks", b"(".repeat(5 << 20))] {
        let file = stored("x/data.pkl", &program);
        let used = Counting::peak_here(|| drop(PtFile::from_bytes("test", file)));
        println!("{what}: {used} bytes");
        assert!(used <= 300 << 20, "{what}: {used} bytes");
    }
}

/// A zip file with one entry.
fn stored(name: &str, bytes: &[u8]) -> Vec<u8> {
    let (size, name_len) = ((bytes.len() as u32).to_le_bytes(), (name.len() as u16).to_le_bytes());
    let mut file = [b"PK\x03\x04", &[0; 22][..], &name_len, &[0; 2], name.as_bytes(), bytes].concat();
    let start = (file.len() as u32).to_le_bytes();
    let sizes = [size, size].concat();
    file.extend([b"PK\x01\x02", &[0; 16][..], &sizes, &name_len, &[0; 16], name.as_bytes()].concat());
    let len = (46 + name.len() as u32).to_le_bytes();
    file.extend([b"PK\x05\x06", &[0; 6][..], &[1, 0], &len, &start, &[0; 2]].concat());
    file
}

#[test]
fn indexes_of_shards_survive_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    std::fs::write(folder.path().join("a.safetensors"), safetensors()).unwrap();
    let map: Vec<String> = (0..20).map(|i| format!("\"layer.{i}.weight\":\"a.safetensors\"")).collect();
    let index = format!("{{\"metadata\":{{\"total_size\":1280}},\"weight_map\":{{{}}}}}", map.join(","));
    let limits = Limits { growth: 64, fixed: 256 << 10 };
    fuzz("index", &[index.into_bytes()], limits, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        read_all(Joined::open_index(&path));
    });
}

#[test]
fn cut_files_are_errors_or_smaller_files() {
    type Read = fn(Vec<u8>);
    let [values, training, _] = pt();
    let formats: [(Vec<u8>, Read); 5] = [
        (gguf(), |bytes| read_all(GgufFile::from_bytes("test", bytes))),
        (safetensors(), |bytes| read_all(SafeTensors::from_bytes("test", bytes))),
        (onnx(), |bytes| read_all(OnnxModel::from_bytes("test", bytes))),
        (values, |bytes| read_all(PtFile::from_bytes("test", bytes))),
        (training, |bytes| read_all(PtFile::from_bytes("test", bytes))),
    ];
    for (valid, read) in formats {
        let step = if valid.len() > 10_000 { 67 } else { 1 };
        (0..=valid.len()).step_by(step).for_each(|len| read(valid[..len].to_vec()));
    }
}

/// Nodes, initializers and inputs take two bytes each in the file, and hundreds in memory.
#[test]
fn empty_messages_are_counted_before_they_are_read() {
    for field in [1, 5, 11] {
        let file = empty_messages(field, 4_000_000);
        let used = Counting::peak_here(|| assert!(OnnxModel::from_bytes("test", file).is_err()));
        assert!(used <= LIMITS.fixed, "too many empty fields {field}: {used} bytes");
        let file = empty_messages(field, 200_000);
        let used = Counting::peak_here(|| assert!(OnnxModel::from_bytes("test", file).is_err()));
        assert!(used <= MAX_EMPTY, "empty fields {field}: {used} bytes");
    }
}

#[test]
fn hostile_names_are_shortened_and_escaped_in_errors() {
    let name = "\u{1b}[31m\u{202e}".to_owned() + &"x".repeat(100_000);
    let header = format!(r#"{{{name:?}:{{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}}}"#)
        .replace("\\u{1b}", "\\u001b")
        .replace("\\u{202e}", "\u{202e}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 4]);
    let message = SafeTensors::from_bytes("te\nst", bytes).unwrap_err().to_string();
    assert!(
        message.starts_with(r"te\nst: not a valid safetensors file: tensor `\u{1b}[31m\u{202e}xxx"),
        "{message}"
    );
    assert!(message.len() < 400 && message.ends_with("does not fill its 4 bytes"), "{message}");
}
