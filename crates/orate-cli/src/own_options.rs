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

/// An option, with its declaration by each family that has it, after the family's name.
struct Declared {
    /// The declaration that makes the flag and leads its help: of the first family where the option is
    /// common, else of the first.
    spec: &'static OptionSpec,
    all: Vec<(&'static str, &'static OptionSpec)>,
}

impl Declared {
    /// The default; families that have another one than the first are named.
    fn default(&self) -> String {
        let text = |spec: &OptionSpec| if spec.default.is_empty() { "none" } else { spec.default };
        if self.all.iter().all(|(_, spec)| spec.default.is_empty()) {
            return String::new();
        }
        let others = self.others(text).into_iter().map(|(names, default)| format!("; {names}: {default}"));
        format!(" [default: {}{}]", text(self.spec), others.collect::<String>())
    }

    /// Texts of families that differ from that of `spec`, after the families' names.
    fn others(&self, text: impl Fn(&OptionSpec) -> &'static str) -> Vec<(String, &'static str)> {
        let (own, mut others) = (text(self.spec), Vec::<(String, &str)>::new());
        for (name, text) in self.all.iter().map(|(name, spec)| (name, text(spec))).filter(|(_, t)| *t != own)
        {
            match others.iter_mut().find(|(_, other)| *other == text) {
                Some((names, _)) => names.extend([", ", name]),
                None => others.push(((*name).to_owned(), text)),
            }
        }
        others
    }

    /// Short and long help: the first line, and the whole text. Families with another text than the first are
    /// named.
    fn help(&self, text: impl Fn(&OptionSpec) -> &'static str) -> [String; 2] {
        let parts = |text: &str| {
            let (first, rest) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
            let rest = rest.lines().map(str::trim).collect::<Vec<_>>().join("\n");
            (first.trim().trim_end_matches('.').to_owned(), rest.trim().to_owned())
        };
        let (mut first, rest) = parts(text(self.spec));
        let others = self.others(&text);
        let mut paragraphs = match (&*rest, others.is_empty()) {
            ("", _) => vec![],
            (rest, true) => vec![rest.to_owned()],
            // Of the first family, as paragraphs of others follow or are lacking.
            (rest, false) => vec![format!("{}: {rest}", self.leading_name())],
        };
        let lead = first.clone();
        for (names, text) in others {
            let (line, rest) = parts(text);
            // Only for some models, in brackets at the end.
            let models = line.strip_prefix(&lead).and_then(|end| end.strip_prefix(" (")?.strip_suffix(')'));
            let line = match models {
                _ if line == lead => None,
                Some(models) => {
                    first += &format!(" ({names}: {models})");
                    None
                }
                None => Some(line + "."),
            };
            let text =
                line.into_iter().chain((!rest.is_empty()).then_some(rest)).collect::<Vec<_>>().join("\n");
            if !text.is_empty() {
                paragraphs.push(format!("{names}: {text}"));
            }
        }
        let first = first + &self.default();
        paragraphs.insert(0, first.clone());
        [first, paragraphs.join("\n\n")]
    }

    /// Name of the family whose declaration leads.
    fn leading_name(&self) -> &'static str {
        self.all.iter().find(|(_, spec)| *spec == self.spec).map_or("", |(name, _)| name)
    }
}

/// Each option once: all, or those of conversion.
fn declared(conversion: bool) -> Vec<Declared> {
    let mut all: Vec<Declared> = vec![];
    for family in families() {
        for spec in family.options.iter().filter(|spec| spec.converts || !conversion) {
            match all.iter_mut().find(|known| known.spec.name == spec.name) {
                Some(known) => {
                    if spec.is_common && !known.spec.is_common {
                        known.spec = spec;
                    }
                    known.all.push((family.name, spec));
                }
                None => all.push(Declared { spec, all: vec![(family.name, spec)] }),
            }
        }
    }
    all
}

impl<const CONVERSION: bool> clap::Args for FamilyOptions<CONVERSION> {
    fn augment_args(command: Command) -> Command {
        let all = declared(CONVERSION);
        let args = all.iter().flat_map(|option| {
            let names: Vec<&str> = option.all.iter().map(|(name, _)| *name).collect();
            let heading = format!("Speech ({})", names.join(", "));
            flags(option).into_iter().map(move |arg| arg.help_heading(heading.clone()))
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
        for Declared { spec, .. } in declared(CONVERSION) {
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
fn flags(option: &Declared) -> Vec<Arg> {
    let spec = option.spec;
    let flag = |id: String, [short, all]: [String; 2]| {
        let long = id.replace('_', "-");
        Arg::new(id).long(long).help(short).long_help(all).hide_short_help(!spec.is_common)
    };
    let (on, off) = (spec.name.to_owned(), no(spec));
    let help = || option.help(|spec| spec.help);
    if takes_value(spec) {
        let arg = flag(on, help())
            .value_name(spec.value_name)
            .allow_negative_numbers(true)
            .value_parser(|text: &str| spec.parse(text));
        return vec![spec.short.map_or(arg.clone(), |short| arg.short(short))];
    }
    let switch = |arg: Arg| arg.action(ArgAction::SetTrue);
    let turn_on = || switch(flag(on.clone(), help()));
    match spec.flags {
        Flags::On | Flags::Value => vec![turn_on()],
        Flags::Off => {
            let text = |spec: &OptionSpec| if spec.no_help.is_empty() { spec.help } else { spec.no_help };
            vec![switch(flag(off, option.help(text)))]
        }
        Flags::Both => {
            let turn_off = switch(flag(off.clone(), option.help(|spec| spec.no_help)));
            vec![turn_on().overrides_with(off), turn_off.overrides_with(on.clone())]
        }
    }
}

/// The flag that sets an option of the library, if there is one.
pub fn flag_of(option: &str) -> Option<String> {
    const OTHERS: [&str; 9] = [
        "codec",
        "device",
        "kv",
        "precision",
        "precision_allow",
        "precision_deny",
        "silence",
        "threads",
        "voice",
    ];
    if option == "language" {
        return Some("--lang".to_owned());
    }
    let spec = declared(false).into_iter().map(|option| option.spec).find(|spec| spec.name == option);
    let is_off = spec.is_some_and(|spec| spec.kind == OptionKind::Switch && spec.flags == Flags::Off);
    let no = if is_off { "no-" } else { "" };
    (spec.is_some() || OTHERS.contains(&option)).then(|| format!("--{no}{}", option.replace('_', "-")))
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
        for Declared { spec, .. } in declared(false) {
            let first = spec.help.lines().next().unwrap_or_default().trim();
            assert!((1..=80).contains(&first.chars().count()), "{}: {first}", spec.name);
        }
    }

    #[test]
    fn help_names_families_that_differ() {
        let all = declared(false);
        let help =
            |name: &str| all.iter().find(|o| o.spec.name == name).expect("declared").help(|spec| spec.help);
        let [short, long] = help("steps");
        assert!(short.starts_with("Denoising steps"), "{short}");
        assert!(short.ends_with("; Chatterbox: 10; 2 (Turbo, Nano)]"), "{short}");
        assert!(long.starts_with(&short) && long.contains("\n\nChatterbox: Steps from noise"), "{long}");
        assert_eq!(
            help("top_k")[0],
            "Codes to draw from, the likeliest ones; 0 is all (Chatterbox: Turbo, Nano) \
             [default: the model's own; Chatterbox: 1000]"
        );
        assert!(help("retries")[1].contains("\n\nQwen3-TTS: Only a piece"), "{}", help("retries")[1]);
        assert!(help("speed")[1].ends_with(" [default: the model's usual rate]"), "{}", help("speed")[1]);
    }
}
