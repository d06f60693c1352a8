//! Least signal-to-noise ratio of each part of Qwen3-TTS below f32, in dB, for every tensor.
//!
//! The limits prove that a format is wired up correctly, not how it sounds: the goldens' random weights
//! enlarge errors, above all in the codec. Weights in the wrong order, a wrong scale or silence give 0 dB or
//! less. The tables show the noisiest tensor of each part on the CPU, of the committed goldens and those with
//! seeds 5 and 29, and the limit, which is lower by a third of the amplitude:
//!
//! | weights | prompt, talker, predictor | speaker and codec encoder | codec decoder |
//! | --- | --- | --- | --- |
//! | `f16` | exact, limit 60 | 61.7, limit 55 | 44.3, limit 40 |
//! | `bf16` | exact, limit 40 | 42.4, limit 37 | 25.4, limit 21 |
//! | `q8_0` | 29.9, limit 26 | 33.0, limit 28 | 15.7, limit 12 |
//! | `q6_k` | limit 20 | limit 23 | limit 9 |
//! | `q5_k` | limit 15 | limit 18 | limit 7 |
//! | `q4_k` | limit 9 | limit 12 | limit 4 |
//! | `q4_0` | 9.4, limit 6 | 12.9, limit 9 | 5.0, limit 3 |
//!
//! Rows of these goldens are no multiple of 256, so in K formats they are computed in `q8_0`. Limits of K
//! formats lie between those of `q8_0` and `q4_0` where the noise of weights of full size does
//! (docs/performance.md).
//!
//! Checkpoints store the talking part in `bf16`, so it loses nothing in either half format; its limits are
//! those of weights that do. A part whose weights all stay in `f32` by the policy, as the codec does with
//! blocks, must stay above `UNTOUCHED`.
//!
//! On CUDA `f16`, `bf16` and `tf32` round the activations too, and so does `f16` with cooperative matrices.
//! The noisiest tensors on an H200, of seeds 5 and 29:
//!
//! | both operands | prompt, talker, predictor | speaker and codec encoder | codec decoder |
//! | --- | --- | --- | --- |
//! | `f16`, `tf32` | 61.4, limit 58 | 56.9, limit 53 | 40.6, limit 40 |
//! | `bf16` | 44.6, limit 41 | 39.9, limit 36 | 23.2, limit 20 |
//!
//! | keys and values | talker, predictor |
//! | --- | --- |
//! | `f16` | 74.2, limit 68 |
//! | `bf16` | 56.9, limit 51 |
//! | `q8_0` | 45.0, limit 40 |

use crate::hooks::{GPU_TOLERANCE, Limit, PartLimit};
use crate::qwen3_tts::{Files, Network};
use orate_graph::{CacheFormat, DeviceInfo, DeviceKind, Precision, PrecisionPolicy};

/// Largest error in f32 on the CPU. The goldens themselves are known to 3e-5: the official package differs
/// from itself by that much when the number of threads changes (`oracle/qwen3_tts/README.md`).
pub const CPU_TOLERANCE: f64 = 5e-5;

/// Least signal-to-noise ratio of a part that the policy leaves in `f32`. Measured on the CPU: 103 dB.
const UNTOUCHED: f64 = 80.0;

/// Keys and values in `f16`, see above.
pub const KV_F16_SNR: f64 = 68.0;
/// Keys and values in `bf16`, see above.
pub const KV_BF16_SNR: f64 = 51.0;
/// Keys and values in `q8_0`, see above.
pub const KV_Q8_0_SNR: f64 = 40.0;

/// Least signal-to-noise ratios of the parts of a model, in dB.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PartSnr {
    /// Prompt, talker and code predictor.
    talking: f64,
    /// Speaker encoder and codec encoder.
    encoders: f64,
    codec: f64,
}

impl PartSnr {
    fn of_weights(precision: Precision, device: &DeviceInfo) -> PartSnr {
        let part = |talking, encoders, codec| PartSnr { talking, encoders, codec };
        let operand_is_rounded = device.rounds_operands(precision);
        match precision {
            Precision::F32 => part(UNTOUCHED, UNTOUCHED, UNTOUCHED),
            Precision::F16 | Precision::Tf32 if operand_is_rounded => part(58.0, 53.0, 40.0),
            Precision::Bf16 if operand_is_rounded => part(41.0, 36.0, 20.0),
            Precision::F16 | Precision::Tf32 => part(60.0, 55.0, 40.0),
            Precision::Bf16 => part(40.0, 37.0, 21.0),
            Precision::Q8_0 => part(26.0, 28.0, 12.0),
            Precision::Q6K => part(20.0, 23.0, 9.0),
            Precision::Q5K => part(15.0, 18.0, 7.0),
            Precision::Q4K => part(9.0, 12.0, 4.0),
            Precision::Q4_0 => part(6.0, 9.0, 3.0),
        }
    }
}

/// Signal-to-noise ratio of the sum of two noises, rounded to 0.1 dB.
fn sum_of_noises(a: f64, b: f64) -> f64 {
    let noise = |snr: f64| 10f64.powf(-snr / 10.0);
    (-100.0 * (noise(a) + noise(b)).log10()).round() / 10.0
}

/// Limit for a model in these formats on a device.
pub fn limit(files: &Files, policy: &PrecisionPolicy, kv: CacheFormat, device: &DeviceInfo) -> Limit {
    if policy.precision == Precision::F32 && kv == CacheFormat::F32 {
        return Limit::Error(if device.kind == DeviceKind::Cpu { CPU_TOLERANCE } else { GPU_TOLERANCE });
    }
    // The weights of these networks may have several formats: what counts is the one with the fewest bits.
    let part = |networks: &[Network]| {
        let names = files.weights.names().into_iter();
        let names = names.filter(|name| Network::of(name).is_some_and(|n| networks.contains(&n)));
        let coarsest = names.map(|name| policy.of_name(name)).max().unwrap_or_default();
        PartSnr::of_weights(coarsest, device)
    };
    let of_cache = match kv {
        CacheFormat::F32 => f64::INFINITY,
        CacheFormat::F16 => KV_F16_SNR,
        CacheFormat::Bf16 => KV_BF16_SNR,
        CacheFormat::Q8_0 => KV_Q8_0_SNR,
    };
    let talking = part(&[Network::Talker, Network::CodePredictor]).talking;
    let talking = if talking == UNTOUCHED { talking.min(of_cache) } else { sum_of_noises(talking, of_cache) };
    let encoders = part(&[Network::SpeakerEncoder, Network::CodecEncoder]).encoders;
    let codec = part(&[Network::CodecDecoder]).codec;
    // Stages that no part names belong to the first.
    Limit::PartSnr(vec![
        PartLimit { name: "prompt, talker and predictor", stages: &[], snr: talking },
        PartLimit { name: "encoders", stages: &["speaker_encoder", "codec_encoder"], snr: encoders },
        PartLimit { name: "codec decoder", stages: &["codec_decoder"], snr: codec },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{COOPERATIVE_MATRICES, DeviceClass};

    #[test]
    fn noises_add_up() {
        assert_eq!(sum_of_noises(40.0, 40.0), 37.0);
        assert_eq!(sum_of_noises(6.0, 40.0), 6.0);
        assert_eq!(sum_of_noises(26.0, f64::INFINITY), 26.0);
    }

    /// Silence, which has 0 dB, passes nowhere.
    #[test]
    fn every_limit_can_be_missed() {
        for kind in [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Vulkan] {
            for precision in Precision::ALL {
                let PartSnr { talking, encoders, codec } =
                    PartSnr::of_weights(precision, &device(kind, vec![]));
                assert!(talking.min(encoders).min(codec) >= 3.0, "{precision} on {kind:?}");
            }
        }
    }

    /// Where both operands are rounded, no part is as exact as with rounded weights alone.
    #[test]
    fn limits_follow_what_a_device_rounds() {
        let matrices = vec![format!("{COOPERATIVE_MATRICES} of 16 x 16 for f16")];
        let of = |precision, kind, features| PartSnr::of_weights(precision, &device(kind, features));
        let (cuda, vulkan) = (DeviceKind::Cuda, DeviceKind::Vulkan);
        assert_eq!(of(Precision::F16, vulkan, matrices.clone()), of(Precision::F16, cuda, vec![]));
        assert_ne!(of(Precision::F16, vulkan, vec![]), of(Precision::F16, cuda, vec![]));
        assert_eq!(of(Precision::Bf16, vulkan, matrices), of(Precision::Bf16, vulkan, vec![]));
    }

    fn device(kind: DeviceKind, features: Vec<String>) -> DeviceInfo {
        let (name, driver) = (String::new(), String::new());
        let (memory, free_memory, card) = (None, None, None);
        let class = DeviceClass::Discrete;
        DeviceInfo { kind, index: 0, name, class, memory, free_memory, driver, features, card }
    }
}
