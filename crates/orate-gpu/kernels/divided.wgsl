// sum / count, correct to one or two bits. Division on GPUs is less accurate, and an error of one bit in a
// mean shows in rows whose elements are all equal.
fn divided(sum: f32, count: u32) -> f32 {
    let n = f32(count);
    let q = sum / n;
    return fma(fma(-q, n, sum), 1.0 / n, q);
}
