//! Writes models that hum, and their goldens.

use super::{HARMONICS, LETTERS, SAMPLES, ids};
use std::f32::consts::TAU;
use std::path::Path;

const SAMPLE_RATE: f32 = 8000.0;

/// Tones of the voices in Hz.
const VOICES: [(&str, f32); 2] = [("low", 110.0), ("high", 220.0)];

/// Loudness of the harmonics of each letter: the space has none.
fn letters() -> Vec<f32> {
    let loudness = |id: usize, h: usize| if id == 0 { 0.0 } else { ((id * (h + 1)) % 7) as f32 / 28.0 };
    (0..LETTERS * HARMONICS).map(|i| loudness(i / HARMONICS, i % HARMONICS)).collect()
}

/// Samples of each harmonic.
fn tones(hz: f32) -> Vec<f32> {
    let sample = |h: usize, s: usize| (TAU * hz * (h + 1) as f32 * s as f32 / SAMPLE_RATE).sin();
    (0..HARMONICS * SAMPLES).map(|i| sample(i / SAMPLES, i % SAMPLES)).collect()
}

/// Writes a model into a folder.
pub fn write_model(folder: &Path) {
    let config = serde_json::json!({ "sample_rate": SAMPLE_RATE as u32, "voices": VOICES.map(|v| v.0) });
    std::fs::write(folder.join("hum.json"), config.to_string()).expect("the folder is writable");
    let [low, high] =
        VOICES.map(|(name, hz)| (format!("{name}.weight"), vec![HARMONICS, SAMPLES], tones(hz)));
    let letters = ("letters.weight".to_owned(), vec![LETTERS, HARMONICS], letters());
    write_tensors(&folder.join("hum.safetensors"), &[letters, low, high]);
}

/// Shape and values.
type Tensor = (Vec<usize>, Vec<f32>);

/// Writes a model that sings into a folder. A note is drawn near the letter's, and moved by the note before.
pub fn write_singer(folder: &Path) {
    use super::sing::{CODES_KNOWN, ROW_IDS, SAMPLES, WIDTH};
    let config = serde_json::json!({ "sample_rate": SAMPLE_RATE as u32, "voices": ["singer"] });
    std::fs::write(folder.join("sing.json"), config.to_string()).expect("the folder is writable");
    let notes = CODES_KNOWN - 1;
    let table = |rows: usize, width: usize, of: &dyn Fn(usize, usize) -> f32| -> Tensor {
        (vec![rows, width], (0..rows * width).map(|i| of(i / width, i % width)).collect())
    };
    // Channels: the likelihood of each note, then of the end.
    let is = |same: bool, x: f32| if same { x } else { 0.0 };
    let tensors: [(&str, Tensor); 4] = [
        (
            "letters",
            table(ROW_IDS, WIDTH, &|id, c| match c {
                c if c < notes => is(id % notes == c, 2.0),
                c => is(c == notes, if id + 1 == ROW_IDS { 60.0 } else { -60.0 }),
            }),
        ),
        ("notes", table(CODES_KNOWN, WIDTH, &|code, c| is((code + 1) % notes == c, 1.0))),
        ("head", table(WIDTH, CODES_KNOWN, &|c, code| is(c == code, 1.0))),
        (
            "waves",
            table(CODES_KNOWN, SAMPLES, &|code, s| {
                let hz = 220.0 * 2f32.powf(code as f32 / 8.0);
                0.3 * (TAU * hz * s as f32 / SAMPLE_RATE).sin()
            }),
        ),
    ];
    let tensors = tensors.map(|(name, (shape, data))| (format!("{name}.weight"), shape, data));
    write_tensors(&folder.join("sing.safetensors"), &tensors);
}

/// Writes what the first voice hums for a text, computed in f64.
pub fn write_goldens(folder: &Path, text: &str) {
    let (ids, letters, tones) = (ids(text), letters(), tones(VOICES[0].1));
    let sample = |id: usize, s: usize| -> f64 {
        let harmonic = |h: usize| f64::from(letters[id * HARMONICS + h]) * f64::from(tones[h * SAMPLES + s]);
        (0..HARMONICS).map(harmonic).sum()
    };
    let wav: Vec<f32> =
        ids.iter().flat_map(|id| (0..SAMPLES).map(move |s| sample(*id as usize, s) as f32)).collect();
    let ids: Vec<f32> = ids.into_iter().map(|id| id as f32).collect();
    let tensors = [("ids".to_owned(), vec![ids.len()], ids), ("wav".to_owned(), vec![wav.len()], wav)];
    write_tensors(&folder.join("golden.safetensors"), &tensors);
}

/// A safetensors file: the length of a JSON header, the header, and the numbers.
fn write_tensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for (name, shape, numbers) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        let entry =
            serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    // Numbers are aligned, so that they are used where the file is mapped.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(path, bytes).expect("the folder is writable");
}
