//! Threads that use a device leak nothing when they end. A separate program, since it counts the allocations
//! of all threads.

mod common;

use orate_graph::{DType, Device, Graph, Plan, Weight};
use orate_testing::{Counting, RandomWeights};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 16;

/// Threads that run before measurements, to fill all pools.
const WARM_UP: usize = 20;
const THREADS: usize = 100;

#[test]
fn threads_leave_nothing_behind() {
    let mut g = Graph::new("product");
    let x = g.input("x", DType::F32, [1, WIDTH]).expect("declares");
    let y = g.matmul(x, Weight::named("w", [WIDTH, WIDTH])).expect("builds");
    g.output("y", y).expect("declares");
    let device = common::device();
    let model = device.open(Arc::new(RandomWeights::of_graph(&g, 3)));
    let plan = model.load(Plan::compile(g, &device).expect("compiles")).expect("loads");
    let product = || {
        let (mut memory, mut y) = (device.memory(), vec![]);
        memory.write_f32("x", &[1, WIDTH].into(), &[0.5; WIDTH]).expect("writes");
        plan.run(memory.as_mut()).expect("runs");
        memory.read_f32("y", &mut y).expect("reads");
        y
    };
    let wanted = product();
    let mut blocks = vec![];
    for _ in 0..WARM_UP + THREADS {
        assert_eq!(std::thread::scope(|s| s.spawn(product).join().expect("no panic")), wanted);
        blocks.push(Counting::blocks());
    }
    // One allocation more or less may be live at any moment.
    let (first, last) = (blocks[WARM_UP..][..10].iter().min(), blocks[blocks.len() - 10..].iter().min());
    let (first, last) = (first.expect("some"), last.expect("some"));
    assert!(*last < first + THREADS / 10, "blocks in use grew from {first} to {last}: {blocks:?}");
}
