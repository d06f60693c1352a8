//! Speaking chunk by chunk.

use crate::sound::Sound;
use crate::{Options, Result, word_times};
use orate_audio::StreamResampler;
use orate_graph::AtHome;
use orate_models::{Chunk, Chunks, Facts, Laps};
use orate_text::{Mark, Segment, TimedMark, TimedWord, Traced};
use std::collections::VecDeque;

/// Loudness of speech, in LUFS, where a model is not known to differ: that of broadcasts (EBU R 128).
const USUAL_LOUDNESS: f64 = -23.0;

/// From here on, characters are written without spaces between words.
const FIRST_IDEOGRAPH: char = '\u{2E80}';

/// An iterator over the audio of a text; see [`crate::Engine::stream`].
pub struct Stream {
    /// A forked process has none of its threads, and its locks may be held forever.
    parts: AtHome<Vec<Part>>,
    /// The part that is being spoken.
    at: usize,
    /// The device, for the error of a forked process.
    device: String,
    warnings: Vec<String>,
    sound: Sound,
    sample_rate: u32,
    /// Whether words get times.
    word_times: bool,
    /// Seconds of silence at the end.
    pause: f64,
    piece: Option<Piece>,
    /// Samples that were returned.
    returned: usize,
    /// Whether an error was returned, after which nothing follows.
    failed: bool,
}

/// Text that is spoken with the same options.
pub(crate) struct Part {
    chunks: Box<dyn Chunks>,
    /// Seconds of silence before each piece but piece 0.
    silence: f64,
    /// Seconds of silence before its first piece, if they are set.
    pause: Option<f64>,
    /// From the rate of its model to that of the stream.
    resampler: StreamResampler,
    gain_db: f32,
    /// The text that captions show, and where it comes from in the input.
    shown: Traced,
    /// The text that the model was given, and where it comes from in the text that is shown.
    spoken: Traced,
    /// Marks that are still to come.
    marks: VecDeque<Mark>,
}

/// The piece that is being spoken.
struct Piece {
    index: usize,
    /// Where it begins in the sound.
    start: usize,
    /// Its finished samples, if its words get times.
    samples: Vec<f32>,
}

impl Part {
    /// Speech at `rate` in a stream of `sample_rate`.
    pub fn new(chunks: Box<dyn Chunks>, rate: u32, sample_rate: u32, options: &Options) -> Result<Part> {
        Ok(Part {
            chunks,
            silence: f64::from(options.silence),
            pause: None,
            resampler: StreamResampler::new(rate, sample_rate)?,
            gain_db: 0.0,
            shown: Traced::default(),
            spoken: Traced::default(),
            marks: VecDeque::new(),
        })
    }

    /// What a segment of a script adds. `pause` are the seconds of silence that are asked for before it.
    pub fn of_segment(self, segment: &Segment, pause: f32) -> Part {
        Part {
            pause: (pause > 0.0).then_some(f64::from(pause)),
            gain_db: segment.gain_db,
            shown: segment.shown.clone(),
            spoken: segment.text.clone(),
            marks: segment.marks.clone().into(),
            ..self
        }
    }

    /// Lets the first piece follow what is before it without silence, unless a pause is asked for.
    pub fn within_sentence(self) -> Part {
        Part { pause: self.pause.or(Some(0.0)), ..self }
    }

    /// Seconds of silence before a piece.
    fn silence_before(&mut self, index: usize) -> f64 {
        let usual = if index > 0 { self.silence } else { 0.0 };
        self.pause.take().unwrap_or(usual)
    }

    /// Words and marks of a finished piece, with times from its first sample on. `last` is its last chunk.
    fn times(&mut self, last: &Chunk, samples: &[f32], sample_rate: u32) -> (Vec<TimedWord>, Vec<TimedMark>) {
        let piece = last.text.clone().after(&self.spoken);
        let mut words = word_times::of(&self.shown, &piece, last, samples, sample_rate);
        let mut marks = vec![];
        let (end, is_last) = (last.text.span().end, self.chunks.remaining() == 0);
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.at < end || is_last) {
            let at = self.spoken.source(mark.at..mark.at).start;
            let next = words.iter().find(|timed| timed.word.span.end > at).map(|timed| timed.start);
            let time = next.unwrap_or(samples.len() as f64 / f64::from(sample_rate));
            marks.push(TimedMark { name: mark.name, time });
        }
        // Segments are words apart, except in scripts without spaces.
        if let Some(timed) = words.last_mut().filter(|_| is_last) {
            timed.word.space_after |=
                timed.word.display.chars().next_back().is_some_and(|c| c < FIRST_IDEOGRAPH);
        }
        for timed in &mut words {
            timed.word.span = self.shown.source(timed.word.span.clone());
        }
        (words, marks)
    }
}

impl Stream {
    /// A text that the model with these facts speaks on `device`.
    pub(crate) fn new(
        (facts, device): (&Facts, String),
        text: &str,
        chunks: Box<dyn Chunks>,
        options: &Options,
    ) -> Result<Stream> {
        let mut part = Part::new(chunks, facts.sample_rate, facts.sample_rate, options)?;
        if options.word_times {
            (part.shown, part.spoken) = (text.into(), text.into());
        }
        Self::of_parts((facts, device), vec![part], 0.0, vec![], options)
    }

    /// A sound of several parts, with some seconds of silence at the end.
    pub(crate) fn of_parts(
        (facts, device): (&Facts, String),
        parts: Vec<Part>,
        pause: f32,
        mut warnings: Vec<String>,
        options: &Options,
    ) -> Result<Stream> {
        let sample_rate = facts.sample_rate;
        let usual = facts.loudness.map_or(USUAL_LOUDNESS, f64::from);
        for warning in parts.iter().flat_map(|part| part.chunks.warnings()) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        Ok(Stream {
            warnings,
            sound: Sound::new(&options.finish, options.whole, usual, sample_rate)?,
            word_times: options.word_times || parts.iter().any(|part| !part.marks.is_empty()),
            pause: f64::from(pause),
            parts: AtHome::new(parts),
            at: 0,
            device,
            sample_rate,
            piece: None,
            returned: 0,
            failed: false,
        })
    }

    /// Pieces still to come.
    pub fn remaining(&self) -> usize {
        self.to_come().map(|part| part.chunks.remaining()).sum()
    }

    /// Characters still to come.
    pub fn remaining_chars(&self) -> usize {
        self.to_come().map(|part| part.chunks.remaining_chars()).sum()
    }

    fn to_come(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().skip(self.at)
    }

    /// What was asked for and has no effect with this model, in words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Where the time went so far.
    pub fn laps(&self) -> Laps {
        let mut all = Laps::default();
        self.parts.iter().for_each(|part| all += part.chunks.laps());
        all
    }

    /// The next chunk of the model.
    fn next_of_model(&mut self) -> Option<Result<Chunk>> {
        if let Err(e) = AtHome::home(&self.parts).check(&self.device) {
            return Some(Err(e.into()));
        }
        loop {
            match self.parts.get_mut(self.at)?.chunks.next() {
                Some(chunk) => return Some(chunk.map_err(Into::into)),
                None => self.at += 1,
            }
        }
    }

    /// Makes the samples of a chunk those that are heard.
    fn heard(&mut self, mut chunk: Chunk) -> Result<Chunk> {
        let (mut heard, rate) = (vec![], f64::from(self.sample_rate));
        let silence = |seconds: f64| vec![0.0; (seconds * rate) as usize];
        let part = &mut self.parts[self.at];
        let (mut samples, mut speech) = (vec![], vec![]);
        part.resampler.push(&chunk.samples, &mut samples);
        if chunk.ends_piece {
            part.resampler.finish(&mut samples);
        }
        self.sound.push(&samples, &mut speech);
        let edges = chunk.ends_piece.then(|| self.sound.end_piece(&mut speech));
        let piece = match self.piece.take() {
            Some(piece) if piece.index == chunk.index => piece,
            before => {
                if before.is_none() && chunk.ends_piece {
                    self.sound.measure_first(&speech)?;
                }
                self.sound.level(&silence(part.silence_before(chunk.index)), &mut heard)?;
                self.sound.set_gain(part.gain_db);
                Piece { index: chunk.index, start: self.sound.position(), samples: vec![] }
            }
        };
        let piece = self.piece.insert(piece);
        self.sound.level(&speech, &mut heard)?;
        if self.word_times {
            piece.samples.append(&mut speech);
            if let Some(edges) = edges {
                let shift = (edges.padded_before as f64 - edges.cut_before as f64) / rate;
                chunk.letter_times.iter_mut().for_each(|time| *time += shift as f32);
                (chunk.words, chunk.marks) = part.times(&chunk, &piece.samples, self.sample_rate);
                let start = piece.start as f64 / rate;
                for timed in &mut chunk.words {
                    (timed.start, timed.end) = (timed.start + start, timed.end + start);
                }
                chunk.marks.iter_mut().for_each(|mark| mark.time += start);
            }
        }
        if chunk.ends_piece && self.remaining() == 0 {
            self.sound.level(&silence(self.pause), &mut heard)?;
            self.sound.finish(&mut heard)?;
        }
        chunk.start = self.returned;
        self.returned += heard.len();
        chunk.samples = heard;
        Ok(chunk)
    }
}

impl Iterator for Stream {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let chunk = self.next_of_model()?.and_then(|chunk| self.heard(chunk));
        self.failed = chunk.is_err();
        Some(chunk)
    }
}
