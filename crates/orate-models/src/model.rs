//! What a family of models implements so that everything above it works: the engine, the command line and the
//! tools.
//!
//! ```text
//! Family     knows its files           detect(path), open(path)      ─► ModelFiles
//! ModelFiles opened, on no device yet  what it needs, place(device)  ─► Model
//! Model      on a device, shared       speak(text, options)          ─► Chunks
//! ```
//!
//! A family is a folder of this crate with these implementations, and a row in `orate`'s table;
//! `docs/add-a-model.md` shows how.

use crate::hooks::{Goldens, StageProfile};
use crate::{ClonedVoice, ModelError, OptionSpec, Options};
use orate_graph::{CacheFormat, Counters, Device, Executable, Graph, GraphError, Pacing, Plan, Target};
use orate_text::{TimedMark, TimedWord, Traced};
use orate_weights::WeightSource;
use orate_weights::gguf::GgufValue;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

// ---- families and files -----------------------------------------------------------------------------------

type Opened = Result<Box<dyn ModelFiles>, ModelError>;

/// A family of models: how it is called, and how its files are recognized and opened.
pub struct Family {
    /// Name for people, such as `Supertonic`.
    pub name: &'static str,
    /// Name in files, such as `qwen3-tts`: the tag of voices that are kept.
    pub tag: &'static str,
    /// Every option that some model of the family has.
    pub options: &'static [OptionSpec],
    /// How to recognize a model of this family, for the error when no family does: `a folder with config.json
    /// (…)`.
    pub expects: &'static str,
    /// Whether a path is meant to be a model of this family, complete or not.
    pub detect: fn(&Path) -> bool,
    /// Opens a model. Of its weights only names and shapes are read.
    pub open: fn(&Path, Opening<'_>) -> Opened,
    /// Names of the networks, in the order in which they run.
    pub networks: fn() -> Vec<&'static str>,
    /// The one of these networks that a weight of some name belongs to.
    pub network_of: fn(&str) -> Option<&'static str>,
    /// What a voice of this family is, and which models speak with it, in a few words.
    pub describe_voice: fn(&ClonedVoice) -> String,
    /// What a file that is no model holds, if it belongs to this family: facts for `inspect`, or an error
    /// where it is damaged.
    pub describe_file: fn(&Path) -> Option<Result<Description, ModelError>>,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a model is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening<'a> {
    /// To speak: all files have to be there.
    #[default]
    Whole,
    /// To be compared with goldens: checkpoints that were cut down to what their goldens read are opened too.
    Goldens,
    /// To speak, with this file as the second one of a model of two GGUF files.
    With {
        /// Its codec, or its S3Gen.
        codec: &'a Path,
    },
}

/// A model's files, opened but on no device.
pub trait ModelFiles: Send + Sync {
    /// The family.
    fn family(&self) -> &'static Family;

    /// What is known before the model is on a device, with the default format of keys and values.
    fn facts(&self) -> Facts;

    /// All weights, under the checkpoint's names.
    fn weights(&self) -> &Arc<dyn WeightSource>;

    /// Whether weights that are stored in blocks are multiplied in blocks unless another format is asked
    /// for.
    fn computes_in_blocks(&self) -> bool {
        false
    }

    /// Every network that speaks, at a small size.
    ///
    /// # Errors
    /// The configuration contradicts itself or the weights.
    fn graphs(&self, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError>;

    /// The networks of first texts of usual lengths, for [`Device::prepare`]: other sizes may need other
    /// kernels.
    ///
    /// # Errors
    /// As [`ModelFiles::graphs`].
    fn usual_graphs(&self, pacing: Pacing, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let _ = pacing;
        self.graphs(options)
    }

    /// Every network that only reads recordings, at a small size.
    ///
    /// # Errors
    /// As [`ModelFiles::graphs`].
    fn encoder_graphs(&self) -> Result<Vec<Graph>, ModelError> {
        Ok(vec![])
    }

    /// Steps of the model that a device cannot run.
    ///
    /// # Errors
    /// As [`ModelFiles::graphs`].
    fn unsupported(
        &self,
        target: &dyn Target,
        options: &PlaceOptions,
    ) -> Result<Vec<GraphError>, ModelError> {
        Ok(self.graphs(options)?.into_iter().flat_map(|g| Plan::unsupported(g, target)).collect())
    }

    /// What the model is, for `inspect`.
    fn describe(&self) -> Description;

    /// What `quantize` puts into a file besides weights.
    ///
    /// # Errors
    /// The model is in one file already, or a part is missing.
    fn packing(&self) -> Result<Packing, ModelError> {
        let problem = "its files cannot be put into one; give the folder of an official repository";
        Err(ModelError::NotAModel { path: self.facts().origin.into(), problem: problem.to_owned() })
    }

    /// Bytes that the model takes on a device; `None` where nobody has worked them out. Nothing is loaded.
    ///
    /// # Errors
    /// The device lacks an op.
    fn footprint(
        &self,
        device: &dyn Device,
        options: &PlaceOptions,
        speech: SpeechLength,
    ) -> Result<Option<Footprint>, ModelError> {
        let _ = (device, options, speech);
        Ok(None)
    }

    /// Puts the model on a device.
    ///
    /// # Errors
    /// The weights do not fit the networks.
    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        options: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError>;
}

/// What a file of a whole model holds besides weights.
pub struct Packing {
    /// The small files of the model, by their path in its folder, and where they are.
    pub files: Vec<(String, PathBuf)>,
    /// What stands before the name of a weight, and a slash.
    pub prefix: fn(&str) -> &'static str,
    /// The weights, in the order of the file. Those of other models of the folder, and constants that are
    /// computed, are none of them.
    pub weights: Vec<String>,
    /// Further facts.
    pub keys: Vec<(&'static str, GgufValue)>,
    /// Whether a matrix is stored `[in, out]`, and has to be `[out, in]` in the file.
    pub is_turned: fn(&str) -> bool,
}

/// How a model is put on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Format in which keys and values are kept.
    pub kv: CacheFormat,
}

/// Sizes of a matmul `[rows, width] x [width, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulSize {
    /// Rows at a time.
    pub rows: usize,
    /// Inner and outer width.
    pub width: usize,
}

/// What a model or file is, in facts to print.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// In two or three words, such as `Supertonic 3`.
    pub kind: String,
    /// Name and value, in the order to print.
    pub facts: Vec<(&'static str, serde_json::Value)>,
}

/// Length of the speech that a [`Footprint`] is for, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechLength {
    /// Of an utterance.
    pub speech: f64,
    /// Of the recording that it takes its voice from.
    pub reference: f64,
}

/// Bytes that a model takes on its device. The program itself and plans come on top: some tens of megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Weights in the formats of the device.
    pub weights: u64,
    /// Buffers and temporaries of an utterance: keys and values, history of the codec.
    pub utterance: u64,
    /// The same after a reference whose words are known, with what is kept of the reference. 0 for models
    /// that take none.
    pub in_context: u64,
    /// What comes on top while a recording becomes such a reference: encoders and their temporaries. Nothing
    /// of it stays. 0 for models that take none.
    pub cloning: u64,
}

// ---- models -----------------------------------------------------------------------------------------------

/// A model on a device. It is shared: any number of threads may speak at once.
pub trait Model: Any + Send + Sync {
    /// What is known of it.
    fn facts(&self) -> &Facts;

    /// Its files.
    fn files(&self) -> &dyn ModelFiles;

    /// The options that have an effect for this very model: those of its family or fewer.
    fn accepts(&self) -> &[OptionSpec] {
        self.files().family().options
    }

    /// Begins to speak. Options of the family are declared and in range ([`Options::check`]); everything else
    /// that can be found before speaking is an error here.
    ///
    /// # Errors
    /// There is nothing to say, a character, voice or language is unknown, or a combination of options makes
    /// no sense.
    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError>;

    /// Compiles the plans that texts with these options need when `callers` speak at once. The engine has
    /// spoken a few words before.
    ///
    /// # Errors
    /// As [`Model::speak`].
    fn warm_up(self: Arc<Self>, options: &Options, callers: usize) -> Result<(), ModelError> {
        let _ = (options, callers);
        Ok(())
    }

    /// The plans that run for a text of some size, for `explain`.
    ///
    /// # Errors
    /// The device cannot run them, or the options say nonsense.
    fn plans(&self, size: Size, options: &Options) -> Result<Runs, ModelError>;

    /// Plans compiled so far, those that are not kept any more included.
    fn plans_made(&self) -> usize;

    /// Bytes of weights on the device at this moment.
    fn weight_bytes(&self) -> u64;

    /// Reads what speaking without options needs, such as the default voice, so that `inspect` finds damage
    /// there.
    ///
    /// # Errors
    /// It is damaged.
    fn check_defaults(&self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Voices from recordings, for models that can.
    ///
    /// # Errors
    /// This model cannot, in words that say which ones can.
    fn cloning(&self) -> Result<&dyn Cloning, ModelError> {
        let problem = "it cannot clone a voice; Qwen3-TTS Base and Chatterbox models can".to_owned();
        Err(ModelError::Mode { variant: self.facts().family, problem })
    }

    /// Speech in another voice, for models that can.
    fn conversion(self: Arc<Self>) -> Option<Arc<dyn Conversion>> {
        None
    }

    /// Reference values, for `verify`.
    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        None
    }

    /// Options with which the model speaks without being given anything, for `bench`.
    ///
    /// # Errors
    /// The device failed.
    fn bench_options(&self) -> Result<Options, ModelError> {
        Ok(Options::default())
    }

    /// Speech of a forced size, for models that can be forced.
    ///
    /// # Errors
    /// A size is 0.
    fn forced(self: Arc<Self>, size: Size, options: &Options) -> Result<Option<Box<dyn Chunks>>, ModelError> {
        let _ = (size, options);
        Ok(None)
    }

    /// Times every step of every plan: the least of `runs` runs. Nothing from models that cannot.
    ///
    /// # Errors
    /// The device failed.
    fn profile(
        self: Arc<Self>,
        size: Size,
        options: &Options,
        runs: usize,
    ) -> Result<Vec<StageProfile>, ModelError> {
        let _ = (size, options, runs);
        Ok(vec![])
    }
}

/// What is known of a model without asking it to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name of its family.
    pub family: &'static str,
    /// Path, or `built-in voice`.
    pub origin: String,
    /// Samples per second of its audio.
    pub sample_rate: u32,
    /// Its voices.
    pub voices: Vec<VoiceInfo>,
    /// Where there are no voices: what to do instead, in words that follow the model's name.
    pub without_voices: &'static str,
    /// Usual loudness of its speech in LUFS, as far as it is known.
    pub loudness: Option<i8>,
    /// Texts that are best spoken at once on a CPU; on a GPU there may be more, as its memory allows.
    pub texts_at_once: usize,
    /// Format of keys and values; `None` for models that keep none: [`PlaceOptions::kv`] has no effect.
    pub kv: Option<CacheFormat>,
    /// Whether the model speaks. A codec alone, which only encodes and decodes, does not.
    pub can_speak: bool,
    /// Patterns of the weights that take the model's time. A precision applies to them alone where nobody
    /// names others: if it is chosen by probes, or in blocks of few bits. Empty: all weights.
    pub precision_scope: &'static [&'static str],
    /// Patterns of weights, also of that scope, which GPUs compute in `f16` where a precision applies to that
    /// scope alone: those with which sound is made, of many rows at a time, but not those that read
    /// recordings.
    pub half_scope: &'static [&'static str],
    /// A matmul like those that take the model's time, to try formats with.
    pub typical_matmul: MatmulSize,
}

/// A voice of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceInfo {
    /// Name to ask for.
    pub name: String,
    /// Whether it speaks when none is named.
    pub is_default: bool,
}

/// Size of a text and its speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Tokens of text: characters, or rows of a prompt, as the model counts them.
    pub tokens: usize,
    /// Frames of audio, as the model counts them.
    pub frames: usize,
}

/// Plans that speak a text of some size.
pub struct Runs {
    /// The size in words, such as `80 tokens, 72 latent frames, 5 steps`.
    pub size: String,
    /// What all plans together do, such as `one frame`.
    pub what: String,
    /// Each plan, and how often it runs for that.
    pub plans: Vec<(Arc<dyn Executable>, usize)>,
}

// ---- speech -----------------------------------------------------------------------------------------------

/// Some of a text's audio.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Samples. Those of a stream have silence before each piece but the first.
    pub samples: Vec<f32>,
    /// The piece as the model reads it, and where it comes from in the text that was given; empty for a
    /// recording.
    pub text: Traced,
    /// Number of the piece, from 0. Models that speak frame by frame return several chunks for a piece.
    pub index: usize,
    /// Words of the piece, with times in the sound of a stream: with the last chunk of a piece, if
    /// [`Options::word_times`] asks for them.
    pub words: Vec<TimedWord>,
    /// Named places of a script, with times in the sound of a stream; also with the last chunk of a piece.
    pub marks: Vec<TimedMark>,
    /// Where its samples begin in the sound of a stream, counted in samples.
    pub start: usize,
    /// When each character of `text` begins, in seconds from the beginning of the piece's speech: with the
    /// last chunk of a piece, if [`Options::word_times`] asks for it and the model's attention is trained to
    /// align; else empty.
    pub letter_times: Vec<f32>,
    /// Whether it is the last chunk of its piece.
    pub ends_piece: bool,
    /// What was asked of the device: plans submitted, values read back, bytes copied.
    pub counters: Counters,
    /// Rows of the piece's prompt whose state was kept from an earlier one, with its first chunk. They cost
    /// no time.
    pub prefix_rows: usize,
    /// Why the piece ended, with its last chunk; `None` for models that cannot go wrong this way.
    pub finish: Option<FinishReason>,
    /// How often the piece was spoken so far, this time included: more than once after a runaway.
    pub attempts: usize,
}

/// Why a piece ended, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FinishReason {
    /// The model said so.
    Stop,
    /// It has as many frames as were allowed.
    Length,
    /// Runaway generation: the model looped, stayed silent, or made far more frames than its text needs.
    Runaway,
}

impl FinishReason {
    /// Name in results: `stop`, `length` or `runaway`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Runaway => "runaway",
        }
    }

    /// What to tell a user: speech that ran away was cut, so that words may be missing. `None` where all went
    /// well, or as it was asked.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            FinishReason::Stop | FinishReason::Length => None,
            FinishReason::Runaway => Some("the speech ran away and was cut; another seed may do better"),
        }
    }
}

/// The audio of a text or recording, chunk by chunk. A chunk is computed when it is asked for; dropping this
/// stops all work.
pub trait Chunks: Send {
    /// The next chunk. After an error nothing follows.
    fn next(&mut self) -> Option<Result<Chunk, ModelError>>;

    /// Pieces still to come.
    fn remaining(&self) -> usize;

    /// Characters still to come; of a recording, pieces.
    fn remaining_chars(&self) -> usize;

    /// What was asked for and has no effect, in words.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Where the time went so far, for `bench`.
    fn laps(&self) -> Laps {
        Laps::default()
    }

    /// Waits for the device after each stage from now on, so that [`Chunks::laps`] measures each stage on
    /// devices that run while the host goes on. Returns whether it does; models that read back each stage
    /// need not.
    fn time_apart(&mut self) -> bool {
        false
    }
}

/// Where the time of speaking went. Where stages run side by side, their sum is more than the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Laps {
    /// Stages in order.
    pub stages: Vec<Lap>,
    /// Frames made, by models that speak frame by frame.
    pub frames: usize,
    /// Sizes of each piece so far, such as `("tokens", 80)`.
    pub pieces: Vec<Vec<(&'static str, usize)>>,
}

impl std::ops::AddAssign for Laps {
    fn add_assign(&mut self, other: Laps) {
        for lap in other.stages {
            match self.stages.iter_mut().find(|own| own.stage == lap.stage) {
                Some(own) => own.time += lap.time,
                None => self.stages.push(lap),
            }
        }
        self.frames += other.frames;
        self.pieces.extend(other.pieces);
    }
}

/// Time of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Name of the stage.
    pub stage: &'static str,
    /// Its time, all runs together.
    pub time: Duration,
    /// Whether it runs for each frame, so that its time by frame says more.
    pub per_frame: bool,
}

/// Makes voices from recordings.
pub trait Cloning: Send + Sync {
    /// The voice of `samples`, mono at the model's sample rate, trimmed. With the words that are spoken
    /// there, the model also takes over the manner.
    ///
    /// # Errors
    /// The recording is too short, the transcript is not of this recording, or the device failed.
    fn clone_voice(&self, samples: &[f32], transcript: Option<&str>) -> Result<ClonedVoice, ModelError>;

    /// Whether speech goes on where the recording ends, so that its transcript is read.
    fn continues_recordings(&self) -> bool {
        false
    }

    /// Checks that the model can speak with a voice.
    ///
    /// # Errors
    /// It is a voice of another family or size, or damaged.
    fn check_voice(&self, voice: &ClonedVoice) -> Result<(), ModelError>;
}

/// Speaks a recording again in another voice.
pub trait Conversion: Send + Sync {
    /// The audio of a recording in the voice of `options`, piece by piece. `samples` are mono and finite, of
    /// any rate: networks that read recordings have their own. Options without an effect here are not
    /// [`OptionSpec::converts`].
    ///
    /// # Errors
    /// The recording is too short, or the voice is unknown or of another family.
    fn convert(
        self: Arc<Self>,
        samples: &[f32],
        sample_rate: u32,
        options: &Options,
    ) -> Result<Box<dyn Chunks>, ModelError>;
}
