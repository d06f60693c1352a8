//! Printed plans of small graphs, compared with the text files in `snapshots/`: a change of a pass shows as a
//! diff of plans. After looking at the diff, `UPDATE_SNAPSHOTS=1 cargo test -p orate-graph` writes new files.

use orate_graph::*;
use std::fmt::Write as _;
use std::path::Path;

/// A device that runs everything and names its kernels after ops.
struct Tiny;

impl Target for Tiny {
    fn name(&self) -> String {
        "tiny".to_owned()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        Ok(format!("tiny-{}-{}", op.name().to_lowercase(), inputs.len()))
    }
}

/// The plan before and after all passes, and where every value lives, against `snapshots/<name>.txt`.
#[track_caller]
fn snapshot(name: &str, graph: Graph) {
    let plain = Plan::compile_with(graph.clone(), &Tiny, &[]).expect("compiles without passes");
    let plan = Plan::compile(graph, &Tiny).expect("compiles");
    let mut text = format!(
        "## as built\n{}\n## compiled\n{}\n## operands\n",
        plain.explain(None),
        plan.explain(Some(Roofline { gflops: 100.0, gbps: 20.0 }))
    );
    text += &operands(&plan);
    compare(name, &text);
}

/// Compares a text with `snapshots/<name>.txt`, or writes it.
#[track_caller]
fn compare(name: &str, text: &str) {
    // Lines end where their text does, so that editors leave the files alone.
    let text: String = text.lines().flat_map(|l| [l.trim_end(), "\n"]).collect();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|v| v == "1") {
        std::fs::write(&path, text).expect("snapshot can be written");
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; UPDATE_SNAPSHOTS=1 writes it, for you to read and commit", path.display())
    });
    let want = want.replace('\r', "");
    if want != text {
        panic!(
            "plan `{name}` changed (- {}, + now). If this is meant, run again with UPDATE_SNAPSHOTS=1\n{}",
            path.display(),
            diff(&want, &text)
        );
    }
}

/// Where every step reads and writes.
fn operands(plan: &Plan) -> String {
    let mut text = String::new();
    let place = |v: Value| match plan.place(v) {
        Place::Nowhere => format!("%{} nowhere", v.index()),
        Place::Arena(offset) => format!("%{} @{offset}", v.index()),
        Place::Buffer(b, 0) => format!("%{} `{}`", v.index(), plan.buffers()[b].name),
        Place::Buffer(b, offset) => format!("%{} `{}` @{offset}", v.index(), plan.buffers()[b].name),
    };
    for (i, step) in plan.steps().iter().enumerate() {
        let inputs: Vec<String> = step.node.inputs.iter().map(|v| place(*v)).collect();
        let _ = writeln!(text, "{i:>4}  {} → {}", inputs.join(", "), place(step.node.output));
    }
    for (b, v) in plan.copies() {
        let _ = writeln!(text, "copy  {} → `{}`", place(*v), plan.buffers()[*b].name);
    }
    text
}

/// Lines that differ, by longest common subsequence, with a line around each change.
fn diff(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // common[i][j]: lines that a[i..] and b[j..] share in order
    let mut common = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] =
                if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines: Vec<(char, &str)> = vec![];
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', a[i]));
            i += 1;
        } else {
            lines.push(('+', b[j]));
            j += 1;
        }
    }
    let near = |at: usize| lines[at.saturating_sub(1)..lines.len().min(at + 2)].iter().any(|l| l.0 != ' ');
    let shown = (0..lines.len()).filter(|at| near(*at));
    shown.map(|at| format!("{} {}\n", lines[at].0, lines[at].1)).collect()
}

fn w<const N: usize>(name: &str, shape: [usize; N]) -> Weight {
    Weight::named(name, shape)
}

fn norm(name: &str, c: usize) -> Norm {
    Norm { weight: w(&format!("{name}.weight"), [c]), bias: w(&format!("{name}.bias"), [c]), eps: 1e-6 }
}

/// A pointwise convolution as checkpoints store it: `[out, in, 1]`.
fn pointwise(name: &str, inputs: usize, outputs: usize) -> (Weight, Weight) {
    let weight = w(&format!("{name}.weight"), [outputs, inputs, 1]).reshape([outputs, inputs]).transpose();
    (weight, w(&format!("{name}.bias"), [outputs]))
}

/// Depthwise convolution, norm, expansion with GELU, projection, residual: four steps become three.
#[test]
fn convnext_block() -> Result<()> {
    let (c, inner) = (16, 64);
    let mut g = Graph::new("convnext");
    let x = g.input("x", DType::F32, [1, 10, c])?;
    let depthwise = w("dwconv.weight", [c, 1, 5]).reshape([c, 5]).transpose();
    let y = g.depthwise_conv1d(x, depthwise, w("dwconv.bias", [c]), ConvGeometry::symmetric(5, 2))?;
    let y = g.layer_norm(y, norm("norm", c))?;
    let (weight, bias) = pointwise("pwconv1", c, inner);
    let y = g.linear(y, weight, bias)?;
    let y = g.activate(y, Activation::Gelu)?;
    let gamma = w("gamma", [1, c, 1]);
    let (weight, bias) = pointwise("pwconv2", inner, c);
    let y = g.linear(y, weight.mul(&gamma.reshape([1, c])), bias.mul(&gamma.reshape([c])))?;
    let y = g.add(x, y)?;
    g.output("y", y)?;
    snapshot("convnext_block", g);
    Ok(())
}

/// A layer of the VITS encoder: attention with relative positions, post-norm, ReLU feed-forward, lengths.
#[test]
fn relative_attention_layer() -> Result<()> {
    let (b, t, c, heads, inner) = (2, 12, 16, 2, 32);
    let mut g = Graph::new("relative");
    let x = g.input("x", DType::F32, [b, t, c])?;
    let lens = g.input("lens", DType::I32, [b])?;
    let x = g.mask_rows(x, Some(lens))?;
    let project = |g: &mut Graph, name: &str| {
        let (weight, bias) = pointwise(&format!("attn.conv_{name}"), c, c);
        g.linear(x, weight, bias)
    };
    let (q, k, v) = (project(&mut g, "q")?, project(&mut g, "k")?, project(&mut g, "v")?);
    let table = |name: &str| w(&format!("attn.emb_rel_{name}"), [1, 9, c / heads]).reshape([9, c / heads]);
    let attention = Op::Attention {
        heads,
        scale: 1.0 / 8f32.sqrt(),
        mask: AttentionMask::None,
        relative: Some(RelativePositions { key: table("k"), value: table("v"), window: 4 }),
        bias: false,
        follows_weights: false,
    };
    let y = g.attention(attention, q, k, v, Some(lens))?;
    let (weight, bias) = pointwise("attn.conv_o", c, c);
    let y = g.linear(y, weight, bias)?;
    let y = g.add(x, y)?;
    let x = g.layer_norm(y, norm("norm_1", c))?;
    let (weight, bias) = pointwise("ffn.conv_1", c, inner);
    let y = g.linear(x, weight, bias)?;
    let y = g.activate(y, Activation::Relu)?;
    let (weight, bias) = pointwise("ffn.conv_2", inner, c);
    let y = g.linear(y, weight, bias)?;
    let y = g.add(x, y)?;
    let x = g.layer_norm(y, norm("norm_2", c))?;
    let x = g.mask_rows(x, Some(lens))?;
    g.output("y", x)?;
    snapshot("relative_attention_layer", g);
    Ok(())
}

/// A denoising step: time from a table by a scalar, velocity, update of the latent that stays on the device.
#[test]
fn euler_step() -> Result<()> {
    let (t, c, d) = (6, 8, 16);
    let mut g = Graph::new("euler");
    let step = g.scalar("step");
    let dt = g.scalar("dt");
    let latent = g.state("latent", DType::F32, [1, t, c])?;
    let times = g.input("times", DType::F32, [4])?;
    let e = g.time_embedding(times, d)?;
    let e = g.linear(e, w("time.0.weight", [d, d]).transpose(), w("time.0.bias", [d]))?;
    let e = g.activate(e, Activation::Mish)?;
    let e = g.select_row(e, step)?;
    let x = g.matmul(latent, pointwise("proj_in", c, d).0)?;
    let x = g.add_row(x, e)?;
    let velocity = g.matmul(x, pointwise("proj_out", d, c).0)?;
    let next = g.combine(Factor::Const(1.0), latent, Factor::Scalar(dt), velocity)?;
    g.update("latent", next)?;
    let seen = g.reshape(next, [t * c])?;
    g.output("denoised", seen)?;
    snapshot("euler_step", g);
    Ok(())
}

/// The start of a run: noise into a state, and rotary tables that later plans read.
#[test]
fn noise_and_tables() -> Result<()> {
    let mut g = Graph::new("prepare");
    let seed = g.scalar("seed");
    let lens = g.input("lens", DType::I32, [2])?;
    g.state("latent", DType::F32, [2, 5, 4])?;
    let noise = g.random_normal([2, 5, 4], seed, 1.0)?;
    let noise = g.mask_rows(noise, Some(lens))?;
    g.update("latent", noise)?;
    let table = g.rotary_table(w("theta", [1, 1, 4]).reshape([4]).scale(10.0), 2, 5, Some(lens))?;
    let keys = g.input("keys", DType::F32, [2, 5, 16])?;
    let keys = g.rotary(keys, table, 2)?;
    g.output("rotary", table)?;
    g.output("rotated keys", keys)?;
    snapshot("noise_and_tables", g);
    Ok(())
}

/// States that change places: both old contents are kept until both are stored.
#[test]
fn states_that_change_places() -> Result<()> {
    let mut g = Graph::new("swap");
    let a = g.state("a", DType::F32, [1, 4])?;
    let b = g.state("b", DType::F32, [1, 4])?;
    g.update("a", b)?;
    g.update("b", a)?;
    let sum = g.add(a, b)?;
    g.output("sum", sum)?;
    g.output("old a", a)?;
    snapshot("states_that_change_places", g);
    Ok(())
}

/// A device that fuses, and names its kernels after what they fuse.
pub struct Fusing(pub &'static str, pub Fusions);

impl Target for Fusing {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn kernel(&self, op: &Op, _: &[&ValueInfo]) -> Result<String, String> {
        Ok(op.name().to_lowercase())
    }

    fn fusions(&self) -> Fusions {
        self.1.clone()
    }

    fn fused_kernel(&self, op: &Op, _: &[&ValueInfo], _: &Fused) -> Result<String, String> {
        Ok(format!("fused-{}", op.name().to_lowercase()))
    }
}

/// What CUDA and wgpu make of a layer that decodes one row: norms, heads, caches, gate and up, and moves of
/// whole rows.
#[test]
fn decoding_layer() -> Result<()> {
    let (c, d, heads, kv_heads) = (64, 16, 4, 2);
    let mut g = Graph::new("layer");
    let x = g.input("x", DType::F32, [1, 1, c])?;
    let at = g.input("at", DType::I32, [1])?;
    let rows = g.input("rows", DType::F32, [4, c])?;
    let table = g.rope_table(1e6, 1, d, Rows::At(at))?;
    let y = g.rms_norm(x, w("input_norm", [c]), 1e-6)?;
    let q = g.matmul(y, w("q_proj", [c, heads * d]))?;
    let k = g.matmul(y, w("k_proj", [c, kv_heads * d]))?;
    let v = g.matmul(y, w("v_proj", [c, kv_heads * d]))?;
    let mut turned = vec![];
    for (x, n, name) in [(q, heads, "q_norm"), (k, kv_heads, "k_norm")] {
        let y = g.reshape(x, [1, 1, n, d])?;
        let y = g.rms_norm(y, w(name, [d]), 1e-6)?;
        let y = g.reshape(y, [1, 1, n * d])?;
        turned.push(g.rotary(y, table, n)?);
    }
    let mut caches = vec![];
    for (name, rows) in [("keys", turned[1]), ("values", v)] {
        let cache = g.state(name, DType::F16, [1, 32, kv_heads * d])?;
        caches.push(g.write_rows(cache, rows, Rows::At(at))?);
    }
    let mask = AttentionMask::Cached(First::Operand);
    let op = Op::Attention { heads, scale: 0.25, mask, relative: None, bias: false, follows_weights: false };
    let y = g.attention(op, turned[0], caches[0], caches[1], Some(at))?;
    let y = g.matmul(y, w("o_proj", [heads * d, c]))?;
    let x = g.add(x, y)?;
    let y = g.rms_norm(x, w("post_norm", [c]), 1e-6)?;
    let gate = g.matmul(y, w("gate_proj", [c, 96]))?;
    let gate = g.activate(gate, Activation::Silu)?;
    let up = g.matmul(y, w("up_proj", [c, 96]))?;
    let y = g.mul(gate, up)?;
    let y = g.matmul(y, w("down_proj", [96, c]))?;
    let x = g.add(x, y)?;
    // The row of a table that a scalar names, and a sequence whose last row is read.
    let step = g.scalar("step");
    let row = g.select_row(rows, step)?;
    let y = g.matmul(x, w("head", [c, c]))?;
    let y = g.add_row(y, row)?;
    let both = g.concat(&[x, y], 1)?;
    let last = g.slice(both, 1, 1, 1)?;
    let y = g.scale(last, Factor::Const(0.5))?;
    g.output("y", y)?;

    let wgpu = Fusions {
        heads: true,
        matmul_rows: 16,
        matmul_multiple: [4, 4],
        matmul_bytes: 1 << 30,
        gated_rows: 16,
        norm_multiple: Some([4, 4]),
        norm_rows: 1,
        views: true,
        ..Fusions::default()
    };
    let cuda = Fusions {
        add_row: true,
        attended_heads: &[1, 2, 4],
        attended_width: 128,
        rotate_queries: true,
        matmul_rows: 32,
        matmul_multiple: [1, 32],
        norm_multiple: Some([16, 1]),
        norm_rows: 2,
        layer_norm_rows: 2,
        ..wgpu.clone()
    };
    let mut text = String::new();
    for target in [Fusing("cuda", cuda), Fusing("wgpu", wgpu)] {
        let plan = Plan::compile(g.clone(), &target).expect("compiles");
        let _ = write!(text, "## {}\n{}\n{}\n", target.0, plan.explain(None), operands(&plan));
    }
    compare("decoding_layer", &text);
    Ok(())
}

#[test]
fn a_diff_shows_changes_with_their_neighbors() {
    let old = "a\nb\nc\nd\ne\n";
    assert_eq!(diff(old, old), "");
    assert_eq!(diff(old, "a\nb\nC\nd\ne\n"), "  b\n- c\n+ C\n  d\n");
    assert_eq!(diff(old, "a\nb\nc\nd\ne\nf\n"), "  e\n+ f\n");
}
