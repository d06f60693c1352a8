//! Goldens of whole calls: a text or a recording to samples, in the voice of another recording.

use super::Run;
use super::draw::Noise;
use super::s3gen::Given;
use super::stored::{bad, golden, integers};
use crate::chatterbox::config::{END_OF_SPEECH, FRAMES_PER_CODE, SAMPLE_RATE};
use crate::chatterbox::encoders::{ENCODER_RATE, features};
use crate::chatterbox::options::Options as Own;
use crate::chatterbox::s3gen::Reference;
use crate::chatterbox::speak::spoken;
use crate::chatterbox::voice::TalkingVoice;
use crate::{Cancel, ModelError};
use orate_audio::{SincFilter, resample_sinc};
use orate_weights::SafeTensors;
use serde_json::Value;

/// Why a case is not compared below f32.
const ONLY_EXACT: &str = "one code that differs makes other speech, and so does the phase of another pitch";

impl Run<'_> {
    /// Speaks a text in the voice of `ref.wav`, with the random numbers of the goldens.
    pub(super) fn utterance(&mut self, case: &str) -> Result<(), ModelError> {
        let (file, run) = (self.stored.file(case)?, self.stored.run(case));
        let text = run.get("text").and_then(Value::as_str);
        let text = text.ok_or_else(|| bad(&self.stored.folder, format!("`{case}` has no text")))?;
        let language = run.pointer("/kwargs/language_id").and_then(Value::as_str);
        let model = self.model.clone();
        let want = integers(&file, "sampled_tokens")?;
        let own = Own { max_codes: Some(want.len()), ..Own::default() };
        let settings = model.draw_settings(&own, 0);
        let ids = model.talking()?.text.ids_of(text, language, &mut vec![])?;
        let start = |of_t3: &TalkingVoice| {
            let conditioning = model.conditioning(of_t3, crate::chatterbox::pipeline::EXAGGERATION)?;
            let prompt = model.prompt(conditioning, ids.clone())?;
            model.t3()?.start(&prompt, settings.clone(), crate::decoding::StartOptions::default())
        };
        // One other code in the prompt gives other logits, so it is the official one here.
        let mut forced = start(&self.official_voice()?)?;
        self.force(case, &file, &mut forced, settings.sampling[0].guidance)?;
        drop(forced);
        if !self.out.is_exact() {
            self.out.skip(&format!("{case}/sampled_tokens"), ONLY_EXACT);
            self.out.skip(&format!("{case}/wav"), ONLY_EXACT);
            return Ok(());
        }
        let voice = model.encoders().voice(&self.recording("ref.wav")?)?;
        let of_t3 = voice.talking.as_ref().expect("the model talks");
        let sampling = settings.sampling[0];
        let mut noise = Noise::new(self.stored.seed(case)?);
        let mut session = start(of_t3)?;
        let mut drawn = self.draw(&mut session, sampling, &mut noise, want.len())?;
        // The official call was ended by force.
        if let Some(last) = drawn.last_mut() {
            *last = END_OF_SPEECH;
        }
        self.out.equal(case, "t3", "sampled_tokens", drawn == want);

        let codes = spoken(model.files().variant, want);
        self.samples(case, &file, &voice.reference, (&codes, &mut noise))
    }

    /// What T3 knows of `ref.wav`, as the official package computed it. English and Multilingual read the
    /// same.
    fn official_voice(&self) -> Result<TalkingVoice, ModelError> {
        let case = if self.model.files().variant.is_fast() { "reference_turbo" } else { "reference_en" };
        let file = self.stored.file(case)?;
        let prompt = integers(&file, "t3.cond_prompt_speech_tokens")?;
        Ok(TalkingVoice { speaker: golden(&file, "t3.speaker_emb")?.data, prompt })
    }

    /// Converts `source.wav` to the voice of `ref.wav`, with the random numbers of the goldens.
    pub(super) fn conversion(&mut self, case: &str) -> Result<(), ModelError> {
        if !self.out.is_exact() {
            self.out.skip(case, ONLY_EXACT);
            return Ok(());
        }
        let file = self.stored.file(case)?;
        let encoders = self.model.encoders();
        let source = self.recording("source.wav")?;
        let slow = resample_sinc(&source, SAMPLE_RATE, ENCODER_RATE, SincFilter::SoxrHq)?;
        let codes = integers(&file, "s3_tokens")?;
        let (got, _) = encoders.part_codes(&features(&slow)?, 0)?;
        self.out.equal(case, "encoders", "s3_tokens", got == codes);
        let reference = encoders.voice(&self.recording("ref.wav")?)?.reference;
        let mut noise = Noise::new(self.stored.seed(case)?);
        self.samples(case, &file, &reference, (&codes, &mut noise))
    }

    /// Codes to samples.
    fn samples(
        &mut self,
        case: &str,
        file: &SafeTensors,
        reference: &Reference,
        (codes, noise): (&[i32], &mut Noise),
    ) -> Result<(), ModelError> {
        let model = self.model.clone();
        let all = reference.codes.len() + codes.len();
        let frames = FRAMES_PER_CODE * all - reference.frames();
        let given = Given::draw(noise, model.files().s3gen.estimator.is_meanflow, [all, codes.len(), frames]);
        let mut session = model.s3gen().session(reference, false);
        let settings = (model.s3gen().default_settings(), given.noise());
        session.mel(codes, 0..frames, settings, &Cancel::default())?;
        let samples = session.vocode(given.noise())?;
        self.own_pitch(case, &samples, &golden(file, "wav")?.data);
        Ok(())
    }
}
