//! Where passes apply and where they must not. That they keep the meaning is tested with numbers, in
//! `orate-testing`.

use orate_graph::*;

fn w<const N: usize>(name: &str, shape: [usize; N]) -> Weight {
    Weight::named(name, shape)
}

fn norm(c: usize) -> Norm {
    Norm { weight: w("norm.weight", [c]), bias: w("norm.bias", [c]), eps: 1e-6 }
}

/// Builds on `x` `[1, 4, 8]`, stores the result as `y`, runs all passes, and lists what is left.
fn steps(build: impl FnOnce(&mut Graph, Value) -> Result<Value>) -> Vec<String> {
    steps_of(build, &passes::ALL)
}

fn steps_of(build: impl FnOnce(&mut Graph, Value) -> Result<Value>, passes: &[passes::Pass]) -> Vec<String> {
    let mut g = Graph::new("passes");
    let x = g.input("x", DType::F32, [1, 4, 8]).expect("declares");
    let y = build(&mut g, x).expect("builds");
    g.output("y", y).expect("declares");
    passes.iter().for_each(|(_, run)| run(&mut g));
    // Every operand is an input or made by an earlier step, and made once.
    let mut made: Vec<Value> = vec![];
    for n in g.nodes() {
        for v in &n.inputs {
            assert!(g.info(*v).buffer.is_some() || made.contains(v), "{v:?} is read before it is made");
        }
        assert!(!made.contains(&n.output));
        made.push(n.output);
    }
    for (_, v) in g.stores() {
        assert!(g.info(*v).buffer.is_some() || made.contains(v), "stored {v:?} is not made");
    }
    g.nodes().iter().map(|n| n.op.describe()).collect()
}

fn square(g: &mut Graph, x: Value) -> Result<Value> {
    g.matmul(x, w("w", [8, 8]))
}

fn biased(g: &mut Graph, x: Value) -> Result<Value> {
    g.linear(x, w("w", [8, 8]), w("bias", [8]))
}

// ---- they apply ----------------------------------------------------------------------------------

#[test]
fn a_product_takes_everything_that_follows() {
    let found = steps(|g, x| {
        let y = biased(g, x)?;
        let y = g.activate(y, Activation::Gelu)?;
        g.add(x, y)
    });
    assert_eq!(found, ["MatMul+bias+gelu+residual"]);
    let found = steps(|g, x| {
        let y = g.conv1d(x, w("w", [24, 8]), ConvGeometry::causal(3, 1))?;
        let y = g.add_bias(y, w("bias", [8]))?;
        let y = g.activate(y, Activation::PRelu(w("slope", [1])))?;
        g.add(y, x)
    });
    assert_eq!(found, ["Conv1d+bias+prelu+residual"]);
}

#[test]
fn parts_fuse_without_the_others() {
    assert_eq!(steps(biased), ["MatMul+bias"]);
    let activated = |g: &mut Graph, x| {
        let y = square(g, x)?;
        g.activate(y, Activation::Tanh)
    };
    assert_eq!(steps(activated), ["MatMul+tanh"]);
    let added = |g: &mut Graph, x| {
        let y = square(g, x)?;
        g.add(y, x)
    };
    assert_eq!(steps(added), ["MatMul+residual"]);
}

/// The residual is made after the matmul: the fused step stands where the sum stood.
#[test]
fn a_residual_may_be_made_later_than_the_product() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let late = g.activate(x, Activation::Tanh)?;
        g.add(y, late)
    });
    assert_eq!(found, ["Activate tanh", "MatMul+residual"]);
}

/// Of two matmuls that are added, one becomes the residual of the other.
#[test]
fn a_sum_of_products_fuses_once() {
    let found = steps(|g, x| {
        let (a, b) = (biased(g, x)?, biased(g, x)?);
        g.add(a, b)
    });
    assert_eq!(found, ["MatMul+bias", "MatMul+bias+residual"]);
}

#[test]
fn a_norm_joins_its_depthwise_convolution() {
    let found = steps(|g, x| {
        let y = g.depthwise_conv1d(x, w("w", [5, 8]), w("bias", [8]), ConvGeometry::symmetric(5, 1))?;
        g.layer_norm(y, norm(8))
    });
    assert_eq!(found, ["DepthwiseConv1d+norm"]);
}

#[test]
fn nodes_that_nobody_reads_go_away() {
    let found = steps(|g, x| {
        let unread = biased(g, x)?;
        g.activate(unread, Activation::Exp)?;
        square(g, x)
    });
    assert_eq!(found, ["MatMul"]);
}

// ---- they must not -------------------------------------------------------------------------------

#[test]
fn a_value_used_twice_stays() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let z = g.activate(y, Activation::Gelu)?;
        let z = g.activate(z, Activation::Relu)?;
        g.scale(y, Factor::Const(2.0)).and_then(|y| g.combine(Factor::Const(1.0), y, Factor::Const(1.0), z))
    });
    assert_eq!(found, ["MatMul", "Activate gelu", "Activate relu", "Scale", "Combine"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let biased = g.add_bias(y, w("bias", [8]))?;
        g.scale(y, Factor::Const(2.0))
            .and_then(|y| g.combine(Factor::Const(1.0), y, Factor::Const(1.0), biased))
    });
    assert_eq!(found, ["MatMul", "AddBias", "Scale", "Combine"]);
    let found = steps(|g, x| {
        let y = g.depthwise_conv1d(x, w("w", [5, 8]), w("bias", [8]), ConvGeometry::symmetric(5, 1))?;
        let normed = g.layer_norm(y, norm(8))?;
        g.add(y, normed)
    });
    assert_eq!(found, ["DepthwiseConv1d", "LayerNorm", "Add"]);
}

#[test]
fn a_product_added_to_itself_stays() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        g.add(y, y)
    });
    assert_eq!(found, ["MatMul", "Add"]);
}

/// `y + f(y)`: the matmul is read twice, so neither the activation nor the sum may join it.
#[test]
fn a_gate_on_its_own_value_stays() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let f = g.activate(y, Activation::Relu)?;
        g.add(y, f)
    });
    assert_eq!(found, ["MatMul", "Activate relu", "Add"]);
}

#[test]
fn a_stored_value_stays() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        g.output("product", y)?;
        let y = g.add_bias(y, w("bias", [8]))?;
        g.output("biased", y)?;
        let y = g.activate(y, Activation::Gelu)?;
        g.output("activated", y)?;
        g.add(x, y)
    });
    assert_eq!(found, ["MatMul", "AddBias", "Activate gelu", "Add"]);
    let found = steps(|g, x| {
        let y = g.depthwise_conv1d(x, w("w", [5, 8]), w("bias", [8]), ConvGeometry::symmetric(5, 1))?;
        g.state("history", DType::F32, [1, 4, 8])?;
        g.update("history", y)?;
        g.layer_norm(y, norm(8))
    });
    assert_eq!(found, ["DepthwiseConv1d", "LayerNorm"]);
}

#[test]
fn what_comes_after_a_residual_stays_outside() {
    let found = steps(|g, x| {
        let y = biased(g, x)?;
        let y = g.add(x, y)?;
        g.activate(y, Activation::Relu)
    });
    assert_eq!(found, ["MatMul+bias+residual", "Activate relu"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let y = g.add(x, y)?;
        g.add_bias(y, w("bias", [8]))
    });
    assert_eq!(found, ["MatMul+residual", "AddBias"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let y = g.add(x, y)?;
        g.add(x, y)
    });
    assert_eq!(found, ["MatMul+residual", "Add"]);
}

#[test]
fn only_one_bias_and_one_activation_fit() {
    let found = steps(|g, x| {
        let y = biased(g, x)?;
        g.add_bias(y, w("another", [8]))
    });
    assert_eq!(found, ["MatMul+bias", "AddBias"]);
    let found = steps(|g, x| {
        let y = biased(g, x)?;
        let y = g.activate(y, Activation::Relu)?;
        g.activate(y, Activation::Gelu)
    });
    assert_eq!(found, ["MatMul+bias+relu", "Activate gelu"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let y = g.activate(y, Activation::Relu)?;
        g.add_bias(y, w("bias", [8]))
    });
    assert_eq!(found, ["MatMul+relu", "AddBias"]);
}

/// On a second round there are residuals when activations are looked for.
#[test]
fn a_second_round_keeps_the_order_of_the_formula() {
    let twice: Vec<passes::Pass> = passes::ALL.into_iter().chain(passes::ALL).collect();
    let build = |g: &mut Graph, x: Value| {
        let y = square(g, x)?;
        let y = g.add(x, y)?;
        g.activate(y, Activation::Relu)
    };
    assert_eq!(steps_of(build, &twice), ["MatMul+residual", "Activate relu"]);
    let build = |g: &mut Graph, x: Value| {
        let y = biased(g, x)?;
        let y = g.add(x, y)?;
        let y = g.add_bias(y, w("another", [8]))?;
        g.add(y, x)
    };
    assert_eq!(steps_of(build, &twice), ["MatMul+bias+residual", "AddBias", "Add"]);
}

/// Also when passes run twice or backwards, a late bias does not slip in before the activation.
#[test]
fn order_of_passes_does_not_change_the_formula() {
    let build = |g: &mut Graph, x: Value| {
        let y = square(g, x)?;
        let y = g.activate(y, Activation::Relu)?;
        let y = g.add_bias(y, w("bias", [8]))?;
        let y = g.add(y, x)?;
        g.activate(y, Activation::Gelu)
    };
    let mut backwards = passes::ALL;
    backwards.reverse();
    let twice: Vec<passes::Pass> = passes::ALL.into_iter().chain(passes::ALL).collect();
    let want = ["MatMul+relu", "AddBias", "Add", "Activate gelu"];
    for order in [&passes::ALL[..], &backwards, &twice] {
        assert_eq!(steps_of(build, order), want);
    }
}

#[test]
fn other_ops_in_between_keep_steps_apart() {
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let y = g.scale(y, Factor::Const(2.0))?;
        g.add_bias(y, w("bias", [8]))
    });
    assert_eq!(found, ["MatMul", "Scale", "AddBias"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        let y = g.reshape(y, [4, 8])?;
        g.activate(y, Activation::Relu)
    });
    assert_eq!(found, ["MatMul", "Reshape", "Activate relu"]);
    let found = steps(|g, x| {
        let y = square(g, x)?;
        g.layer_norm(y, norm(8))
    });
    assert_eq!(found, ["MatMul", "LayerNorm"]);
}

/// Nothing is dropped that a buffer, or a step after it, reads.
#[test]
fn stored_chains_survive_dead_code() {
    let found = steps(|g, x| {
        let a = g.activate(x, Activation::Tanh)?;
        let b = g.activate(a, Activation::Exp)?;
        g.output("b", b)?;
        Ok(x)
    });
    assert_eq!(found, ["Activate tanh", "Activate exp"]);
}
