//! Comparison with the formula in double precision.

use super::*;
use crate::kernels::elementwise::testing::*;

/// Scores reach about 5 and sum up to 128 terms: they are off by a few 1e-6, and so are, relatively, their
/// exponentials.
const ERROR: f64 = 1e-5;

struct Case {
    batch: usize,
    kv_batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    dim: usize,
}

fn plain(a: &Attention<'_>, q: Sequence<'_>, k: Sequence<'_>, v: Sequence<'_>) -> Vec<f64> {
    let (dim, width) = (a.head_dim, a.heads * a.head_dim);
    let mut out = vec![0.0; q.batch * q.steps * width];
    for (b, i, h) in
        (0..q.batch).flat_map(|b| (0..q.steps).flat_map(move |i| (0..a.heads).map(move |h| (b, i, h))))
    {
        let kb = if k.batch == 1 { 0 } else { b };
        let len = a.kv_lens.map_or(k.steps, |l| l[b] as usize);
        let p = (a.first_query + i) as isize;
        let at = |x: Sequence<'_>, b: usize, t: usize, d: usize| {
            x.data[(b * x.steps + t) * x.stride + h * dim + d] as f64
        };
        let offset = |j: usize| {
            let w = a.relative?.window as isize;
            let o = j as isize - p;
            (o.abs() <= w).then(|| (o + w) as usize * dim)
        };
        let seen: Vec<usize> = (0..len)
            .filter(|&j| match a.mask {
                Mask::None => true,
                Mask::Causal => j as isize <= p,
                Mask::Window { left } => (p - left as isize..=p).contains(&(j as isize)),
            })
            .collect();
        let scores: Vec<f64> = seen
            .iter()
            .map(|&j| {
                let s = (0..dim).map(|d| {
                    let r = offset(j).map_or(0.0, |o| a.relative.expect("offset").keys[o + d] as f64);
                    at(q, b, i, d) * (at(k, kb, j, d) + r)
                });
                s.sum::<f64>() * a.scale as f64
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        for (&j, s) in seen.iter().zip(&scores) {
            for d in 0..dim {
                let r = offset(j).map_or(0.0, |o| a.relative.expect("offset").values[o + d] as f64);
                out[(b * q.steps + i) * width + h * dim + d] += (s - max).exp() / sum * (at(v, kb, j, d) + r);
            }
        }
    }
    out
}

/// Runs one case with every mask, lengths, relative positions and row strides.
fn check(case: Case) {
    let Case { batch, kv_batch, queries, keys, heads, dim } = case;
    let width = heads * dim;
    let gap = 5;
    let mut q = noise(batch * queries * (width + gap), 1);
    q.iter_mut().for_each(|x| *x *= 3.0);
    let mut kv = noise(kv_batch * keys * 2 * width, 2);
    let tables = (noise(9 * dim, 4), noise(9 * dim, 5));
    let lens: Vec<u32> = (0..batch).map(|b| (keys * b / batch.max(2)) as u32).collect();
    let (masks, offset) = (
        [Mask::None, Mask::Causal, Mask::Window { left: 3 }, Mask::Window { left: 40 }],
        keys.saturating_sub(queries),
    );
    for (mask, relative, lens) in masks.into_iter().flat_map(|m| {
        let relative = Relative { window: 4, keys: &tables.0, values: &tables.1 };
        let lens = &lens[..];
        [(m, None, None), (m, Some(relative), None), (m, None, Some(lens)), (m, Some(relative), Some(lens))]
    }) {
        if kv_batch == batch && lens.is_some() {
            // Stale bytes past the length must not matter.
            for (b, &len) in lens.into_iter().flatten().enumerate() {
                kv[(b * keys + len as usize) * 2 * width..(b + 1) * keys * 2 * width].fill(f32::NAN);
            }
        } else {
            kv.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.5);
        }
        let attention = Attention {
            heads,
            kv_heads: heads,
            head_dim: dim,
            scale: 1.0 / (dim as f32).sqrt(),
            mask,
            first_query: if mask == Mask::None { 0 } else { offset },
            first_queries: None,
            passed: None,
            kv_lens: lens,
            relative,
            bias: None,
        };
        let q = Sequence { data: &q, batch, steps: queries, stride: width + gap };
        let k = Sequence { data: &kv, batch: kv_batch, steps: keys, stride: 2 * width };
        let v = Sequence { data: kv.get(width..).unwrap_or(&[]), ..k };
        let want = plain(&attention, q, k, v);
        everywhere(
            |isa, team| {
                let mut out = vec![9.0; batch * queries * width];
                let mut scratch = vec![f32::NAN; attention.scratch_len(team.threads(), kv_batch, keys)];
                attention.run((isa, team), q, (k, v), &mut out, &mut scratch);
                out
            },
            |isa, got| {
                let what =
                    format!("{isa} {batch}/{kv_batch} {queries}x{keys} {heads}x{dim} {mask:?} {lens:?}");
                assert_close(got, &want, ERROR, &what);
            },
        );
    }
}

#[test]
fn matches_the_formula_on_real_shapes() {
    check(Case { batch: 2, kv_batch: 2, queries: 72, keys: 80, heads: 8, dim: 64 });
    check(Case { batch: 2, kv_batch: 1, queries: 72, keys: 50, heads: 2, dim: 128 });
    check(Case { batch: 1, kv_batch: 1, queries: 81, keys: 81, heads: 2, dim: 32 });
    check(Case { batch: 1, kv_batch: 1, queries: 80, keys: 80, heads: 4, dim: 64 });
}

#[test]
fn matches_the_formula_at_edges() {
    for (queries, keys) in [(1, 1), (1, 33), (3, 3), (5, 7), (25, 31), (24, 32), (9, 65), (4, 0), (1, 200)] {
        for dim in [16, 20, 33, 96] {
            check(Case { batch: 2, kv_batch: 2, queries, keys, heads: 2, dim });
        }
    }
}

#[test]
fn matches_the_formula_for_one_query() {
    for (keys, heads, dim) in
        [(64, 16, 64), (95, 3, 16), (300, 5, 80), (700, 16, 64), (1001, 2, 128), (65, 1, 512)]
    {
        check(Case { batch: 2, kv_batch: 2, queries: 1, keys, heads, dim });
    }
}

/// One query over a cache of any type has the bits of the kernel for blocks of queries, which a bias of zeros
/// asks for.
#[test]
fn one_query_has_the_bits_of_a_block() {
    let (batch, keys, heads, dim) = (2, 600, 5, 64);
    let width = heads * dim;
    let [q, k, v] = [(1, 1), (2, keys), (3, keys)].map(|(seed, t)| noise(batch * t * width, seed));
    let zeros = vec![0.0; batch * heads * keys];
    for (dtype, first) in [DType::F32, DType::F16, DType::BF16, DType::Q8_0]
        .into_iter()
        .flat_map(|dtype| [0, 62, 255, 256, 511, 599].map(|first| (dtype, first)))
    {
        let kept = |rows: &[f32]| -> Vec<u8> {
            if dtype == DType::F32 {
                return rows.iter().flat_map(|x| x.to_ne_bytes()).collect();
            }
            let mut bytes = vec![0; batch * keys * dtype.row_bytes(width)];
            crate::kernels::cache_rows::write_rows(
                (dtype, &mut bytes),
                rows,
                [0; 2].into_iter(),
                (keys, keys),
                width,
            );
            bytes
        };
        let (k, v) = (kept(&k), kept(&v));
        let firsts = [first, 599 - first];
        let attention = Attention {
            heads,
            kv_heads: heads,
            head_dim: dim,
            scale: 0.3,
            mask: Mask::Causal,
            first_query: 0,
            first_queries: Some(&firsts),
            passed: None,
            kv_lens: None,
            relative: None,
            bias: None,
        };
        assert!(attention.is_one(1, keys), "the kernel for one query");
        for isa in Isa::available() {
            let results = [None, Some(&zeros[..])].map(|bias| {
                let attention = Attention { bias, ..attention };
                [1, 3].map(|threads| {
                    let team = Team::new(threads).expect("threads start");
                    let mut out = vec![9.0; batch * width];
                    let mut scratch = vec![f32::NAN; attention.scratch_len(threads, batch, keys)];
                    let q = Sequence { data: &q, batch, steps: 1, stride: width };
                    let cached = |bytes| Cached { bytes, batch, steps: keys };
                    let kept = (cached(&k[..]), cached(&v[..]));
                    attention.run_cached((isa, &team), q, dtype, kept, &mut out, &mut scratch);
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                })
            });
            let [[one, one_of_three], [block, _]] = results;
            assert!(one == block, "{isa}, {dtype}, query at {first}");
            assert!(one == one_of_three, "{isa}, {dtype}, three threads");
        }
    }
}

#[test]
fn matches_the_formula_when_long() {
    check(Case { batch: 1, kv_batch: 1, queries: 300, keys: 1000, heads: 1, dim: 128 });
    check(Case { batch: 1, kv_batch: 1, queries: 20, keys: 4096, heads: 1, dim: 64 });
}

/// Results with a window are the same to the last bit however queries are split into pieces: after other
/// keys, or with only the last keys of the stream. The window is longer than a run of summation.
#[test]
fn pieces_of_a_window_are_the_whole_byte_for_byte() {
    let (steps, left, heads, dim) = (620, 300_usize, 2, 24);
    let width = heads * dim;
    let [q, k, v] = [1, 2, 3].map(|seed| noise(steps * width, seed));
    let run = |(isa, team): (Isa, &Team), from: usize, until: usize, passed: Option<u32>| {
        // Before the start of the stream, the memory of keys may hold anything.
        let behind = |x: &[f32]| match passed {
            Some(_) => {
                let missing = left.saturating_sub(from) * width;
                [&vec![7.0; missing][..], &x[from.saturating_sub(left) * width..until * width]].concat()
            }
            None => x[..until * width].to_vec(),
        };
        let (k, v) = (behind(&k), behind(&v));
        let keys = k.len() / width;
        let attention = Attention {
            heads,
            kv_heads: heads,
            head_dim: dim,
            scale: 0.7,
            mask: Mask::Window { left },
            first_query: keys - (until - from),
            first_queries: None,
            passed: passed.as_ref().map(std::slice::from_ref),
            kv_lens: None,
            relative: None,
            bias: None,
        };
        let sequence = |data| Sequence { data, batch: 1, steps: keys, stride: width };
        let q =
            Sequence { data: &q[from * width..until * width], batch: 1, steps: until - from, stride: width };
        let mut out = vec![9.0; (until - from) * width];
        let mut scratch = vec![f32::NAN; attention.scratch_len(team.threads(), 1, keys)];
        attention.run((isa, team), q, (sequence(&k), sequence(&v)), &mut out, &mut scratch);
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let team = Team::new(2).expect("threads start");
    for isa in Isa::available() {
        let whole = run((isa, &team), 0, steps, None);
        for stream in [false, true] {
            let mut from = 0;
            for size in [1, 2, 3, 25, 1, 4, 60, 7, 24].into_iter().cycle() {
                let until = steps.min(from + size);
                let piece = run((isa, &team), from, until, stream.then_some(from as u32));
                assert!(
                    piece == whole[from * width..until * width],
                    "{isa}, rows {from} to {until}, stream {stream}"
                );
                from = until;
                if from == steps {
                    break;
                }
            }
        }
    }
}

/// Operands are rounded here as the kernel says, so what is left are the rounding of the numerators, half a
/// unit of 2⁻⁸ of each, and the exponential's and the sums' errors, which are far smaller.
#[test]
#[cfg(target_arch = "x86_64")]
fn bf16_matches_the_formula_with_rounded_operands() {
    let round = |x: f32| half::bf16::from_f32(x).to_f32();
    for (batch, kv_batch, queries, keys, heads, kv_heads, dim) in [
        (2, 2, 300, 300, 8, 8, 64),
        (1, 1, 503, 503, 8, 8, 64),
        (2, 1, 72, 50, 2, 2, 128),
        (1, 1, 4, 1, 1, 1, 32),
        (1, 1, 5, 2, 2, 1, 32),
        (1, 1, 25, 31, 2, 2, 96),
        (1, 1, 24, 32, 4, 2, 64),
        (1, 1, 48, 33, 2, 2, 64),
        (1, 1, 11, 65, 2, 2, 64),
        (1, 1, 36, 1500, 1, 1, 64),
    ] {
        let (width, kv_width, gap) = (heads * dim, kv_heads * dim, 5);
        let mut q = noise(batch * queries * (width + gap), 1);
        q.iter_mut().for_each(|x| *x *= 6.0);
        // Between the rows is what must not be read.
        let mut kv = noise(kv_batch * keys * (2 * kv_width + gap), 2);
        kv.chunks_mut(2 * kv_width + gap).for_each(|row| row[2 * kv_width..].fill(f32::NAN));
        let attention = Attention {
            heads,
            kv_heads,
            head_dim: dim,
            scale: 1.0 / (dim as f32).sqrt(),
            mask: Mask::None,
            first_query: 0,
            first_queries: None,
            passed: None,
            kv_lens: None,
            relative: None,
            bias: None,
        };
        assert!(attention.fits_bf16(queries), "{queries} queries of {dim} channels");
        let q = Sequence { data: &q, batch, steps: queries, stride: width + gap };
        let k = Sequence { data: &kv, batch: kv_batch, steps: keys, stride: 2 * kv_width + gap };
        let v = Sequence { data: &kv[kv_width..], ..k };

        let factor = attention.scale * std::f32::consts::LOG2_E;
        let rounded_q: Vec<f32> = q.data.iter().map(|x| round(x * factor)).collect();
        let rounded_kv: Vec<f32> = kv.iter().map(|&x| round(x)).collect();
        // One head of keys for each head of queries, as the formula has it.
        let spread = |from: usize| -> Vec<f32> {
            let rows = rounded_kv.chunks(2 * kv_width + gap);
            let channel = |c: usize| c / dim / (heads / kv_heads) * dim + c % dim;
            rows.flat_map(|row| (0..width).map(move |c| row[from + channel(c)])).collect()
        };
        let (rounded_k, rounded_v) = (spread(0), spread(kv_width));
        let each = |data| Sequence { data, batch: kv_batch, steps: keys, stride: width };
        let exact = Attention { kv_heads: heads, scale: std::f32::consts::LN_2, ..attention };
        let rounded_q = Sequence { data: &rounded_q, ..q };
        let want = plain(&exact, rounded_q, each(&rounded_k), each(&rounded_v));
        for isa in Isa::available().into_iter().filter(|isa| isa.has_bf16()) {
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 2, 3] {
                let team = Team::new(threads).expect("threads start");
                let mut out = vec![9.0; batch * queries * width];
                let mut scratch = vec![f32::NAN; attention.scratch_len_bf16(threads, kv_batch, keys)];
                attention.run_bf16((isa, &team), q, (k, v), &mut out, &mut scratch);
                assert_close(&out, &want, 2.0e-3, &format!("{isa} {queries}x{keys} {heads}x{dim}"));
                assert!(first.get_or_insert_with(|| out.clone()) == &out, "{threads} threads");
            }
        }
    }
}

/// A score that is NaN shows in the row of its query, and only there.
#[test]
#[cfg(target_arch = "x86_64")]
fn bf16_propagates_nan() {
    let (queries, dim) = (30, 64);
    let mut q = noise(queries * dim, 1);
    q[7 * dim + 3] = f32::NAN;
    let k = noise(queries * dim, 2);
    let attention = Attention {
        heads: 1,
        kv_heads: 1,
        head_dim: dim,
        scale: 0.1,
        mask: Mask::None,
        first_query: 0,
        first_queries: None,
        passed: None,
        kv_lens: None,
        relative: None,
        bias: None,
    };
    let team = Team::new(1).expect("a thread");
    let sequence = |data| Sequence { data, batch: 1, steps: queries, stride: dim };
    for isa in Isa::available().into_iter().filter(|isa| isa.has_bf16()) {
        let mut out = vec![9.0; queries * dim];
        let mut scratch = vec![0.0; attention.scratch_len_bf16(1, 1, queries)];
        attention.run_bf16((isa, &team), sequence(&q), (sequence(&k), sequence(&k)), &mut out, &mut scratch);
        for (i, row) in out.chunks(dim).enumerate() {
            assert!(row.iter().all(|x| x.is_nan() == (i == 7)), "row {i}");
        }
    }
}

#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench() {
    let team = Team::new(1).expect("a thread");
    for isa in Isa::available() {
        for (queries, keys, heads, dim) in [
            (72, 80, 8, 64),
            (72, 50, 2, 128),
            (81, 81, 2, 32),
            (80, 80, 4, 64),
            (1000, 1000, 2, 64),
            (502, 502, 8, 64),
            (702, 702, 8, 64),
            (1, 1000, 8, 64),
        ] {
            let width = heads * dim;
            let (q, k) = (noise(queries * width, 1), noise(keys * width, 2));
            let attention = Attention {
                heads,
                kv_heads: heads,
                head_dim: dim,
                scale: 0.1,
                mask: Mask::None,
                first_query: 0,
                first_queries: None,
                passed: None,
                kv_lens: None,
                relative: None,
                bias: None,
            };
            let mut out = q.clone();
            let mut scratch = vec![0.0; attention.scratch_len(1, 1, keys)];
            let q = Sequence { data: &q, batch: 1, steps: queries, stride: width };
            let k = Sequence { data: &k, batch: 1, steps: keys, stride: width };
            let t = best_of(100, || {
                attention.run((isa, &team), q, (k, k), std::hint::black_box(&mut out), &mut scratch);
            });
            let flops = 4.0 * (queries * keys * width) as f64;
            let print = |what: &str, t: f64| {
                let rate = flops / t / 1e9;
                println!("{isa}{what} {queries}x{keys} {heads}x{dim}: {:.1} µs, {rate:.1} GFLOP/s", t * 1e6);
            };
            print("", t);
            #[cfg(target_arch = "x86_64")]
            if isa.has_bf16() && attention.fits_bf16(queries) {
                let mut scratch = vec![0.0; attention.scratch_len_bf16(1, 1, keys)];
                let t = best_of(100, || {
                    attention.run_bf16((isa, &team), q, (k, k), std::hint::black_box(&mut out), &mut scratch);
                });
                print(" bf16", t);
            }
        }
    }
}
