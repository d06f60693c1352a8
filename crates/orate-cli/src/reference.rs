//! The command line reference `docs/cli.md` in Markdown, generated from the `--help` texts.

use clap::{Arg, ArgAction, Command, CommandFactory};
use std::fmt::Write as _;

/// Returns the page.
pub fn markdown() -> String {
    let mut cli = crate::args::Cli::command();
    cli.build();
    let mut page = "# Command line\n\n<!-- Made by `orate reference`; a test compares it. -->\n".to_owned();
    let _ = write!(page, "\n{}.\n\n", cli.get_about().map(ToString::to_string).unwrap_or_default());
    page.push_str("`orate COMMAND -h` lists the usual options of a command, `--help` all of them.\n");
    page.push_str("\n| command | |\n| --- | --- |\n");
    for command in shown(&cli) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let (name, anchor) = (command.get_name(), format!("orate-{}", command.get_name()));
        let _ = writeln!(page, "| [`{name}`](#{anchor}) | {about} |");
    }
    page.push_str(&after(&cli));
    for command in shown(&cli) {
        section(&mut page, "orate", command, 2);
    }
    page
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

/// A command with its options and subcommands.
fn section(page: &mut String, parent: &str, command: &Command, level: usize) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect();
    let usage = usage.join("\n");
    let _ = write!(page, "\n{} {name}\n\n{about}.\n\n```text\n{usage}\n```\n", "#".repeat(level));
    let mut headings: Vec<&str> = vec![];
    let all: Vec<&Arg> = command.get_arguments().filter(|a| !a.is_hide_set() && !is_help(a)).collect();
    for arg in &all {
        let heading = heading(arg);
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for title in headings {
        let _ = write!(page, "\n**{title}**\n\n");
        for arg in all.iter().filter(|arg| heading(arg) == title) {
            let _ = writeln!(page, "- {}", entry(arg));
        }
    }
    page.push_str(&after(command));
    for inner in shown(command) {
        section(page, &name, inner, level + 1);
    }
}

fn is_help(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

fn heading(arg: &Arg) -> &str {
    match arg.get_help_heading() {
        Some(heading) => heading,
        None if arg.is_positional() => "Arguments",
        None => "Options",
    }
}

/// One line about an option: flags, value, help, choices and default.
fn entry(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let values: Vec<String> = values.collect();
    let mut flags = vec![];
    flags.extend(arg.get_short().map(|c| format!("-{c}")));
    flags.extend(arg.get_long().map(|name| format!("--{name}")));
    flags.extend(arg.get_visible_aliases().unwrap_or_default().iter().map(|name| format!("--{name}")));
    let takes_value = arg.get_action().takes_values();
    let value = if takes_value { values.join(" ") } else { String::new() };
    let name = [flags.join(", "), value].join(" ");
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut text = format!("`{}`: {}", name.trim(), help.collect::<Vec<_>>().join(". "));
    let choices: Vec<String> = match takes_value {
        true => arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect(),
        false => vec![],
    };
    if !choices.is_empty() {
        let _ = write!(text, " [{}]", choices.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(text, " [default: {}]", defaults.join(" "));
    }
    text
}

/// The text after the options: examples as code, the rest as paragraphs.
fn after(command: &Command) -> String {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut page = String::new();
    for part in text.split("\n\n") {
        let (title, lines) = part.split_once('\n').unwrap_or((part, ""));
        if title.ends_with(':') && lines.starts_with("  ") {
            let lines: Vec<&str> =
                lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
            let _ = write!(page, "\n{title}\n\n```text\n{}\n```\n", lines.join("\n"));
        } else if !part.is_empty() {
            let _ = write!(page, "\n{part}\n");
        }
    }
    page
}

// The page has all commands.
#[cfg(all(test, feature = "hub"))]
mod tests {
    /// `ORATE_UPDATE_DOCS=1` rewrites the page.
    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = super::markdown();
        if std::env::var_os("ORATE_UPDATE_DOCS").is_some() {
            std::fs::write(path, &page).expect("the page is written");
        }
        let kept = std::fs::read_to_string(path).expect("docs/cli.md is committed");
        assert!(
            kept == page,
            "docs/cli.md is out of date: run `cargo run -p orate-cli -- reference > docs/cli.md`"
        );
    }
}
