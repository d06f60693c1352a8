//! How a text is spoken: options that every model has, and those that families declare.
//!
//! A family declares its options once, with [`options!`](crate::options!): name, type, range, default and
//! help. From that declaration come a typed struct, the checks, the command line's flags and everything else
//! that lists options. An option that a model does not declare is refused in [`Options::check`] and nowhere
//! else.

use crate::{ClonedVoice, ModelError};
use orate_audio::Finish;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest silence between pieces, in seconds.
const MOST_SILENCE: f32 = 10.0;

/// How a text is spoken. Everything has a default.
///
/// Options of a family are set with its own struct, or by name:
///
/// ```
/// use orate_models::{Options, supertonic};
///
/// let slow = Options { seed: 7, ..Default::default() }
///     .with(supertonic::Options { speed: Some(0.8), ..Default::default() });
/// assert_eq!(slow.get("speed"), Options::default().set("speed", 0.8).get("speed"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A voice of the model. `None`: its default voice. Some families also take a file, or a mix of voices.
    pub voice: Option<String>,
    /// A voice made from a recording, in place of one of the model's own.
    pub cloned: Option<Arc<ClonedVoice>>,
    /// Language: a code, tag or English name, in any case, such as `en`, `pt-BR` or `english`. `None` and
    /// `auto` leave it to the model.
    pub language: Option<String>,
    /// Seed of the random numbers: another seed gives another reading.
    pub seed: u64,
    /// Silence between the pieces of a long text, in seconds, 0 to 10. Models return the pieces alone.
    pub silence: f32,
    /// Number of the first piece, for a text that follows one spoken before: pieces draw other random numbers
    /// by their numbers, and silence precedes each but piece 0.
    pub first_piece: usize,
    /// Whether words get times.
    pub word_times: bool,
    /// How the sound is finished. Conversions of recordings are not.
    pub finish: Finish,
    /// Whether nothing is heard before all of it is made. Then a piece that went wrong can be spoken again,
    /// and loudness is that of the whole, where a stream goes by its first piece or what is usual for the
    /// model.
    pub whole: bool,
    /// Stops work from another thread.
    pub cancel: Option<Cancel>,
    /// Options that the model's family declares, by name.
    pub own: Values,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            voice: None,
            cloned: None,
            language: None,
            seed: 0,
            silence: orate_text::pieces::SILENCE_SECONDS as f32,
            first_piece: 0,
            word_times: false,
            finish: Finish::default(),
            whole: false,
            cancel: None,
            own: Values::default(),
        }
    }
}

impl Options {
    /// Adds all options of a family that are `Some`.
    #[must_use]
    pub fn with(mut self, own: impl OptionSet) -> Options {
        own.write(&mut self.own);
        self
    }

    /// Sets one option of a family by its name. Name and value are checked when a model is asked to speak.
    #[must_use]
    pub fn set(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Options {
        self.own.insert(name.into(), value.into());
        self
    }

    /// Value of an option of a family.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.own.get(name)
    }

    /// Checks every value against its declaration.
    ///
    /// `family` is the name of a model's family, `accepts` are the options that have an effect for this
    /// model, and `declared` are those of all families, to name the ones that have a refused option.
    ///
    /// # Errors
    /// An option is not declared, or its value is out of range.
    pub fn check(
        &self,
        family: &str,
        accepts: &[OptionSpec],
        declared: &[(&'static str, &'static [OptionSpec])],
    ) -> Result<(), ModelError> {
        if !(0.0..=MOST_SILENCE).contains(&self.silence) {
            let (got, allowed) = (self.silence.to_string(), format!("choose 0 to {MOST_SILENCE} seconds"));
            return Err(ModelError::Option { option: "silence", got, allowed });
        }
        for (name, value) in &self.own {
            let Some(spec) = accepts.iter().find(|spec| spec.name == name) else {
                let has = |(_, specs): &&(&str, &'static [OptionSpec])| specs.iter().any(|s| s.name == name);
                let families: Vec<_> = declared.iter().filter(has).map(|(family, _)| *family).collect();
                let is_own = families.contains(&family);
                let name_of = |other: &&str| match *other == family {
                    true => format!("other {family} models"),
                    false => (*other).to_owned(),
                };
                let families = families.iter().map(name_of).collect();
                let model = match is_own {
                    true => format!("this {family} model"),
                    false => format!("{family} models"),
                };
                return Err(ModelError::UnknownOption { option: name.clone().into_owned(), model, families });
            };
            spec.check(value)?;
        }
        Ok(())
    }
}

/// A switch that stops speaking: clone it into [`Options::cancel`] and flip it from any thread. Work ends
/// before the next step of a network, within some tens of milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl From<Arc<AtomicBool>> for Cancel {
    /// A switch that something else flips, such as a signal handler.
    fn from(flag: Arc<AtomicBool>) -> Cancel {
        Cancel(flag)
    }
}

impl PartialEq for Cancel {
    /// Whether both are the same switch.
    fn eq(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Stops everything that has this switch.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was flipped.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// [`ModelError::Cancelled`] once it was flipped.
    ///
    /// # Errors
    /// It was.
    pub fn check(&self) -> Result<(), ModelError> {
        if self.is_cancelled() { Err(ModelError::Cancelled) } else { Ok(()) }
    }
}

// ---- values -----------------------------------------------------------------------------------------------

/// Value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Yes or no.
    Switch(bool),
    /// A whole number that is not negative.
    Whole(u64),
    /// Any number.
    Number(f32),
    /// A text, or one of a few words.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Value::Whole(n) => n.fmt(f),
            Value::Number(x) => x.fmt(f),
            Value::Text(text) => write!(f, "`{text}`"),
        }
    }
}

impl<T: OptionType> From<T> for Value {
    fn from(x: T) -> Value {
        x.to_value()
    }
}

macro_rules! into_value {
    ($($from:ty => |$x:ident| $value:expr),* $(,)?) => { $(
        impl From<$from> for Value {
            fn from($x: $from) -> Value {
                $value
            }
        }
    )* };
}

into_value! {
    u64 => |x| Value::Whole(x),
    u32 => |x| Value::Whole(u64::from(x)),
    // A literal such as 3; a negative one is out of every range.
    i32 => |x| u64::try_from(x).map_or(Value::Number(x as f32), Value::Whole),
    // A literal such as 0.9.
    f64 => |x| Value::Number(x as f32),
    &str => |x| Value::Text(x.to_owned()),
}

impl From<&Value> for serde_json::Value {
    fn from(value: &Value) -> serde_json::Value {
        match value {
            Value::Switch(on) => (*on).into(),
            Value::Whole(n) => (*n).into(),
            // By its shortest decimal: as an f64, 0.9 would have seventeen digits.
            Value::Number(x) => x.to_string().parse::<f64>().unwrap_or(f64::NAN).into(),
            Value::Text(text) => text.as_str().into(),
        }
    }
}

/// Values of options by name.
pub type Values = BTreeMap<Cow<'static, str>, Value>;

/// A type that an option can have.
pub trait OptionType: Sized {
    /// What is checked, and how the command line reads it.
    const KIND: OptionKind;

    /// As it is stored.
    fn to_value(&self) -> Value;

    /// The value as this type, or `None` if it is of another.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! option_types {
    ($($type:ty: $kind:ident, |$x:ident| $to:expr, { $($pattern:pat => $from:expr),+ })*) => { $(
        impl OptionType for $type {
            const KIND: OptionKind = OptionKind::$kind;

            fn to_value(&self) -> Value {
                let $x = self;
                Value::$kind($to)
            }

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $($pattern => $from,)+
                    _ => None,
                }
            }
        }
    )* };
}

option_types! {
    bool: Switch, |on| *on, { Value::Switch(on) => Some(*on) }
    usize: Whole, |n| *n as u64, {
        Value::Whole(n) => usize::try_from(*n).ok(),
        Value::Number(x) => (x.fract() == 0.0 && *x >= 0.0).then_some(*x as usize)
    }
    f32: Number, |x| *x, { Value::Number(x) => Some(*x), Value::Whole(n) => Some(*n as f32) }
    String: Text, |text| text.clone(), { Value::Text(text) => Some(text.clone()) }
}

// ---- declarations -----------------------------------------------------------------------------------------

/// Type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// Yes or no.
    Switch,
    /// A whole number.
    Whole,
    /// Any number.
    Number,
    /// A text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// Flags of the command line that set a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// `--name` alone: the switch is off by default.
    On,
    /// `--no-name` alone: the switch is on by default.
    Off,
    /// Both: the default depends on the model.
    Both,
    /// `--name true` or `--name false`.
    Value,
}

/// Declaration of an option. [`options!`](crate::options!) makes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptionSpec {
    /// Name in code, JSON and errors, such as `top_k`.
    pub name: &'static str,
    /// Type of its value.
    pub kind: OptionKind,
    /// Least and greatest number, both allowed.
    pub range: Option<(f64, f64)>,
    /// What holds without it, such as `the model's own`.
    pub default: &'static str,
    /// What stands for its value in help, such as `N`.
    pub value_name: &'static str,
    /// Help: a first line of at most 80 characters, and perhaps more lines.
    pub help: &'static str,
    /// Whether most people want to know of it.
    pub is_common: bool,
    /// Whether it has an effect on voice conversion too.
    pub converts: bool,
    /// Short flag of the command line.
    pub short: Option<char>,
    /// Flags of a switch.
    pub flags: Flags,
    /// Help of `--no-name`, where there are both flags.
    pub no_help: &'static str,
}

impl OptionSpec {
    /// An option of type `T` with nothing but a name and help.
    pub const fn new<T: OptionType>(name: &'static str, help: &'static str) -> OptionSpec {
        OptionSpec {
            name,
            kind: T::KIND,
            range: None,
            default: "",
            value_name: match T::KIND {
                OptionKind::Whole => "N",
                OptionKind::Number => "X",
                OptionKind::Choice(_) => "CHOICE",
                OptionKind::Switch => "BOOL",
                OptionKind::Text => "TEXT",
            },
            help,
            is_common: false,
            converts: false,
            short: None,
            flags: Flags::On,
            no_help: "",
        }
    }

    /// What its value may be, in words that complete "choose …".
    pub fn allowed(&self) -> String {
        match (self.kind, self.range) {
            (OptionKind::Switch, _) => "true or false".to_owned(),
            (OptionKind::Text, _) => "a text".to_owned(),
            (OptionKind::Choice(words), _) => words.join(" or "),
            (OptionKind::Whole, Some((least, most))) if most >= u64::MAX as f64 => {
                format!("a whole number of at least {least}")
            }
            (_, Some((least, most))) if least == f64::from(f32::MIN_POSITIVE) => {
                format!("above 0, at most {most}")
            }
            (_, Some((least, most))) => format!("{least} to {most}"),
            (OptionKind::Whole, None) => "a whole number".to_owned(),
            (OptionKind::Number, None) => "a number".to_owned(),
        }
    }

    /// What it does, its choices and its default, in one line.
    pub fn summary(&self) -> String {
        let help = self.help.lines().next().unwrap_or_default().trim().trim_end_matches('.');
        let default = if self.default.is_empty() { "none" } else { self.default };
        // Of numbers, the help has the range.
        let choices = match self.kind {
            OptionKind::Choice(words) => format!(": {}", words.join(", ")),
            _ => String::new(),
        };
        format!("{help}{choices} [default: {default}]")
    }

    /// Checks type and range of a value.
    ///
    /// # Errors
    /// The value, and what is allowed.
    pub fn check(&self, value: &Value) -> Result<(), ModelError> {
        // A bound such as 0.7 means the nearest float.
        let within = |x: f64| {
            let bounds =
                |(least, most)| (f64::from(least as f32).min(least), f64::from(most as f32).max(most));
            self.range.map(bounds).is_none_or(|(least, most)| (least..=most).contains(&x))
        };
        let is_within = match (self.kind, value) {
            (OptionKind::Switch, Value::Switch(_)) | (OptionKind::Text, Value::Text(_)) => true,
            (OptionKind::Choice(words), Value::Text(word)) => words.contains(&&**word),
            (OptionKind::Whole | OptionKind::Number, Value::Whole(n)) => within(*n as f64),
            (OptionKind::Number, Value::Number(x)) => within(f64::from(*x)),
            // As 3.0, of languages and formats with one type of numbers.
            (OptionKind::Whole, Value::Number(x)) => x.fract() == 0.0 && *x >= 0.0 && within(f64::from(*x)),
            _ => false,
        };
        if is_within {
            return Ok(());
        }
        let allowed = format!("choose {}", self.allowed());
        Err(ModelError::Option { option: self.name, got: value.to_string(), allowed })
    }

    /// Reads a value from the command line.
    ///
    /// # Errors
    /// The text is of another type. Ranges are checked by [`OptionSpec::check`].
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let value = match self.kind {
            OptionKind::Switch => text.parse().ok().map(Value::Switch),
            OptionKind::Whole => text.parse().ok().map(Value::Whole),
            OptionKind::Number => text.parse().ok().map(Value::Number),
            OptionKind::Choice(words) if !words.contains(&text) => None,
            OptionKind::Text | OptionKind::Choice(_) => Some(Value::Text(text.to_owned())),
        };
        value.ok_or_else(|| format!("choose {}", self.allowed()))
    }
}

/// A struct that [`options!`](crate::options!) declares.
pub trait OptionSet: Sized + Default {
    /// Declarations, in the order of the fields.
    const SPECS: &'static [OptionSpec];

    /// Adds what is `Some`.
    fn write(self, values: &mut Values);

    /// Reads what is set. Values of another type are left out; [`Options::check`] has refused them.
    fn read(values: &Values) -> Self;
}

/// Declares the options of a family: a struct of `Option` fields, and an [`OptionSet`] of their declarations.
/// The first line of a field's doc comment is its short help, all of it the long one. What follows `=>` are
/// fields of its [`OptionSpec`].
///
/// ```
/// orate_models::options! {
///     /// How the toy hums.
///     pub struct Hum {
///         /// Pitch of the letter a.
///         pitch: f32 => { range: Some((50.0, 2000.0)), value_name: "HZ", default: "220" },
///     }
/// }
/// use orate_models::{OptionSet, Options};
///
/// let options = Options::default().with(Hum { pitch: Some(30.0) });
/// let e = options.check("Toy", Hum::SPECS, &[]).expect_err("too low").to_string();
/// assert_eq!(e, "pitch is 30; choose 50 to 2000");
/// assert_eq!(Hum::read(&options.own).pitch, Some(30.0));
/// ```
#[macro_export]
macro_rules! options {
    (
        $(#[$outer:meta])*
        $visible:vis struct $name:ident { $(
            $(#[doc = $help:literal])+
            $field:ident: $type:ty => { $($fact:ident: $value:expr),* $(,)? }
        ),* $(,)? }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $visible struct $name { $(
            $(#[doc = $help])+
            pub $field: Option<$type>,
        )* }

        impl $crate::OptionSet for $name {
            const SPECS: &'static [$crate::OptionSpec] = &[ $( $crate::OptionSpec {
                $($fact: $value,)*
                ..$crate::OptionSpec::new::<$type>(stringify!($field), concat!($($help, "\n"),+))
            } ),* ];

            fn write(self, values: &mut $crate::Values) {
                $( if let Some(x) = self.$field {
                    values.insert(stringify!($field).into(), $crate::OptionType::to_value(&x));
                } )*
            }

            fn read(values: &$crate::Values) -> Self {
                $name { $(
                    $field: values.get(stringify!($field)).and_then($crate::OptionType::from_value),
                )* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    options! {
        /// Of a test.
        struct Own {
            /// Rate.
            speed: f32 => { range: Some((0.7, 2.0)), is_common: true },
            /// Number.
            ///
            /// Of something.
            steps: usize => { range: Some((1.0, 100.0)) },
            /// Words.
            words: String => { default: "none" },
            /// Switch.
            trim: bool => { flags: Flags::Off },
        }
    }

    fn check(options: &Options) -> Result<(), String> {
        let declared = [("A", Own::SPECS), ("B", &Own::SPECS[..1]), ("C", &[])];
        options.check("A", &Own::SPECS[..3], &declared).map_err(|e| e.to_string())
    }

    #[test]
    fn a_struct_and_names_say_the_same() {
        let own = Own { speed: Some(0.7), steps: Some(3), words: Some("a".to_owned()), trim: None };
        let options = Options::default().with(own.clone());
        assert_eq!(Own::read(&options.own), own);
        let by_name = Options::default().set("words", "a").set("steps", 3).set("speed", 0.7);
        assert_eq!(by_name, options);
        check(&options).expect("all are in range");
    }

    #[test]
    fn values_are_checked_by_their_declaration() {
        let set = |name: &'static str, value: Value| check(&Options::default().set(name, value));
        for good in [0.7, 1.0, 2.0] {
            assert_eq!(set("speed", good.into()), Ok(()));
        }
        assert_eq!(set("steps", 3.0.into()), Ok(()));
        assert_eq!(Own::read(&Options::default().set("steps", 3.0).own).steps, Some(3));
        let cases: [(&str, Value, &str); 9] = [
            ("speed", 0.5.into(), "speed is 0.5; choose 0.7 to 2"),
            ("speed", f32::NAN.into(), "speed is NaN; choose 0.7 to 2"),
            ("speed", "fast".into(), "speed is `fast`; choose 0.7 to 2"),
            ("speed", true.into(), "speed is on; choose 0.7 to 2"),
            ("steps", 0.into(), "steps is 0; choose 1 to 100"),
            ("steps", (-3).into(), "steps is -3; choose 1 to 100"),
            ("steps", 1.5.into(), "steps is 1.5; choose 1 to 100"),
            ("words", 1.into(), "words is 1; choose a text"),
            ("other", 1.into(), "`other` is not an option of A models"),
        ];
        for (name, value, error) in cases {
            assert_eq!(set(name, value), Err(error.to_owned()));
        }
        assert_eq!(
            set("trim", false.into()),
            Err("`trim` is not an option of this A model (other A models have it)".to_owned()),
            "declared, but without an effect for this model"
        );
        let silent = Options { silence: f32::NAN, ..Default::default() };
        assert_eq!(check(&silent), Err("silence is NaN; choose 0 to 10 seconds".to_owned()));
    }

    #[test]
    fn ranges_that_leave_out_zero_say_so() {
        let range = Some((f64::from(f32::MIN_POSITIVE), 100.0));
        let spec = OptionSpec { range, ..OptionSpec::new::<f32>("penalty", "Penalty.") };
        let error = |x: f32| spec.check(&x.into()).expect_err("out of range").to_string();
        assert_eq!(error(0.0), "penalty is 0; choose above 0, at most 100");
        assert_eq!(error(101.0), "penalty is 101; choose above 0, at most 100");
        assert_eq!(spec.check(&f32::MIN_POSITIVE.into()).ok(), Some(()));
    }

    #[test]
    fn values_are_json() {
        let json = |value: Value| serde_json::Value::from(&value).to_string();
        assert_eq!(json(0.9.into()), "0.9");
        assert_eq!([json(7.into()), json(true.into()), json("a".into())], ["7", "true", "\"a\""]);
    }

    #[test]
    fn text_is_parsed_by_the_declaration() {
        let spec = |name: &str| *Own::SPECS.iter().find(|s| s.name == name).expect("declared");
        assert_eq!(spec("speed").parse("1e0"), Ok(Value::Number(1.0)));
        assert_eq!(spec("steps").parse("7"), Ok(Value::Whole(7)));
        assert_eq!(spec("steps").parse("-7"), Err("choose 1 to 100".to_owned()));
        assert_eq!(spec("trim").parse("false"), Ok(Value::Switch(false)));
        assert!(spec("trim").parse("no").is_err());
    }
}
