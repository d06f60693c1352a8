//! Speaking a text with markup.

use crate::stream::{Part, Stream};
use crate::{Engine, Error, Options, Result, Value};
use orate_models::ModelError;
use orate_text::{Script, Segment, TextError};

/// Most seconds of silence in one place: the pauses of segments without sound add up.
const MOST_SILENCE: f32 = 600.0;

/// Who speaks a segment of a script.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// The model.
    pub engine: Engine,
    /// How it speaks, with the voice.
    pub options: Options,
}

impl Engine {
    /// Speaks a script, as [`Engine::stream`] speaks a text. `cast` finds the speaker of a voice's name: one
    /// of this model's voices, as [`Engine::own_cast`] does, or of another model's. Everything is checked
    /// before anything is spoken. Seeds of pieces go on from segment to segment.
    ///
    /// ```
    /// let engine = orate::Engine::new()?;
    /// let script = orate::Script::tagged("One. [pause:1s] [rate:1.2] Two.")?;
    /// let options = orate::Options::default();
    /// for chunk in engine.stream_script(&script, &options, &engine.own_cast(&options))? {
    ///     assert!(chunk?.text.len() > 2);
    /// }
    /// # Ok::<(), orate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::stream`], for the first segment that cannot be spoken; a voice is unknown; a pause or a
    /// gain is out of range; or segments without sound have more than 600 s of pauses together.
    pub fn stream_script(
        &self,
        script: &Script,
        options: &Options,
        cast: &dyn Fn(&str) -> Result<Speaker>,
    ) -> Result<Stream> {
        let mut warnings = script.warnings.clone();
        let (mut parts, mut pieces, mut pause) = (vec![], options.first_piece, 0.0);
        let has_sound = |segment: &&Segment| segment.text.chars().any(char::is_alphanumeric);
        let is_silent = script.segments.iter().find(has_sound).is_none();
        let mut before: Option<&Segment> = None;
        script.segments.iter().try_for_each(check)?;
        for segment in &script.segments {
            // Marks alone have no sound. A script without any sound is the model's error.
            if is_silent || has_sound(&segment) {
                let speaker = match &segment.voice {
                    Some(name) => cast(name)?,
                    None => Speaker { engine: self.clone(), options: options.clone() },
                };
                let Speaker { engine, options } = with_style(speaker, segment, &mut warnings)?;
                // Marks have the times of words.
                let word_times = options.word_times || !segment.marks.is_empty();
                let options = Options { first_piece: pieces, word_times, ..options };
                engine.check_all(&options)?;
                let chunks = match engine.model().clone().speak(&segment.text, &options) {
                    // Nothing but characters that are to be left out.
                    Err(ModelError::Text(TextError::Empty)) if skips_unknown(&options) => {
                        pause = longer(pause, segment)?;
                        continue;
                    }
                    chunks => chunks?,
                };
                pieces += chunks.remaining();
                let part = Part::new(chunks, engine.sample_rate(), self.sample_rate(), &options)?;
                let part = part.of_segment(segment, pause);
                let goes_on = before.is_some_and(|before| goes_on(before, segment));
                parts.push(if goes_on { part.within_sentence() } else { part });
                (pause, before) = (0.0, Some(segment));
            }
            pause = longer(pause, segment)?;
        }
        if parts.is_empty() {
            return Err(TextError::Empty.into());
        }
        Stream::of_parts(self.origin(), parts, pause, warnings, options)
    }

    /// A cast of this model's voices, for [`Engine::stream_script`].
    pub fn own_cast(&self, options: &Options) -> impl Fn(&str) -> Result<Speaker> {
        let (engine, options) = (self.clone(), options.clone());
        move |name| {
            let voice = Options { voice: Some(name.to_owned()), cloned: None, ..options.clone() };
            Ok(Speaker { engine: engine.clone(), options: voice })
        }
    }
}

/// Whether characters that a voice does not know are left out.
fn skips_unknown(options: &Options) -> bool {
    options.get("skip_unknown") == Some(&Value::Switch(true))
}

/// Refuses pauses and gains out of range: applications may set them.
fn check(segment: &Segment) -> Result<()> {
    let fields = [
        ("pause after a segment", segment.pause_after, Segment::PAUSES, "seconds"),
        ("gain of a segment", segment.gain_db, Segment::GAINS, "dB"),
    ];
    match fields.into_iter().find(|(_, value, range, _)| !range.contains(value)) {
        None => Ok(()),
        Some((option, value, range, unit)) => {
            let allowed = format!("choose {} to {} {unit}", range.start(), range.end());
            Err(Error::Option { option, got: value.to_string(), allowed })
        }
    }
}

/// A pause with that after a segment.
fn longer(pause: f32, segment: &Segment) -> Result<f32> {
    let sum = pause + segment.pause_after;
    if sum <= MOST_SILENCE {
        return Ok(sum);
    }
    let allowed = format!("choose at most {MOST_SILENCE} seconds between two texts");
    Err(Error::Option { option: "sum of pauses", got: sum.to_string(), allowed })
}

/// Adds language and rate of a segment to its speaker's options.
fn with_style(mut speaker: Speaker, segment: &Segment, warnings: &mut Vec<String>) -> Result<Speaker> {
    if let Some(language) = &segment.language {
        speaker.options.language = Some(language.clone());
    }
    if segment.rate == 1.0 {
        return Ok(speaker);
    }
    let engine = &speaker.engine;
    let spec = engine.model().accepts().iter().find(|spec| spec.name == "speed");
    let (Some(spec), Some(usual)) = (spec, engine.usual_speed()) else {
        let warning = format!("{} models have no rate; it is left out", engine.family_name());
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
        return Ok(speaker);
    };
    let now = match speaker.options.get("speed") {
        Some(Value::Number(speed)) => f64::from(*speed),
        _ => f64::from(usual),
    };
    let speed = now * f64::from(segment.rate);
    if let Some((least, most)) = spec.range.filter(|(least, most)| !(*least..=*most).contains(&speed)) {
        let [least, most] = [least, most].map(|bound| bound / now);
        let allowed = format!("choose {least:.2} to {most:.2} here");
        return Err(Error::Option { option: "rate", got: segment.rate.to_string(), allowed });
    }
    speaker.options = speaker.options.set("speed", speed as f32);
    Ok(speaker)
}

/// Whether a sentence that a segment begins goes on in the next one, spoken by the same voice.
fn goes_on(segment: &Segment, next: &Segment) -> bool {
    let text = segment.text.trim_end_matches(|c: char| c == ' ' || "\"'”’»)]".contains(c));
    let ends = text.ends_with(|c: char| c.is_whitespace() || ".!?…:;。！？：；".contains(c));
    !ends && (&segment.voice, &segment.language) == (&next.voice, &next.language)
}
