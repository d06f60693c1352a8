//! Names of tensors, rewritten by rules.
//!
//! A rule is an official prefix, what an engine calls it, and what becomes of the rest of a name. `{}` in the
//! prefix stands for a number; `{0}`, `{1}` in the result for the first and second of them, `{0-1}` for one
//! less, `{0/3-1}` for one less than its third, rounded down.

/// Official prefix, the engine's prefix, and pairs of what the rest begins with and becomes. Without pairs
/// the rest stays; with pairs, a rest that begins as none of them matches no rule.
pub type Rule = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The engine's name by the first rule that matches.
pub fn rename(rules: &[Rule], name: &str) -> Option<String> {
    rules.iter().find_map(|(official, port, rest)| {
        let (numbers, tail) = prefix(official, name)?;
        let tail = match rest {
            [] => tail.to_owned(),
            pairs => pairs.iter().find_map(|(from, to)| Some(format!("{to}{}", tail.strip_prefix(from)?)))?,
        };
        Some(format!("{}{tail}", fill(port, &numbers)?))
    })
}

/// The numbers in a name that begins as `pattern` says, and the rest.
fn prefix<'n>(pattern: &str, mut name: &'n str) -> Option<(Vec<usize>, &'n str)> {
    let mut numbers = vec![];
    for (i, text) in pattern.split("{}").enumerate() {
        if i > 0 {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            numbers.push(name[..digits].parse().ok()?);
            name = &name[digits..];
        }
        name = name.strip_prefix(text)?;
    }
    Some((numbers, name))
}

/// A name with its numbers in place; `None` where one would be negative.
fn fill(template: &str, numbers: &[usize]) -> Option<String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some((text, after)) = rest.split_once('{') {
        let (place, after) = after.split_once('}')?;
        let (place, less) = place.split_once('-').map_or((place, 0), |(p, n)| (p, n.parse().unwrap_or(0)));
        let (place, by) = place.split_once('/').map_or((place, 1), |(p, n)| (p, n.parse().unwrap_or(1)));
        let number = *numbers.get(place.parse::<usize>().ok()?)?;
        out.push_str(text);
        out.push_str(&number.checked_div(by)?.checked_sub(less)?.to_string());
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_rewrite_names() {
        let rules: &[Rule] = &[
            ("a.layers.{}.", "x.{0}.", &[("q_proj.", "q."), ("norm", "n")]),
            ("a.{}.block.{}.", "b.{0-1}.{1/3-1}.", &[]),
            ("a.one", "two", &[]),
        ];
        for (name, want) in [
            ("a.layers.12.q_proj.weight", Some("x.12.q.weight")),
            ("a.layers.3.norm", Some("x.3.n")),
            ("a.layers.3.other", None),
            ("a.layers..q_proj.weight", None),
            ("a.2.block.6.w", Some("b.1.1.w")),
            ("a.0.block.6.w", None),
            ("a.1.block.7.w", Some("b.0.1.w")),
            ("a.one.weight", Some("two.weight")),
            ("b", None),
            ("a.layers.99999999999999999999999.norm", None),
        ] {
            assert_eq!(rename(rules, name).as_deref(), want, "{name}");
        }
    }
}
