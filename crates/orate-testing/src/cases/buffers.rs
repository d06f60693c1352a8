//! What an executor must get right around its kernels: outputs, states, shared values.

use super::{Case, unary};
use orate_graph::{Activation, DType, Factor, Result};

pub(super) fn buffers(cases: &mut Vec<Case>) -> Result<()> {
    let shape = [1, 3, 9];
    unary(cases, "Buffers: an input stored as it is".into(), shape, |_, x| Ok(x))?;
    unary(cases, "Buffers: one value in two outputs".into(), shape, |g, x| {
        let y = g.scale(x, Factor::Const(2.0))?;
        g.output("again", y)?;
        let flat = g.reshape(y, [27])?;
        g.output("flat", flat)?;
        Ok(y)
    })?;
    unary(cases, "Buffers: an output that a later step reads".into(), shape, |g, x| {
        let y = g.scale(x, Factor::Const(2.0))?;
        g.output("first", y)?;
        let z = g.activate(y, Activation::Relu)?;
        g.add(z, y)
    })?;
    unary(cases, "Buffers: an Euler step on a state".into(), shape, |g, v| {
        let dt = g.scalar("dt");
        let latent = g.state("latent", DType::F32, shape)?;
        let next = g.combine(Factor::Const(1.0), latent, Factor::Scalar(dt), v)?;
        g.update("latent", next)?;
        g.scale(latent, Factor::Const(3.0))
    })?;
    unary(cases, "Buffers: the old content of a state, stored".into(), shape, |g, v| {
        let x = g.state("state", DType::F32, shape)?;
        let next = g.add(x, v)?;
        g.update("state", next)?;
        Ok(x)
    })?;
    unary(cases, "Buffers: a state that becomes another, in a chain".into(), shape, |g, v| {
        let a = g.state("a", DType::F32, shape)?;
        let b = g.state("b", DType::F32, shape)?;
        g.state("c", DType::F32, shape)?;
        g.update("a", v)?;
        g.update("b", a)?;
        g.update("c", b)?;
        g.add(a, b)
    })?;
    unary(cases, "Buffers: two states that change places".into(), shape, |g, v| {
        let a = g.state("a", DType::F32, shape)?;
        let b = g.state("b", DType::F32, shape)?;
        g.update("a", b)?;
        g.update("b", a)?;
        g.add(a, v)
    })?;
    unary(cases, "Buffers: a history that moves along".into(), [1, 2, 5], |g, x| {
        let past = g.state("past", DType::F32, [1, 4, 5])?;
        let all = g.concat(&[past, x], 1)?;
        let kept = g.slice(all, 1, 2, 4)?;
        g.update("past", kept)?;
        Ok(all)
    })
}
