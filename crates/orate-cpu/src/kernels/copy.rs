//! Moving blocks along an axis, and scaling channels: slices, concatenation, batch norm.
//!
//! All operands are contiguous f32. An array is seen as `[outer, axis, inner]`.

/// Product of the extents in front of and behind `axis`.
fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// `out[:, at .. at + n, :] = x`, where `n` is the extent of `x` along `axis`.
pub fn place(x: &[f32], shape: &[usize], axis: usize, at: usize, out_shape: &[usize], out: &mut [f32]) {
    let (outer, inner) = around(shape, axis);
    let (n, total) = (shape[axis] * inner, out_shape[axis] * inner);
    for o in 0..outer {
        out[o * total + at * inner..][..n].copy_from_slice(&x[o * n..][..n]);
    }
}

/// `out = x[:, start .. start + n, :]`, where `n` is the extent of `out` along `axis`.
pub fn take(x: &[f32], shape: &[usize], axis: usize, start: usize, out_shape: &[usize], out: &mut [f32]) {
    let (outer, inner) = around(shape, axis);
    let (n, total) = (out_shape[axis] * inner, shape[axis] * inner);
    for o in 0..outer {
        out[o * n..][..n].copy_from_slice(&x[o * total + start * inner..][..n]);
    }
}

/// `state[b, first[b] .. first[b] + T, :] = rows[b, :, :]`; `state` is [B, N, C], `rows` [B, T, C], and rows fit.
pub fn write_rows(
    state: &mut [f32],
    rows: &[f32],
    first: impl Iterator<Item = usize>,
    (n, t): (usize, usize),
    c: usize,
) {
    if t * c == 0 {
        return;
    }
    for ((state, rows), first) in state.chunks_exact_mut(n * c).zip(rows.chunks_exact(t * c)).zip(first) {
        state[first * c..][..t * c].copy_from_slice(rows);
    }
}

/// `out[r, c] = x[r, c] · scale[c] + shift[c]`
pub fn affine(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(scale.len()).zip(out.chunks_exact_mut(scale.len())) {
        for (c, o) in out.iter_mut().enumerate() {
            *o = x[c] * scale[c] + shift[c];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_concatenation_are_inverse() {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        for (axis, n) in [(0, 2), (1, 3), (2, 4)] {
            let shape = [2, 3, 4];
            let mut joined = vec![0.0; 24];
            for at in 0..n {
                let mut part_shape = shape;
                part_shape[axis] = 1;
                let mut part = vec![0.0; 24 / n];
                take(&x, &shape, axis, at, &part_shape, &mut part);
                place(&part, &part_shape, axis, at, &shape, &mut joined);
            }
            assert_eq!(joined, x, "axis {axis}");
        }
    }

    #[test]
    fn rows_are_written_where_each_batch_row_says() {
        let mut state = [0.0; 12];
        write_rows(&mut state, &[1.0, 2.0, 3.0, 4.0], [2, 0].into_iter(), (3, 1), 2);
        assert_eq!(state, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn affine_scales_channels() {
        let mut out = [0.0; 4];
        affine(&[1.0, 2.0, 3.0, 4.0], &[10.0, 100.0], &[0.5, 0.25], &mut out);
        assert_eq!(out, [10.5, 200.25, 30.5, 400.25]);
    }
}
