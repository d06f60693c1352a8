//! A codec with weights that are no numbers: on every device an error, and not silence.

use super::{CodecConfig, CodecDecoder, Loader, Precision, devices, file};
use orate_graph::{GraphError, Tensor, WeightLoader};
use orate_testing::checkpoints::qwen3_tts_goldens;
use std::sync::Arc;

/// The decoder's weights, with a last bias that is no number.
struct Damaged(Loader);

impl WeightLoader for Damaged {
    fn load(&self, name: &str) -> Result<Tensor<'_>, GraphError> {
        let mut tensor = self.0.load(name)?;
        if name == "decoder.decoder.6.conv.bias" {
            tensor.data.to_mut().fill(f32::NAN);
        }
        Ok(tensor)
    }
}

#[test]
fn samples_that_are_no_numbers_are_an_error() {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base/speech_tokenizer/config.json");
    let config = CodecConfig::from_json(&std::fs::read(path).expect("committed")).expect("consistent");
    for device in devices(Precision::F32) {
        let name = device.describe();
        let weights = file("checkpoints/tiny-base/speech_tokenizer/decoder.safetensors");
        let weights = Arc::new(Damaged(Loader(Arc::new(weights))));
        let decoder = Arc::new(CodecDecoder::new(config.decoder_config.clone(), Arc::from(device), weights));
        let error = decoder.decode(&[1; 3 * 16]).expect_err("no sound").to_string();
        assert!(error.contains("no sound for frame 0"), "{name}: {error}");
    }
}
