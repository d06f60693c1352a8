//! Files of `tests/data/make_pt.py`, and programs written by hand.

use super::zip::tests::zip;
use super::*;
use crate::{DType, WeightErrorKind};

const VALUES: &[u8] = include_bytes!("../../tests/data/values.pt");
const TRAINING: &[u8] = include_bytes!("../../tests/data/training.pt");
const PROTOCOL_4: &[u8] = include_bytes!("../../tests/data/protocol4.pt");

fn open(bytes: impl Into<Bytes>) -> PtFile {
    PtFile::from_bytes("test", bytes).unwrap()
}

/// A file with this pickle and one storage `0` of eight bytes.
fn with_program(program: &[u8]) -> Result<PtFile, WeightError> {
    PtFile::from_bytes("test", zip(&[("x/data.pkl", 0, program), ("x/data/0", 0, &[0; 8])], false))
}

fn error(program: &[u8]) -> String {
    with_program(program).expect_err("the program is wrong").to_string()
}

#[test]
fn values_are_those_of_torch() {
    let file = open(VALUES);
    let get = |name: &str| file.get(name).unwrap();
    let counted = |n: usize| (0..n).map(|i| i as f32).collect::<Vec<_>>();
    let types = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)];
    for (name, dtype) in types.into_iter().chain([("u8", DType::U8)]) {
        assert_eq!(get(name).info(), TensorInfo { dtype, shape: vec![3, 4] }, "{name}");
        assert_eq!(get(name).to_f32(), counted(12), "{name}");
    }
    assert_eq!(get("i32").to_i64().unwrap(), (-6..6).collect::<Vec<_>>());
    assert_eq!(get("i64").to_i64().unwrap(), [i64::MIN, -1, (1 << 53) + 1, i64::MAX]);
    assert_eq!(file.info("i64").unwrap(), TensorInfo { dtype: DType::I64, shape: vec![2, 2] });
    assert_eq!(get("bool").to_i64().unwrap(), [[0; 6], [1; 6]].concat());
    assert_eq!((get("scalar").to_f32(), get("scalar").shape), (vec![2.5], vec![]));
    assert_eq!((get("empty").to_f32(), get("empty").shape), (vec![], vec![0, 3]));

    assert_eq!(get("views.transposed").shape, [4, 3]);
    assert_eq!(get("views.transposed").to_f32(), [0., 4., 8., 1., 5., 9., 2., 6., 10., 3., 7., 11.]);
    assert_eq!(get("views.row").to_f32(), [4., 5., 6., 7.]);
    assert!(get("views.row").is_contiguous());
    assert_eq!(get("views.column").to_f32(), [2., 6., 10.]);
    assert_eq!(get("views.corner").to_f32(), [4., 6., 8., 10.]);
    assert_eq!((get("views.one").to_f32(), get("views.one").shape), (vec![5.], vec![1, 1]));
    let permuted = get("views.permuted");
    assert_eq!(permuted.shape, [4, 2, 3]);
    let want: Vec<i64> = (0..4).flat_map(|c| (0..6).map(move |ab| 4 * ab + c)).collect();
    assert_eq!(permuted.to_i64().unwrap(), want);

    assert_eq!(get("module.weight").to_f32(), [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]);
    assert_eq!(get("module.bias").to_f32(), [-1.0, 0.0, 1.0]);
    assert_eq!(get("parameter").to_f32(), [1.0, 1.0]);
    assert_eq!(get("list.0").to_i64().unwrap(), [1]);
    assert_eq!(get("list.1.0").to_i64().unwrap(), [2]);
    assert_eq!(get("ordered.a").to_f32(), [7.0]);
    assert_eq!(file.names().len(), 22);
    assert_eq!(file.names()[..2], ["f32", "f16"]);
    let missing = file.get("views.rows").unwrap_err();
    assert_eq!(missing.kind(), WeightErrorKind::Missing);
    assert_eq!(missing.to_string(), "test: no tensor named `views.rows` (the closest is `views.row`)");
}

#[test]
fn the_model_of_a_training_checkpoint_is_found() {
    assert_eq!(open(TRAINING).names(), ["weight", "bias"]);
    assert_eq!(open(TRAINING).get("bias").unwrap().to_f32(), [-1.0, 0.0, 1.0]);
}

#[test]
fn newer_pickles_are_read() {
    let file = open(PROTOCOL_4);
    assert_eq!(file.names(), ["nested.a", "nested.b"]);
    for name in file.names() {
        assert_eq!(file.get(name).unwrap().to_f32(), (0..12).map(|i| i as f32).collect::<Vec<_>>());
    }
}

#[test]
fn a_mapped_file_lends_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("values.pt");
    std::fs::write(&path, VALUES).unwrap();
    let file = PtFile::open(&path).unwrap();
    let of_file = file.data.as_ptr_range();
    assert!(of_file.contains(&file.get("f32").unwrap().bytes.as_ptr()));
    file.release("f32");
    assert_eq!(file.get("f32").unwrap().to_f32()[11], 11.0);
    assert_eq!(file.describe(), path.display().to_string());
    assert_eq!(PtFile::open(folder.path()).unwrap_err().kind(), WeightErrorKind::Io);
}

/// The default voice of a golden checkpoint, as the official package reads it.
#[test]
fn the_default_voice_of_a_checkpoint() {
    let path = "oracle/chatterbox/golden/checkpoints/files/conds.pt";
    let root = std::env::var_os("ORATE_ROOT").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../..").into());
    let file = PtFile::open(Path::new(&root).join(path)).unwrap();
    let shape = |name: &str, dtype| {
        let info = file.info(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(info.dtype, dtype, "{name}");
        assert!(file.get(name).unwrap().to_f32().iter().all(|v| v.is_finite()), "{name}");
        info.shape
    };
    assert_eq!(shape("t3.speaker_emb", DType::F32), [1, 256]);
    assert_eq!(shape("t3.emotion_adv", DType::F32), [1, 1, 1]);
    assert_eq!(shape("t3.cond_prompt_speech_tokens", DType::I64)[0], 1);
    assert_eq!(shape("gen.embedding", DType::F32), [1, 192]);
    let tokens = shape("gen.prompt_token", DType::I64);
    assert_eq!(shape("gen.prompt_feat", DType::F32), [1, 2 * tokens[1], 80]);
    assert_eq!(shape("gen.prompt_token_len", DType::I64), [1]);
    assert_eq!(file.get("gen.prompt_token_len").unwrap().to_i64().unwrap(), [tokens[1] as i64]);
    assert!(file.get("gen.prompt_token").unwrap().to_i64().unwrap().iter().all(|t| (0..6561).contains(t)));
    assert_eq!(file.names().len(), 7);
}

#[test]
fn functions_are_never_called() {
    let message = error(b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.");
    assert_eq!(
        message,
        "test: not supported: `os.system` in data.pkl: only tensors, dictionaries and lists are read, and no function is called"
    );
    let message = error(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x01x\x85R.");
    assert!(message.contains("`builtins.eval` in data.pkl"), "{message}");
    for name in ["torch\nload", "torch._utils\n_rebuild_tensor_v3", "collections\ndefaultdict"] {
        let message = error(format!("(c{name}\n.").as_bytes());
        assert!(message.contains(&format!("`{}` in", name.replace('\n', "."))), "{message}");
    }
    // Objects, sets, global registries: instructions that torch.save does not need.
    for op in [b'i', b'o', 0x81, 0x82, 0x8f, 0x92, b'P', b'I', b'S', b'V'] {
        let message = error(&[0x80, 2, op, b'.']);
        assert!(message.contains(&format!("instruction 0x{op:02x}")), "{message}");
    }
}

/// A pickle of `{"a": tensor}` with this shape, these strides and this offset, of a storage of two floats.
fn tensor(offset: &[u8], shape: &[u8], strides: &[u8], storage: &[u8]) -> Vec<u8> {
    let start = b"}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage";
    let storage = [b"ctorch\nFloatStorage\nX\x01\0\0\0", storage, b"X\x03\0\0\0cpuK\x02tQ"].concat();
    [&start[..], &storage, offset, shape, strides, b"\x89}tRs."].concat()
}

#[test]
fn views_outside_their_storage_are_refused() {
    let good = with_program(&tensor(b"K\0", b"K\x02\x85", b"K\x01\x85", b"0")).unwrap();
    assert_eq!(good.get("a").unwrap().to_f32(), [0.0, 0.0]);
    // One place may have any stride.
    let one = with_program(&tensor(b"K\x01", b"K\x01\x85", b"K\x63\x85", b"0")).unwrap();
    assert_eq!(one.get("a").unwrap().to_f32(), [0.0]);
    let outside = "a tensor does not fit into its storage of 2 values";
    let bad: [(&[u8], &[u8], &[u8]); 8] = [
        (b"K\x01", b"K\x02\x85", b"K\x01\x85"),
        (b"K\0", b"K\x02\x85", b"K\x02\x85"),
        (b"K\0", b"K\x03\x85", b"K\0\x85"), // the same element again and again
        (b"K\0", b"K\x02\x85", b")"),
        (b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85"),
        (b"K\0", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        (b"K\0", b"\x8a\x08\0\0\0\0\0\0\0\x40\x8a\x08\0\0\0\0\0\0\0\x40\x86", b"K\x01K\x01\x86"),
        (b"K\0", b"K\x02\x85", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"),
    ];
    for (offset, shape, strides) in bad {
        let message = error(&tensor(offset, shape, strides, b"0"));
        assert!(message.contains(outside), "{message}");
    }
    let message = error(&tensor(b"K\0", b"K\x02\x85", b"K\x01\x85", b"1"));
    assert!(
        message.contains("`a` needs storage `1` with 2 values of type f32, but the file has none"),
        "{message}"
    );
    let short = zip(
        &[("x/data.pkl", 0, &tensor(b"K\0", b"K\x01\x85", b"K\x01\x85", b"0")), ("x/data/0", 0, &[0; 4])],
        false,
    );
    let message = PtFile::from_bytes("test", short).unwrap_err().to_string();
    assert!(message.contains("but the file has 4 bytes"), "{message}");
}

#[test]
fn broken_programs_are_errors() {
    let cases: [(&[u8], &str); 20] = [
        (b"", "before byte 0: it ends inside an instruction"),
        (b"}", "before byte 1: it ends"),
        (b".", "a value is missing"),
        (b"(.", "a value is missing"),
        (b"\x80\x09}.", "version 9"),
        (b"X\xff\xff\xff\xffab.", "ends inside"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "ends inside"),
        (b"X\x01\0\0\0\xff.", "not UTF-8"),
        (b"ctorch\nSize", "a name has no end"),
        (b"h\0.", "value 0 was not kept"),
        (b"(q\0.", "a value is missing"),
        (b"K\x01\x86.", "too few values"),
        (b"(K\x01\x86.", "too few values"),
        (b"t.", "a mark is missing"),
        (b"](K\x01u.", "a key has no value"),
        (b"](K\x01K\x01u.", "not a dictionary"),
        (b"}K\x01a.", "not a list"),
        (b"K\x01Q.", "a storage is not described"),
        (b"K\x01)R.", "not a function"),
        (b"ctorch\nSize\n)R.", "other arguments"),
    ];
    for (program, problem) in cases {
        let message = error(program);
        assert!(message.contains(problem), "{message}\nshould hold `{problem}`");
    }
    assert!(error(b"].").contains("something else than a dictionary"));
    assert!(error(b"}N]s.").contains("neither text nor a number"));
}

#[test]
fn values_inside_themselves_end() {
    // A dictionary that is its own value, and lists of which each has the one before twice.
    let cycle = [&b"N".repeat(40)[..], b"}q\0X\x01\0\0\0ah\0s."].concat();
    assert!(error(&cycle).contains("inside each other, or one inside itself"));
    let twice =
        |levels: usize| [&b"]"[..], &b"q\0]h\0ah\0a".repeat(levels), b"q\0}X\x01\0\0\0ah\0s."].concat();
    assert!(with_program(&twice(2)).is_ok());
    assert!(error(&twice(14)).contains("part of each other too often"));
    // A long key in many dictionaries inside each other.
    let mut long = b"X\xff\xff\0\0".to_vec();
    long.extend([b'k'; 0xffff]);
    long.extend(b"q\0");
    let all = [b"}X\x01\0\0\0a](", &long[..], &b"}h\0K\x01s".repeat(100), b"es."].concat();
    assert!(error(&all).contains("the names are too long"), "{}", error(&all));
}

#[test]
fn duplicate_names_are_refused() {
    let file = tensor(b"K\0", b"K\x02\x85", b"K\x01\x85", b"0");
    let one = &file[1..file.len() - 2];
    let twice = [b"}", one, b"s", one, b"s."].concat();
    assert!(error(&twice).contains("two tensors are named `a`"), "{}", error(&twice));
}

#[test]
fn other_files_are_named() {
    let message = |entries: &[(&str, u16, &[u8])]| {
        PtFile::from_bytes("test", zip(entries, true)).unwrap_err().to_string()
    };
    assert!(message(&[("word/document.xml", 0, b"")]).contains("no data.pkl; torch.save did not write it"));
    assert!(
        message(&[("a/data.pkl", 0, b"}."), ("b/data.pkl", 0, b"}.")]).contains("several files data.pkl")
    );
    let big: [(&str, u16, &[u8]); 2] = [("a/data.pkl", 0, b"}."), ("a/byteorder", 0, b"big")];
    assert_eq!(message(&big), "test: not supported: byte order `big`");
    let old = PtFile::from_bytes("test", &b"\x80\x02\x8a\x0a\x6c\xfc"[..]);
    assert!(old.unwrap_err().to_string().contains("written by PyTorch before 1.6"));
    assert!(PtFile::from_bytes("test", zip(&[("a/data.pkl", 0, b"}.")], false)).unwrap().names().is_empty());
}

#[test]
fn survives_damage() {
    for valid in [VALUES, TRAINING, PROTOCOL_4] {
        let program = valid.windows(8).position(|w| w == b"byteorde").unwrap();
        crate::hostile::survives(valid, program, 7, 5_000, |bytes| {
            let file = PtFile::from_bytes("damaged", bytes)?;
            for name in file.names() {
                let _ = (file.get(name)?.to_f32(), file.get(name)?.to_i64());
            }
            Ok(())
        });
    }
}
