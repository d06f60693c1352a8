//! Chatterbox as one family among others: see [`crate::Family`].

use super::DEFAULT_VOICE;
use super::config::{CODES_PER_SECOND, NAME, SAMPLE_RATE, SILENCE};
use super::files::Files;
use super::footprint::{footprint, usual_graphs};
use super::gguf;
use super::goldens::Comparer;
use super::options::Options as Own;
use super::pipeline::{Chatterbox, EXAGGERATION};
use super::s3gen::Noise;
use super::speak::{Pieces, make_plans};
use super::t3::END_BIAS;
use super::t3_plans::{T3, T3Plan};
use super::voice::{TAG, Voice};
use crate::decoding::session::{Session, capacity};
use crate::decoding::{Autoregressive, MemorySizes, StartOptions};
use crate::hooks::{Goldens, StageProfile, tone};
use crate::{
    Chunks, ClonedVoice, Cloning, Conversion, Description, Facts, Family, Footprint, MatmulSize, Model,
    ModelError, ModelFiles, Opening, OptionSet, OptionSpec, Options, Packing, PlaceOptions, Profile, Runs,
    Size, SpeechLength, VoiceInfo,
};
use orate_graph::{CacheFormat, Device, Graph, Pacing};
use orate_weights::WeightSource;
use serde_json::json;
use std::sync::Arc;

/// Chatterbox: English, Multilingual, Turbo, Nano, and voice conversion.
pub static FAMILY: &Family = &Family {
    name: NAME,
    tag: TAG,
    options: Own::SPECS,
    expects: "t3_*.safetensors with s3gen*.safetensors of the official repository, or GGUF files",
    detect: |path| Files::detect(path) || gguf::detect(path),
    open: |path, opening| match opening {
        Opening::With { codec } if gguf::detect(path) => Ok(Box::new(gguf::open(path, Some(codec))?)),
        Opening::With { .. } => Err(crate::gguf::no_codec("folder")),
        _ if gguf::detect(path) => Ok(Box::new(gguf::open(path, None)?)),
        _ => Ok(Box::new(Files::open(path)?)),
    },
    networks: || Network::ALL.map(|(name, _)| name).to_vec(),
    network_of: |weight| {
        let owns = |(_, prefixes): &&(&str, &[&str])| prefixes.iter().any(|p| weight.starts_with(p));
        Network::ALL.iter().find(owns).map(|(name, _)| *name)
    },
    describe_voice: |voice| match Voice::try_from(voice) {
        Ok(Voice { talking: Some(_), reference }) => {
            let seconds = reference.codes.len() as f64 / CODES_PER_SECOND as f64;
            format!("for {NAME} models ({seconds:.0} s of a recording)")
        }
        Ok(_) => format!("for voice conversion with {NAME} models"),
        Err(_) => "damaged".to_owned(),
    },
    describe_file: |_| None,
};

/// Networks, in the order in which they run, and how names of their weights begin.
struct Network;

impl Network {
    const ALL: [(&'static str, &'static [&'static str]); 7] = [
        (
            "t3",
            &[
                "tfmr.",
                "text_emb.",
                "speech_emb.",
                "text_pos_emb.",
                "speech_pos_emb.",
                "speech_head.",
                "cond_enc.",
            ],
        ),
        ("estimator", &["flow.decoder."]),
        ("flow encoder", &["flow."]),
        ("vocoder", &["mel2wav.", "constants."]),
        ("speech tokenizer", &["tokenizer."]),
        ("speaker encoder", &["speaker_encoder."]),
        ("voice encoder", &["lstm.", "proj."]),
    ];
}

impl ModelFiles for Files {
    fn family(&self) -> &'static Family {
        FAMILY
    }

    fn facts(&self) -> Facts {
        let default = VoiceInfo { name: DEFAULT_VOICE.to_owned(), is_default: true };
        let width = self.talking.as_ref().map_or(1024, |t| t.config.width);
        Facts {
            family: NAME,
            origin: self.origin.clone(),
            sample_rate: SAMPLE_RATE,
            voices: self.default_voice.iter().map(|_| default.clone()).collect(),
            without_voices: "has no conds.pt with a default voice; give a recording of a voice",
            loudness: None,
            texts_at_once: Pacing::SHARED_THREADS.batch,
            kv: self.talking.as_ref().map(|_| CacheFormat::default()),
            can_speak: self.talking.is_some(),
            precision_scope: &["tfmr.*", "speech_head.*", "flow.decoder.estimator.*"],
            half_scope: &["flow.*", "mel2wav.*"],
            typical_matmul: MatmulSize { rows: 1, width },
        }
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn computes_in_blocks(&self) -> bool {
        self.report.is_some()
    }

    fn graphs(&self, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        self.speaking_graphs(&*self.weights, options)
    }

    fn usual_graphs(&self, pacing: Pacing, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        usual_graphs(self, pacing, options.kv)
    }

    fn encoder_graphs(&self) -> Result<Vec<Graph>, ModelError> {
        Ok(self.encoder_graphs_of(CODES_PER_SECOND)?)
    }

    fn describe(&self) -> Description {
        let mut facts = vec![
            ("variant", json!(self.variant.name())),
            ("sample rate", json!(SAMPLE_RATE)),
            ("codes per second", json!(CODES_PER_SECOND)),
        ];
        if let Some(talking) = &self.talking {
            facts.push(("languages", json!(talking.text.languages())));
            facts.push(("text tokens", json!(talking.config.text_ids)));
        }
        facts.push(("default voice", json!(self.default_voice.is_some())));
        facts.push(("voices from recordings", json!(self.voice_encoder.is_some() || self.talking.is_none())));
        facts.extend(self.report.iter().flat_map(|report| report.facts()));
        Description { kind: format!("{NAME} {}", self.variant.name()), facts }
    }

    fn packing(&self) -> Result<Packing, ModelError> {
        gguf::packing(self)
    }

    fn footprint(
        &self,
        device: &dyn Device,
        options: &PlaceOptions,
        length: SpeechLength,
    ) -> Result<Option<Footprint>, ModelError> {
        footprint(self, device, options.kv, length).map(Some)
    }

    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        options: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        Ok(Chatterbox::new(*self, device, options.kv))
    }
}

impl Model for Chatterbox {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &dyn ModelFiles {
        Chatterbox::files(self)
    }

    fn accepts(&self) -> &[OptionSpec] {
        Chatterbox::accepts(self)
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        Ok(Box::new(Pieces::new(self, text, options)?))
    }

    fn warm_up(self: Arc<Self>, options: &Options, callers: usize) -> Result<(), ModelError> {
        make_plans(&self, options, callers)
    }

    fn plans(&self, size: Size, options: &Options) -> Result<Runs, ModelError> {
        let Size { tokens, frames } = size;
        let voice = self.voice(options)?;
        let own = Own::read(&options.own);
        let steps = self.flow_settings(&own).steps;
        let mut plans = vec![];
        if self.t3().is_ok() {
            let t3 = self.t3_for(&own)?.network();
            let sizes = t3.sizes(MemorySizes { batch: 1, capacity: capacity(tokens + frames), feed: 0 });
            for plan in T3Plan::of_utterance(sizes, tokens) {
                let times = if matches!(plan, T3Plan::Frame { .. }) { frames } else { 1 };
                plans.push((t3.plan(plan, false)?, times));
            }
        }
        let sizes = [voice.reference.codes.len() + frames, voice.reference.frames()];
        for (plan, times) in self.s3gen().plans().of_utterance(sizes, steps) {
            plans.push((self.s3gen().plans().get(plan, false)?, times));
        }
        Ok(Runs {
            size: format!("{tokens} rows of prompt, {frames} codes, {steps} steps"),
            what: format!("{:.1} s of speech", frames as f64 / CODES_PER_SECOND as f64),
            plans,
        })
    }

    fn plans_made(&self) -> usize {
        self.t3().map_or(0, |t3| t3.network().plans().made()) + self.s3gen().plans().cache.made()
    }

    fn weight_bytes(&self) -> u64 {
        self.t3().map_or(0, |t3| t3.network().plans().weight_bytes())
            + self.s3gen().plans().cache.weight_bytes()
    }

    fn check_defaults(&self) -> Result<(), ModelError> {
        self.files().default_voice.iter().try_for_each(|voice| self.check_voice(voice))
    }

    fn cloning(&self) -> Result<&dyn Cloning, ModelError> {
        Ok(self)
    }

    fn conversion(self: Arc<Self>) -> Option<Arc<dyn Conversion>> {
        Some(self)
    }

    /// The default voice, or that of a tone.
    fn bench_options(&self) -> Result<Options, ModelError> {
        if self.files().default_voice.is_some() || self.files().voice_encoder.is_none() {
            return Ok(Options::default());
        }
        let voice = self.clone_voice(&tone(TONE_SECONDS, SAMPLE_RATE), None)?;
        Ok(Options { cloned: Some(Arc::new(voice)), ..Options::default() })
    }

    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        Some(Box::new(Comparer(self)))
    }

    /// A code of T3, and S3Gen for as many codes as the size has frames.
    fn profile(
        self: Arc<Self>,
        size: Size,
        options: &Options,
        runs: usize,
    ) -> Result<Vec<StageProfile>, ModelError> {
        let voice = self.voice(options)?;
        let own = Own::read(&options.own);
        let mut all = vec![];
        if self.t3().is_ok() {
            let mut session = self.profiled_session(&voice, &own, size, runs)?;
            all.push(least(runs, ("code", size.frames), || session.profile_frame())?);
        }
        let settings = self.flow_settings(&own);
        let codes = vec![SILENCE; size.frames];
        let mut session = self.s3gen().session(&voice.reference, false);
        let part = 0..session.frames(codes.len());
        session.prepare(&codes, settings, Noise::Seed(0))?;
        session.step(0, settings.steps)?;
        session.finish(part)?;
        session.vocode(Noise::Seed(0))?;
        let sizes = [voice.reference.codes.len() + codes.len(), voice.reference.frames()];
        let plans = self.s3gen().plans().of_utterance(sizes, settings.steps);
        for (stage, (plan, times)) in STAGES.into_iter().zip(plans) {
            all.push(least(runs, (stage, times), || session.profile(plan))?);
        }
        Ok(all)
    }
}

/// Names of the parts of S3Gen in profiles.
const STAGES: [&str; 3] = ["flow encoder", "estimator", "vocoder"];

/// Seconds of the tone that `bench` takes a voice from, if there is no other.
const TONE_SECONDS: f32 = 6.0;

/// Codes that are made before those that are profiled.
const CODES_BEFORE_PROFILE: usize = 4;

/// A plan that is profiled `runs` times.
fn least(
    runs: usize,
    (stage, times): (&'static str, usize),
    mut profile: impl FnMut() -> Result<Profile, ModelError>,
) -> Result<StageProfile, ModelError> {
    let (plan, seconds) = profile()?;
    let mut all = StageProfile { stage, plan, seconds, times };
    for _ in 1..runs {
        all.keep_least(&profile()?.1);
    }
    Ok(all)
}

impl Chatterbox {
    /// A session of T3 with a prompt of `size.tokens` ids, some codes after its beginning.
    fn profiled_session(
        &self,
        voice: &Voice,
        own: &Own,
        size: Size,
        runs: usize,
    ) -> Result<Session<T3>, ModelError> {
        let of_t3 = voice.talking.as_ref().expect("checked with the voice");
        let conditioning = self.conditioning(of_t3, own.exaggeration.unwrap_or(EXAGGERATION))?;
        let prompt = self.prompt(conditioning, vec![1; size.tokens])?;
        let own = Own { max_codes: Some(CODES_BEFORE_PROFILE + runs.max(1)), ..own.clone() };
        let t3 = self.t3_for(&own)?;
        let mut session = t3.start(&prompt, self.draw_settings(&own, 0), StartOptions::default())?;
        session.set_look_ahead(false);
        let lanes = t3.network().facts().lanes;
        // Read under the alignment guard only.
        session.write(END_BIAS, &[lanes, 1, 1].into(), &vec![0.0; lanes])?;
        for _ in 0..CODES_BEFORE_PROFILE {
            session.next_frame(&mut vec![])?;
        }
        Ok(session)
    }
}

impl Cloning for Chatterbox {
    /// The transcript is not read: the model takes over the voice alone.
    fn clone_voice(&self, samples: &[f32], _: Option<&str>) -> Result<ClonedVoice, ModelError> {
        let voice = self.encoders().voice(samples)?;
        self.check_voice(&voice)?;
        Ok((&voice).into())
    }

    fn check_voice(&self, voice: &ClonedVoice) -> Result<(), ModelError> {
        Chatterbox::check_voice(self, &Voice::try_from(voice)?)
    }
}
