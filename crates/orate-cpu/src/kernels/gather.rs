//! Row lookup in embedding tables.
//!
//! `out[i,:]` = `table[ids[i],:]`; `table` [R, C] f32, `ids` `[N]` i32, `out` [N, C]. As in ONNX `Gather`, a
//! negative id counts from the end: −1 is the last row. Ids depend on the user's text, so an id out of range
//! is an error, not a panic.

use crate::op::{Binding, Call, OpKernel, Problem};
use crate::weights::{Core, Table};
use orate_graph::{Scalar, ValueInfo, Weight};

/// An id outside of the table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "id {id} at position {position} is outside the embedding table of {rows} rows; \
     check that tokenizer and weights come from the same model"
)]
pub struct GatherError {
    /// The id.
    pub id: i32,
    /// Its index in the list of ids.
    pub position: usize,
    /// Number of rows of the table.
    pub rows: usize,
}

impl From<GatherError> for String {
    fn from(e: GatherError) -> String {
        e.to_string()
    }
}

/// Copies the row of each id.
///
/// # Errors
/// An id is R or larger, or below −R. `out` is then partly written.
///
/// # Panics
/// `table` is not whole rows of `channels`, or `out` does not have one row per id.
pub fn gather_rows(table: &[f32], channels: usize, ids: &[i32], out: &mut [f32]) -> Result<(), GatherError> {
    assert!(table.len().is_multiple_of(channels), "the table is [R, C]");
    let copy = |row: usize, out: &mut [f32]| {
        out.copy_from_slice(&table[row * channels..][..channels]);
        Ok(())
    };
    gather_rows_by(copy, (table.len() / channels, channels), ids, out)
}

/// [`gather_rows`] of a table with `rows` rows of `channels`; `read` copies a row.
///
/// # Errors
/// Those of [`gather_rows`] and of `read`.
///
/// # Panics
/// `out` does not have one row per id.
pub fn gather_rows_by<E: From<GatherError>>(
    read: impl Fn(usize, &mut [f32]) -> Result<(), E>,
    (rows, channels): (usize, usize),
    ids: &[i32],
    out: &mut [f32],
) -> Result<(), E> {
    assert_eq!(out.len(), ids.len() * channels, "a row of output per id");
    for (position, (&id, out)) in ids.iter().zip(out.chunks_exact_mut(channels)).enumerate() {
        let index = if id < 0 { id as i64 + rows as i64 } else { id as i64 };
        let row = usize::try_from(index).ok().filter(|&i| i < rows);
        let row = row.ok_or(GatherError { id, position, rows })?;
        read(row, out)?;
    }
    Ok(())
}

/// Tables `[Q, V, C]`; each position reads one row of each.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// V
    pub rows: usize,
    /// C
    pub channels: usize,
}

/// `out[i,:] = Σ_q tables[q, ids[i, first + q], :]`, summed in the order of the tables. `ids` is [N,
/// `pitch`], `out` [N, C]; ids must not be negative.
///
/// # Errors
/// An id is V or larger, or negative. `out` is then partly written.
///
/// # Panics
/// The tables are not whole, read ids past `pitch`, or `out` does not have one row per row of ids.
pub fn sum_rows(
    tables: Tables<'_>,
    ids: &[i32],
    (pitch, first): (usize, usize),
    out: &mut [f32],
) -> Result<(), GatherError> {
    let Tables { data, rows, channels } = tables;
    let table = rows * channels;
    assert!(data.len().is_multiple_of(table), "tables are [Q, V, C]");
    let count = data.len() / table;
    assert!(first + count <= pitch && ids.len() * channels == out.len() * pitch, "ids are [N, pitch]");
    for (position, (ids, out)) in ids.chunks_exact(pitch).zip(out.chunks_exact_mut(channels)).enumerate() {
        out.fill(0.0);
        for (q, (&id, table)) in ids[first..].iter().zip(data.chunks_exact(table)).enumerate() {
            let row = usize::try_from(id).ok().filter(|row| *row < rows);
            let row = row.ok_or(GatherError { id, position: position * pitch + first + q, rows })?;
            let row = &table[row * channels..][..channels];
            out.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }
    Ok(())
}

impl From<GatherError> for Problem {
    fn from(e: GatherError) -> Problem {
        Problem::Operand(e.to_string())
    }
}

pub(crate) struct Embedding<'a> {
    pub table: &'a Weight,
}

impl OpKernel for Embedding<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "gather".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (table, channels) = (step.bank.table(self.table), self.table.shape().last());
        Call::fallible(move |o| {
            let ids = o.inputs.integers(0);
            match &table {
                Table::Memory(table) => Ok(gather_rows(table, channels, ids, o.out)?),
                Table::File { source, name, rows } => {
                    let read = |row: usize, out: &mut [f32]| match source.read_row(name, row, out) {
                        Ok(_) => Ok(()),
                        Err(e) => Err(Problem::Operand(e.to_string())),
                    };
                    gather_rows_by(read, (*rows, channels), ids, o.out)
                }
            }
        })
    }
}

pub(crate) struct EmbeddingSum<'a> {
    pub tables: &'a Weight,
    pub first: usize,
}

impl OpKernel for EmbeddingSum<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "gather".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (data, rows) = (step.dense(self.tables), self.tables.shape().dims()[1]);
        let (pitch, first, channels) = (step.shape(0).last(), self.first, step.out().shape.last());
        Call::fallible(move |o| {
            let tables = Tables { data: &data, rows, channels };
            Ok(sum_rows(tables, o.inputs.integers(0), (pitch, first), o.out)?)
        })
    }
}

pub(crate) struct SelectRow {
    pub index: Scalar,
}

impl OpKernel for SelectRow {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "gather".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (index, [rows, _]) = (self.index, step.dims(0));
        Call::fallible(move |o| {
            let row = o.scalars.get(index)?;
            let from = o.inputs.floats(0).chunks_exact(o.out.len()).nth(row as usize);
            o.out.copy_from_slice(from.ok_or_else(|| Problem::Operand(format!("row {row} of {rows}")))?);
            Ok(())
        })
    }
}

pub(crate) struct RowAt;

impl OpKernel for RowAt {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "gather".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let [_, rows, c] = step.dims(0);
        Call::fallible(move |o| {
            let x = o.inputs.floats(0).chunks_exact(rows * c);
            for ((x, out), row) in x.zip(o.out.chunks_exact_mut(c)).zip(o.inputs.lens(1)?) {
                out.copy_from_slice(&x[(*row as usize).min(rows - 1) * c..][..c]);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_rows_from_both_ends() {
        let table: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let mut out = [0.0; 12];
        gather_rows(&table, 3, &[2, -1, 0, -4], &mut out).expect("ids in range");
        assert_eq!(out, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    }

    #[test]
    fn rows_of_several_tables_are_summed() {
        let data: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let tables = Tables { data: &data, rows: 3, channels: 2 };
        let mut out = [0.0; 4];
        sum_rows(tables, &[9, 0, 2, 9, 1, 1], (3, 1), &mut out).expect("ids in range");
        assert_eq!(out, [10.0, 12.0, 10.0, 12.0]);
        for (id, position) in [(3, 4), (-1, 4)] {
            let error = sum_rows(tables, &[9, 0, 2, 9, id, 1], (3, 1), &mut out).expect_err("out of range");
            assert_eq!(error, GatherError { id, position, rows: 3 });
        }
    }

    #[test]
    fn an_id_out_of_range_is_named() {
        for id in [4, -5, i32::MAX, i32::MIN] {
            let error = gather_rows(&[0.0; 12], 3, &[0, id], &mut [0.0; 6]).expect_err("out of range");
            assert_eq!(error, GatherError { id, position: 1, rows: 4 });
        }
        let text = gather_rows(&[0.0; 2], 1, &[7], &mut [0.0]).expect_err("out of range").to_string();
        assert!(text.contains("id 7 at position 0") && text.contains("2 rows"), "{text}");
    }
}
