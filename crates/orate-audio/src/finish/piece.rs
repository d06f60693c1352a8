//! Trimming, strays and fades of one piece at a time.

use std::collections::VecDeque;
use std::f64::consts::PI;

use super::{Finish, Margins, check_range};
use crate::error::{Result, check_sample_rate};
use crate::loudness::KWeighting;

/// Length of a frame, whose level is measured, and of a fade, in seconds.
const FRAME_S: f64 = 0.005;

/// Sound begins at this level relative to the loudest part so far, in dB.
const ON_DB: f64 = -45.0;
/// Sound goes on down to this level.
const OFF_DB: f64 = -52.0;
/// Least levels for `ON_DB` and `OFF_DB` of a quiet voice, in dBFS: dither is silence.
const LEAST_ON_DBFS: f64 = -80.0;
const LEAST_OFF_DBFS: f64 = -85.0;
/// The same before there is speech to compare with. The built-in voice has noise at -72 dBFS there.
const START_ON_DBFS: f64 = -60.0;
const START_OFF_DBFS: f64 = -66.0;
/// Level of the loudest part at most, in dBFS: absurd samples must not make speech look quiet.
const LOUDEST_DBFS: f64 = 3.0;
/// Frames of the parts that the loudest one is chosen from: 40 ms, so that a click is none.
const PART_FRAMES: usize = 8;

/// Longest stray.
const STRAY_FRAMES: usize = frames(0.1);
/// Sound this close to other sound belongs to it.
const NEAR_FRAMES: usize = frames(0.2);
/// Sounds near each other are speech after this long even if they are short.
const DECIDE_FRAMES: usize = frames(0.4);
/// How far before its first loud frame a quiet beginning of speech is looked for.
const ONSET_FRAMES: usize = frames(0.3);
/// Silence that is held back at most.
const HELD_FRAMES: usize = frames(1.0);

const fn frames(seconds: f64) -> usize {
    (seconds / FRAME_S + 0.5) as usize
}

/// Trims pieces (sentences), removes their strays and fades their ends, as samples arrive.
///
/// Pieces are independent of each other. The [module](crate::finish) says what is done and held back.
#[derive(Clone, Debug)]
pub struct PieceFinisher {
    trim: Option<Trim>,
    strays: bool,
    /// Samples per frame.
    frame: usize,
    weighting: KWeighting,
    fades: Fades,
    state: State,
}

/// Margins in samples.
#[derive(Clone, Copy, Debug)]
struct Trim {
    lead: usize,
    tail: usize,
}

/// What [`PieceFinisher::end_piece`] reports, in samples.
///
/// What was at sample `t` of the piece is at `t + padded_before - cut_before` of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PieceEdges {
    /// Cut from the beginning.
    pub cut_before: usize,
    /// Zeros put before the beginning.
    pub padded_before: usize,
    /// Cut from the end.
    pub cut_after: usize,
    /// Zeros appended to the end.
    pub padded_after: usize,
    /// Samples of strays, cut or replaced by silence.
    pub strays: usize,
}

/// State of a piece. Frames and samples are counted from its beginning.
#[derive(Clone, Debug, Default)]
struct State {
    /// Energy of the incomplete frame, its samples, and whether one of them is not finite.
    energy: f64,
    filled: usize,
    damaged: bool,
    /// Powers of the newest frames, and the power of the loudest part.
    newest: [f64; PART_FRAMES],
    loudest: f64,
    /// Whether the newest frame is sound.
    sounds: bool,
    /// Samples that are neither released nor cut, and how many of those before were.
    held: VecDeque<f32>,
    gone: usize,
    /// Complete frames of `held`, and the index of the first.
    frames: VecDeque<Frame>,
    first: usize,
    /// Frame after the last one of speech; `None` before the first word.
    speech_end: Option<usize>,
    /// Newest sound that may be a stray.
    burst: Option<Burst>,
    edges: PieceEdges,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    dbfs: f64,
    /// Whether this is sound, and not yet known to be speech.
    pending: bool,
}

/// Sounds near each other.
#[derive(Clone, Copy, Debug)]
struct Burst {
    start: usize,
    end: usize,
    /// Those of `start..end` that are sound.
    frames: usize,
}

impl PieceFinisher {
    /// Prepares to finish pieces with this sample rate in Hz.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`](crate::AudioError::SampleRate), and
    /// [`AudioError::Config`](crate::AudioError::Config) for margins that are out of range.
    pub fn new(finish: &Finish, sample_rate: u32) -> Result<Self> {
        check_sample_rate(sample_rate)?;
        let rate = f64::from(sample_rate);
        let samples = |seconds: f64| (seconds * rate).round() as usize;
        if let Some(Margins { lead, tail }) = finish.trim {
            check_range("silence before a piece", lead, 0.0, 10.0, "s")?;
            check_range("silence after a piece", tail, 0.0, 10.0, "s")?;
        }
        let frame = samples(FRAME_S).max(1);
        Ok(Self {
            trim: finish.trim.map(|Margins { lead, tail }| Trim { lead: samples(lead), tail: samples(tail) }),
            strays: finish.strays,
            frame,
            weighting: KWeighting::new(rate),
            fades: Fades::new(if finish.fades { frame } else { 0 }),
            state: State::default(),
        })
    }

    /// Takes samples of the piece. Appends what is certain.
    pub fn push(&mut self, mut samples: &[f32], out: &mut Vec<f32>) {
        if self.trim.is_none() && !self.strays {
            self.fades.push(samples.iter().copied(), out);
            return;
        }
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(self.frame - self.state.filled));
            let s = &mut self.state;
            for &x in now {
                s.damaged |= !x.is_finite();
                s.energy += self.weighting.power(if x.is_finite() { x.into() } else { 0.0 });
            }
            s.filled += now.len();
            s.held.extend(now);
            samples = later;
            if s.filled == self.frame {
                self.end_frame(out);
            }
        }
    }

    /// Ends the piece: appends the rest. The next sample belongs to the next piece.
    pub fn end_piece(&mut self, out: &mut Vec<f32>) -> PieceEdges {
        if self.state.filled > 0 {
            self.end_frame(out);
        }
        self.release_rest(out);
        self.fades.end(out);
        self.weighting.reset();
        let edges = std::mem::take(&mut self.state).edges;
        out.resize(out.len() + edges.padded_after, 0.0);
        edges
    }

    fn end_frame(&mut self, out: &mut Vec<f32>) {
        self.weighting.settle();
        let s = &mut self.state;
        let power = s.energy / s.filled as f64;
        s.newest.rotate_left(1);
        s.newest[PART_FRAMES - 1] = power;
        s.loudest = s.loudest.max(s.newest.iter().sum::<f64>() / PART_FRAMES as f64);
        let level = if s.damaged { f64::INFINITY } else { dbfs(power) };
        let (on, off) = if s.speech_end.is_some() { s.levels() } else { (START_ON_DBFS, START_OFF_DBFS) };
        s.sounds = level >= on || (s.sounds && level >= off);
        s.frames.push_back(Frame { dbfs: level, pending: s.sounds });
        if s.sounds {
            // Damage is no stray: it must be seen.
            s.extend_burst(if s.damaged { STRAY_FRAMES + 1 } else { 1 });
        }
        (s.energy, s.filled, s.damaged) = (0.0, 0, false);
        if let Some(speech) = self.speech() {
            self.accept(speech, out);
        }
        self.release(out);
    }

    /// Returns the newest burst if it is known to be speech.
    fn speech(&self) -> Option<Burst> {
        let s = &self.state;
        let burst = s.burst?;
        let now = s.first + s.frames.len();
        // How long a sound that goes on may be, or seem, a stray. Without, wait only for the first level.
        let wait = match (self.strays, s.speech_end) {
            (true, _) => DECIDE_FRAMES,
            (false, None) => STRAY_FRAMES,
            (false, Some(_)) => 0,
        };
        let follows_speech = s.speech_end.is_some_and(|end| burst.start < end + NEAR_FRAMES);
        let goes_on = now < burst.end + NEAR_FRAMES;
        let is_speech =
            follows_speech || burst.frames > STRAY_FRAMES || (goes_on && now >= burst.start + wait);
        is_speech.then_some(burst)
    }

    /// A burst is speech, and so is all sound between it and earlier speech.
    fn accept(&mut self, burst: Burst, out: &mut Vec<f32>) {
        if self.state.speech_end.is_none() {
            self.begin(burst.start, out);
        }
        let s = &mut self.state;
        s.burst = None;
        s.speech_end = Some(burst.end);
        s.frames.iter_mut().for_each(|frame| frame.pending = false);
    }

    /// Speech begins in this frame, or a little earlier if its beginning is quiet.
    fn begin(&mut self, mut start: usize, out: &mut Vec<f32>) {
        let s = &mut self.state;
        // Only now is it known how loud speech is. What belongs to it may be quieter than assumed.
        let (on, off) = s.levels();
        let level = |i: usize| s.frames[i - s.first].dbfs;
        let earliest = start.saturating_sub(ONSET_FRAMES).max(s.first);
        for i in (earliest..start).rev() {
            if i + NEAR_FRAMES > start && level(i) >= on {
                start = i;
            }
        }
        while start > earliest && level(start - 1) >= off {
            start -= 1;
        }
        s.silence_strays(start, self.frame);
        let Some(Trim { lead, .. }) = self.trim else { return };
        let start = start * self.frame;
        while s.first * self.frame + self.frame <= start.saturating_sub(lead) {
            s.drop_frame(self.frame);
        }
        let cut = start.saturating_sub(lead).saturating_sub(s.gone);
        s.held.drain(..cut);
        s.gone += cut;
        s.edges.cut_before = s.gone;
        s.edges.padded_before = lead.saturating_sub(start - s.gone);
        out.resize(out.len() + s.edges.padded_before, 0.0);
    }

    /// Releases or cuts what is certain.
    fn release(&mut self, out: &mut Vec<f32>) {
        let s = &mut self.state;
        let now = s.first + s.frames.len();
        while let Some(frame) = s.frames.front() {
            let before_strays = s.frames.get(1).is_some_and(|next| next.pending);
            let held_long = s.speech_end.is_some() && s.first + HELD_FRAMES <= now;
            let release = match (s.speech_end, self.trim) {
                (Some(end), _) if s.first < end => true,
                // A long tail was released up to a burst, to which nothing was added since.
                _ if frame.pending && held_long => {
                    s.silence_stray(0, self.frame);
                    true
                }
                _ if frame.pending => false,
                (Some(_), _) if before_strays => held_long,
                // Silence before speech: keep what may be its margin, or all of a silent piece.
                (None, Some(trim)) => {
                    let kept = ONSET_FRAMES.max(trim.tail.div_ceil(self.frame));
                    let kept = trim.lead.div_ceil(self.frame) + kept + DECIDE_FRAMES;
                    if before_strays || s.frames.len() <= kept {
                        return;
                    }
                    s.drop_frame(self.frame);
                    continue;
                }
                (Some(end), Some(trim)) => {
                    held_long || (s.first + 1) * self.frame <= end * self.frame + trim.tail
                }
                // A burst may follow at once, and then this is where to fade.
                (_, None) => s.frames.len() > 1 && !before_strays,
            };
            if !release {
                return;
            }
            if before_strays && s.speech_end.is_some_and(|end| s.first >= end) {
                s.silence_stray(1, self.frame);
            }
            let length = s.frame_length(self.frame);
            self.fades.push(s.held.drain(..length), out);
            s.gone += length;
            s.frames.pop_front();
            s.first += 1;
        }
    }

    /// Releases or cuts what is left at the end of the piece.
    fn release_rest(&mut self, out: &mut Vec<f32>) {
        let s = &mut self.state;
        let total = s.gone + s.held.len();
        if s.speech_end.is_none() {
            let sound = |frame: &Frame| frame.pending;
            let (first, last) = (s.frames.iter().position(sound), s.frames.iter().rposition(sound));
            if let (Some(first), Some(last)) = (first, last) {
                let burst = Burst { start: s.first + first, end: s.first + last + 1, frames: 0 };
                self.accept(burst, out);
            } else if let Some(Trim { lead, tail }) = self.trim {
                let cut = s.held.len().saturating_sub(lead + tail);
                s.held.drain(..cut);
                s.edges.cut_before = s.gone + cut;
            }
        }
        let s = &mut self.state;
        s.silence_strays(usize::MAX, self.frame);
        if let (Some(trim), Some(end)) = (self.trim, s.speech_end) {
            let end = (end * self.frame).min(total) + trim.tail;
            s.edges.padded_after = end.saturating_sub(total);
            s.edges.cut_after = total.saturating_sub(end.max(s.gone));
            s.held.truncate(s.held.len() - s.edges.cut_after);
        }
        self.fades.push(s.held.drain(..), out);
    }
}

impl State {
    /// Levels at which sound begins and goes on, in dBFS.
    fn levels(&self) -> (f64, f64) {
        let loudest = dbfs(self.loudest).min(LOUDEST_DBFS);
        ((loudest + ON_DB).max(LEAST_ON_DBFS), (loudest + OFF_DB).max(LEAST_OFF_DBFS))
    }

    /// Adds the newest frame, which is sound, to the burst. It counts as `frames` frames.
    fn extend_burst(&mut self, frames: usize) {
        let now = self.first + self.frames.len() - 1;
        let new = Burst { start: now, end: now, frames: 0 };
        let burst = self.burst.filter(|burst| now < burst.end + NEAR_FRAMES).unwrap_or(new);
        self.burst = Some(Burst { end: now + 1, frames: burst.frames + frames, ..burst });
    }

    /// Samples of the first frame that are still held.
    fn frame_length(&self, frame: usize) -> usize {
        ((self.first + 1) * frame - self.gone).min(self.held.len())
    }

    fn drop_frame(&mut self, frame: usize) {
        let length = self.frame_length(frame);
        self.held.drain(..length);
        self.gone += length;
        self.frames.pop_front();
        self.first += 1;
    }

    /// Silences all pending sound before a frame.
    fn silence_strays(&mut self, before: usize, frame: usize) {
        let mut i = 0;
        while i < self.frames.len() && self.first + i < before {
            i = if self.frames[i].pending { self.silence_stray(i, frame) } else { i + 1 };
        }
    }

    /// Silences pending sound that begins in the frame at this position of `frames`. Fades out over the frame
    /// before, and in over the one after it. Returns the position of that one.
    fn silence_stray(&mut self, start: usize, frame: usize) -> usize {
        let mut end = start;
        while let Some(Frame { pending: pending @ true, .. }) = self.frames.get_mut(end) {
            *pending = false;
            end += 1;
        }
        // The first frame may be cut in part.
        let skipped = self.gone - self.first * frame;
        let held = self.held.len();
        let at = |position: usize| (position * frame).saturating_sub(skipped).min(held);
        for (i, x) in self.held.range_mut(at(start.saturating_sub(1))..at(start)).rev().enumerate() {
            *x *= fade(i, frame);
        }
        self.held.range_mut(at(start)..at(end)).for_each(|x| *x = 0.0);
        for (i, x) in self.held.range_mut(at(end)..at(end + 1)).enumerate() {
            *x *= fade(i, frame);
        }
        self.edges.strays += at(end) - at(start);
        end
    }
}

fn dbfs(power: f64) -> f64 {
    10.0 * power.max(1e-20).log10()
}

/// Gain of sample `i` of a fade-in.
fn fade(i: usize, length: usize) -> f32 {
    (0.5 - 0.5 * (PI * (i as f64 + 0.5) / length as f64).cos()) as f32
}

/// Fades in and out where a piece does not begin or end at zero.
#[derive(Clone, Debug)]
struct Fades {
    /// Samples of a fade; 0 for none.
    length: usize,
    taken: usize,
    fades_in: bool,
    /// The newest samples, which may be the last.
    newest: Vec<f32>,
}

impl Fades {
    fn new(length: usize) -> Self {
        Self { length, taken: 0, fades_in: false, newest: vec![] }
    }

    fn push(&mut self, samples: impl Iterator<Item = f32>, out: &mut Vec<f32>) {
        if self.length == 0 {
            out.extend(samples);
            return;
        }
        for x in samples {
            if self.taken == 0 {
                self.fades_in = x != 0.0;
            }
            let fades = self.fades_in && self.taken < self.length;
            self.newest.push(if fades { x * fade(self.taken, self.length) } else { x });
            self.taken += 1;
        }
        let certain = self.newest.len().saturating_sub(self.length);
        out.extend(self.newest.drain(..certain));
    }

    fn end(&mut self, out: &mut Vec<f32>) {
        if self.newest.last().is_some_and(|&x| x != 0.0) {
            for (i, x) in self.newest.iter_mut().rev().enumerate() {
                *x *= fade(i, self.length);
            }
        }
        out.append(&mut self.newest);
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests;
