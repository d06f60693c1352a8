//! Checks of single nodes: they compute what our networks take for granted, wherever they stand.

use std::collections::BTreeMap;

use orate_weights::WeightSource;
use orate_weights::onnx::Node;

use super::ImportError;
use super::stage::{Stage, StageKind, canonical};

const LAYER_NORM_EPSILON: f32 = 1e-6;
const BATCH_NORM_EPSILON: f32 = 1e-5;
/// Score of masked positions in the relative-position layers.
const RELATIVE_MASK: f32 = -1e4;

impl Stage {
    /// Weights are read by the operation that their names say.
    pub(super) fn check_readers(&self) -> Result<(), ImportError> {
        for stored in self.model.names() {
            let Some(name) = canonical(stored) else { continue };
            let axes = self.tensor(stored)?.shape.len();
            let (operations, at): (&[&str], Option<usize>) = match name {
                _ if name.ends_with(".char_embedder.weight") => (&["Gather"], Some(0)),
                _ if name.ends_with(".norm.weight") => {
                    (&["LayerNormalization", "BatchNormalization"], Some(1))
                }
                _ if name.ends_with(".norm.bias") => (&["LayerNormalization", "BatchNormalization"], Some(2)),
                _ if name.ends_with(".norm.running_mean") => (&["BatchNormalization"], Some(3)),
                _ if name.ends_with(".norm.running_var") => (&["BatchNormalization"], Some(4)),
                _ if name.ends_with(".gamma") || name.ends_with(".latent_std") => (&["Mul"], None),
                _ if name.ends_with(".latent_mean") => (&["Add"], None),
                _ if name.ends_with(".normalizer.scale") => (&["Div"], Some(1)),
                _ if name.ends_with(".activation.weight") || name.ends_with(".act.weight") => {
                    (&["PRelu"], Some(1))
                }
                _ if name.contains(".emb_rel_") => (&["Pad"], Some(0)),
                _ if name.ends_with(".weight") && axes == 3 => (&["Conv"], Some(1)),
                _ if name.ends_with(".weight") && axes == 2 => (&["Gemm", "MatMul"], Some(1)),
                _ if name.ends_with(".bias") => (&["Conv", "Gemm", "Add"], None),
                _ => continue,
            };
            let readers = self.readers(stored);
            let fits = |(node, i): &(&Node, usize)| {
                operations.contains(&node.op_type.as_str()) && at.is_none_or(|at| at == *i)
            };
            if readers.is_empty() || !readers.iter().all(fits) {
                let labels: Vec<String> =
                    readers.iter().map(|(node, i)| format!("{} as input {i}", node.label())).collect();
                return self
                    .structure(format!("`{name}` should be read by {operations:?}, but is by {labels:?}"));
            }
        }
        Ok(())
    }

    /// Padding, strides, groups. Returns the dilations of the ConvNeXt stacks.
    pub(super) fn check_convolutions(&self) -> Result<BTreeMap<String, Vec<usize>>, ImportError> {
        let mut stacks: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
        for node in self.nodes("Conv") {
            let stored = self.origin(self.input(node, 1)?);
            let shape = self.tensor(stored)?.shape;
            let &[outputs, _, kernel] = shape.as_slice() else {
                return self.assumption(
                    node,
                    "the weight's shape",
                    format!("{shape:?}"),
                    "three axes".to_owned(),
                );
            };
            let name = canonical(stored).unwrap_or_default();
            let depthwise = name.contains(".dwconv.");

            let ones = |what| self.ints(node, what, &[1]);
            if !matches!(node.string("auto_pad"), None | Some("NOTSET" | "VALID")) {
                return self.assumption(
                    node,
                    "auto_pad",
                    format!("{:?}", node.string("auto_pad")),
                    "none".to_owned(),
                );
            }
            self.expect(node, "strides", ones("strides"), vec![1])?;
            self.expect(node, "pads", self.ints(node, "pads", &[0, 0]), vec![0, 0])?;
            self.expect(
                node,
                "kernel_shape",
                self.ints(node, "kernel_shape", &[kernel as i64]),
                vec![kernel as i64],
            )?;
            let groups = if depthwise { outputs as i64 } else { 1 };
            self.expect(node, "group", node.int("group").unwrap_or(1), groups)?;
            let dilation = match ones("dilations").as_slice() {
                &[d] if d >= 1 && (d == 1 || depthwise) && d < 1 << 16 => d as usize,
                other => {
                    return self.assumption(
                        node,
                        "dilations",
                        format!("{other:?}"),
                        "one (depthwise)".to_owned(),
                    );
                }
            };
            if kernel > 1 {
                self.check_padding(node, (kernel - 1) * dilation)?;
            }

            let block = name.strip_suffix(".weight").filter(|_| depthwise);
            let block =
                block.map(|b| b.strip_suffix(".net").unwrap_or(b)).and_then(|b| b.strip_suffix(".dwconv"));
            if let Some((stack, number)) = block.and_then(|b| b.rsplit_once('.'))
                && let Ok(number) = number.parse()
            {
                stacks.entry(stack.to_owned()).or_default().insert(number, dilation);
            }
        }
        for (stack, blocks) in &stacks {
            if blocks.keys().copied().ne(0..blocks.len()) {
                return self.structure(format!("blocks of `{stack}` are not numbered from 0 without gaps"));
            }
        }
        Ok(stacks.into_iter().map(|(stack, blocks)| (stack, blocks.into_values().collect())).collect())
    }

    /// The convolution's input repeats its edges: `reach` samples on the left in the vocoder, half of it on
    /// each side elsewhere.
    fn check_padding(&self, conv: &Node, reach: usize) -> Result<(), ImportError> {
        let pad = self.source_of(conv, 0, "Pad")?;
        self.expect(pad, "mode", pad.string("mode").unwrap_or("constant"), "edge")?;
        let Some(amounts) = pad.inputs.get(1).and_then(|value| self.constant(self.origin(value))) else {
            return self.structure(format!("the amounts of node {} are not a constant", pad.label()));
        };
        let (left, right) = match self.kind {
            StageKind::Vocoder => (reach, 0),
            _ => (reach / 2, reach - reach / 2),
        };
        let (left, right) = (left as f32, right as f32);
        let axes =
            pad.inputs.get(3).and_then(|value| self.constant(self.origin(value))).map(|axes| axes.to_f32());
        let want = match axes.as_deref() {
            None => vec![0.0, 0.0, left, 0.0, 0.0, right],
            Some([2.0 | -1.0]) => vec![left, right],
            Some(_) => return self.assumption(pad, "axes", format!("{axes:?}"), "the last".to_owned()),
        };
        self.expect(pad, "padding", amounts.to_f32(), want)
    }

    /// Norms, dense layers, GELU and softmax.
    pub(super) fn check_small_nodes(&self) -> Result<(), ImportError> {
        for node in self.model.nodes() {
            match node.op_type.as_str() {
                "LayerNormalization" => {
                    self.near(node, "epsilon", node.float("epsilon").unwrap_or(1e-5), LAYER_NORM_EPSILON)?;
                    if !matches!(node.int("axis"), None | Some(-1 | 2)) {
                        return self.assumption(
                            node,
                            "axis",
                            format!("{:?}", node.int("axis")),
                            "the last".to_owned(),
                        );
                    }
                }
                "BatchNormalization" => {
                    self.near(node, "epsilon", node.float("epsilon").unwrap_or(1e-5), BATCH_NORM_EPSILON)?;
                    self.expect(node, "training_mode", node.int("training_mode").unwrap_or(0), 0)?;
                }
                "Gemm" => {
                    self.expect(node, "transA", node.int("transA").unwrap_or(0), 0)?;
                    self.expect(node, "transB", node.int("transB").unwrap_or(0), 1)?;
                    self.expect(node, "alpha", node.float("alpha").unwrap_or(1.0), 1.0)?;
                    self.expect(node, "beta", node.float("beta").unwrap_or(1.0), 1.0)?;
                }
                "Erf" => self.check_gelu(node)?,
                "Softmax" => {
                    if !matches!(node.int("axis"), None | Some(-1 | 3)) {
                        return self.assumption(
                            node,
                            "axis",
                            format!("{:?}", node.int("axis")),
                            "the last".to_owned(),
                        );
                    }
                    // Style attention has no mask before the softmax.
                    if let Some(mask) = self.source(self.input(node, 0)?).filter(|n| n.op_type == "Where") {
                        let want = match self.kind {
                            StageKind::VectorEstimator => f32::NEG_INFINITY,
                            _ => RELATIVE_MASK,
                        };
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

    /// x / √2 → Erf → + 1 → · x → · 0.5
    fn check_gelu(&self, erf: &Node) -> Result<(), ImportError> {
        let div = self.source_of(erf, 0, "Div")?;
        self.near(div, "the divisor", self.scalar(div, 1)?, std::f32::consts::SQRT_2)?;
        let x = self.origin(self.input(div, 0)?);
        let (add, at) = self.only_reader(self.output(erf)?, "Add")?;
        self.near(add, "the summand", self.scalar(add, 1 - at)?, 1.0)?;
        let (gate, at) = self.only_reader(self.output(add)?, "Mul")?;
        if self.origin(self.input(gate, 1 - at)?) != x {
            return self.structure(format!("node {} does not multiply with the input of GELU", gate.label()));
        }
        let (half, at) = self.only_reader(self.output(gate)?, "Mul")?;
        self.near(half, "the factor", self.scalar(half, 1 - at)?, 0.5)
    }
}
