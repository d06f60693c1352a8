//! Reading rules for English: what a person says for numbers, signs and abbreviations.
//!
//! [`read_aloud`] turns these into words and leaves ordinary text exactly as it is, including punctuation and
//! capitals, so that it can run before any front end. [`fit_alphabet`] then converts the rest (accents, curly
//! quotes, brackets, emoji) to the letters that a voice knows, and [`speakable`] does all of this for a voice
//! with plain letters, split into pieces. [`read`], [`fit`] and [`speakable_pieces`] do the same and return
//! where each part of the result comes from.
//!
//! If English has several good readings, American ones are used (`105` is "one hundred five", `5/4/2024` is
//! May fourth); [`Rules`] has the choices.
//!
//! | Written | Read |
//! | --- | --- |
//! | 1,234 and 0.05 | one thousand two hundred thirty-four and zero point zero five |
//! | in 1905, the 1990s | in nineteen oh five, the nineteen nineties |
//! | $3.50, £5, €1.5 million | three dollars and fifty cents, five pounds, one point five million euros |
//! | 10:45, 3:05 pm, 14:00 | ten forty-five, three oh five P M, fourteen hundred |
//! | 5 May 2024, May 5, 2024-05-05 | the fifth of May twenty twenty-four, May fifth, … |
//! | 5 km, 60 mph, 20°C, 5'10" | five kilometers, sixty miles per hour, … |
//! | Dr. Smith, Elm Dr., e.g., U.S. | Doctor Smith, Elm Drive, for example, U S |
//!
//! Implementation: the text is split into runs of letters, digits and spaces, and single marks (`tokens`).
//! `reader` walks over them once; at each, the first rule that matches says its words and moves on. Rules
//! look only a bounded distance ahead and back, unless they consume what they looked at, so that time is
//! linear. To add a rule, add a case to `tests/main/english.rs` and a line to `Reader::digits`,
//! `Reader::word` or `Reader::mark`.

mod abbreviations;
mod calendar;
mod fit;
mod letters;
mod numbers;
mod quantities;
mod reader;
pub(crate) mod say_as;
mod tokens;
mod units;
mod web;

pub use fit::{fit, fit_alphabet, speakable, speakable_pieces};

use crate::Traced;

/// How letters of an acronym are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Letters {
    /// `FBI` becomes `F B I`.
    #[default]
    Spaced,
    /// `FBI` becomes `eff bee eye`, for voices that never learned single letters.
    Names,
    /// `FBI` stays `FBI`, for voices that learned acronyms as written.
    Keep,
}

/// What comes first in a date such as `5/4/2024`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DateOrder {
    /// The fourth of May, as in the United States.
    #[default]
    MonthFirst,
    /// The fifth of April.
    DayFirst,
}

/// Choices where English has more than one good reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// How acronyms are spelled.
    pub letters: Letters,
    /// How numeric dates are interpreted. A date that is valid only the other way is read that way.
    pub date_order: DateOrder,
}

/// [`read_aloud_with`] the default [`Rules`].
///
/// ```
/// use orate_text::english::read_aloud;
///
/// assert_eq!(
///     read_aloud("Dr. Smith paid $3.50 at 10:45 on 5 May 2024"),
///     "Doctor Smith paid three dollars and fifty cents \
///      at ten forty-five on the fifth of May twenty twenty-four",
/// );
/// assert_eq!(read_aloud("Nothing to do here!"), "Nothing to do here!");
/// ```
#[must_use]
pub fn read_aloud(text: &str) -> String {
    read_aloud_with(text, &Rules::default())
}

/// Turns numbers, signs, abbreviations, addresses and acronyms into words.
///
/// The result contains no ASCII digits. Accents, quotes, dashes, brackets and other scripts stay as they are.
/// Takes time linear in the length of the text.
///
/// ```
/// use orate_text::english::{DateOrder, Letters, Rules, read_aloud_with};
///
/// let rules = Rules { letters: Letters::Names, date_order: DateOrder::DayFirst };
/// assert_eq!(
///     read_aloud_with("The FBI came on 5/4/2024.", &rules),
///     "The eff bee eye came on the fifth of April twenty twenty-four.",
/// );
/// ```
#[must_use]
pub fn read_aloud_with(text: &str, rules: &Rules) -> String {
    let plain = tokens::plain_digits::<String>(text);
    let text = plain.as_deref().unwrap_or(text);
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    reader::Reader::new(text, *rules, &mut out).read();
    out
}

/// Words of a number that is written in ASCII digits.
pub(crate) fn number(digits: &str) -> String {
    numbers::cardinal_digits(digits)
}

/// [`read_with`] the default [`Rules`].
///
/// ```
/// let read = orate_text::english::read("Dr. Who paid $3.");
/// assert_eq!(read.text(), "Doctor Who paid three dollars.");
/// assert_eq!(read.source(16..29), 13..15);
/// ```
#[must_use]
pub fn read(text: &str) -> Traced {
    read_with(text, &Rules::default())
}

/// Reads as [`read_aloud_with`], and says where each part of the result comes from.
///
/// Words made from several tokens come from all of them: "May fifth" from `May 5`.
#[must_use]
pub fn read_with(text: &str, rules: &Rules) -> Traced {
    let plain = tokens::plain_digits::<Traced>(text);
    let mut out = Traced::default();
    reader::Reader::new(plain.as_ref().map_or(text, Traced::text), *rules, &mut out).read();
    match plain {
        Some(plain) => out.after(&plain),
        None => out,
    }
}
