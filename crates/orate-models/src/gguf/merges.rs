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
    let mut splits = HashMap::with_capacity(merges.len());
    let mut joined = String::new();
    for merge in merges {
        if let Some((a, b)) = merge.split_once(' ') {
            joined.clear();
            joined.extend([a, b]);
            if let Some(id) = ids.get(&*joined) {
                splits.insert(*id, a.len());
            }
        }
    }
    let mut missing: Vec<u32> =
        ids.values().copied().filter(|id| *id >= 256 && !splits.contains_key(id)).collect();
    missing.sort_unstable();
    let mut back = 0;
    for id in missing {
        if let Some(at) = split(vocabulary[&id], id, &ids, &splits) {
            splits.insert(id, at);
            back += 1;
        }
    }
    let mut all: Vec<_> = splits.into_iter().collect();
    all.sort_unstable();
    let line = |(id, at): (u32, usize)| {
        let (a, b) = vocabulary[&id].split_at(at);
        [a, " ", b].concat()
    };
    (all.into_iter().map(line).collect(), back)
}

/// Where the last of the merges before that of token `id` divides it, in bytes. `splits` has this for the
/// tokens of all known merges, `ids` the id of each token.
fn split(token: &str, id: u32, ids: &HashMap<&str, u32>, splits: &HashMap<u32, usize>) -> Option<usize> {
    let mut bounds: Vec<usize> = token.char_indices().map(|(at, _)| at).chain([token.len()]).collect();
    if bounds.len() > LONGEST + 1 {
        return None;
    }
    while bounds.len() > 3 {
        let rank = |part: &[usize]| {
            let made = *ids.get(&token[part[0]..part[2]])?;
            (*splits.get(&made)? == part[1] - part[0]).then_some(made)
        };
        let ranks = bounds.windows(3).enumerate();
        let (rank, at) = ranks.filter_map(|(i, part)| Some((rank(part)?, i))).min()?;
        if rank >= id {
            return None;
        }
        bounds.remove(at + 1);
    }
    (bounds.len() == 3).then(|| bounds[1])
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
