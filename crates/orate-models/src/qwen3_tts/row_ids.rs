//! Rows of a prompt as ids: of a whole prompt, or of some of its rows.

use std::ops::Range;

/// What is added to a row's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Nothing: the row is text alone.
    Nothing,
    /// A row of the talker's table.
    Id,
    /// The x-vector, of which there is one.
    XVector,
    /// A frame of codes.
    Frame,
}

/// Rows as ids. Equal rows lead to equal states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowIds {
    /// A text id for each row.
    pub text: Vec<i32>,
    /// What is added to each.
    pub beside: Vec<RowKind>,
    /// Code 0 of each row's frame, or its only id; 0 for rows with neither.
    pub first: Vec<i32>,
    /// Codes 1 to Q − 1 of each row's frame, `[T, Q − 1]`; zeros for rows without a frame.
    pub others: Vec<i32>,
    /// Floats of the x-vector as bits, if one of the rows holds it.
    pub x_vector: Vec<u32>,
}

impl RowIds {
    /// T
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether a row has more than an id beside its text.
    pub fn have_reference(&self) -> bool {
        self.beside.iter().any(|b| matches!(b, RowKind::XVector | RowKind::Frame))
    }

    /// Adds a row with the codes `[Q]` beside its text: those of a frame, or an id and zeros.
    pub(crate) fn push(&mut self, text: i32, beside: RowKind, codes: &[i32]) {
        self.text.push(text);
        self.beside.push(beside);
        self.first.push(codes[0]);
        self.others.extend_from_slice(&codes[1..]);
    }

    /// A range of the rows.
    pub(crate) fn part(&self, rows: Range<usize>) -> RowIds {
        let others = self.others.len() / self.len().max(1);
        let beside = self.beside[rows.clone()].to_vec();
        let x_vector = if beside.contains(&RowKind::XVector) { self.x_vector.clone() } else { vec![] };
        RowIds {
            text: self.text[rows.clone()].to_vec(),
            beside,
            first: self.first[rows.clone()].to_vec(),
            others: self.others[others * rows.start..others * rows.end].to_vec(),
            x_vector,
        }
    }

    /// Pads with rows of this text alone, to `count` rows.
    pub(crate) fn padded(mut self, rows: usize, text: i32) -> RowIds {
        let others = self.others.len() / self.len().max(1);
        self.text.resize(rows, text);
        self.beside.resize(rows, RowKind::Nothing);
        self.first.resize(rows, 0);
        self.others.resize(others * rows, 0);
        self
    }

    /// 1 for each row that has this beside its text, else 0.
    pub(crate) fn have(&self, what: RowKind) -> Vec<i32> {
        self.beside.iter().map(|b| i32::from(*b == what)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cut, of rows of all kinds.
    #[test]
    fn two_parts_are_the_whole() {
        use RowKind::{Frame, Id, Nothing, XVector};
        let mut all = RowIds { x_vector: vec![7, 8], ..Default::default() };
        for (i, beside) in [Nothing, Nothing, Id, XVector, Id, Frame, Frame].into_iter().enumerate() {
            let i = i as i32;
            all.push(i, beside, &[10 * i, 10 * i + 1, 10 * i + 2]);
        }
        for at in 0..=all.len() {
            let (mut a, b) = (all.part(0..at), all.part(at..all.len()));
            assert_eq!((a.len(), b.len()), (at, 7 - at));
            assert_eq!((a.have_reference(), b.have_reference()), (at > 3, at < 7));
            assert_eq!([&a.x_vector[..], &b.x_vector].concat(), [7, 8], "once");
            a.text.extend(b.text);
            a.beside.extend(b.beside);
            a.first.extend(b.first);
            a.others.extend(b.others);
            a.x_vector.extend(b.x_vector);
            assert_eq!(a, all, "cut at {at}");
        }
    }

    #[test]
    fn padding_is_text_alone() {
        let mut rows = RowIds::default();
        rows.push(1, RowKind::Frame, &[2, 3, 4]);
        let padded = rows.clone().padded(3, 9);
        assert_eq!((padded.len(), &padded.text[..]), (3, &[1, 9, 9][..]));
        assert_eq!((padded.first.len(), padded.others.len()), (3, 6));
        assert_eq!((padded.have(RowKind::Frame), padded.have(RowKind::Id)), (vec![1, 0, 0], vec![0; 3]));
        assert_eq!(padded.part(0..1), rows);
    }
}
