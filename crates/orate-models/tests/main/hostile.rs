//! Mutated configurations, voices and kept voices: a value or an error of one line, never a panic or a hang.

use orate_models::chatterbox;
use orate_models::qwen3_tts::{self, CodecConfig, GenerationConfig};
use orate_models::supertonic::{self, Voice};
use orate_models::{ClonedVoice, Opening, VoiceTensor};
use orate_testing::checkpoints::{
    chatterbox_goldens, qwen3_tts_goldens, write_chatterbox, write_random_qwen3_tts,
};
use orate_testing::fuzz::{Limits, fuzz};
use orate_testing::gguf;
use orate_weights::{DType, GgufFile, WeightSource};
use std::path::Path;

/// Texts of JSON and their values take more memory than their bytes; so do pickles.
const LIMITS: Limits = Limits { growth: 200, fixed: 1 << 20 };
/// Opening a model builds its networks. Weights stay in the file, but for small ones that are computed.
const MODEL_LIMITS: Limits = Limits { growth: 20, fixed: 16 << 20 };

fn golden(file: &str) -> Vec<u8> {
    let supertonic = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden");
    let path = if file.starts_with("tiny-") {
        qwen3_tts_goldens().join("checkpoints").join(file)
    } else {
        supertonic.join(file)
    };
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; it is part of the repository", path.display()))
}

fn one_line(message: &str) {
    assert!(message.len() < 10_000, "{} bytes of message", message.len());
}

#[test]
fn mutated_configurations() {
    fuzz("tts-json", &[golden("tiny/onnx/tts.json"), golden("tiny1/onnx/tts.json")], LIMITS, |bytes| {
        let _ = supertonic::Config::from_json(bytes);
    });
    fuzz(
        "config-json",
        &[golden("tiny-base/config.json"), golden("tiny-custom_voice/config.json")],
        LIMITS,
        |b| {
            let _ = qwen3_tts::Config::from_json(b);
        },
    );
    fuzz("generation-config-json", &[golden("tiny-base/generation_config.json")], LIMITS, |bytes| {
        let _ = GenerationConfig::from_json(bytes);
    });
    fuzz("codec-config-json", &[golden("tiny-base/speech_tokenizer/config.json")], LIMITS, |bytes| {
        let _ = CodecConfig::from_json(bytes);
    });
}

#[test]
fn mutated_voices() {
    let config = supertonic::Config::from_json(&golden("tiny/onnx/tts.json")).expect("committed");
    let voices = ["tiny/voice_styles/F1.json", "tiny/voice_styles/M1.json"].map(golden);
    fuzz("voice-json", &voices, LIMITS, |bytes| {
        if let Err(e) = Voice::from_json("a", bytes, &config) {
            one_line(&e.to_string());
        }
    });
}

/// `conds.pt`, and the kept voice that is made of it.
#[test]
fn mutated_voices_of_chatterbox() {
    let folder = tempfile::tempdir().expect("a folder");
    let (conds, kept) = (folder.path().join("conds.pt"), folder.path().join("a.safetensors"));
    let whole = std::fs::read(chatterbox_goldens().join("checkpoints/files/conds.pt")).expect("committed");
    std::fs::write(&conds, &whole).expect("the folder is writable");
    let voice = chatterbox::Voice::read_conditionals(&conds, true).expect("committed");
    fuzz("conds-pt", &[whole], LIMITS, |bytes| {
        std::fs::write(&conds, bytes).expect("the folder is writable");
        for talks in [true, false] {
            match chatterbox::Voice::read_conditionals(&conds, talks) {
                // What is read can be kept.
                Ok(voice) => drop(ClonedVoice::from(&voice).to_bytes().expect("a whole voice")),
                Err(e) => one_line(&e.to_string()),
            }
        }
    });
    let bytes = ClonedVoice::from(&voice).to_bytes().expect("a whole voice");
    fuzz("kept-chatterbox-voice", &[bytes], LIMITS, |bytes| {
        std::fs::write(&kept, bytes).expect("the folder is writable");
        let voice = ClonedVoice::load(&kept).and_then(|voice| chatterbox::Voice::try_from(&voice));
        if let Err(e) = voice {
            one_line(&e.to_string());
        }
    });
}

#[test]
fn mutated_kept_voices() {
    let mut voice = ClonedVoice::new("qwen3-tts");
    voice.words.insert("transcript".to_owned(), "Once, twice.".to_owned());
    voice.tensors.insert("x_vector".to_owned(), VoiceTensor::floats(vec![0.5, -1.0, 3.0]));
    voice.tensors.insert("codes".to_owned(), VoiceTensor::integers((0..32).collect()));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.safetensors");
    fuzz("kept-voice", &[voice.to_bytes().expect("a whole voice")], LIMITS, |bytes| {
        std::fs::write(&path, bytes).expect("the folder is writable");
        if let Err(e) = ClonedVoice::load(&path) {
            one_line(&e.to_string());
        }
    });
}

/// Files of other engines: an error of one line, or a model whose weights can be read.
#[test]
fn mutated_gguf_files() {
    let source = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("base", source.path(), 1).expect("writable");
    let turbo = tempfile::tempdir().expect("a folder");
    write_chatterbox(turbo.path(), "turbo", "tiny").expect("writable");
    let read = |path: &Path| {
        let opened = |family: &'static orate_models::Family| (family.open)(path, Opening::Whole);
        let families = [qwen3_tts::FAMILY, chatterbox::FAMILY, supertonic::FAMILY];
        match families.into_iter().find(|f| (f.detect)(path)).map(opened) {
            Some(Ok(files)) => {
                files.describe();
                let weights = files.weights();
                for name in weights.names() {
                    if let Err(e) = weights.get(name) {
                        one_line(&e.to_string());
                    }
                }
            }
            Some(Err(e)) => one_line(&e.to_string()),
            None => {}
        }
    };
    type Maker<'a> = &'a dyn Fn(&Path);
    let golden =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden").join(name);
    let makers: [(&str, &str, Maker<'_>); 13] = [
        ("gguf-qwentts", "talker.gguf", &|out| gguf::write_qwentts_cpp(source.path(), out, DType::Q8_0)),
        ("gguf-qwen3tts", "codec.gguf", &|out| {
            gguf::write_qwen3tts_cpp(source.path(), out, DType::Q8_0, false)
        }),
        ("gguf-qwen3-crisp", "codec.gguf", &|out| {
            gguf::write_qwen3_crispasr(source.path(), out, DType::Q8_0)
        }),
        ("gguf-llama", "talker.gguf", &|out| gguf::write_qwen3_llamacpp(source.path(), out, DType::Q8_0)),
        ("gguf-chatterbox", "t3.gguf", &|out| {
            gguf::write_chatterbox_crispasr(turbo.path(), out, true, DType::Q8_0);
        }),
        ("gguf-supertonic", "a.gguf", &|out| {
            gguf::write_supertonic_ttscpp(&golden("tiny1"), &out.join("a.gguf"));
        }),
        ("gguf-qwen3tts-talker", "talker.gguf", &|out| {
            gguf::write_qwen3tts_cpp(source.path(), out, DType::Q8_0, true)
        }),
        ("gguf-chatterbox-cpp", "t3.gguf", &|out| gguf::write_chatterbox_cpp(turbo.path(), out)),
        ("gguf-turbo-audiocpp", "a.gguf", &|out| {
            gguf::write_turbo_audiocpp(turbo.path(), &out.join("a.gguf"), false);
        }),
        ("gguf-supertonic-audiocpp", "a.gguf", &|out| {
            gguf::write_supertonic_audiocpp(&golden("tiny3"), &out.join("a.gguf"));
        }),
        ("gguf-supertonic-crisp", "a.gguf", &|out| {
            gguf::write_supertonic_crispasr(&golden("tiny3"), &out.join("a.gguf"));
        }),
        ("gguf-qwen3-audiocpp", "a.gguf", &|out| {
            let weights = source.path().join("model.safetensors");
            let codec = source.path().join("speech_tokenizer/model.safetensors");
            let inputs = [("model_weights", &*weights), ("speech_tokenizer_weights", &*codec)];
            let files = ["config.json", "vocab.json", "merges.txt", "tokenizer_config.json"];
            let files = [&files[..], &["speech_tokenizer/config.json"]].concat();
            gguf::write_audiocpp(&out.join("a.gguf"), "qwen3_tts", source.path(), &inputs, &files);
        }),
        ("gguf-official-names", "t3.gguf", &|out| {
            for (from, to) in [("t3_turbo_v1", "t3"), ("s3gen_meanflow", "s3gen")] {
                let from = turbo.path().join(format!("{from}.safetensors"));
                gguf::write_official_names(&from, &out.join(format!("{to}.gguf")));
            }
            for file in ["vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json"] {
                std::fs::copy(turbo.path().join(file), out.join(file)).expect("room");
            }
        }),
    ];
    for (target, file, make) in makers {
        let out = tempfile::tempdir().expect("a folder");
        make(out.path());
        let path = out.path().join(file);
        let whole = std::fs::read(&path).expect("was written");
        // Metadata and descriptions of tensors come first; the data is left as it is.
        let file = GgufFile::from_bytes("whole", whole.clone()).expect("valid");
        let data: usize = file
            .names()
            .iter()
            .filter_map(|n| file.info(n))
            .map(|i| i.dtype.bytes_for(i.len()).unwrap_or(0))
            .sum();
        let (head, rest) = whole.split_at(whole.len().saturating_sub(data + 32 * file.names().len()));
        fuzz(target, &[head.to_vec()], MODEL_LIMITS, |bytes| {
            std::fs::write(&path, [bytes, rest].concat()).expect("the folder is writable");
            read(&path);
        });
    }
}

/// Whatever stands in the place of a file is refused at once.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_files_of_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    for (at, to) in [("onnx/tts.json", &*pipe), ("onnx/tts.json", Path::new("/dev/zero"))] {
        let model = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(model.path().join("onnx")).expect("writable");
        std::os::unix::fs::symlink(to, model.path().join(at)).expect("a link");
        let e = supertonic::Files::open(model.path()).err().expect("refused").to_string();
        assert!(e.contains("tts.json: not a file"), "{e}");
    }
    let e = ClonedVoice::load(&pipe).expect_err("refused").to_string();
    assert!(e.contains("not a file"), "{e}");
}
