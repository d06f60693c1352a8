use super::writer::{put_string, put_value};
use super::*;
use crate::WeightErrorKind;

fn all_values() -> Vec<(&'static str, GgufValue)> {
    let nested = GgufArray::Array(vec![GgufArray::Bool(vec![true, false]), GgufArray::I16(vec![-3])]);
    vec![
        ("u8", GgufValue::U8(200)),
        ("i8", GgufValue::I8(-5)),
        ("u16", GgufValue::U16(60000)),
        ("i16", GgufValue::I16(-6)),
        ("u32", GgufValue::U32(7)),
        ("i32", GgufValue::I32(-8)),
        ("u64", GgufValue::U64(1 << 60)),
        ("i64", GgufValue::I64(-9)),
        ("f32", GgufValue::F32(0.5)),
        ("f64", GgufValue::F64(-0.25)),
        ("bool", GgufValue::Bool(true)),
        ("string", GgufValue::String("grüße".into())),
        ("strings", GgufValue::from(vec!["a".to_owned(), String::new()])),
        ("floats", GgufValue::Array(GgufArray::F32(vec![1.0, 2.0]))),
        ("bytes", GgufValue::Array(GgufArray::U8(Bytes::from_static(b"abc")))),
        ("u64s", GgufValue::Array(GgufArray::U64(vec![1, 2, 3]))),
        ("nested", GgufValue::Array(nested)),
        ("empty", GgufValue::Array(GgufArray::I8(vec![]))),
    ]
}

fn sample() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    for (key, value) in all_values() {
        writer.set(key, value);
    }
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let ramp: Vec<f32> = (0..64).map(|i| i as f32).collect();
    writer.tensor("matrix", DType::F32, &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    writer.tensor("half", DType::F16, &[1, 2, 1], vec![0, 0x3c, 0, 0x40]);
    writer.tensor("brain", DType::BF16, &[1], vec![0x80, 0x3f]);
    writer.tensor("blocks", DType::Q8_0, &[2, 32], crate::q8_0::quantize(&ramp));
    writer.tensor("scalar", DType::F32, &[], f32s(&[0.25]));
    writer.tensor("ids", DType::I64, &[1], 5i64.to_le_bytes().to_vec());
    writer.tensor("none", DType::F32, &[0, 4], vec![]);
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    bytes
}

/// A file with these bytes after the magic and version 3.
fn raw(tensors: u64, keys: u64, rest: &[u8]) -> Result<GgufFile, WeightError> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(rest);
    GgufFile::from_bytes("test", bytes)
}

fn tensor_entry(name: &str, shape: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, name);
    out.extend((shape.len() as u32).to_le_bytes());
    out.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

#[test]
fn reads_what_it_writes() {
    let file = GgufFile::from_bytes("test", sample()).unwrap();
    for (key, value) in all_values() {
        assert_eq!(file.value(key), Some(&value), "{key}");
    }
    assert_eq!(file.string("string").unwrap(), "grüße");
    assert_eq!(file.strings("strings").unwrap(), ["a", ""]);
    assert_eq!(file.string("u8").unwrap_err().kind(), WeightErrorKind::Malformed);
    assert_eq!(file.string("nothing").unwrap_err().kind(), WeightErrorKind::Missing);
    assert_eq!(file.names(), ["matrix", "half", "brain", "blocks", "scalar", "ids", "none"]);
    let matrix = file.get("matrix").unwrap();
    assert_eq!(
        (matrix.shape.as_slice(), matrix.to_f32().as_slice()),
        (&[2, 3][..], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..])
    );
    assert_eq!(file.get("half").unwrap().shape, [1, 2, 1]);
    assert_eq!(file.get("half").unwrap().to_f32(), [1.0, 2.0]);
    assert_eq!(file.get("scalar").unwrap().to_f32(), [0.25]);
    assert_eq!(file.get("ids").unwrap().to_f32(), [5.0]);
    assert!(file.get("none").unwrap().is_empty());
    let blocks = file.get("blocks").unwrap().to_f32();
    assert!(blocks.iter().enumerate().all(|(i, v)| (v - i as f32).abs() < 0.26));
    // Data starts and stays aligned.
    assert_eq!(file.get("blocks").unwrap().bytes.len() % 34, 0);
}

#[test]
fn version_2_is_the_same() {
    let mut bytes = sample();
    bytes[4] = 2;
    assert_eq!(GgufFile::from_bytes("test", bytes.clone()).unwrap().names().len(), 7);
    bytes[4] = 1;
    assert_eq!(GgufFile::from_bytes("test", bytes.clone()).unwrap_err().kind(), WeightErrorKind::Unsupported);
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(GgufFile::from_bytes("test", bytes).unwrap_err().to_string().contains("big-endian"));
}

#[test]
fn refuses_lies() {
    let huge_string = [u64::MAX.to_le_bytes().as_slice(), b"abc"].concat();
    let mut huge_array = Vec::new();
    put_string(&mut huge_array, "k");
    huge_array.extend(9u32.to_le_bytes());
    huge_array.extend(8u32.to_le_bytes());
    huge_array.extend(u64::MAX.to_le_bytes());
    let mut deep = Vec::new();
    put_string(&mut deep, "k");
    deep.extend(9u32.to_le_bytes());
    for _ in 0..10_000 {
        deep.extend(9u32.to_le_bytes());
        deep.extend(1u64.to_le_bytes());
    }
    let mut alignment = Vec::new();
    put_string(&mut alignment, ALIGNMENT_KEY);
    put_value(&mut alignment, &GgufValue::U32(24));
    let padded = |mut entry: Vec<u8>, data: usize| {
        entry.resize((24 + entry.len()).next_multiple_of(32) - 24 + data, 0);
        entry
    };
    let two = |a: Vec<u8>, b: Vec<u8>| padded([a, b].concat(), 256);
    let cases: Vec<(&str, u64, u64, Vec<u8>, &str)> = vec![
        ("counts", u64::MAX, u64::MAX, vec![], "it ends"),
        ("string", 0, 1, huge_string, "it ends"),
        ("array", 0, 1, huge_array, "it ends"),
        ("depth", 0, 1, deep, "nested"),
        ("alignment", 0, 1, alignment, "power of two"),
        ("axes", 1, 0, tensor_entry("t", &[1; 9], 0, 0), "9 axes"),
        ("product", 1, 0, padded(tensor_entry("t", &[1 << 40, 1 << 40], 0, 0), 64), "does not fit"),
        ("hidden product", 1, 0, padded(tensor_entry("t", &[1 << 40, 1 << 40, 0], 0, 0), 64), "does not fit"),
        ("offset", 1, 0, padded(tensor_entry("t", &[1], 0, u64::MAX - 31), 64), "does not fit"),
        ("unaligned", 1, 0, padded(tensor_entry("t", &[1], 0, 4), 64), "does not fit"),
        ("truncated", 1, 0, padded(tensor_entry("t", &[17], 0, 0), 64), "does not fit"),
        ("blocks", 1, 0, padded(tensor_entry("t", &[1, 32], 8, 0), 64), "whole blocks"),
        ("q4_k", 1, 0, padded(tensor_entry("t", &[256], 12, 0), 128), "does not fit"),
        ("q4_k rows", 1, 0, padded(tensor_entry("t", &[128, 2], 12, 0), 256), "whole blocks"),
        ("other beyond the end", 1, 0, padded(tensor_entry("t", &[256], 99, 512), 256), "does not fit"),
        ("other product", 1, 0, padded(tensor_entry("t", &[1 << 40, 1 << 40], 99, 0), 64), "does not fit"),
        ("other size", 1, 0, padded(tensor_entry("t", &[1 << 10], 99, 0), 64), "does not fit"),
        ("twice", 2, 0, two(tensor_entry("t", &[1], 0, 0), tensor_entry("t", &[1], 0, 32)), "two tensors"),
        ("overlap", 2, 0, two(tensor_entry("a", &[16], 0, 0), tensor_entry("b", &[1], 0, 32)), "overlap"),
    ];
    for (case, tensors, keys, rest, expected) in cases {
        let message = raw(tensors, keys, &rest).expect_err(case).to_string();
        assert!(message.contains(expected), "{case}: {message}");
    }
    assert!(GgufFile::from_bytes("test", Bytes::from_static(b"GGML")).is_err());
    assert!(GgufFile::from_static("test", b"").is_err());
}

#[test]
fn replaces_files_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, b"old").unwrap();
    let mut writer = GgufWriter::new();
    writer.set("k", "v").tensor("t", DType::F32, &[1], vec![0; 4]);
    let len = writer.write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    assert_eq!(GgufFile::open(&path).unwrap().string("k").unwrap(), "v");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    let error = writer.write(dir.path().join("no/such/folder.gguf")).unwrap_err();
    assert_eq!(error.kind(), WeightErrorKind::Io);
}

/// Vocabularies are left out; everything that identifies a layout is there.
#[test]
fn skimmed_files_lack_long_arrays_of_strings_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let mut writer = GgufWriter::new();
    let tokens: Vec<String> = (0..=SKIMMED).map(|i| format!("token {i}")).collect();
    writer.set("general.architecture", "test").set("tokens", tokens.clone());
    writer.set("names", vec!["a".to_owned(), "b".to_owned()]).tensor("t", DType::F32, &[1], vec![0; 4]);
    writer.write(&path).unwrap();
    let [whole, skimmed] = [GgufFile::open(&path).unwrap(), GgufFile::skim(&path).unwrap()];
    assert_eq!(whole.strings("tokens").unwrap(), tokens);
    assert!(skimmed.strings("tokens").unwrap().is_empty());
    assert_eq!(skimmed.strings("names").unwrap(), ["a", "b"]);
    assert_eq!(skimmed.string("general.architecture").unwrap(), "test");
    assert_eq!(skimmed.get("t").unwrap().to_f32(), [0.0]);

    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    for e in [GgufFile::open(&path).unwrap_err(), GgufFile::skim(&path).unwrap_err()] {
        assert!(e.to_string().contains("cut short"), "{e}");
    }
}

#[test]
fn survives_damage() {
    let valid = sample();
    let header = valid.len() - 200;
    crate::hostile::survives(&valid, header, 1, 20_000, |bytes| {
        let file = GgufFile::from_bytes("damaged", bytes)?;
        for name in file.names() {
            let _ = file.get(name)?.to_f32();
        }
        Ok(())
    });
}

#[test]
fn unknown_types_are_listed_and_refused_when_read() {
    let tensors = [tensor_entry("new", &[256, 3], 99, 0), tensor_entry("b", &[256], 21, 32)].concat();
    let known = tensor_entry("known", &[2], 0, 64);
    let mut rest = [tensors, known].concat();
    rest.resize((24 + rest.len()).next_multiple_of(32) - 24 + 96, 0);
    let file = raw(3, 0, &rest).unwrap();
    assert_eq!(file.names(), ["new", "b", "known"]);
    assert_eq!(file.info("new").unwrap(), TensorInfo { dtype: DType::Other(99), shape: vec![3, 256] });
    let e = file.get("new").unwrap_err();
    assert_eq!(e.kind(), WeightErrorKind::Unsupported);
    assert!(e.to_string().contains("tensor `new` has type unknown (number 99)"), "{e}");
    assert!(file.get("b").unwrap_err().to_string().contains("iq3_s"));
    assert_eq!(file.get("known").unwrap().to_f32(), [0.0, 0.0]);
}

#[test]
fn tensors_may_be_written_piece_by_piece() {
    let write = |count: usize| {
        let mut writer = GgufWriter::new();
        writer.tensor_from("t", DType::F32, &[3], move |out| {
            (0..count).try_for_each(|i| out.write_all(&(i as f32).to_le_bytes()))
        });
        writer.tensor("u", DType::F32, &[1], 7f32.to_le_bytes().to_vec());
        let mut bytes = vec![];
        writer.write_to(&mut bytes).map(|()| bytes)
    };
    let file = GgufFile::from_bytes("test", write(3).unwrap()).unwrap();
    assert_eq!(file.get("t").unwrap().to_f32(), [0.0, 1.0, 2.0]);
    assert_eq!(file.get("u").unwrap().to_f32(), [7.0]);
    for count in [2, 4] {
        assert!(write(count).unwrap_err().to_string().contains("tensor `t`"));
    }
}
