//! Rows of a prompt as ids: of a whole prompt, or of some of its rows.

use std::ops::Range;

/// What is added to a row's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Nothing: the row is text alone.
    Nothing,
    /// A row of the talker's table.
    Id(i32),
    /// The x-vector, of which there is one.
    XVector,
    /// A frame of codes, `[Q]`.
    Frame(Vec<i32>),
}

/// Rows as ids. Equal rows lead to equal states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowIds {
    /// A text id for each row, and what is added to it.
    pub rows: Vec<(i32, RowKind)>,
    /// Floats of the x-vector as bits, if one of the rows holds it.
    pub x_vector: Vec<u32>,
}

impl RowIds {
    /// T
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a row of a range has more than an id beside its text.
    pub fn have_reference(&self, rows: Range<usize>) -> bool {
        self.rows[rows].iter().any(|(_, beside)| matches!(beside, RowKind::XVector | RowKind::Frame(_)))
    }

    pub(crate) fn part(&self, rows: Range<usize>) -> RowIds {
        let rows = self.rows[rows].to_vec();
        let has_x_vector = rows.iter().any(|(_, beside)| *beside == RowKind::XVector);
        RowIds { rows, x_vector: if has_x_vector { self.x_vector.clone() } else { vec![] } }
    }

    /// Pads with rows of this text alone, to `count` rows.
    pub(crate) fn padded(mut self, count: usize, text: i32) -> RowIds {
        self.rows.resize(count, (text, RowKind::Nothing));
        self
    }

    /// A number for what each row has beside its text.
    pub(crate) fn column(&self, number: impl Fn(&RowKind) -> i32) -> Vec<i32> {
        self.rows.iter().map(|(_, beside)| number(beside)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cut, of rows of all kinds.
    #[test]
    fn two_parts_are_the_whole() {
        use RowKind::{Frame, Id, Nothing, XVector};
        let kinds =
            [Nothing, Nothing, Id(2), XVector, Id(4), Frame(vec![50, 51, 52]), Frame(vec![60, 61, 62])];
        let all = RowIds { rows: (0..).zip(kinds).collect(), x_vector: vec![7, 8] };
        for at in 0..=all.len() {
            let (a, b) = (all.part(0..at), all.part(at..all.len()));
            assert_eq!((a.len(), b.len()), (at, 7 - at));
            assert_eq!((a.have_reference(0..at), b.have_reference(0..7 - at)), (at > 3, at < 7));
            assert_eq!([&a.x_vector[..], &b.x_vector].concat(), [7, 8], "once");
            assert_eq!([a.rows, b.rows].concat(), all.rows, "cut at {at}");
        }
    }

    #[test]
    fn padding_is_text_alone() {
        let rows = RowIds { rows: vec![(1, RowKind::Frame(vec![2, 3, 4]))], x_vector: vec![] };
        let padded = rows.clone().padded(3, 9);
        assert_eq!(padded.rows[1..], [(9, RowKind::Nothing), (9, RowKind::Nothing)]);
        assert_eq!(padded.part(0..1), rows);
    }
}
