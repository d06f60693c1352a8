//! Some rows of a prompt, one after the other: those in front that no text changes, and the others.

use super::prompt::Prompt;
use super::prompt_rows::PromptSizes;
use std::ops::Range;

/// Rows of a prompt as ids. Equal ones leave equal states behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PromptPart {
    /// Rows of each kind; no trailing ones.
    pub sizes: PromptSizes,
    /// A text id for each row.
    pub text_ids: Vec<i32>,
    /// Codec ids of the rows that have one.
    pub codec_ids: Vec<i32>,
    /// The x-vector's floats as bits, if its row is one of these.
    pub x_vector: Vec<u32>,
    /// Codes of the rows of a reference.
    pub reference_codes: Vec<i32>,
}

impl PromptPart {
    /// More rows behind, of these ids, until there is a multiple of `step`. Rows with a reference stay as they are.
    pub fn padded(mut self, step: usize, text_id: i32, codec_id: i32) -> PromptPart {
        let s = &mut self.sizes;
        if s.before > 0 && s.frames == 0 && !s.x_vector {
            let more = s.rows().next_multiple_of(step) - s.rows();
            s.before += more;
            self.text_ids.extend(std::iter::repeat_n(text_id, more));
            self.codec_ids.extend(std::iter::repeat_n(codec_id, more));
        }
        self
    }

    pub fn new(p: &Prompt, rows: Range<usize>) -> PromptPart {
        let s = p.sizes;
        let mut end = 0;
        // Which of so many rows, the next of the prompt, are part of it.
        let mut next = |count: usize| {
            let first = end;
            end += count;
            let from = rows.start.clamp(first, end) - first;
            from..(rows.end.clamp(first, end) - first).max(from)
        };
        let (plain, before) = (next(s.plain), next(s.before));
        let x_vector = !next(usize::from(s.x_vector)).is_empty();
        let (after, frames) = (next(s.after), next(s.frames));
        let ids = [&p.codec_ids[before.clone()], &p.codec_ids[s.before..][after.clone()]].concat();
        let codes = p.reference_codes.len() / s.frames.max(1);
        // Where no x-vector stands between them, all rows with ids are of one kind.
        let (before, after) = if x_vector { (before.len(), after.len()) } else { (ids.len(), 0) };
        PromptPart {
            sizes: PromptSizes {
                plain: plain.len(),
                before,
                x_vector,
                after,
                frames: frames.len(),
                trailing: 0,
            },
            text_ids: p.text_ids[rows.clone()].to_vec(),
            codec_ids: ids,
            x_vector: if x_vector { p.x_vector.iter().map(|x| x.to_bits()).collect() } else { vec![] },
            reference_codes: p.reference_codes[codes * frames.start..codes * frames.end].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cut, of a prompt with rows of all kinds.
    #[test]
    fn two_parts_are_the_whole() {
        let sizes = PromptSizes { plain: 4, before: 3, x_vector: true, after: 2, frames: 3, trailing: 1 };
        let p = Prompt {
            sizes,
            fixed: 0,
            text_ids: (0..13).collect(),
            codec_ids: (100..105).collect(),
            x_vector: vec![0.5, -1.0],
            reference_codes: (200..206).collect(),
            trailing_ids: vec![7],
            tokens: 1,
            warnings: vec![],
        };
        for at in 0..=13 {
            let (a, b) = (PromptPart::new(&p, 0..at), PromptPart::new(&p, at..13));
            assert_eq!((a.sizes.rows(), b.sizes.rows()), (at, 13 - at));
            assert_eq!([a.text_ids, b.text_ids].concat(), p.text_ids, "cut at {at}");
            assert_eq!([a.codec_ids, b.codec_ids].concat(), p.codec_ids, "cut at {at}");
            assert_eq!([a.reference_codes, b.reference_codes].concat(), p.reference_codes, "cut at {at}");
            assert_eq!(a.x_vector.len() + b.x_vector.len(), 2, "cut at {at}");
            assert!(!(a.sizes.x_vector && b.sizes.x_vector));
        }
    }
}
