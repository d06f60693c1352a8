//! Checks of single nodes: they compute what our networks take for granted, wherever they stand.

use super::file::{OnnxFile, canonical, refuse};
use super::walk::other;
use crate::ModelError;
use crate::supertonic::stage::Stage;
use orate_weights::onnx::Node;
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, ModelError>;

const LAYER_NORM_EPSILON: f32 = 1e-6;
const BATCH_NORM_EPSILON: f32 = 1e-5;
/// Score of masked positions in the relative-position layers.
const RELATIVE_MASK: f32 = -1e4;

const NORMS: &[&str] = &["LayerNormalization", "BatchNormalization"];

/// End of a weight's name, the operations that read it, and as which input; `None` is any.
const READERS: [(&str, &[&str], Option<usize>); 13] = [
    (".char_embedder.weight", &["Gather"], Some(0)),
    (".norm.weight", NORMS, Some(1)),
    (".norm.bias", NORMS, Some(2)),
    (".norm.running_mean", &["BatchNormalization"], Some(3)),
    (".norm.running_var", &["BatchNormalization"], Some(4)),
    (".gamma", &["Mul"], None),
    (".latent_std", &["Mul"], None),
    (".latent_mean", &["Add"], None),
    (".normalizer.scale", &["Div"], Some(1)),
    (".activation.weight", &["PRelu"], Some(1)),
    (".act.weight", &["PRelu"], Some(1)),
    (".emb_rel_k", &["Pad"], Some(0)),
    (".emb_rel_v", &["Pad"], Some(0)),
];

impl OnnxFile {
    /// Weights are read by the operation that their names say.
    pub(super) fn check_readers(&self) -> Result<()> {
        for (stored, name) in self.ending("") {
            let axes = self.tensor(stored)?.shape.len();
            let (operations, at): (&[&str], _) = match READERS.iter().find(|(end, ..)| name.ends_with(end)) {
                Some(&(_, operations, at)) => (operations, at),
                None if name.ends_with(".weight") && axes == 3 => (&["Conv"], Some(1)),
                None if name.ends_with(".weight") && axes == 2 => (&["Gemm", "MatMul"], Some(1)),
                None if name.ends_with(".bias") => (&["Conv", "Gemm", "Add"], None),
                None => continue,
            };
            let readers = self.readers(stored);
            let fits = |(node, i): &(&Node, usize)| {
                operations.contains(&node.op_type.as_str()) && at.is_none_or(|at| at == *i)
            };
            if readers.is_empty() || !readers.iter().all(fits) {
                let labels: Vec<String> =
                    readers.iter().map(|(node, i)| format!("{} as input {i}", node.label())).collect();
                refuse!(self, "`{name}` should be read by {operations:?}, but is by {labels:?}");
            }
        }
        Ok(())
    }

    /// Padding, strides, groups. Returns the dilations of the ConvNeXt stacks.
    pub(super) fn check_convolutions(&self) -> Result<BTreeMap<String, Vec<usize>>> {
        let mut stacks: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
        for node in self.nodes("Conv") {
            let stored = self.origin_of(node, 1)?;
            let shape = self.tensor(stored)?.shape;
            let &[outputs, _, kernel] = shape.as_slice() else {
                refuse!(self, "node {}: the weight is {shape:?} instead of three axes", node.label());
            };
            let name = canonical(stored).unwrap_or_default();
            let depthwise = name.contains(".dwconv.");

            let auto_pad = node.string("auto_pad").filter(|pad| *pad != "VALID");
            self.expect(node, "auto_pad", auto_pad.unwrap_or("NOTSET"), "NOTSET")?;
            let integers: [(_, &[i64]); 3] =
                [("strides", &[1]), ("pads", &[0, 0]), ("kernel_shape", &[kernel as i64])];
            for (what, want) in integers {
                self.expect(node, what, node.ints(what).unwrap_or(want), want)?;
            }
            let groups = if depthwise { outputs as i64 } else { 1 };
            self.expect(node, "group", node.int("group").unwrap_or(1), groups)?;
            let dilation = match node.ints("dilations").unwrap_or(&[1]) {
                &[d] if d >= 1 && (d == 1 || depthwise) && d < 1 << 16 => d as usize,
                other => refuse!(self, "node {}: dilations {other:?} are not implemented", node.label()),
            };
            if kernel > 1 {
                self.check_padding(node, (kernel - 1) * dilation)?;
            }
            let block = name.strip_suffix(".dwconv.weight").or(name.strip_suffix(".dwconv.net.weight"));
            if let Some((stack, number)) = block.and_then(|b| b.rsplit_once('.'))
                && let Ok(number) = number.parse()
            {
                stacks.entry(stack.to_owned()).or_default().insert(number, dilation);
            }
        }
        for (stack, blocks) in &stacks {
            if blocks.keys().copied().ne(0..blocks.len()) {
                refuse!(self, "blocks of `{stack}` are not numbered from 0 without gaps");
            }
        }
        Ok(stacks.into_iter().map(|(stack, blocks)| (stack, blocks.into_values().collect())).collect())
    }

    /// The convolution's input repeats its edges: `reach` samples on the left in the vocoder, half of it on
    /// each side elsewhere.
    fn check_padding(&self, conv: &Node, reach: usize) -> Result<()> {
        let pad = self.source_of(conv, 0, "Pad")?;
        self.expect(pad, "mode", pad.string("mode").unwrap_or("constant"), "edge")?;
        let constant = |at: usize| pad.inputs.get(at).and_then(|value| self.constant(value));
        let Some(amounts) = constant(1) else {
            refuse!(self, "the amounts of node {} are not a constant", pad.label());
        };
        let left = if self.stage == Stage::Vocoder { reach } else { reach / 2 };
        let (left, right) = (left as f32, (reach - left) as f32);
        let want = match constant(3).map(|axes| axes.to_f32()).as_deref() {
            None => vec![0.0, 0.0, left, 0.0, 0.0, right],
            Some([2.0 | -1.0]) => vec![left, right],
            Some(axes) => refuse!(self, "node {}: it pads axes {axes:?}, not the last", pad.label()),
        };
        self.expect(pad, "padding", amounts.to_f32(), want)
    }

    /// Norms, dense layers, GELU and softmax.
    pub(super) fn check_small_nodes(&self) -> Result<()> {
        for node in self.model.nodes() {
            let int = |what: &str, default| node.int(what).unwrap_or(default);
            let float = |what: &str, default| node.float(what).unwrap_or(default);
            match node.op_type.as_str() {
                "LayerNormalization" => {
                    self.near(node, "epsilon", float("epsilon", 1e-5), LAYER_NORM_EPSILON)?;
                    self.check_last_axis(node, 2)?;
                }
                "BatchNormalization" => {
                    self.near(node, "epsilon", float("epsilon", 1e-5), BATCH_NORM_EPSILON)?;
                    self.expect(node, "training_mode", int("training_mode", 0), 0)?;
                }
                "Gemm" => {
                    self.expect(node, "transA", int("transA", 0), 0)?;
                    self.expect(node, "transB", int("transB", 0), 1)?;
                    self.expect(node, "alpha", float("alpha", 1.0), 1.0)?;
                    self.expect(node, "beta", float("beta", 1.0), 1.0)?;
                }
                "Erf" => self.check_gelu(node)?,
                "Softmax" => {
                    self.check_last_axis(node, 3)?;
                    // Style attention has no mask before the softmax.
                    if let Some(mask) = self.source(self.input(node, 0)?).filter(|n| n.op_type == "Where") {
                        let is_relative = self.stage != Stage::VectorEstimator;
                        let want = if is_relative { RELATIVE_MASK } else { f32::NEG_INFINITY };
                        self.near(mask, "the masked score", self.scalar(mask, 1)?, want)?;
                    }
                }
                "Gelu" => {
                    let kind = node.string("approximate").unwrap_or("none");
                    self.expect(node, "approximate", kind, "none")?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The multiplication of a value with the input of the activation that it is part of.
    pub(super) fn gate(&self, value: &str, input: &str) -> Result<&Node> {
        let (gate, at) = self.only_reader(value, "Mul")?;
        if self.origin_of(gate, other(at))? != self.origin(input) {
            refuse!(self, "node {} does not multiply with the input of its activation", gate.label());
        }
        Ok(gate)
    }

    fn check_last_axis(&self, node: &Node, last: i64) -> Result<()> {
        let axis = node.int("axis").filter(|axis| *axis != last).unwrap_or(-1);
        self.expect(node, "axis", axis, -1)
    }

    /// x / √2 → Erf → + 1 → · x → · 0.5
    fn check_gelu(&self, erf: &Node) -> Result<()> {
        let div = self.source_of(erf, 0, "Div")?;
        self.near(div, "the divisor", self.scalar(div, 1)?, std::f32::consts::SQRT_2)?;
        let (add, at) = self.only_reader(self.output(erf)?, "Add")?;
        self.near(add, "the summand", self.scalar(add, other(at))?, 1.0)?;
        let gate = self.gate(self.output(add)?, self.origin_of(div, 0)?)?;
        let (half, at) = self.only_reader(self.output(gate)?, "Mul")?;
        self.near(half, "the factor", self.scalar(half, other(at))?, 0.5)
    }
}
