// Rows of an embedding table in `matrix`, in f32. HALVES: two elements per word in bf16, or with F16 in f16.

// Negative ids count from the end; ids out of range are clamped, so that nothing is read out of bounds.
fn row_of_table(id: i32, rows: u32) -> u32 {
    let n = i32(rows);
    return u32(clamp(select(id, max(id, -n) + n, id < 0), 0, n - 1));
}

// Element `at` of the table that begins at `table`, as bits of f32.
fn bits_of_table(table: u32, at: u32) -> u32 {
//@ if HALVES
    let word = matrix[table + at / 2u];
//@ if F16
    return bitcast<u32>(unpack2x16float(word)[at & 1u]);
//@ else
    return select(word << 16u, word & 0xffff0000u, (at & 1u) != 0u);
//@ end
//@ else
    return matrix[table + at];
//@ end
}
