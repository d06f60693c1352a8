//! What a device reaches with these executors, and how near a step comes to it.

use super::StepTime;
use orate::{Engine, Result};
use orate_cpu::{CpuDevice, Isa, uses_tiles};
use orate_graph::{
    Cost, DType, Device, DeviceError, Graph, GraphError, Plan, Roofline, Tensor, Value, Weight, WeightLoader,
};
use std::sync::Arc;

/// Long enough for a clock, short enough to wait for.
const PEAK_SECONDS: f64 = 4e-3;

/// Rows of the largest square matmul that is tried.
const MOST_ROWS: usize = 4096;

/// Floats of the largest sum that is tried.
const MOST_ADDED: usize = 1 << 26;

/// Speeds that a device reaches, by the units that compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The device's own limits: those of its matrix units where it has any.
    pub device: Roofline,
    /// Arithmetic of the vector units in GFLOP/s, where kernels are known to use them instead of the matrix
    /// units.
    pub vector_gflops: Option<f64>,
}

/// The instruction set of a CPU with matrix tiles, without them.
const WITHOUT_TILES: &str = "avx512";

impl Peak {
    /// What bounds a kernel of this name.
    fn of(&self, kernel: &str) -> Roofline {
        let gflops = match self.vector_gflops {
            Some(vectors) if !uses_tiles(kernel) => vectors,
            _ => self.device.gflops,
        };
        Roofline { gflops, ..self.device }
    }
}

/// Speeds that this device reaches with these executors: in a large square matmul, and in the sum of two
/// large tensors. Sizes grow until a run takes some milliseconds; the best of five runs counts.
///
/// A CPU with matrix tiles is measured without them too.
///
/// # Errors
/// The device failed.
pub fn measure_peak(engine: &Engine) -> Result<Peak> {
    peak_of(&**engine.device_object())
}

fn peak_of(device: &dyn Device) -> Result<Peak> {
    let vector_gflops = if device.info().has_matrix_tiles() {
        Some(measure_gflops(&cpu(WITHOUT_TILES, device.threads())?)?)
    } else {
        None
    };
    let device = Roofline { gflops: measure_gflops(device)?, gbps: measure_gbps(device)? };
    Ok(Peak { device, vector_gflops })
}

/// The CPU with this instruction set.
fn cpu(isa: &str, threads: usize) -> Result<CpuDevice> {
    let failed = |problem: String| DeviceError::Setup { device: "cpu".to_owned(), problem };
    let isa = Isa::named(isa).map_err(|e| failed(e.to_string()))?;
    Ok(CpuDevice::new(threads, isa)?)
}

fn measure_gflops(device: &dyn Device) -> Result<f64> {
    let (mut best, mut n) = (0f64, 256);
    loop {
        let seconds =
            time_graph(device, &[("x", [n, n])], |g, x| g.matmul(x[0], Weight::fill(0.37, [n, n])))?;
        best = best.max(2.0 * (n as f64).powi(3) / seconds / 1e9);
        if seconds > PEAK_SECONDS || n >= MOST_ROWS {
            return Ok(best);
        }
        n *= 2;
    }
}

fn measure_gbps(device: &dyn Device) -> Result<f64> {
    let mut rows = 1 << 10;
    loop {
        let seconds =
            time_graph(device, &[("x", [rows, 1024]), ("y", [rows, 1024])], |g, x| g.add(x[0], x[1]))?;
        // What fits into a cache is faster than memory, so the last size counts.
        if seconds > PEAK_SECONDS || rows * 1024 >= MOST_ADDED {
            return Ok((3 * 4 * 1024 * rows) as f64 / seconds / 1e9);
        }
        rows *= 4;
    }
}

/// Seconds of the only step of a graph, the least of five runs.
fn time_graph(
    device: &dyn Device,
    inputs: &[(&str, [usize; 2])],
    build: impl FnOnce(&mut Graph, &[Value]) -> std::result::Result<Value, GraphError>,
) -> Result<f64> {
    let time = || -> std::result::Result<f64, DeviceError> {
        let mut g = Graph::new("peak");
        let mut values = vec![];
        for (name, shape) in inputs {
            values.push(g.input(name, DType::F32, *shape)?);
        }
        let y = build(&mut g, &values)?;
        g.output("out", y)?;
        let plan = device.open(Arc::new(NoWeights)).load(Plan::compile(g, device)?)?;
        let mut memory = device.memory();
        for (name, shape) in inputs {
            let len = shape.iter().product::<usize>();
            let data: Vec<f32> =
                (0..len).map(|i| (i * 2_654_435_761 % 1_000_003) as f32 / 1e6 - 0.5).collect();
            memory.write_f32(name, &(*shape).into(), &data)?;
        }
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            best = best.min(plan.profile(memory.as_mut())?.iter().sum());
        }
        Ok(best)
    };
    Ok(time()?)
}

impl StepTime {
    /// Least time of the step at the device's limits, in microseconds.
    pub fn bound_us(&self, peak: Peak) -> f64 {
        peak.of(&self.kernel).bound_us(Cost { flops: self.flops, bytes: self.bytes })
    }

    /// The step's bound over its time, 1 at best; 0 for a step without a time of its own.
    pub fn share_of_peak(&self, peak: Peak) -> f64 {
        if self.us > 0.0 { self.bound_us(peak) / self.us } else { 0.0 }
    }
}

/// For graphs whose weights are all constants.
struct NoWeights;

impl WeightLoader for NoWeights {
    fn load(&self, name: &str) -> std::result::Result<Tensor<'_>, GraphError> {
        Err(GraphError::Weight { name: name.to_owned(), problem: "there is no such tensor".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kernel: &str) -> StepTime {
        let (op, shape, label) = ("MatMul".to_owned(), "[1]".to_owned(), "-".to_owned());
        StepTime {
            stage: "vocoder",
            op,
            kernel: kernel.to_owned(),
            shape,
            label,
            calls: 1,
            us: 10.0,
            flops: 1_000_000,
            bytes: 8,
        }
    }

    #[test]
    fn a_kernel_is_held_to_the_unit_that_it_computes_with() {
        let device = Roofline { gflops: 400.0, gbps: 10.0 };
        let peak = Peak { device, vector_gflops: Some(200.0) };
        assert_eq!(step("amx-gemm").bound_us(peak), 2.5);
        assert_eq!(step("avx512-attention").bound_us(peak), 5.0);
        assert_eq!(step("avx512-attention").share_of_peak(peak), 0.5);
        assert_eq!(step("avx512-attention").bound_us(Peak { vector_gflops: None, ..peak }), 2.5);
    }

    #[test]
    fn a_cpu_is_measured_without_its_tiles_only_if_it_has_any() {
        for isa in Isa::available() {
            let peak =
                peak_of(&cpu(&isa.to_string(), 1).expect("it is available")).expect("the CPU computes");
            assert_eq!(peak.vector_gflops.is_some(), isa.to_string() == "amx", "{isa}");
            assert!(peak.device.gflops > 0.0 && peak.device.gbps > 0.0, "{peak:?}");
        }
    }
}
