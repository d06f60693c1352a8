//! Goldens of the alignment guard.

use super::Run;
use super::draw::Noise;
use super::stored::{bad, golden, integers};
use super::t3::{STAGE, draw, own_options};
use crate::chatterbox::config::{END_OF_SPEECH, START_OF_SPEECH, T3Config};
use crate::chatterbox::guard::{Analyzer, Guarded, NEVER, Verdict};
use crate::chatterbox::options::Options as Own;
use crate::chatterbox::pipeline::EXAGGERATION;
use crate::chatterbox::speak::spoken;
use crate::chatterbox::t3::{END_BIAS, LOGITS};
use crate::decoding::Step;
use crate::{FinishReason, ModelError};
use orate_weights::SafeTensors;
use serde::Deserialize;
use serde_json::Value;

/// Attention, and what the official analyzer makes of it.
#[derive(Deserialize)]
struct MadeUp {
    name: String,
    columns: usize,
    /// The column that each call attends to most, and how much more.
    peaks: Vec<usize>,
    weight: f32,
    /// Calls at which a code repeats.
    repeats: Vec<usize>,
    end: String,
    positions: Vec<usize>,
    complete_at: Option<usize>,
}

/// Whether the device draws no end of speech while speech has to go on, though it is by far the likeliest.
fn suppresses(guarded: &mut Guarded, config: &T3Config) -> Result<bool, ModelError> {
    let (lanes, v) = (config.lanes(), config.speech_ids);
    let mut logits = vec![0.0; lanes * v];
    logits.chunks_exact_mut(v).for_each(|logits| logits[END_OF_SPEECH as usize] = 1000.0);
    let (shape, mut codes) = ([lanes, 1, v].into(), vec![]);
    guarded.watched.session().write(LOGITS, &shape, &logits)?;
    let goes_on = guarded.verdict() == Verdict::GoOn && guarded.next_frame(&mut codes)? == Step::Frame;
    guarded.watched.session().write(LOGITS, &shape, &logits)?;
    guarded.watched.session().write(END_BIAS, &[lanes, 1, 1].into(), &vec![0.0; lanes])?;
    Ok(goes_on && guarded.watched.session().next_frame(&mut codes)? == Step::End(FinishReason::Stop))
}

impl Run<'_> {
    /// Shows made-up attention to the analyzer: a little everywhere, and more in one column.
    pub(super) fn analyzer(&mut self, case: &str) -> Result<(), ModelError> {
        let made_up: Vec<MadeUp> = serde_json::from_value(self.stored.run(case).clone())
            .map_err(|e| bad(&self.stored.folder, format!("`{case}`: {e}")))?;
        for of in made_up {
            let (mut analyzer, mut verdict) = Analyzer::new(of.columns);
            let (mut end, mut positions, mut complete_at) = (String::new(), vec![], None);
            for (call, peak) in of.peaks.iter().enumerate() {
                if call > 0 {
                    let mut row = vec![1.0 / 256.0; of.columns];
                    row[*peak] += of.weight;
                    let repeated = of.repeats.iter().filter(|r| **r <= call).count();
                    verdict = analyzer.step((call - repeated) as i32, &mut row);
                }
                end.push(match verdict {
                    Verdict::Free => '-',
                    Verdict::GoOn => 's',
                    Verdict::End => 'f',
                });
                positions.push(analyzer.position());
                complete_at = complete_at.or(analyzer.is_complete().then_some(call));
            }
            let same = (end, positions, complete_at) == (of.end, of.positions, of.complete_at);
            self.out.equal(case, STAGE, &of.name, same);
        }
        Ok(())
    }

    /// Draws codes on the host under the guard, with the random numbers of the goldens.
    pub(super) fn guarded(&mut self, case: &str, file: &SafeTensors) -> Result<(), ModelError> {
        let (model, run) = (self.model.clone(), self.stored.run(case));
        let missing = |name| bad(&self.stored.folder, format!("`{case}` has no {name}"));
        let text = run.get("text").and_then(Value::as_str).ok_or_else(|| missing("text"))?;
        let decisions = run.get("alignment_analyzer").and_then(Value::as_array);
        let decisions = decisions.ok_or_else(|| missing("decisions of the analyzer"))?;
        let (want, alignment) = (integers(file, "sampled_tokens")?, golden(file, "alignment")?);
        let language = run.pointer("/kwargs/language_id").and_then(Value::as_str);
        let ids = model.talking()?.text.ids_of(text, language, &mut vec![])?;
        let own = own_options(run.get("kwargs").unwrap_or(&Value::Null));
        let own = Own { alignment_guard: Some(true), max_codes: Some(want.len() + 1), ..own };
        let config = &model.talking()?.config;
        let voice = model.voice(&crate::Options::default())?;
        let of_t3 = voice.talking.as_ref().ok_or_else(|| missing("default voice"))?;
        let conditioning = model.conditioning(of_t3, own.exaggeration.unwrap_or(EXAGGERATION))?;
        let (prompt, settings) = (model.prompt(conditioning, ids)?, model.draw_settings(&own, 0));
        let (sampling, mut noise) = (settings.sampling[0], Noise::new(self.stored.seed(case)?));
        let mut guarded = Guarded::start(model.t3_for(&own)?, config, &prompt, settings)?;

        let (mut before, mut drawn, mut rows) = (vec![START_OF_SPEECH], vec![], vec![]);
        let (mut decided, mut logits) = (vec![], vec![]);
        for code in &want {
            let verdict = guarded.verdict();
            decided.push((guarded.analyzer().position(), guarded.analyzer().is_complete(), verdict));
            guarded.watched.session().read(LOGITS, &mut logits)?;
            if verdict == Verdict::GoOn {
                let of_lanes = logits.chunks_exact_mut(config.speech_ids);
                of_lanes.for_each(|logits| logits[END_OF_SPEECH as usize] += NEVER);
            }
            drawn.push(draw(&logits, config.lanes(), &before, sampling, &mut noise));
            before.push(*code);
            if *code != END_OF_SPEECH {
                guarded.give_frame(*code)?;
                rows.extend_from_slice(guarded.watched.row());
            }
        }
        // The official call was ended by force.
        drawn.pop();
        let is_decided = decided.len() == decisions.len()
            && decided.iter().zip(decisions).all(|((position, is_complete, verdict), decision)| {
                let is = |name: &str| decision.get(name).and_then(Value::as_bool);
                decision.get("text_position").and_then(Value::as_u64) == Some(*position as u64)
                    && is("complete") == Some(*is_complete)
                    && is("suppressed_eos") == Some(*verdict == Verdict::GoOn)
                    && is("forced_eos") == Some(*verdict == Verdict::End)
            });
        // Nothing depends on the rows of the two starts, which are not computed.
        let of_starts = config.starts() * prompt.text.len();
        self.out.tensor(case, STAGE, "alignment", &rows, &alignment.data[of_starts..]);
        if self.out.is_exact() {
            self.out.equal(case, STAGE, "decisions", is_decided);
            self.out.equal(case, STAGE, "sampled_tokens", drawn[..] == want[..drawn.len()]);
            self.out.equal(case, STAGE, "end is suppressed", suppresses(&mut guarded, config)?);
        }
        let heard = spoken(model.files().variant, want) == integers(file, "s3gen_tokens")?;
        self.out.equal(case, STAGE, "s3gen_tokens", heard);
        Ok(())
    }
}
