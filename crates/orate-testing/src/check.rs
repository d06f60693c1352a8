//! Runs cases on an executor and compares with the interpreter.

use crate::cases::Case;
use crate::compact;
use crate::compare::{Mismatch, compare};
use crate::interpreter::{Buffers, Data, ScalarValue, Scalars, interpret};
use crate::random::RandomWeights;
use orate_graph::{BufferKind, DType, Device, Graph, Plan, WeightLoader};
use std::fmt;
use std::sync::Arc;

/// Anything that can run a graph.
pub trait Executor {
    /// Name, for reports.
    fn name(&self) -> String;

    /// Runs `graph` once and returns at least its outputs and states.
    ///
    /// # Errors
    /// The reason of the failure, as text for the report.
    fn run(
        &self,
        graph: Graph,
        weights: &dyn WeightLoader,
        buffers: &Buffers,
        scalars: &Scalars,
    ) -> Result<Buffers, String>;
}

/// A device as an executor: compiles the graph with all passes, runs it once, reads all buffers.
pub struct OnDevice<'a>(
    /// The device.
    pub &'a dyn Device,
);

impl Executor for OnDevice<'_> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(
        &self,
        graph: Graph,
        weights: &dyn WeightLoader,
        buffers: &Buffers,
        scalars: &Scalars,
    ) -> Result<Buffers, String> {
        let text = |e: &dyn fmt::Display| e.to_string();
        // Devices keep their weights, so they get a copy.
        let owned = RandomWeights::copied(&graph, weights).map_err(|e| text(&e))?;
        let declared = graph.buffers().to_vec();
        let plan = Plan::compile(graph, self.0).map_err(|e| text(&e))?;
        let plan = self.0.open(Arc::new(owned)).load(plan).map_err(|e| text(&e))?;
        let mut memory = self.0.memory();
        for b in declared.iter().filter(|b| b.kind != BufferKind::Output) {
            match buffers.get(&b.name) {
                Some(Data::F32(x)) => memory.write_f32(&b.name, &b.shape, x).map_err(|e| text(&e))?,
                Some(Data::I32(x)) => memory.write_i32(&b.name, &b.shape, x).map_err(|e| text(&e))?,
                Some(Data::Compact(dtype, x)) => {
                    memory.write_bytes(&b.name, *dtype, &b.shape, x).map_err(|e| text(&e))?
                }
                None => return Err(format!("buffer `{}` was not given", b.name)),
            }
        }
        for (name, value) in scalars {
            match *value {
                ScalarValue::F32(x) => memory.set_scalar(name, x),
                ScalarValue::U64(x) => memory.set_index(name, x),
            }
        }
        plan.run(memory.as_mut()).map_err(|e| text(&e))?;
        let mut after = Buffers::new();
        for b in &declared {
            let (shape, data) = match b.dtype {
                DType::F32 => {
                    let mut data = vec![];
                    (memory.read_f32(&b.name, &mut data), Data::F32(data))
                }
                DType::I32 => {
                    let mut data = vec![];
                    (memory.read_i32(&b.name, &mut data), Data::I32(data))
                }
                dtype => {
                    let mut data = vec![];
                    let read = memory.read_bytes(&b.name, &mut data);
                    (read.map(|(_, shape)| shape), Data::Compact(dtype, data))
                }
            };
            let shape = shape.map_err(|e| text(&e))?;
            if shape != b.shape {
                return Err(format!("buffer `{}` came back as {shape}, declared as {}", b.name, b.shape));
            }
            after.insert(b.name.clone(), data);
        }
        Ok(after)
    }
}

/// A case that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Case name.
    pub case: String,
    /// What is wrong, with numbers.
    pub problem: String,
}

/// Outcome of [`check_all`].
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Executor name.
    pub executor: String,
    /// Number of cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failures: Vec<Failure>,
    /// The case closest to its limit, and its error as a fraction of the limit.
    pub closest: Option<(String, f64)>,
}

impl Report {
    /// # Panics
    /// There are failures, or no cases were given.
    #[track_caller]
    pub fn assert(&self) {
        assert!(self.passed + self.failures.len() > 0, "{}: no cases were given", self.executor);
        assert!(self.failures.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.passed + self.failures.len();
        writeln!(f, "{}: {} of {all} cases match the interpreter", self.executor, self.passed)?;
        if let Some((case, share)) = &self.closest {
            writeln!(f, "  closest to its limit: {case} at {:.0} %", 100.0 * share)?;
        }
        self.failures.iter().try_for_each(|x| writeln!(f, "  {}: {}", x.case, x.problem))
    }
}

/// Runs every case on `executor` and compares all buffers with the interpreter's.
///
/// # Panics
/// A case cannot be interpreted, so the case itself is broken.
pub fn check_all<'c>(executor: &dyn Executor, cases: impl IntoIterator<Item = &'c Case>) -> Report {
    let mut report = Report { executor: executor.name(), passed: 0, failures: vec![], closest: None };
    for case in cases {
        match check(executor, case) {
            Ok(share) => {
                report.passed += 1;
                if report.closest.as_ref().is_none_or(|c| share > c.1) {
                    report.closest = Some((case.name.clone(), share));
                }
            }
            Err(problem) => report.failures.push(Failure { case: case.name.clone(), problem }),
        }
    }
    report
}

/// Largest error as a fraction of the limit.
fn check(executor: &dyn Executor, case: &Case) -> Result<f64, String> {
    let expected = interpret(&case.graph, &case.weights, &case.buffers, &case.scalars)
        .unwrap_or_else(|e| panic!("case `{}` cannot be interpreted: {e}", case.name));
    let got = executor.run(case.graph.clone(), &case.weights, &case.buffers, &case.scalars)?;
    let mut closest = 0f64;
    for b in case.graph.buffers() {
        let name = &b.name;
        let moved = b.kind == BufferKind::Input;
        match (got.get(name), &expected[name]) {
            (None, _) if moved => {}
            (None, _) => return Err(format!("buffer `{name}` did not come back")),
            // Inputs may hold NaN where an op must not look; they must come back bit for bit.
            (Some(Data::F32(got)), Data::F32(expected)) if moved || case.tolerance == 0.0 => {
                let same = |(g, e): (&f32, &f32)| g.to_bits() == e.to_bits() || (g == e && !moved);
                if got.len() != expected.len() || !got.iter().zip(expected).all(same) {
                    let what = if moved { "input was changed" } else { "not the same bits" };
                    let why = compare(got, expected, 0.0).err().as_ref().map(Mismatch::to_string);
                    return Err(format!("`{name}`: {what}: {}", why.unwrap_or_default()));
                }
            }
            (Some(Data::F32(got)), Data::F32(expected)) => {
                let c = compare(got, expected, case.tolerance).map_err(|e| format!("`{name}`: {e}"))?;
                closest = closest.max(c.max_error / case.tolerance);
            }
            (Some(got), expected) if got == expected => {}
            (Some(Data::Compact(_, got)), Data::Compact(dtype, expected))
                if !moved && case.tolerance > 0.0 =>
            {
                let numbers = |bytes: &[u8]| compact::decode(*dtype, b.shape.last(), bytes);
                let (got, expected) = (numbers(got), numbers(expected));
                let c = compare(&got, &expected, case.tolerance).map_err(|e| format!("`{name}`: {e}"))?;
                closest = closest.max(c.max_error / case.tolerance);
            }
            (Some(Data::Compact(..)), Data::Compact(..)) => {
                return Err(format!("`{name}`: not the same bytes"));
            }
            (Some(_), _) => return Err(format!("`{name}`: integers differ")),
        }
    }
    Ok(closest)
}
