//! Plots of a clip: its waveform above its log-mel spectrogram.

use std::convert::Infallible;
use std::path::Path;

use embedded_graphics::mono_font::iso_8859_1::{FONT_8X13, FONT_9X15, FONT_10X20};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::Rectangle;
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};

use crate::error::{AudioError, Result, check_sample_rate};
use crate::loudness::{integrated_loudness, peak_dbfs, rms_dbfs};
use crate::mel::{MelConfig, MelFilterBank, MelScale};
use crate::output::{check_output, write_output};
use crate::stft::{Stft, StftConfig};

const WIDTH: i32 = 1200;
const HEIGHT: i32 = 700;

/// The two panels share their time axis.
const LEFT: i32 = 72;
const PLOT_WIDTH: i32 = 1040;
const WAVE: Panel = Panel { top: 72, height: 170 };
const MEL: Panel = Panel { top: 272, height: 368 };
const COLOR_BAR_LEFT: i32 = LEFT + PLOT_WIDTH + 16;
const COLOR_BAR_WIDTH: i32 = 14;

const PAPER: Rgb888 = Rgb888::new(255, 255, 255);
const INK: Rgb888 = Rgb888::new(38, 34, 48);
const FAINT_INK: Rgb888 = Rgb888::new(110, 106, 122);
const GRID: Rgb888 = Rgb888::new(228, 226, 234);
const WAVE_PEAK: Rgb888 = Rgb888::new(162, 126, 190);
const WAVE_RMS: Rgb888 = Rgb888::new(81, 18, 124);

/// Nine even steps of magma, a perceptually uniform color map of matplotlib.
const MAGMA: [[u8; 3]; 9] = [
    [0, 0, 4],
    [29, 17, 71],
    [81, 18, 124],
    [130, 38, 129],
    [182, 54, 121],
    [230, 81, 100],
    [251, 136, 97],
    [254, 194, 135],
    [252, 253, 191],
];

/// Range of the colors, in dB.
const RANGE_DB: f32 = 80.0;
/// Length of an analysis window, in seconds: short enough for consonants, long enough for the
/// harmonics of low voices.
const WINDOW_S: f64 = 0.030;
const MEL_BANDS: usize = 100;

#[derive(Clone, Copy)]
struct Panel {
    top: i32,
    height: i32,
}

/// Draws a clip as a PNG of 1200 x 700 pixels.
///
/// Above, the waveform: its extremes in light, its RMS in dark, with levels in dBFS. Below, the mel
/// spectrogram in dBFS per band, with a color range of 80 dB that ends at the loudest point, rounded up to 10
/// dB. The file appears only when it is complete. A long title is cut; characters beyond Latin-1 become `?`.
///
/// Time and memory are linear in the length: ten minutes take about two seconds.
///
/// # Errors
///
/// [`AudioError::Empty`], [`AudioError::SampleRate`], and [`AudioError::Create`] or
/// [`AudioError::Write`] for the file.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("tone.png");
/// let tone: Vec<f32> = (0..24_000).map(|i| 0.5 * (i as f32 * 0.1).sin()).collect();
/// orate_audio::plot_png(&tone, 24_000, "A tone", &path)?;
/// assert!(path.exists());
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
pub fn plot_png(samples: &[f32], sample_rate: u32, title: &str, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    check_plottable(samples, sample_rate)?;
    check_output(path)?;
    write_output(path, &plot_png_bytes(samples, sample_rate, title)?)
}

/// As [`plot_png`], but returns the bytes of the file.
///
/// # Errors
///
/// [`AudioError::Empty`] and [`AudioError::SampleRate`].
pub fn plot_png_bytes(samples: &[f32], sample_rate: u32, title: &str) -> Result<Vec<u8>> {
    check_plottable(samples, sample_rate)?;
    Ok(png_bytes(&draw(samples, sample_rate, title)?).expect("memory takes all bytes of a valid picture"))
}

fn check_plottable(samples: &[f32], sample_rate: u32) -> Result<()> {
    check_sample_rate(sample_rate)?;
    if samples.is_empty() { Err(AudioError::Empty { purpose: "plot" }) } else { Ok(()) }
}

fn png_bytes(canvas: &Canvas) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.pixels)?;
    writer.finish()?;
    Ok(bytes)
}

fn draw(samples: &[f32], sample_rate: u32, title: &str) -> Result<Canvas> {
    let mut canvas = Canvas::new();
    let duration = samples.len() as f64 / f64::from(sample_rate);

    draw_header(&mut canvas, samples, sample_rate, title)?;
    draw_time_grid(&mut canvas, duration);
    draw_waveform(&mut canvas, samples);

    let picture = mel_picture(samples, sample_rate)?;
    let loudest = picture.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Silence and faint noise stay dark instead of being scaled to full brightness.
    let top_db = (loudest.max(-60.0) / 10.0).ceil() * 10.0;
    draw_spectrogram(&mut canvas, &picture, top_db);
    draw_frequency_axis(&mut canvas, sample_rate);
    draw_color_bar(&mut canvas, top_db);
    canvas.frame(WAVE);
    canvas.frame(MEL);
    Ok(canvas)
}

fn draw_header(canvas: &mut Canvas, samples: &[f32], sample_rate: u32, title: &str) -> Result<()> {
    let duration = samples.len() as f64 / f64::from(sample_rate);
    let facts = format!(
        "{duration:.2} s   {} kHz   peak {}   RMS {}   loudness {}",
        f64::from(sample_rate) / 1000.0,
        level(peak_dbfs(samples), "dBFS"),
        level(rms_dbfs(samples), "dBFS"),
        level(integrated_loudness(samples, sample_rate)?, "LUFS"),
    );
    let facts_style = (&FONT_9X15, FAINT_INK);
    canvas.text(&fit(title, &FONT_10X20, WIDTH - LEFT - 24), LEFT, 12, Alignment::Left, (&FONT_10X20, INK));
    canvas.text(&facts, LEFT, 36, Alignment::Left, facts_style);
    Ok(())
}

fn level(decibels: f64, unit: &str) -> String {
    if decibels.is_finite() { format!("{decibels:.1} {unit}") } else { format!("-inf {unit}") }
}

/// Cuts a text that is too wide and ends it in dots.
fn fit(text: &str, font: &MonoFont<'_>, width: i32) -> String {
    let room = width as usize / (font.character_size.width + font.character_spacing) as usize;
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= room {
        return line;
    }
    line.chars().take(room.saturating_sub(3)).chain("...".chars()).collect()
}

/// Vertical lines in the waveform, and ticks and labels below both panels.
fn draw_time_grid(canvas: &mut Canvas, duration: f64) {
    let (step, decimals) = nice_step(duration / 14.0);
    let bottom = MEL.top + MEL.height;
    // Half a pixel of tolerance, so that rounding does not drop the tick at the very end.
    let last = (duration / step + 0.5 / f64::from(PLOT_WIDTH)).floor() as usize;
    for i in 0..=last {
        let seconds = i as f64 * step;
        let x = LEFT + (seconds / duration * f64::from(PLOT_WIDTH - 1)).round() as i32;
        canvas.fill(x, WAVE.top, 1, WAVE.height, GRID);
        for panel in [WAVE, MEL] {
            canvas.fill(x, panel.top + panel.height, 1, 6, INK);
        }
        let label = format!("{seconds:.decimals$}");
        canvas.text(&label, x, bottom + 10, Alignment::Center, (&FONT_8X13, INK));
    }
    let middle = LEFT + PLOT_WIDTH / 2;
    canvas.text("time (s)", middle, bottom + 32, Alignment::Center, (&FONT_9X15, FAINT_INK));
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`, and the decimals that its
/// multiples need.
fn nice_step(least: f64) -> (f64, usize) {
    let power = least.log10().floor();
    let unit = 10_f64.powf(power);
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * unit >= least * 0.999).unwrap_or(10.0);
    let step = factor * unit;
    // 1e-9, since a power of ten is exact only up to rounding.
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    (step, decimals)
}

fn draw_waveform(canvas: &mut Canvas, samples: &[f32]) {
    let middle = WAVE.top + WAVE.height / 2;
    let half = f64::from(WAVE.height / 2 - 4);
    let y = |x: f64| middle - (x.clamp(-1.0, 1.0) * half).round() as i32;

    for (amplitude, label) in [(0.0, "-inf"), (0.25, "-12"), (0.5, "-6"), (1.0, "0")] {
        for sign in [1.0, -1.0] {
            canvas.fill(LEFT, y(sign * amplitude), PLOT_WIDTH, 1, GRID);
            canvas.fill(LEFT - 5, y(sign * amplitude), 5, 1, INK);
            canvas.label_left(label, y(sign * amplitude));
        }
    }
    canvas.text("dBFS", LEFT - 8, WAVE.top - 17, Alignment::Right, (&FONT_8X13, FAINT_INK));

    let columns = PLOT_WIDTH as usize;
    let mut previous: Option<(i32, i32)> = None;
    for column in 0..columns {
        // Never empty: a short clip repeats samples, a long one skips none.
        let start = (column * samples.len() / columns).min(samples.len() - 1);
        let end = ((column + 1) * samples.len() / columns).max(start + 1);
        let part = samples[start..end].iter().map(|&x| if x.is_nan() { 0.0 } else { f64::from(x) });
        let (low, high, squares) = part
            .fold((f64::INFINITY, f64::NEG_INFINITY, 0.0), |(low, high, squares), x| {
                (low.min(x), high.max(x), squares + x * x)
            });
        let rms = (squares / (end - start) as f64).sqrt();
        let (mut top, mut bottom) = (y(high), y(low));
        if let Some((last_top, last_bottom)) = previous {
            // Steep parts stay connected from column to column.
            top = top.min(last_bottom);
            bottom = bottom.max(last_top);
        }
        previous = Some((y(high), y(low)));
        let x = LEFT + column as i32;
        canvas.fill(x, top, 1, bottom - top + 1, WAVE_PEAK);
        let (top, bottom) = (y(rms.min(high)).max(top), y((-rms).max(low)).min(bottom));
        canvas.fill(x, top, 1, bottom - top + 1, WAVE_RMS);
    }
}

/// Band levels in dBFS, a column of [`MEL_BANDS`] for each pixel: `[PLOT_WIDTH, MEL_BANDS]`.
///
/// A sine has its own level: full scale is 0.
fn mel_picture(samples: &[f32], sample_rate: u32) -> Result<Vec<f32>> {
    let window = ((WINDOW_S * f64::from(sample_rate)).round() as usize).max(4);
    // Zero padding gives the lowest bands bins of their own.
    let n_fft = (3 * window).next_power_of_two();
    let stft = Stft::new(StftConfig { win_length: window, ..StftConfig::new(n_fft, window) })?;
    let bank = MelFilterBank::new(&MelConfig {
        scale: MelScale::Htk,
        equal_area: false,
        ..MelConfig::new(sample_rate, n_fft, MEL_BANDS)
    })?;
    // By Parseval's theorem; a full-scale sine, whose mean square is 1/2, is 0 dB.
    let window_power: f32 = stft.window().iter().map(|w| w * w).sum();
    let scale = 4.0 / (n_fft as f32 * window_power);

    let columns = PLOT_WIDTH as usize;
    let column_length = samples.len() as f64 / columns as f64;
    // Long clips have several frames per pixel, so that nothing is lost between the columns.
    let frames = (column_length / (window as f64 / 2.0)).ceil().max(1.0) as usize;

    let mut scratch = stft.scratch();
    let mut frame = vec![0.0; n_fft];
    let mut spectrum = vec![0.0; stft.bins()];
    let mut bands = vec![0.0; MEL_BANDS];
    let mut picture = Vec::with_capacity(columns * MEL_BANDS);
    for column in 0..columns {
        let mut sums = vec![0.0; MEL_BANDS];
        for i in 0..frames {
            let center = (column as f64 + (i as f64 + 0.5) / frames as f64) * column_length;
            copy_around(samples, center as usize, &mut frame);
            stft.frame(&frame, &mut scratch, &mut spectrum);
            spectrum.iter_mut().for_each(|x| *x *= *x);
            bank.apply_frame(&spectrum, &mut bands);
            sums.iter_mut().zip(&bands).for_each(|(sum, band)| *sum += band);
        }
        picture.extend(sums.iter().map(|power| 10.0 * (power * scale / frames as f32).log10()));
    }
    Ok(picture)
}

/// Fills `frame` with the samples around `center`, and with silence beyond the ends.
fn copy_around(samples: &[f32], center: usize, frame: &mut [f32]) {
    let half = frame.len() / 2;
    for (i, x) in frame.iter_mut().enumerate() {
        let sample = (center + i).checked_sub(half).and_then(|at| samples.get(at));
        *x = sample.copied().filter(|x| x.is_finite()).unwrap_or(0.0);
    }
}

fn draw_spectrogram(canvas: &mut Canvas, picture: &[f32], top_db: f32) {
    for (column, bands) in picture.chunks_exact(MEL_BANDS).enumerate() {
        for row in 0..MEL.height {
            // Linear interpolation between the centers of the bands.
            let up = 1.0 - (row as f32 + 0.5) / MEL.height as f32;
            let band = (up * (MEL_BANDS + 1) as f32 - 1.0).clamp(0.0, (MEL_BANDS - 1) as f32);
            let (below, part) = (band as usize, band.fract());
            let above = (below + 1).min(MEL_BANDS - 1);
            let floor = top_db - RANGE_DB;
            let [a, b] = [bands[below], bands[above]].map(|db| db.max(floor));
            let brightness = ((a + (b - a) * part) - floor) / RANGE_DB;
            canvas.set(LEFT + column as i32, MEL.top + row, magma(brightness));
        }
    }
}

/// The color of a value between 0, dark, and 1, bright.
fn magma(value: f32) -> Rgb888 {
    let at = value.clamp(0.0, 1.0) * (MAGMA.len() - 1) as f32;
    let low = (at as usize).min(MAGMA.len() - 2);
    let part = at - low as f32;
    let mix = |i: usize| {
        let (a, b) = (f32::from(MAGMA[low][i]), f32::from(MAGMA[low + 1][i]));
        (a + (b - a) * part).round() as u8
    };
    Rgb888::new(mix(0), mix(1), mix(2))
}

fn draw_frequency_axis(canvas: &mut Canvas, sample_rate: u32) {
    let nyquist = f64::from(sample_rate) / 2.0;
    let top_mel = MelScale::Htk.from_hz(nyquist);
    let mut last_y = i32::MAX;
    for (hz, label) in [
        (0.0, "0"),
        (250.0, "0.25"),
        (500.0, "0.5"),
        (1000.0, "1"),
        (2000.0, "2"),
        (4000.0, "4"),
        (8000.0, "8"),
        (16_000.0, "16"),
        (32_000.0, "32"),
        (64_000.0, "64"),
        (128_000.0, "128"),
    ] {
        let up = MelScale::Htk.from_hz(hz) / top_mel;
        let y = MEL.top + ((1.0 - up) * f64::from(MEL.height - 1)).round() as i32;
        if hz > nyquist || last_y - y < 15 {
            continue;
        }
        last_y = y;
        canvas.fill(LEFT - 5, y, 5, 1, INK);
        canvas.label_left(label, y);
    }
    canvas.text("kHz", LEFT - 8, MEL.top - 19, Alignment::Right, (&FONT_8X13, FAINT_INK));
}

fn draw_color_bar(canvas: &mut Canvas, top_db: f32) {
    for row in 0..MEL.height {
        let value = 1.0 - row as f32 / (MEL.height - 1) as f32;
        canvas.fill(COLOR_BAR_LEFT, MEL.top + row, COLOR_BAR_WIDTH, 1, magma(value));
    }
    let right = COLOR_BAR_LEFT + COLOR_BAR_WIDTH;
    for i in 0..=4 {
        let down = f64::from(i) / 4.0;
        let y = MEL.top + (down * f64::from(MEL.height - 1)).round() as i32;
        canvas.fill(right, y, 5, 1, INK);
        let label = format!("{:.0}", f64::from(top_db) - down * f64::from(RANGE_DB));
        let style = TextStyleBuilder::new().baseline(Baseline::Middle).build();
        canvas.styled_text(&label, right + 8, y, style, (&FONT_8X13, INK));
    }
    canvas.text("dBFS", COLOR_BAR_LEFT, MEL.top - 19, Alignment::Left, (&FONT_8X13, FAINT_INK));
}

/// An RGB image that embedded-graphics draws text into.
struct Canvas {
    /// Rows from the top, three bytes per pixel.
    pixels: Vec<u8>,
}

type Font<'a> = (&'a MonoFont<'static>, Rgb888);

impl Canvas {
    fn new() -> Self {
        let mut canvas = Self { pixels: vec![0; (WIDTH * HEIGHT * 3) as usize] };
        canvas.fill(0, 0, WIDTH, HEIGHT, PAPER);
        canvas
    }

    /// Sets a pixel; ignores those outside of the image.
    fn set(&mut self, x: i32, y: i32, color: Rgb888) {
        if (0..WIDTH).contains(&x) && (0..HEIGHT).contains(&y) {
            let at = ((y * WIDTH + x) * 3) as usize;
            self.pixels[at..at + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
        }
    }

    fn fill(&mut self, left: i32, top: i32, width: i32, height: i32, color: Rgb888) {
        for y in top..top + height {
            for x in left..left + width {
                self.set(x, y, color);
            }
        }
    }

    /// A border around a panel, just outside of its pixels.
    fn frame(&mut self, Panel { top, height }: Panel) {
        for y in [top - 1, top + height] {
            self.fill(LEFT - 1, y, PLOT_WIDTH + 2, 1, INK);
        }
        for x in [LEFT - 1, LEFT + PLOT_WIDTH] {
            self.fill(x, top, 1, height, INK);
        }
    }

    /// A line of text whose top is at `y`.
    fn text(&mut self, text: &str, x: i32, y: i32, alignment: Alignment, font: Font<'_>) {
        let style = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Top).build();
        self.styled_text(text, x, y, style, font);
    }

    /// A tick label to the left of the panels, centered on `y`.
    fn label_left(&mut self, text: &str, y: i32) {
        let style = TextStyleBuilder::new().alignment(Alignment::Right).baseline(Baseline::Middle).build();
        self.styled_text(text, LEFT - 9, y, style, (&FONT_8X13, INK));
    }

    fn styled_text(
        &mut self,
        text: &str,
        x: i32,
        y: i32,
        style: embedded_graphics::text::TextStyle,
        (font, color): Font<'_>,
    ) {
        let character_style = MonoTextStyle::new(font, color);
        let Ok(_) = Text::with_text_style(text, Point::new(x, y), character_style, style).draw(self);
    }
}

impl Dimensions for Canvas {
    fn bounding_box(&self) -> Rectangle {
        Rectangle::new(Point::zero(), Size::new(WIDTH as u32, HEIGHT as u32))
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(at, color) in pixels {
            self.set(at.x, at.y, color);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tone(hz: f64, sample_rate: u32, length: usize) -> Vec<f32> {
        let step = std::f64::consts::TAU * hz / f64::from(sample_rate);
        (0..length).map(|i| (0.5 * (i as f64 * step).sin()) as f32).collect()
    }

    #[test]
    fn any_clip_gives_a_png_of_the_same_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.png");
        let long = "A title that is much too long to fit ".repeat(20);
        for (case, samples, rate, title) in [
            ("one sample", vec![0.5], 24_000, "x"),
            ("two samples", vec![0.5, -0.5], 24_000, ""),
            ("a tenth of a second", tone(440.0, 44_100, 4410), 44_100, "Äpfel\n한국어"),
            ("silence", vec![0.0; 24_001], 24_000, &long),
            ("not a number", vec![f32::NAN, f32::INFINITY, 0.1], 8000, "NaN"),
            ("a very low rate", vec![0.1; 100], 1, "1 Hz"),
            ("a very high rate", vec![0.1; 1000], 768_000, "768 kHz"),
        ] {
            plot_png(&samples, rate, title, &path).unwrap();
            let bytes = fs::read(&path).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut pixels).unwrap();
            assert_eq!((info.width, info.height), (WIDTH as u32, HEIGHT as u32), "{case}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{case}");
        }
    }

    #[test]
    fn failures_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.png");
        assert!(matches!(plot_png(&[], 24_000, "", &path), Err(AudioError::Empty { .. })));
        assert!(matches!(plot_png(&[0.1], 0, "", &path), Err(AudioError::SampleRate { .. })));
        let error = plot_png(&[0.1], 8000, "", folder.path().join("no/plot.png")).unwrap_err();
        assert!(matches!(error, AudioError::Create { .. }));
        if cfg!(target_os = "linux") {
            let error = plot_png(&[0.1], 8000, "", "/dev/full").unwrap_err();
            assert!(matches!(error, AudioError::Write { .. }), "{error:?}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tone_shows_at_its_level_frequency_and_time() {
        let rate = 24_000;
        for (hz, length) in [(200.0, 24_000), (1000.0, 240_000), (5000.0, 3000)] {
            // Only the second half has sound.
            let mut clip = vec![0.0; length];
            clip.extend(tone(hz, rate, length));
            let picture = mel_picture(&clip, rate).unwrap();
            let column = |x: usize| &picture[x * MEL_BANDS..][..MEL_BANDS];
            let loud = column(780);
            let peak = (0..MEL_BANDS).max_by(|&a, &b| loud[a].total_cmp(&loud[b])).unwrap();
            let want = MelScale::Htk.from_hz(hz) / MelScale::Htk.from_hz(12_000.0) * 101.0 - 1.0;
            assert!((peak as f64 - want).abs() <= 1.0, "{hz} Hz: band {peak}, expected {want}");
            // 0.5 is -6 dB; a tone between two bands contributes to both.
            assert!((-11.0..-5.0).contains(&loud[peak]), "{hz} Hz: {} dB", loud[peak]);
            assert!(column(100)[peak] < -100.0);
        }
    }

    #[test]
    fn time_steps_are_round() {
        let cases = [
            (0.01, 0.01, 2),
            (0.011, 0.02, 2),
            (0.12, 0.2, 1),
            (0.51, 1.0, 0),
            (1.0, 1.0, 0),
            (60.0, 100.0, 0),
            (0.0003, 0.0005, 4),
        ];
        for (least, step, decimals) in cases {
            let (got, got_decimals) = nice_step(least);
            assert!((got / step - 1.0).abs() < 1e-9 && got_decimals == decimals, "{least}: {got}");
        }
    }
}
