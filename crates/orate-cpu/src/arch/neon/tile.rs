//! Matmul tiles that multiply by one lane of a register: four elements of a row are loaded at once.

use super::Floats;
use std::arch::aarch64::*;
use std::arch::asm;

/// `sums[i] += Σ a[i, u] · b[u]` for u from 0 to 3, in this order. Advances `a` by four columns, `b` by four
/// rows.
///
/// # Safety
/// `a` must be valid for reading `ROWS` rows of four floats, `b` for four rows of `VECTORS` vectors. Strides
/// are in floats.
#[inline(always)]
pub(super) unsafe fn four_steps<const ROWS: usize, const VECTORS: usize>(
    (a, a_stride): (&mut *const f32, usize),
    (b, b_stride): (&mut *const f32, usize),
    sums: &mut [[Floats; VECTORS]; ROWS],
) {
    if ROWS <= 6 && VECTORS == 2 {
        let (a, b) = ((a, a_stride), (b, b_stride));
        // SAFETY: the caller guarantees it.
        return unsafe {
            if ROWS == 6 { four_steps_of_six_rows(a, b, sums) } else { four_steps_of_few_rows(a, b, sums) }
        };
    }
    // SAFETY: NEON is part of every 64-bit ARM processor; the caller vouches for the memory.
    unsafe {
        let mut four = [vdupq_n_f32(0.0); ROWS];
        for (i, four) in four.iter_mut().enumerate() {
            *four = vld1q_f32(a.add(i * a_stride));
        }
        macro_rules! steps {
            ($($u:literal)*) => {$(
                for j in 0..VECTORS {
                    let at = b.add($u * b_stride + j * 8);
                    let (low, high) = (vld1q_f32(at), vld1q_f32(at.add(4)));
                    for (sums, four) in sums.iter_mut().zip(&four) {
                        sums[j].0 = vfmaq_laneq_f32::<$u>(sums[j].0, low, *four);
                        sums[j].1 = vfmaq_laneq_f32::<$u>(sums[j].1, high, *four);
                    }
                }
            )*};
        }
        steps!(0 1 2 3);
    }
    *a = a.wrapping_add(4);
    *b = b.wrapping_add(4 * b_stride);
}

/// Instructions for six rows of a and eight columns of b, in x and y, that take one lane of a.
macro_rules! columns {
    ($op:literal $b:literal $lanes:literal $lane:literal: $($row:literal $low:literal $high:literal)*) => {
        concat!($(
            $op, " {", $low, ":v}.4s, {x:v}.", $b, ", {", $row, ":v}.", $lanes, "[", $lane, "]\n",
            $op, " {", $high, ":v}.4s, {y:v}.", $b, ", {", $row, ":v}.", $lanes, "[", $lane, "]\n",
        )*)
    };
}

/// Four steps of the largest tile: six rows of a, 16 columns of b. It needs all registers: 24 for sums, six
/// for a, two for b. Compilers load more of b at once and spill.
///
/// `load` are the instructions that load 16 bytes of each row of a to registers 24 to 29, `low` and `high`
/// those that load the halves of a row of b to x and y. `multiply` are the mnemonic and the arrangements of
/// its operands.
macro_rules! six_rows {
    (
        $sums:ident, load: $($load:literal)*, low: $low:tt, high: $high:tt,
        multiply: $op:literal $b:literal $lanes:literal, $($operands:tt)*
    ) => {
        six_rows!(@ $sums, [$($load)*], [$low $high $op $b $lanes] [0 1 2 3], $($operands)*)
    };
    (@ $sums:ident, [$($load:literal)*], $step:tt [$($lane:literal)*], $($operands:tt)*) => {
        asm!(
            $($load,)*
            $(six_rows!(@step $lane $step),)*
            inout(vreg) $sums[0][0].0, inout(vreg) $sums[0][0].1,
            inout(vreg) $sums[0][1].0, inout(vreg) $sums[0][1].1,
            inout(vreg) $sums[1][0].0, inout(vreg) $sums[1][0].1,
            inout(vreg) $sums[1][1].0, inout(vreg) $sums[1][1].1,
            inout(vreg) $sums[2][0].0, inout(vreg) $sums[2][0].1,
            inout(vreg) $sums[2][1].0, inout(vreg) $sums[2][1].1,
            inout(vreg) $sums[3][0].0, inout(vreg) $sums[3][0].1,
            inout(vreg) $sums[3][1].0, inout(vreg) $sums[3][1].1,
            inout(vreg) $sums[4][0].0, inout(vreg) $sums[4][0].1,
            inout(vreg) $sums[4][1].0, inout(vreg) $sums[4][1].1,
            inout(vreg) $sums[5][0].0, inout(vreg) $sums[5][0].1,
            inout(vreg) $sums[5][1].0, inout(vreg) $sums[5][1].1,
            out(vreg) _, out(vreg) _, out(vreg) _, out(vreg) _, out(vreg) _, out(vreg) _,
            x = out(vreg) _, y = out(vreg) _,
            $($operands)*
            options(readonly, nostack, preserves_flags)
        )
    };
    (@step $lane:literal [[$($low:tt)*] [$($high:tt)*] $op:literal $b:literal $lanes:literal]) => {
        concat!(
            $($low)*, "\n",
            columns!($op $b $lanes $lane: 24 0 1 25 4 5 26 8 9 27 12 13 28 16 17 29 20 21),
            $($high)*, "\n",
            columns!($op $b $lanes $lane: 24 2 3 25 6 7 26 10 11 27 14 15 28 18 19 29 22 23),
        )
    };
}

pub(super) use {columns, six_rows};

/// Four steps of a tile of fewer rows and 16 columns. There are registers for a whole row of b, which one
/// instruction loads, or for two. `$load` loads from row `$i` of a; row 0, whose load advances `a`, is last.
macro_rules! few_rows {
    (
        $sums:ident, $a:ident, $b:ident, $next:ident, order: $($order:ident $lane:tt $columns:tt)*,
        clobbers: [$($clobbered:tt)*], rows: $rows:tt $($operands:tt)*
    ) => {
        few_rows!(
            @asm $sums, $a, $b, $next, [$($order $lane $columns $rows)*], [$($clobbered)*], $rows
            $($operands)*
        )
    };
    (
        @asm $sums:ident, $a:ident, $b:ident, $next:ident, [$($order:ident $lane:tt $columns:tt $all:tt)*],
        [$($clobbered:tt)*],
        [$($row:ident $load:literal $i:literal $low:literal $second:literal $third:literal $high:literal;)*]
        $($operands:tt)*
    ) => {
        asm!(
            $($load,)*
            $(few_rows!(@$order $lane $columns $all),)*
            $(
                inout(vreg) $sums[$i][0].0, inout(vreg) $sums[$i][0].1,
                inout(vreg) $sums[$i][1].0, inout(vreg) $sums[$i][1].1,
            )*
            a = inout(reg) *$a, b = inout(reg) *$b, next = in(reg) $next,
            $($row = out(vreg) _,)*
            $($operands)*
            $(out($clobbered) _,)*
            options(readonly, nostack, preserves_flags)
        )
    };
    (@load $lane:tt [$w:literal $x:literal $y:literal $z:literal] $rows:tt) => {
        concat!("ld1 {{", $w, ".4s, ", $x, ".4s, ", $y, ".4s, ", $z, ".4s}}, [{b}], {next}")
    };
    (
        @multiply $lane:tt [$w:literal $x:literal $y:literal $z:literal]
        [$($row:ident $load:literal $i:literal $low:literal $second:literal $third:literal $high:literal;)*]
    ) => {
        concat!($(
            "fmla {", $low, ":v}.4s, ", $w, ".4s, {", stringify!($row), ":v}.s[", $lane, "]\n",
            "fmla {", $second, ":v}.4s, ", $x, ".4s, {", stringify!($row), ":v}.s[", $lane, "]\n",
            "fmla {", $third, ":v}.4s, ", $y, ".4s, {", stringify!($row), ":v}.s[", $lane, "]\n",
            "fmla {", $high, ":v}.4s, ", $z, ".4s, {", stringify!($row), ":v}.s[", $lane, "]\n",
        )*)
    };
}

/// [`four_steps`] of up to five rows and two vectors.
///
/// # Safety
/// As for [`four_steps`].
#[inline(always)]
unsafe fn four_steps_of_few_rows<const ROWS: usize, const VECTORS: usize>(
    (a, a_stride): (&mut *const f32, usize),
    (b, b_stride): (&mut *const f32, usize),
    sums: &mut [[Floats; VECTORS]; ROWS],
) {
    let stride = a_stride * size_of::<f32>();
    let next = b_stride * size_of::<f32>();
    macro_rules! multiply {
        ($($rows:tt)*) => {
            few_rows!(
                sums, a, b, next,
                order: load 0 ["v24" "v25" "v26" "v27"] load 1 ["v28" "v29" "v30" "v31"]
                    multiply 0 ["v24" "v25" "v26" "v27"] load 2 ["v24" "v25" "v26" "v27"]
                    multiply 1 ["v28" "v29" "v30" "v31"] load 3 ["v28" "v29" "v30" "v31"]
                    multiply 2 ["v24" "v25" "v26" "v27"] multiply 3 ["v28" "v29" "v30" "v31"],
                clobbers: ["v24" "v25" "v26" "v27" "v28" "v29" "v30" "v31"],
                rows: $($rows)*
            )
        };
    }
    // SAFETY: the caller vouches for `ROWS` rows of four floats at `a` and four rows of 16 floats at `b`.
    unsafe {
        match ROWS {
            1 => multiply!([r0 "ldr {r0:q}, [{a}], #16" 0 0 1 2 3;]),
            2 => multiply!(
                [r1 "ldr {r1:q}, [{a}, {s1}]" 1 0 1 2 3; r0 "ldr {r0:q}, [{a}], #16" 0 4 5 6 7;]
                s1 = in(reg) stride,
            ),
            3 => multiply!(
                [
                    r1 "ldr {r1:q}, [{a}, {s1}]" 1 0 1 2 3; r2 "ldr {r2:q}, [{a}, {s2}]" 2 4 5 6 7;
                    r0 "ldr {r0:q}, [{a}], #16" 0 8 9 10 11;
                ]
                s1 = in(reg) stride, s2 = in(reg) 2 * stride,
            ),
            4 => multiply!(
                [
                    r1 "ldr {r1:q}, [{a}, {s1}]" 1 0 1 2 3; r2 "ldr {r2:q}, [{a}, {s2}]" 2 4 5 6 7;
                    r3 "ldr {r3:q}, [{a}, {s3}]" 3 8 9 10 11; r0 "ldr {r0:q}, [{a}], #16" 0 12 13 14 15;
                ]
                s1 = in(reg) stride, s2 = in(reg) 2 * stride, s3 = in(reg) 3 * stride,
            ),
            5 => few_rows!(
                sums, a, b, next,
                order: load 0 ["v28" "v29" "v30" "v31"] multiply 0 ["v28" "v29" "v30" "v31"]
                    load 1 ["v28" "v29" "v30" "v31"] multiply 1 ["v28" "v29" "v30" "v31"]
                    load 2 ["v28" "v29" "v30" "v31"] multiply 2 ["v28" "v29" "v30" "v31"]
                    load 3 ["v28" "v29" "v30" "v31"] multiply 3 ["v28" "v29" "v30" "v31"],
                clobbers: ["v28" "v29" "v30" "v31"],
                rows: [
                    r1 "ldr {r1:q}, [{a}, {s1}]" 1 0 1 2 3; r2 "ldr {r2:q}, [{a}, {s2}]" 2 4 5 6 7;
                    r3 "ldr {r3:q}, [{a}, {s3}]" 3 8 9 10 11; r4 "ldr {r4:q}, [{a}, {s4}]" 4 12 13 14 15;
                    r0 "ldr {r0:q}, [{a}], #16" 0 16 17 18 19;
                ]
                s1 = in(reg) stride, s2 = in(reg) 2 * stride, s3 = in(reg) 3 * stride,
                s4 = in(reg) 4 * stride,
            ),
            _ => unreachable!("{ROWS} rows"),
        }
    }
}

/// [`four_steps`] of six rows and two vectors.
///
/// # Safety
/// As for [`four_steps`].
#[inline(always)]
unsafe fn four_steps_of_six_rows<const ROWS: usize, const VECTORS: usize>(
    (a, a_stride): (&mut *const f32, usize),
    (b, b_stride): (&mut *const f32, usize),
    sums: &mut [[Floats; VECTORS]; ROWS],
) {
    let stride = a_stride * size_of::<f32>();
    macro_rules! multiply {
        ($low:literal, $high:literal $(, $name:ident = $operand:expr)?) => {
            six_rows!(
                sums,
                load: "ldr {25:q}, [{a}, {s1}]" "ldr {26:q}, [{a}, {s2}]" "ldr {27:q}, [{a}, {s3}]"
                    "ldr {28:q}, [{a}, {s4}]" "ldr {29:q}, [{a}, {s5}]" "ldr {24:q}, [{a}], #16",
                low: [$low],
                high: [$high],
                multiply: "fmla" "4s" "s",
                a = inout(reg) *a, b = inout(reg) *b,
                s1 = in(reg) stride, s2 = in(reg) 2 * stride, s3 = in(reg) 3 * stride,
                s4 = in(reg) 4 * stride, s5 = in(reg) 5 * stride,
                $($name = in(reg) $operand,)?
            )
        };
    }
    // SAFETY: the caller vouches for six rows of four floats at `a` and four rows of 16 floats at `b`.
    unsafe {
        match b_stride {
            16 => multiply!("ldp {x:q}, {y:q}, [{b}], #32", "ldp {x:q}, {y:q}, [{b}], #32"),
            _ => multiply!(
                "ldp {x:q}, {y:q}, [{b}]",
                "ldp {x:q}, {y:q}, [{b}, #32]\nadd {b}, {b}, {next}",
                next = b_stride * size_of::<f32>()
            ),
        }
    }
}
