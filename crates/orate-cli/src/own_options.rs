//! Flags for the options that model families declare.

use clap::{Arg, ArgAction, ArgMatches, Command};
use orate::{ClonedVoice, Family, Flags, OptionKind, OptionSpec, Options, Value};
use std::sync::OnceLock;

/// Model families of this program; see [`set_families`].
static KNOWN: OnceLock<&'static [&'static Family]> = OnceLock::new();

/// Sets the families whose options become flags and whose models can be opened. Only the first call has an
/// effect.
pub fn set_families(families: &'static [&'static Family]) {
    let _ = KNOWN.set(families);
}

/// The families of this program.
pub fn families() -> &'static [&'static Family] {
    KNOWN.get_or_init(|| orate::FAMILIES)
}

/// Values of family options. Among a command's arguments it adds a flag for each option; an option that
/// several families declare has one flag.
#[derive(Clone, Debug, Default)]
pub struct FamilyOptions<const CONVERSION: bool>(Vec<(&'static str, Value)>);

/// Those of models that speak.
pub type OwnOptions = FamilyOptions<false>;
/// Those with an effect on voice conversion.
pub type ConversionOptions = FamilyOptions<true>;

impl<const CONVERSION: bool> FamilyOptions<CONVERSION> {
    /// The given values, by option name.
    pub fn as_json(&self) -> serde_json::Value {
        let json = |value: &Value| serde_json::Value::from(value);
        self.0.iter().map(|(name, value)| ((*name).to_owned(), json(value))).collect()
    }

    /// Sets the given values. Whether the model has these options is checked when it speaks.
    pub fn set(&self, options: Options) -> Options {
        self.0.iter().fold(options, |options, (name, value)| options.set(*name, value.clone()))
    }
}

/// Each option once, with the names of the families that declare it: all, or those of conversion.
fn declared(conversion: bool) -> Vec<(&'static OptionSpec, Vec<&'static str>)> {
    let mut all: Vec<(&OptionSpec, Vec<&str>)> = vec![];
    for family in families() {
        for spec in family.options.iter().filter(|spec| spec.converts || !conversion) {
            match all.iter_mut().find(|(known, _)| known.name == spec.name) {
                Some((_, names)) => names.push(family.name),
                None => all.push((spec, vec![family.name])),
            }
        }
    }
    all
}

impl<const CONVERSION: bool> clap::Args for FamilyOptions<CONVERSION> {
    fn augment_args(command: Command) -> Command {
        let all = declared(CONVERSION);
        let args = all.iter().flat_map(|(spec, names)| {
            let heading = format!("Speech ({})", names.join(", "));
            flags(spec).into_iter().map(move |arg| arg.help_heading(heading.clone()))
        });
        command.args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const CONVERSION: bool> clap::FromArgMatches for FamilyOptions<CONVERSION> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = vec![];
        for (spec, _) in declared(CONVERSION) {
            let value = match takes_value(spec) {
                true => matches.get_one::<Value>(spec.name).cloned(),
                false => {
                    let is_set = |id: &str| matches.try_get_one::<bool>(id).is_ok_and(|x| x == Some(&true));
                    let on = is_set(spec.name).then_some(Value::Switch(true));
                    on.or_else(|| is_set(&no(spec)).then_some(Value::Switch(false)))
                }
            };
            all.extend(value.map(|value| (spec.name, value)));
        }
        Ok(Self(all))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn takes_value(spec: &OptionSpec) -> bool {
    spec.kind != OptionKind::Switch || spec.flags == Flags::Value
}

/// Id of the flag that turns a boolean option off.
fn no(spec: &OptionSpec) -> String {
    format!("no_{}", spec.name)
}

/// Flags of an option.
fn flags(spec: &'static OptionSpec) -> Vec<Arg> {
    let flag = |id: String, help: &str| {
        let long = id.replace('_', "-");
        let [short, all] = help_texts(help, spec.default);
        Arg::new(id).long(long).help(short).long_help(all).hide_short_help(!spec.is_common)
    };
    let (on, off) = (spec.name.to_owned(), no(spec));
    if takes_value(spec) {
        let arg = flag(on, spec.help)
            .value_name(spec.value_name)
            .allow_negative_numbers(true)
            .value_parser(|text: &str| spec.parse(text));
        return vec![spec.short.map_or(arg.clone(), |short| arg.short(short))];
    }
    let switch = |arg: Arg| arg.action(ArgAction::SetTrue);
    let turn_on = || switch(flag(on.clone(), spec.help));
    match spec.flags {
        Flags::On | Flags::Value => vec![turn_on()],
        Flags::Off => vec![switch(flag(off, if spec.no_help.is_empty() { spec.help } else { spec.no_help }))],
        Flags::Both => {
            let turn_off = switch(flag(off.clone(), spec.no_help));
            vec![turn_on().overrides_with(off), turn_off.overrides_with(on.clone())]
        }
    }
}

/// Short and long help: the first line and the whole text, each with the default.
fn help_texts(text: &str, default: &str) -> [String; 2] {
    let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().trim_end_matches('.').to_owned() + &default;
    let rest = lines.collect::<Vec<_>>().join("\n");
    match rest.trim() {
        "" => [first.clone(), first],
        rest => [first.clone(), format!("{first}\n\n{rest}")],
    }
}

/// Family whose models speak with a voice, if this program knows it.
pub fn family_of(voice: &ClonedVoice) -> Option<&'static Family> {
    families().iter().find(|f| f.tag == voice.family).copied()
}

/// Which models the voice fits, and how they use it.
pub fn fits(voice: &ClonedVoice) -> String {
    match family_of(voice) {
        Some(family) => (family.describe_voice)(voice),
        None => format!("for models of a family {:?} that this program does not know", voice.family),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        let command = OwnOptions::augment_args(Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(args)?;
        Ok(OwnOptions::from_arg_matches(&matches)?.set(Options::default()))
    }

    #[test]
    fn flags_set_options_by_name() {
        let options = parse(&["--speed", "1.5", "--no-trim", "--top-k", "7", "--codec-beside", "false"]);
        let options = options.expect("known flags");
        assert_eq!(options.get("speed"), Some(&Value::Number(1.5)));
        assert_eq!(options.get("trim"), Some(&Value::Switch(false)));
        assert_eq!(options.get("top_k"), Some(&Value::Whole(7)));
        assert_eq!(options.get("codec_beside"), Some(&Value::Switch(false)));
        assert_eq!(options.get("temperature"), None);
        assert_eq!(parse(&[]).expect("nothing"), Options::default());
        let last = parse(&["--no-read-numbers", "--read-numbers"]).expect("known flags");
        assert_eq!(last.get("read_numbers"), Some(&Value::Switch(true)), "the last one counts");
        assert!(parse(&["--top-k", "-1"]).is_err() && parse(&["--speed", "fast"]).is_err());
    }

    #[test]
    fn declarations_make_one_flag_each() {
        let command = OwnOptions::augment_args(Command::new("test"));
        command.clone().debug_assert();
        for (spec, _) in declared(false) {
            let first = spec.help.lines().next().unwrap_or_default().trim();
            assert!((1..=80).contains(&first.chars().count()), "{}: {first}", spec.name);
        }
    }
}
