//! Settings of an engine.

use crate::{Error, FAMILIES, Result};
use orate_graph::{CacheFormat, DeviceKind, Precision, PrecisionPolicy};
use orate_models::Family;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelSource {
    /// The English voice inside this program.
    #[default]
    BuiltIn,
    /// A model folder, a packed voice or another GGUF file.
    Path(PathBuf),
    /// A model to compare with goldens, which may be a checkpoint that was cut down to what its goldens read.
    /// Such a one refuses to speak.
    Goldens(PathBuf),
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The model.
    pub model: ModelSource,
    /// The second of two GGUF files, the codec of Qwen3-TTS or the S3Gen of Chatterbox. `None`: the one that
    /// lies beside the model.
    pub codec: Option<PathBuf>,
    /// Families that the model may be of. Applications that bring a family of their own add it to
    /// [`FAMILIES`].
    pub families: &'static [&'static Family],
    /// The device.
    pub device: DeviceChoice,
    /// CPU threads. `None`: one for each processor, at most 8.
    pub threads: Option<usize>,
    /// CPU instruction set: `amx`, `vnni`, `avx512`, `avx-vnni`, `avx2`, `neon-i8mm`, `neon-dotprod`,
    /// `neon`, `relaxed-simd`, `simd128` or `portable`. `None`: the one in the environment variable
    /// [`crate::ISA_VARIABLE`], or the best of this machine.
    pub isa: Option<String>,
    /// Format of weights in matmuls, and for which weights. What the device cannot do is refused.
    pub precision: PrecisionChoice,
    /// Format of the keys and values that an autoregressive model keeps while it speaks. Models that keep
    /// none refuse those that round.
    pub kv: CacheChoice,
    /// Folder for compiled kernels. `None`: [`crate::cache_folder`].
    pub cache: Option<PathBuf>,
    /// Whether the CPU replaces a device that cannot be opened or cannot run the model.
    /// [`crate::Engine::fallbacks`] then has the reason. The CPU keeps the requested format if it has it;
    /// otherwise that is a reason too.
    pub allow_fallback: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            model: ModelSource::default(),
            codec: None,
            families: FAMILIES,
            device: DeviceChoice::default(),
            threads: None,
            isa: None,
            precision: PrecisionChoice::default(),
            kv: CacheChoice::default(),
            cache: None,
            allow_fallback: false,
        }
    }
}

impl EngineOptions {
    /// Names of the options that [`EngineOptions::set`] knows.
    pub const NAMES: [&str; 8] =
        ["codec", "device", "threads", "isa", "precision", "kv", "cache", "allow_fallback"];

    /// Sets an option from text, as bindings for other languages and configuration files give it: a field by
    /// its name, with what the program takes for it.
    ///
    /// ```
    /// let mut options = orate::EngineOptions::default();
    /// options.set("device", "cpu")?;
    /// options.set("threads", "2")?;
    /// assert_eq!(options.threads, Some(2));
    /// # Ok::<(), orate::Error>(())
    /// ```
    ///
    /// # Errors
    /// The name is unknown, or the text is no value of it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = |option, allowed: String| Error::Option { option, got: format!("`{value}`"), allowed };
        match name {
            "codec" => self.codec = Some(value.into()),
            "device" => self.device = value.parse()?,
            "threads" => {
                let threads =
                    value.parse().map_err(|_| wrong("threads", "choose a whole number".to_owned()))?;
                self.threads = Some(threads);
            }
            "isa" => self.isa = Some(value.to_owned()),
            "precision" => self.precision = value.parse()?,
            "kv" => self.kv = value.parse()?,
            "cache" => self.cache = Some(value.into()),
            "allow_fallback" => {
                let on = value.parse();
                self.allow_fallback =
                    on.map_err(|_| wrong("allow_fallback", "choose true or false".to_owned()))?;
            }
            _ => {
                let got = format!("`{name}`");
                let allowed = format!("choose {}", EngineOptions::NAMES.join(", "));
                return Err(Error::Option { option: "option of the engine", got, allowed });
            }
        }
        Ok(())
    }
}

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The best GPU, or the CPU if there is none. Never a software rasterizer.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The n-th best GPU, whatever its driver; 0 is the best.
    Gpu(usize),
    /// A GPU by driver and number, as [`crate::devices`] lists them; software rasterizers too.
    Kind(DeviceKind, usize),
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wrong = || Error::Option {
            option: "device",
            got: format!("`{s}`"),
            allowed:
                "choose auto, cpu, gpu, cuda, vulkan, metal or dx12; GPUs may have a number, as in cuda:1"
                    .to_owned(),
        };
        let (name, index) = match s.split_once(':') {
            Some((name, index)) => (name, Some(index.parse::<usize>().map_err(|_| wrong())?)),
            None => (s, None),
        };
        match (name, index) {
            ("auto", None) => Ok(DeviceChoice::Auto),
            ("cpu", None) => Ok(DeviceChoice::Cpu),
            ("gpu", index) => Ok(DeviceChoice::Gpu(index.unwrap_or(0))),
            (name, index) => {
                let is_it = |k: &DeviceKind| *k != DeviceKind::Cpu && k.name() == name;
                let kind = DeviceKind::ALL.into_iter().find(is_it).ok_or_else(wrong)?;
                Ok(DeviceChoice::Kind(kind, index.unwrap_or(0)))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu(index) => write!(f, "gpu:{index}"),
            DeviceChoice::Kind(kind, index) => write!(f, "{}:{index}", kind.name()),
        }
    }
}

/// How the format of weights is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrecisionChoice {
    /// As the weights are stored: `f32`, but for GGUF files of blocks each weight in its own of `q8_0`,
    /// `q6_k`, `q5_k`, `q4_k` and `q4_0`. All other blocks become `q8_0`, which adds next to no error to
    /// theirs. The patterns are those of a policy.
    Stored {
        /// Patterns of weight names that get the format; without any, those that take the model's time.
        allow: Vec<String>,
        /// Patterns of weight names that stay in `f32`.
        deny: Vec<String>,
    },
    /// By this policy. What the device cannot do is an error.
    Exactly(PrecisionPolicy),
    /// The fastest of the device's formats whose matmuls are within [`crate::MOST_PROBED_ERROR`] of `f32`,
    /// found by trying them when the engine is opened; `f32` if none is faster. [`crate::Engine::probes`] has
    /// the measurements. The patterns are those of a policy.
    Auto {
        /// Patterns of weight names that get the format; without any, those that take the model's time. On
        /// GPUs those that make sound are in `f16` then, if its error is as small.
        allow: Vec<String>,
        /// Patterns of weight names that stay in `f32`.
        deny: Vec<String>,
    },
}

impl Default for PrecisionChoice {
    /// As the weights are stored.
    fn default() -> Self {
        PrecisionChoice::Stored { allow: vec![], deny: vec![] }
    }
}

impl FromStr for PrecisionChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "stored" => Ok(PrecisionChoice::default()),
            "auto" => Ok(PrecisionChoice::Auto { allow: vec![], deny: vec![] }),
            format => match format.parse() {
                Ok(precision) => Ok(PrecisionPolicy::uniform(precision).into()),
                Err(e) => {
                    let allowed = format!("{e}, stored, auto");
                    Err(Error::Option { option: "precision", got: format!("`{format}`"), allowed })
                }
            },
        }
    }
}

impl From<PrecisionPolicy> for PrecisionChoice {
    fn from(policy: PrecisionPolicy) -> Self {
        PrecisionChoice::Exactly(policy)
    }
}

/// How the format of keys and values is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheChoice {
    /// 16 bits on a GPU that multiplies by rounded weights: `bf16` for weights in `bf16`, `f16` for all
    /// others. `f32` on the CPU, and for weights in `f32` or `tf32`.
    #[default]
    Auto,
    /// This format.
    Exactly(CacheFormat),
}

impl CacheChoice {
    /// The format on a device of this kind, for weights of this precision.
    pub(crate) fn on(self, kind: DeviceKind, weights: Precision) -> CacheFormat {
        match (self, kind, weights) {
            (CacheChoice::Exactly(format), ..) => format,
            (_, DeviceKind::Cpu, _) | (.., Precision::F32 | Precision::Tf32) => CacheFormat::F32,
            (.., Precision::Bf16) => CacheFormat::Bf16,
            _ => CacheFormat::F16,
        }
    }
}

impl FromStr for CacheChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(CacheChoice::Auto),
            name => {
                let names = CacheFormat::ALL.map(CacheFormat::name).join(", ");
                let allowed = format!("choose one of {names}, auto");
                let wrong = Error::Option { option: "kv", got: format!("`{name}`"), allowed };
                name.parse().map(CacheChoice::Exactly).map_err(|_: String| wrong)
            }
        }
    }
}

impl fmt::Display for CacheChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheChoice::Auto => "auto",
            CacheChoice::Exactly(format) => format.name(),
        })
    }
}

impl From<CacheFormat> for CacheChoice {
    fn from(format: CacheFormat) -> Self {
        CacheChoice::Exactly(format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_and_print() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("gpu:2", DeviceChoice::Gpu(2)),
            ("cuda:1", DeviceChoice::Kind(DeviceKind::Cuda, 1)),
            ("vulkan:0", DeviceChoice::Kind(DeviceKind::Vulkan, 0)),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().expect("is known"), choice);
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!(
            "metal".parse::<DeviceChoice>().expect("is known"),
            DeviceChoice::Kind(DeviceKind::Metal, 0)
        );
        for wrong in ["", "gpus", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1", "cuda:0:1"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "`{wrong}`");
        }
    }

    #[test]
    fn keys_and_values_are_as_long_as_weights_on_gpus() {
        use DeviceKind::{Cpu, Cuda, Vulkan};
        for (text, kind, weights, want) in [
            ("auto", Cpu, Precision::F16, CacheFormat::F32),
            ("auto", Cuda, Precision::F32, CacheFormat::F32),
            ("auto", Cuda, Precision::Tf32, CacheFormat::F32),
            ("auto", Cuda, Precision::Bf16, CacheFormat::Bf16),
            ("auto", Vulkan, Precision::F16, CacheFormat::F16),
            ("auto", Cuda, Precision::Q4K, CacheFormat::F16),
            ("f32", Cuda, Precision::Bf16, CacheFormat::F32),
            ("q8_0", Cpu, Precision::F32, CacheFormat::Q8_0),
        ] {
            let choice = text.parse::<CacheChoice>().expect("is known");
            assert_eq!(choice.to_string(), text);
            assert_eq!(choice.on(kind, weights), want, "{text} on {kind} with {weights}");
        }
        let e = "q4_0".parse::<CacheChoice>().expect_err("is none").to_string();
        assert!(e.contains("kv is `q4_0`") && e.contains("q8_0, auto"), "{e}");
    }
}
