//! Text substitution in kernels.
//!
//! ```text
//! ${NAME}            the value of a define or loop variable
//! //@ if NAME        keeps the lines up to `//@ else` or `//@ end` if NAME is not 0
//! //@ for i NAME     repeats the lines up to `//@ end` for i = 0, 1, … NAME − 1
//! //@ include file   inserts another file of `kernels/`
//! ```
//!
//! Loops are for code that must be unrolled: values that must stay in registers cannot be elements of an
//! array with a variable index.

use std::collections::BTreeMap;

/// Names and their values.
pub(crate) type Defines = BTreeMap<&'static str, Value>;

/// Value of a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    /// A count, or a condition.
    Number(u32),
    /// A type or other text.
    Text(&'static str),
}

/// Expands all directives of a kernel.
///
/// # Errors
/// The template is invalid; the error has the directive or name, and the line.
pub(crate) fn expand(
    source: &str,
    include: &dyn Fn(&str) -> Option<&'static str>,
    defines: &Defines,
) -> Result<String, String> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in defines {
        let text = match value {
            Value::Number(n) => n.to_string(),
            Value::Text(t) => (*t).to_owned(),
        };
        names.insert((*name).to_owned(), text);
    }
    let lines: Vec<&str> = source.lines().collect();
    let mut out = String::with_capacity(source.len() * 2);
    let end = block(&lines, 0, true, include, &mut names, &mut out)?;
    if end < lines.len() {
        return Err(format!("line {}: `{}` without an `if` or `for`", end + 1, lines[end].trim()));
    }
    Ok(out)
}

/// Expands lines from `at` up to an `else` or `end` that belongs to the caller; returns the index of that
/// line.
fn block(
    lines: &[&str],
    mut at: usize,
    live: bool,
    include: &dyn Fn(&str) -> Option<&'static str>,
    names: &mut BTreeMap<String, String>,
    out: &mut String,
) -> Result<usize, String> {
    while at < lines.len() {
        let line = lines[at];
        let Some(directive) = line.trim_start().strip_prefix("//@ ") else {
            if live {
                substitute(line, names, out).map_err(|e| format!("line {}: {e}", at + 1))?;
                out.push('\n');
            }
            at += 1;
            continue;
        };
        let words: Vec<&str> = directive.split_whitespace().collect();
        match words[..] {
            ["else"] | ["end"] => return Ok(at),
            ["include", file] => {
                if live {
                    let text = include(file).ok_or_else(|| format!("line {}: no file `{file}`", at + 1))?;
                    let inner: Vec<&str> = text.lines().collect();
                    block(&inner, 0, true, include, names, out).map_err(|e| format!("{file}: {e}"))?;
                }
                at += 1;
            }
            ["if", name] => {
                let holds = live && number(name, names).map_err(|e| format!("line {}: {e}", at + 1))? != 0;
                at = block(lines, at + 1, holds, include, names, out)?;
                if lines.get(at).is_some_and(|l| l.trim() == "//@ else") {
                    at = block(lines, at + 1, live && !holds, include, names, out)?;
                }
                at = closed(lines, at)?;
            }
            ["for", variable, count] => {
                let count = match live {
                    true => number(count, names).map_err(|e| format!("line {}: {e}", at + 1))?,
                    false => 0,
                };
                let body = at + 1;
                for i in 0..count {
                    let shadowed = names.insert(variable.to_owned(), i.to_string());
                    block(lines, body, true, include, names, out)?;
                    match shadowed {
                        Some(old) => names.insert(variable.to_owned(), old),
                        None => names.remove(variable),
                    };
                }
                at = block(lines, body, false, include, names, out)?;
                at = closed(lines, at)?;
            }
            _ => return Err(format!("line {}: `{directive}` is not a directive", at + 1)),
        }
    }
    Ok(at)
}

fn closed(lines: &[&str], at: usize) -> Result<usize, String> {
    match lines.get(at).map(|l| l.trim()) {
        Some("//@ end") => Ok(at + 1),
        _ => Err("a block has no `//@ end`".to_owned()),
    }
}

fn number(name: &str, names: &BTreeMap<String, String>) -> Result<u32, String> {
    let text = names.get(name).map_or(name, String::as_str);
    text.parse().map_err(|_| format!("`{name}` is not defined as a number"))
}

fn substitute(line: &str, names: &BTreeMap<String, String>, out: &mut String) -> Result<(), String> {
    let mut rest = line;
    while let Some(start) = rest.find("${") {
        let end = rest[start..].find('}').ok_or("`${` without `}`")? + start;
        let name = &rest[start + 2..end];
        out.push_str(&rest[..start]);
        out.push_str(names.get(name).ok_or_else(|| format!("`{name}` is not defined"))?);
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &str, defines: &[(&'static str, Value)]) -> Result<String, String> {
        let include = |name: &str| (name == "other").then_some("included ${N}");
        expand(source, &include, &defines.iter().cloned().collect())
    }

    #[test]
    fn loops_conditions_and_includes() {
        let source = "//@ for i N\n//@ for j 2\na_${i}_${j}\n//@ end\n//@ end\n//@ if A\nyes ${T}\n//@ else\nno\n//@ end\n//@ include other";
        let got = run(source, &[("N", Value::Number(2)), ("A", Value::Number(0)), ("T", Value::Text("f32"))]);
        assert_eq!(got.as_deref(), Ok("a_0_0\na_0_1\na_1_0\na_1_1\nno\nincluded 2\n"));
        let got = run(source, &[("N", Value::Number(0)), ("A", Value::Number(3)), ("T", Value::Text("f32"))]);
        assert_eq!(got.as_deref(), Ok("yes f32\nincluded 0\n"));
    }

    #[test]
    fn broken_templates_are_errors() {
        for source in [
            "//@ end",
            "//@ if A",
            "//@ if B\n//@ end",
            "${B}",
            "${A",
            "//@ what",
            "//@ for i A\n//@ else\n//@ end",
            "//@ include nothing",
        ] {
            assert!(run(source, &[("A", Value::Number(1))]).is_err(), "{source}");
        }
    }
}
