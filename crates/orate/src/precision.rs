//! The format of weights: as the caller names it, or found by trying what the device has.

use crate::{DeviceChoice, EngineOptions, Error, PrecisionChoice, Result, devices};
use orate_graph::{
    DType, Device, DeviceError, DeviceKind, Graph, GraphError, Plan, Precision, PrecisionPolicy, Tensor,
    Weight, WeightLoader,
};
use orate_models::{Facts, MatmulSize, ModelFiles};
use orate_weights::WeightSource;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Largest error of a matmul in a format that is chosen: root mean square of the difference over that of the
/// result.
///
/// Rounding to the 11 bits of `f16` and `tf32` gives 2e-4 to 3e-4, and models of all families then have an
/// SNR above 50 dB. The 8 bits of `bf16` give 2e-3, except for checkpoints that are stored in `bf16`.
pub const MOST_PROBED_ERROR: f64 = 1e-3;

/// Least speedup of a less exact format: less is not worth it, and could be chance.
const LEAST_GAIN: f64 = 1.15;

/// Runs of a probe, of which the fastest counts.
const RUNS: usize = 5;

/// A matmul like those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub rows: usize,
    /// Inner and outer width.
    pub width: usize,
    /// Format of most of the model's weights in the file: f16, bf16, or f32 for everything else.
    pub stored: Precision,
}

/// The policy that was asked for, or the patterns of one that probes complete.
///
/// Where it names no weights, formats of blocks and what probes choose apply to those in
/// `Facts::precision_scope` only, and GPUs compute those in `Facts::half_scope` in `f16`.
///
/// # Errors
/// A pattern matches no weight of the model.
pub(crate) fn policy(files: &dyn ModelFiles, choice: &PrecisionChoice) -> Result<PrecisionPolicy> {
    let (mut policy, is_scoped) = match choice.clone() {
        PrecisionChoice::Stored { allow, deny } => {
            let (precision, stored) = stored_blocks(files).unwrap_or_default();
            let policy = PrecisionPolicy { precision, stored, allow, deny, ..Default::default() };
            (policy, precision != Precision::F32)
        }
        PrecisionChoice::Exactly(policy) => {
            let is_block = !Precision::FLOATS.contains(&policy.precision);
            (policy, is_block)
        }
        PrecisionChoice::Auto { allow, deny } => {
            (PrecisionPolicy { allow, deny, ..Default::default() }, true)
        }
    };
    let names = files.weights().names();
    let in_vain = |p: &&String| !names.iter().any(|name| orate_graph::name_matches(p, name));
    for (option, patterns) in [("precision_allow", &policy.allow), ("precision_deny", &policy.deny)] {
        if let Some(pattern) = patterns.iter().find(in_vain) {
            let (got, allowed) =
                (format!("`{pattern}`"), "no weight of this model has such a name".to_owned());
            return Err(Error::Option { option, got, allowed });
        }
    }
    if is_scoped && policy.allow.is_empty() {
        let patterns = |scope: &[&str]| scope.iter().map(|p| (*p).to_owned()).collect();
        (policy.allow, policy.half) =
            (patterns(files.facts().precision_scope), patterns(files.facts().half_scope));
    }
    Ok(policy)
}

/// Whether a name is that of a table of embeddings. `time_embed_mixer` of Chatterbox is a matrix.
fn is_table(name: &str) -> bool {
    name.contains("emb") && !name.contains("embed_mixer")
}

/// The formats of a model's matrices that are stored in blocks, and the one of most of them, if most of its
/// matrices are and its family computes in blocks. What devices have no kernels for becomes `q8_0`.
fn stored_blocks(files: &dyn ModelFiles) -> Option<(Precision, BTreeMap<String, Precision>)> {
    let (weights, scope) = (files.weights(), files.facts().precision_scope);
    let (mut all, mut by_format, mut stored) = (0, BTreeMap::new(), BTreeMap::new());
    // Tables of embeddings are looked up and not multiplied.
    let counts = |name: &&str| {
        !is_table(name) && (scope.is_empty() || scope.iter().any(|p| orate_graph::name_matches(p, name)))
    };
    if !files.computes_in_blocks() {
        return None;
    }
    for name in weights.names().into_iter().filter(counts) {
        let Some(info) = weights.info(name).filter(|info| info.shape.len() > 1) else { continue };
        all += info.len();
        let format = orate_models::format_of(info.dtype).unwrap_or(Precision::Q8_0);
        if info.dtype.is_quantized() {
            *by_format.entry(format).or_insert(0) += info.len();
        }
        stored.insert(name.to_owned(), format);
    }
    let blocks: usize = by_format.values().sum();
    let (most, _) = by_format.into_iter().max_by_key(|(_, len)| *len)?;
    stored.retain(|_, format| *format != most);
    (2 * blocks > all).then_some((most, stored))
}

/// The matmul to try formats with.
pub(crate) fn matmul_of(files: &dyn ModelFiles) -> Product {
    let Facts { typical_matmul: MatmulSize { rows, width }, precision_scope, .. } = files.facts();
    Product { rows, width, stored: stored(&**files.weights(), precision_scope) }
}

/// Format of most numbers in the tensors whose names match one of the patterns, or in all of them.
fn stored(weights: &dyn WeightSource, patterns: &[&str]) -> Precision {
    let (mut all, mut f16, mut bf16) = (0, 0, 0);
    let counts =
        |name: &&str| patterns.is_empty() || patterns.iter().any(|p| orate_graph::name_matches(p, name));
    let names = weights.names().into_iter().filter(counts);
    for info in names.filter_map(|name| weights.info(name)) {
        let count = info.shape.iter().product::<usize>();
        all += count;
        match info.dtype {
            orate_weights::DType::F16 => f16 += count,
            orate_weights::DType::BF16 => bf16 += count,
            _ => {}
        }
    }
    match () {
        () if 2 * bf16 > all => Precision::Bf16,
        () if 2 * f16 > all => Precision::F16,
        () => Precision::F32,
    }
}

/// A format that was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// The format.
    pub precision: Precision,
    /// Time of the matmul, in microseconds.
    pub microseconds: f64,
    /// Its error, compared with `f32`; see [`MOST_PROBED_ERROR`].
    pub error: f64,
}

/// What a precision was chosen by; see [`PrecisionChoice::Auto`].
#[derive(Clone, Debug, PartialEq)]
pub struct Probes {
    /// Sizes of the matmul, such as `1 x 2048 x 2048`.
    pub product: String,
    /// Formats that the device has, `f32` first.
    pub measured: Vec<Probe>,
    /// Formats that the device refused, and why.
    pub refused: Vec<(Precision, String)>,
    /// The format that was chosen.
    pub chosen: Precision,
}

impl Probes {
    /// Whether the device has a format, and its matmuls are within [`MOST_PROBED_ERROR`].
    fn is_exact_enough(&self, precision: Precision) -> bool {
        self.measured.iter().any(|p| p.precision == precision && p.error <= MOST_PROBED_ERROR)
    }
}

impl fmt::Display for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by probes of {}", self.chosen, self.product)?;
        for (i, p) in self.measured.iter().enumerate() {
            write!(f, "{} {} {:.1} µs", if i == 0 { ":" } else { "," }, p.precision, p.microseconds)?;
            if p.precision != Precision::F32 {
                write!(f, " error {:.0e}", p.error)?;
            }
        }
        write!(f, "; at most {MOST_PROBED_ERROR:.0e} and {LEAST_GAIN} times as fast")
    }
}

/// Picks the least exact format that is worth it: it must be faster than every more exact one. Of equally
/// exact ones, the stored one comes first.
fn choose(measured: &[Probe], stored: Precision) -> Precision {
    let mut good: Vec<&Probe> = measured.iter().filter(|p| p.error <= MOST_PROBED_ERROR).collect();
    let key = |p: &Probe| (p.precision != stored, p.precision);
    good.sort_by(|a, b| a.error.total_cmp(&b.error).then(key(a).cmp(&key(b))));
    let exact = good.iter().position(|p| p.precision == Precision::F32);
    let Some(mut best) = exact.map(|i| good.remove(i)) else { return Precision::F32 };
    for p in good {
        if p.microseconds * LEAST_GAIN <= best.microseconds {
            best = p;
        }
    }
    best.precision
}

/// Tries the formats of a device. `in_f32` is the device in f32; `open` opens it in another format.
pub(crate) fn probe(
    product: Product,
    in_f32: &dyn Device,
    mut open: impl FnMut(PrecisionPolicy) -> Result<Arc<dyn Device>>,
) -> Result<Probes> {
    let weights = Arc::new(ProbeWeights::new(product));
    let (exact, microseconds) = run(product, in_f32, &weights)?;
    let mut measured = vec![Probe { precision: Precision::F32, microseconds, error: 0.0 }];
    let mut refused = vec![];
    for precision in Precision::FLOATS.into_iter().filter(|p| *p != Precision::F32) {
        let tried = open(PrecisionPolicy::uniform(precision))
            .and_then(|device| Ok(run(product, &*device, &weights)?));
        match tried {
            Ok((y, microseconds)) => {
                measured.push(Probe { precision, microseconds, error: distance(&y, &exact) })
            }
            Err(e) => refused.push((precision, e.to_string())),
        }
    }
    let chosen = choose(&measured, product.stored);
    let product = format!("{} x {1} x {1}", product.rows, product.width);
    Ok(Probes { product, chosen, measured, refused })
}

/// A device, the format of weights on it, and what probes chose it by.
type Opened = (Arc<dyn Device>, PrecisionPolicy, Option<Probes>);

/// The device that `options` ask for, with the format that probes choose on it for weights that `patterns`
/// name.
pub(crate) fn open_by_probes(
    options: &EngineOptions,
    patterns: &PrecisionPolicy,
    product: Product,
    passed_over: &mut Vec<String>,
) -> Result<Opened> {
    let device = devices::open(options, &PrecisionPolicy::default(), passed_over)?;
    let info = device.info();
    let choice = match info.kind {
        DeviceKind::Cpu => DeviceChoice::Cpu,
        kind => DeviceChoice::Kind(kind, info.index),
    };
    let same = EngineOptions { device: choice, ..options.clone() };
    // Devices stay open until the end: opening a driver again is slow.
    let mut opened = vec![];
    let probes = probe(product, &*device, |policy| {
        let device = devices::open(&same, &policy, &mut vec![])?;
        opened.push(device.clone());
        Ok(device)
    })?;
    if probes.chosen == Precision::F32 {
        return Ok((device, PrecisionPolicy::default(), Some(probes)));
    }
    let mut policy = PrecisionPolicy { precision: probes.chosen, ..patterns.clone() };
    if !probes.is_exact_enough(Precision::F16) {
        policy.half.clear();
    }
    let device = devices::open(&same, &policy, &mut vec![])?;
    let policy = device.weight_formats();
    Ok((device, policy, Some(probes)))
}

/// Root mean square of the difference, relative to `want`. Infinite if a number is not finite.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let (mut difference, mut whole) = (0.0, f64::MIN_POSITIVE);
    for (a, b) in got.iter().zip(want) {
        difference += square(f64::from(*a) - f64::from(*b));
        whole += square(f64::from(*b));
    }
    let distance = (difference / whole).sqrt();
    if distance.is_finite() { distance } else { f64::INFINITY }
}

const NAME: &str = "probe";

/// Result of the matmul on a device, and its time in microseconds.
fn run(
    product: Product,
    device: &dyn Device,
    weights: &Arc<ProbeWeights>,
) -> std::result::Result<(Vec<f32>, f64), DeviceError> {
    let Product { rows, width, .. } = product;
    let mut g = Graph::new(NAME);
    let x = g.input("x", DType::F32, [rows, width])?;
    let y = g.matmul(x, Weight::named(NAME, [width, width]))?;
    g.output("y", y)?;
    let plan = device.open(weights.clone()).load(Plan::compile(g, device)?)?;
    let mut memory = device.memory();
    memory.write_f32("x", &[rows, width].into(), &weights.0[..rows * width])?;
    let mut out = vec![];
    plan.run(memory.as_mut())?;
    memory.read_f32("y", &mut out)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(plan.profile(memory.as_mut())?.iter().sum());
    }
    Ok((out, best * 1e6))
}

/// Pseudo-random numbers from −1 to 1, exact in the stored format.
struct ProbeWeights(Vec<f32>);

impl ProbeWeights {
    fn new(product: Product) -> ProbeWeights {
        // Bits of the mantissa that the format lacks.
        let lost: u32 = match product.stored {
            Precision::F16 => 13,
            Precision::Bf16 => 16,
            _ => 0,
        };
        let number = |i: usize| {
            let mixed = (i as u32).wrapping_mul(0x9E37_79B9).rotate_left(15).wrapping_mul(0x85EB_CA6B);
            let x = (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0;
            f32::from_bits(x.to_bits() >> lost << lost)
        };
        ProbeWeights((0..product.width * product.width).map(number).collect())
    }
}

impl WeightLoader for ProbeWeights {
    fn load(&self, name: &str) -> std::result::Result<Tensor<'_>, GraphError> {
        let width = self.0.len().isqrt();
        match name {
            NAME => Ok(Tensor::new([width, width], &self.0)),
            _ => Err(GraphError::Weight {
                name: name.to_owned(),
                problem: "there is no such tensor".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_testing::ReferenceDevice;

    fn p(precision: Precision, microseconds: f64, error: f64) -> Probe {
        Probe { precision, microseconds, error }
    }

    #[test]
    fn tables_of_embeddings_are_no_matrices() {
        let tables = [
            "talker.model.text_embedding.weight",
            "talker.code_predictor.model.codec_embedding.3.weight",
            "model.embed_tokens.weight",
            "speech_emb.weight",
            "text_pos_emb.emb.weight",
        ];
        assert!(tables.into_iter().all(is_table));
        let matrices = ["flow.decoder.estimator.time_embed_mixer.weight", "speech_head.weight"];
        assert!(!matrices.into_iter().any(is_table));
    }

    #[test]
    fn the_fastest_that_is_exact_enough() {
        use Precision::{Bf16, F16, F32, Tf32};
        let f32 = p(F32, 100.0, 0.0);
        let cases: [(&str, Vec<Probe>, Precision); 6] = [
            ("nothing else", vec![f32], F32),
            ("faster", vec![f32, p(F16, 50.0, 3e-4)], F16),
            ("hardly faster", vec![f32, p(F16, 95.0, 3e-4)], F32),
            ("too far off", vec![f32, p(Bf16, 50.0, 2e-3)], F32),
            ("not finite", vec![f32, p(F16, 50.0, f64::INFINITY)], F32),
            ("hardly faster than a more exact one", vec![f32, p(Tf32, 50.0, 2e-4), p(F16, 48.0, 3e-4)], Tf32),
        ];
        for (case, measured, want) in cases {
            assert_eq!(choose(&measured, F32), want, "{case}");
        }
        for error in [0.0, 1e-7] {
            let as_exact = [f32, p(F16, 50.0, error), p(Bf16, 51.0, 0.0)];
            assert_eq!(choose(&as_exact, Bf16), Bf16, "as it is stored");
        }
    }

    #[test]
    fn formats_that_a_device_refuses_are_listed() {
        let product = Product { rows: 3, width: 64, stored: Precision::F32 };
        let refuse = |policy: PrecisionPolicy| -> Result<Arc<dyn Device>> {
            match policy.precision {
                Precision::F16 => Ok(Arc::new(ReferenceDevice)),
                other => {
                    Err(Error::Option { option: "precision", got: other.to_string(), allowed: "f16".into() })
                }
            }
        };
        let probes = probe(product, &ReferenceDevice, refuse).expect("f32 is enough");
        let precisions = |all: &[Probe]| all.iter().map(|p| p.precision).collect::<Vec<_>>();
        assert_eq!(precisions(&probes.measured), [Precision::F32, Precision::F16]);
        assert_eq!(probes.measured[1].error, 0.0, "the same device");
        assert_eq!(
            probes.refused.iter().map(|r| r.0).collect::<Vec<_>>(),
            [Precision::Tf32, Precision::Bf16]
        );
        assert!(probes.refused[0].1.contains("tf32"), "{:?}", probes.refused);
        assert_eq!([Precision::F16, Precision::Bf16].map(|p| probes.is_exact_enough(p)), [true, false]);
        assert!(probes.to_string().contains("probes of 3 x 64 x 64: f32 "), "{probes}");
    }

    /// On the CPU weights are widened to f32, so they are as exact as they are stored.
    #[test]
    fn errors_are_those_of_the_stored_weights() {
        let options = EngineOptions { threads: Some(1), device: DeviceChoice::Cpu, ..Default::default() };
        let open = |stored| {
            let product = Product { rows: 2, width: 256, stored };
            let opened = open_by_probes(&options, &PrecisionPolicy::default(), product, &mut vec![]);
            let (device, policy, probes) = opened.expect("a CPU");
            (device, policy, probes.expect("were made"))
        };
        let error = |probes: &Probes, precision| {
            probes.measured.iter().find(|p| p.precision == precision).expect("measured").error
        };
        for stored in [Precision::Bf16, Precision::F16] {
            let (device, policy, probes) = open(stored);
            assert!(error(&probes, stored) < 1e-5, "{stored}: {probes}");
            assert_eq!(probes.refused.iter().map(|r| r.0).collect::<Vec<_>>(), [Precision::Tf32]);
            assert_eq!(policy.precision, probes.chosen);
            assert_eq!(device.info().kind, DeviceKind::Cpu);
        }
        let (.., probes) = open(Precision::F32);
        let (f16, bf16) = (error(&probes, Precision::F16), error(&probes, Precision::Bf16));
        assert!((5e-5..MOST_PROBED_ERROR).contains(&f16), "{f16}");
        assert!((MOST_PROBED_ERROR..1e-2).contains(&bf16), "{bf16}");
    }
}
