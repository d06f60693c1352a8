//! Merges of a tokenizer that a converter lost.
//!
//! Several converters take lines of `merges.txt` that begin with `#` for comments. In the vocabularies of
//! GPT-2 and Qwen the token of merge number r has id 256 + r, so a token of id 256 or more that no merge
//! makes has lost its own. Its halves are what the earlier merges make of its characters.

use std::collections::HashMap;

/// Longest token whose merge is looked for, in characters. Published ones have at most 256.
const LONGEST: usize = 1 << 10;

/// The merges in order, as lines of `merges.txt`, and how many were put back. `vocabulary` has the tokens
/// that are not added ones, by id.
pub fn repaired(vocabulary: &HashMap<u32, &str>, merges: &[String]) -> (Vec<String>, usize) {
    let ids: HashMap<&str, u32> = vocabulary.iter().map(|(id, token)| (*token, *id)).collect();
    let mut by_id: HashMap<u32, (String, String)> = HashMap::new();
    for merge in merges {
        if let Some((a, b)) = merge.split_once(' ')
            && let Some(id) = ids.get(&*format!("{a}{b}"))
        {
            by_id.insert(*id, (a.to_owned(), b.to_owned()));
        }
    }
    let mut missing: Vec<u32> =
        ids.values().copied().filter(|id| *id >= 256 && !by_id.contains_key(id)).collect();
    missing.sort_unstable();
    let mut back = 0;
    if !missing.is_empty() {
        let mut ranks: HashMap<(String, String), u32> =
            by_id.iter().map(|(id, pair)| (pair.clone(), *id)).collect();
        for id in missing {
            if let Some(pair) = halves(vocabulary[&id], id, &ranks) {
                ranks.insert(pair.clone(), id);
                by_id.insert(id, pair);
                back += 1;
            }
        }
    }
    let mut all: Vec<_> = by_id.into_iter().collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    (all.into_iter().map(|(_, (a, b))| format!("{a} {b}")).collect(), back)
}

/// The two parts that merges before that of token `id` make of its characters.
fn halves(token: &str, id: u32, ranks: &HashMap<(String, String), u32>) -> Option<(String, String)> {
    let mut parts: Vec<String> = token.chars().map(String::from).collect();
    if parts.len() > LONGEST {
        return None;
    }
    while parts.len() > 2 {
        let rank = |i: usize| ranks.get(&(parts[i].clone(), parts[i + 1].clone())).copied();
        let (rank, at) = (0..parts.len() - 1).filter_map(|i| Some((rank(i)?, i))).min()?;
        if rank >= id {
            return None;
        }
        let next = parts.remove(at + 1);
        parts[at].push_str(&next);
    }
    <[String; 2]>::try_from(parts).ok().map(|[a, b]| (a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_merges_come_back() {
        let official = ["a b", "# #", "ab c", "## abc", "#x y"];
        let bytes: Vec<String> =
            (0..256u32).map(|i| char::from_u32(0x100 + i).unwrap().to_string()).collect();
        let mut vocabulary: HashMap<u32, &str> = (0..).zip(bytes.iter().map(|s| &**s)).collect();
        for (id, token) in [(0, "a"), (1, "b"), (2, "c"), (3, "#")] {
            vocabulary.insert(id, token);
        }
        let tokens: Vec<String> = official.iter().map(|m| m.replace(' ', "")).collect();
        vocabulary.extend((256..).zip(tokens.iter().map(|s| &**s)));
        // Nothing makes the halves of the last one, so nothing is made up for it.
        let kept: Vec<String> =
            official.iter().filter(|m| !m.starts_with('#')).map(|m| (*m).to_owned()).collect();
        let (all, back) = repaired(&vocabulary, &kept);
        assert_eq!((all, back), (official[..4].iter().map(|m| (*m).to_owned()).collect(), 2));
        let whole: Vec<String> = official.iter().map(|m| (*m).to_owned()).collect();
        assert_eq!(repaired(&vocabulary, &whole), (whole, 0));
    }
}
