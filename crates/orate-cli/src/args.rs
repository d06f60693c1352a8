//! Command-line arguments that several commands share. Each command's own options are in its file.

use crate::commands::Command;
use crate::engine_report::note_fallbacks;
use crate::failure::UsageError;
use crate::model_path;
use crate::outputs::Input;
use crate::own_options::families;
use clap::Parser;
use orate::{
    CacheChoice, DeviceChoice, Engine, EngineOptions, ModelSource, Precision, PrecisionChoice,
    PrecisionPolicy,
};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Text-to-speech on the CPU and on any GPU.
#[derive(Debug, Parser)]
#[command(name = "orate", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  orate say \"Good morning.\" -o morning.wav
  orate say --file book.txt -o book.flac --speed 1.1
  echo \"Read me.\" | orate say --play
  orate pull supertonic-3
  orate say \"Hola.\" --model supertonic-3 --voice F1:0.7+M1:0.3 --lang es
  orate inspect supertonic-2/

Exit status:
  0    success, also if the reader of a pipe closes it early
  1    failure: text, model, file or system
  2    wrong command line or option value
  130  interrupted

Environment:
  ORATE_VOICE         packed voice (.gguf) to use instead of the built-in one
  ORATE_VOICE_FOLDER  folder of kept voices (`orate voices`)
  ORATE_CPU_ISA       CPU instruction set, as with --isa
  ORATE_PLAYER        command that plays, for --play: it reads WAV from standard input
  ORATE_CACHE         folder for compiled GPU kernels (`orate cache` shows it)
  HF_HOME             folder of pulled models, as for Python (`orate pull --help`)")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Number formats of a model.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Precision")]
pub struct PrecisionArgs {
    /// Weight format of matmuls, such as f32, bf16, q8_0, q4_k, stored or auto
    ///
    /// All formats: stored, f32, tf32, f16, bf16, q8_0, q6_k, q5_k, q4_k, q4_0, auto. stored is f32, but for
    /// GGUF files of Qwen3-TTS and Chatterbox that hold blocks, each weight has its own of these formats, or
    /// q8_0. tf32 is for CUDA. auto measures the formats of the device and takes the fastest that is nearly
    /// as exact as f32. Accumulation is always in f32.
    #[arg(
        long,
        visible_alias = "weights",
        value_name = "FORMAT",
        default_value = "stored",
        value_parser = precision
    )]
    pub precision: Wish,

    /// Use --precision only for weights that match this name; may be repeated
    ///
    /// `*` matches any characters; `orate inspect --tensors` lists names.
    #[arg(long, value_name = "PATTERN", hide_short_help = true)]
    pub precision_allow: Vec<String>,

    /// Keep weights that match this name in f32; may be repeated
    #[arg(long, value_name = "PATTERN", hide_short_help = true)]
    pub precision_deny: Vec<String>,

    /// Format of the KV cache, in models that have one: f32, f16, bf16, q8_0 or auto
    ///
    /// `auto`: on GPUs 16 bits if weights are rounded, bf16 for those in bf16 and f16 for all others;
    /// otherwise f32.
    #[arg(long, value_name = "FORMAT", default_value = "auto", hide_short_help = true)]
    pub kv: CacheChoice,
}

/// Value of `--precision`.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// A given format.
    Format(Precision),
    /// The format that probes choose.
    Auto,
    /// That of the file.
    Stored,
}

impl PrecisionArgs {
    /// The precision that the flags ask for.
    pub fn choice(&self) -> PrecisionChoice {
        let (allow, deny) = (self.precision_allow.clone(), self.precision_deny.clone());
        match self.precision {
            Wish::Format(precision) => {
                PrecisionPolicy { precision, allow, deny, ..Default::default() }.into()
            }
            Wish::Auto => PrecisionChoice::Auto { allow, deny },
            Wish::Stored => PrecisionChoice::Stored { allow, deny },
        }
    }
}

/// Which model.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// Model folder, GGUF file or pulled model [default: the built-in voice]
    ///
    /// `orate models` lists names of models; `orate pull` downloads one.
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<PathBuf>,

    /// Codec or S3Gen of a model of two GGUF files [default: the one beside it]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub codec: Option<PathBuf>,
}

/// Model and device.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub struct EngineArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Device and number formats.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub struct PlaceArgs {
    /// auto, cpu, gpu, cuda, vulkan, metal or dx12; a GPU by number: cuda:1
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,

    /// Fall back to the CPU, with a note, if the device cannot run the model
    #[arg(long, hide_short_help = true)]
    pub allow_fallback: bool,

    /// CPU threads [default: one for each processor, at most 8]
    #[arg(
        long,
        short = 'j',
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = within(1..=1024_u16)
    )]
    pub threads: Option<u16>,

    /// CPU instruction set: one that `orate devices` lists, or portable [default: best]
    #[arg(long, value_name = "SET", hide_short_help = true)]
    pub isa: Option<String>,

    #[command(flatten)]
    pub precision: PrecisionArgs,
}

impl ModelArgs {
    /// Path of the model, if one is named.
    fn path(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(self.model.as_deref().map(model_path).transpose()?)
    }

    fn source(&self) -> anyhow::Result<ModelSource> {
        Ok(self.path()?.map_or(ModelSource::BuiltIn, ModelSource::Path))
    }

    /// Opens the model on the CPU to inspect it; computes nothing.
    pub fn open_to_look(&self) -> anyhow::Result<Engine> {
        let options = EngineOptions {
            model: self.source()?,
            codec: self.codec.clone(),
            families: families(),
            device: DeviceChoice::Cpu,
            threads: Some(1),
            precision: PrecisionPolicy::default().into(),
            ..Default::default()
        };
        Ok(Engine::with_options(options)?)
    }
}

impl EngineArgs {
    /// Model files, which no output may replace.
    pub fn inputs(&self) -> Vec<Input> {
        let built_in =
            || std::env::var_os(orate::VOICE_VARIABLE).filter(|p| !p.is_empty()).map(PathBuf::from);
        // A model that is not found is reported when it is opened.
        let ModelArgs { model, codec } = &self.model;
        let model = self.model.path().unwrap_or_else(|_| model.clone());
        let codec = codec.clone().map(|path| ("the codec", path));
        model.or_else(built_in).map(|path| ("the model", path)).into_iter().chain(codec).collect()
    }

    /// Opens the model and prints which devices were skipped.
    pub fn open(&self) -> anyhow::Result<Engine> {
        self.open_silently().inspect(note_fallbacks)
    }

    /// Opens the model without printing.
    pub fn open_silently(&self) -> anyhow::Result<Engine> {
        self.open_as(self.model.source()?)
    }

    /// Opens the model for comparison with goldens, which may need only part of its weights.
    pub fn open_to_compare(&self) -> anyhow::Result<Engine> {
        match self.model.path()? {
            Some(path) => self.open_as(ModelSource::Goldens(path)).inspect(note_fallbacks),
            None => self.open(),
        }
    }

    fn open_as(&self, model: ModelSource) -> anyhow::Result<Engine> {
        let place = &self.place;
        let options = EngineOptions {
            model,
            codec: self.model.codec.clone(),
            families: families(),
            device: place.device,
            threads: place.threads.map(usize::from),
            isa: place.isa.clone(),
            precision: place.precision.choice(),
            kv: place.precision.kv,
            allow_fallback: place.allow_fallback,
            ..Default::default()
        };
        Engine::with_options(options).map_err(|e| match e {
            // The set is unknown, or this processor lacks it.
            orate::Error::Device(e) if place.isa.is_some() => UsageError(format!("--isa: {e}")).into(),
            e => anyhow::Error::from(e),
        })
    }
}

/// Parses `--precision`.
fn precision(text: &str) -> Result<Wish, String> {
    match text {
        "auto" => Ok(Wish::Auto),
        "stored" => Ok(Wish::Stored),
        // clap appends this list of formats to its error.
        format => format.parse().map(Wish::Format).map_err(|e: String| format!("{e}, stored, auto")),
    }
}

/// Parses a number in a range.
pub fn within<T: FromStr + PartialOrd + Display>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone
where
    RangeInclusive<T>: Clone,
{
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("choose {} to {}", range.start(), range.end()))
    }
}

/// Sizes at which a model is timed or explained.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SizeArgs {
    /// Size of the text: characters with their language tags, or rows of a prompt
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = within(1..=4096_u32)
    )]
    pub tokens: Option<u32>,

    /// Frames of audio, in the model's own unit
    #[arg(
        long,
        visible_alias = "frames",
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = within(1..=16384_u32)
    )]
    pub latents: Option<u32>,
}
