//! Ops that move elements: table rows, constants, concatenation, slices, permutations.

use super::{Case, unary};
use crate::interpreter::ScalarValue;
use orate_graph::{DType, Graph, Result, Shape, Weight};
use std::collections::BTreeSet;

pub(super) fn embedding(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, rows, c) in [(1, 1, 1, 1), (1, 7, 163, 64), (2, 5, 9, 17), (3, 33, 50, 8)] {
        let name = format!("Embedding [{b}, {t}] of [{rows}, {c}]");
        let mut g = Graph::new(&*name);
        let ids = g.input("ids", DType::I32, [b, t])?;
        let y = g.embedding(ids, Weight::named("table", [rows, c]))?;
        g.output("y", y)?;
        cases.push(Case::new(&*name, g.clone()));
        cases.push(Case::new(format!("{name}, last row as −1"), g).with("ids", vec![-1; b * t]));
    }
    // Tables that stay in the format of their file; rows with an odd number of 16-bit values cannot.
    for (t, rows, c) in [(1, 1, 2), (7, 163, 64), (33, 50, 18), (5, 9, 17)] {
        for table in ["table.f16", "table.bf16"] {
            let name = format!("Embedding [1, {t}] of [{rows}, {c}], {table}");
            let mut g = Graph::new(&*name);
            let ids = g.input("ids", DType::I32, [1, t])?;
            let y = g.embedding(ids, Weight::named(table, [rows, c]))?;
            g.output("y", y)?;
            cases.push(Case::new(name, g));
        }
    }
    Ok(())
}

pub(super) fn embedding_sum(cases: &mut Vec<Case>) -> Result<()> {
    // Batch, time, ids per position, first id, tables, rows, width.
    let sizes = [
        (1, 1, 1, 0, 1, 1, 1),
        (1, 5, 16, 0, 1, 128, 17),
        (1, 5, 16, 1, 15, 128, 16),
        (2, 3, 4, 1, 2, 9, 33),
    ];
    for (b, t, n, first, q, v, c) in sizes {
        let name = format!("EmbeddingSum [{b}, {t}, {n}] from {first} of [{q}, {v}, {c}]");
        let mut g = Graph::new(&*name);
        let ids = g.input("ids", DType::I32, [b, t, n])?;
        let y = g.embedding_sum(ids, Weight::named("tables", [q, v, c]), first)?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    // Codebooks of a residual quantizer: sums divided by usage counts.
    let book = |i: usize| {
        let usage = Weight::named(format!("{i}.usage"), [11, 1]).at_least(1e-5);
        Weight::named(format!("{i}.sum"), [11, 8]).mul(&usage.reciprocal())
    };
    let mut g = Graph::new("EmbeddingSum");
    let ids = g.input("ids", DType::I32, [1, 7, 3])?;
    let y = g.embedding_sum(ids, Weight::concat(&[book(0), book(1), book(2)]).reshape([3, 11, 8]), 0)?;
    g.output("y", y)?;
    cases.push(Case::new("EmbeddingSum of codebooks", g));
    Ok(())
}

pub(super) fn constant(cases: &mut Vec<Case>) -> Result<()> {
    for (shape, batch) in [(vec![1, 1, 1], 1), (vec![1, 50, 17], 1), (vec![1, 3, 33], 3), (vec![2, 5], 2)] {
        let name = format!("Constant {} × {batch}", Shape::from(shape.clone()));
        let mut g = Graph::new(&*name);
        let y = g.constant(Weight::named("w", shape.clone()), batch)?;
        g.output("y", y)?;
        let mut key = Graph::new(format!("{name}, expression"));
        let w = Weight::named("w", shape.clone()).scale(0.5).tanh();
        let y = key.constant(w, batch)?;
        key.output("y", y)?;
        cases.push(Case::new(name, g));
        // The expression is evaluated at load, by shared code.
        cases.push(Case::new(key.name().to_owned(), key));
    }
    Ok(())
}

/// Constant weights that differ only in size.
pub(super) fn constants_of_one_number(cases: &mut Vec<Case>) -> Result<()> {
    let mut g = Graph::new("Constant");
    for (i, shape) in [[1, 2, 8], [1, 6, 8], [1, 1, 3]].into_iter().enumerate() {
        let y = g.constant(Weight::fill(0.5, shape), 2)?;
        g.output(["y", "y2", "y3"][i], y)?;
    }
    cases.push(Case::new("Constant: one number in three sizes", g));
    Ok(())
}

pub(super) fn movement(cases: &mut Vec<Case>) -> Result<()> {
    for shape in [vec![2, 3, 5], vec![1, 7, 33], vec![3, 1, 16], vec![4], vec![2, 3, 4, 5]] {
        let text = Shape::from(shape.clone());
        for axis in 0..shape.len() {
            let mut longer = shape.clone();
            longer[axis] += 2;
            unary(cases, format!("Concat {text} and longer, axis {axis}"), shape.clone(), |g, x| {
                let y = g.input("y2", DType::F32, longer.clone())?;
                g.concat(&[x, y, x], axis)
            })?;
            unary(cases, format!("Concat of one, {text}, axis {axis}"), shape.clone(), |g, x| {
                g.concat(&[x], axis)
            })?;
            for (what, start, len) in [
                ("first", 0, 1),
                ("last", shape[axis] - 1, 1),
                ("all", 0, shape[axis]),
                ("rest", 1, shape[axis] - 1),
            ] {
                if len > 0 {
                    unary(cases, format!("Slice {what} of {text}, axis {axis}"), shape.clone(), |g, x| {
                        g.slice(x, axis, start, len)
                    })?;
                }
            }
        }
        for perm in permutations(shape.len()) {
            unary(cases, format!("Permute {text} by {perm:?}"), shape.clone(), |g, x| g.permute(x, &perm))?;
        }
        unary(cases, format!("Reshape {text} of an input"), shape.clone(), |g, x| {
            let n = g.shape(x).len();
            g.reshape(x, [1, n])
        })?;
        unary(cases, format!("Reshape {text} between steps"), shape.clone(), |g, x| {
            let n = g.shape(x).len();
            let y = g.permute(x, &(0..g.shape(x).rank()).rev().collect::<Vec<_>>())?;
            let y = g.reshape(y, [n])?;
            let y = g.reshape(y, [1, n])?;
            g.slice(y, 1, 0, n)
        })?;
    }
    // The vocoder's un-chunking: channel c·6 + k of frame l to channel c at time 6l + k.
    unary(cases, "Permute that un-chunks a latent".into(), [1, 4, 24], |g, x| {
        let y = g.reshape(x, [4, 4, 6])?;
        let y = g.permute(y, &[0, 2, 1])?;
        g.reshape(y, [1, 24, 4])
    })?;
    for (n, c) in [(1, 1), (5, 64), (8, 17)] {
        for row in BTreeSet::from([0, n / 2, n - 1]) {
            let mut g = Graph::new("SelectRow");
            let x = g.input("x", DType::F32, [n, c])?;
            let index = g.scalar("step");
            let y = g.select_row(x, index)?;
            g.output("y", y)?;
            let case = Case::new(format!("SelectRow {row} of [{n}, {c}]"), g);
            cases.push(case.with_scalar("step", ScalarValue::U64(row as u64)));
        }
    }
    Ok(())
}

/// All permutations of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let insert = |p: Vec<usize>| {
        (0..n).map(move |at| {
            let mut p = p.clone();
            p.insert(at, n - 1);
            p
        })
    };
    permutations(n - 1).into_iter().flat_map(insert).collect()
}
