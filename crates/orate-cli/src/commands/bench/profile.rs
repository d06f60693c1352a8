//! Output of `--profile` and `--trace`: the time of each step.

use super::calls;
use crate::print;
use orate_tools::bench::{Peak, StepTime};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Slowest steps that `--profile` lists.
const SLOWEST: usize = 20;

/// A step of a plan, as `--profile` prints it.
struct Line<'a> {
    step: &'a StepTime,
    share: f64,
}

/// All steps, slowest first.
fn profile_lines(profile: &[StepTime]) -> Vec<Line<'_>> {
    let total: f64 = profile.iter().map(|s| s.us * calls(s)).sum();
    let mut lines: Vec<Line<'_>> =
        profile.iter().map(|step| Line { step, share: step.us * calls(step) / total }).collect();
    lines.sort_by(|a, b| b.share.total_cmp(&a.share));
    lines
}

/// Billions per second of `amount` in `us` microseconds; 0 for steps that take no time of their own.
fn rate(amount: f64, us: f64) -> f64 {
    if us > 0.0 { amount / us / 1e3 } else { 0.0 }
}

fn gflops(s: &StepTime) -> f64 {
    rate(s.flops as f64, s.us)
}

fn gbps(s: &StepTime) -> f64 {
    rate(s.bytes as f64, s.us)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub(super) fn profile_text(profile: &[StepTime], peak: Peak) -> String {
    let lines = profile_lines(profile);
    let head = [
        "stage", "op", "kernel", "shape", "calls", "µs each", "share", "GFLOP/s", "GB/s", "of peak", "weight",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().take(SLOWEST).map(|l| {
        let s = l.step;
        vec![
            s.stage.to_owned(),
            s.op.clone(),
            s.kernel.clone(),
            s.shape.clone(),
            l.step.calls.to_string(),
            format!("{:.1}", s.us),
            format!("{:.1} %", 100.0 * l.share),
            format!("{:.1}", gflops(s)),
            format!("{:.1}", gbps(s)),
            percent(s.share_of_peak(peak)),
            s.label.clone(),
        ]
    }));
    let shown: f64 = lines.iter().take(SLOWEST).map(|l| l.share).sum();
    let vectors = peak.vector_gflops.map_or_else(String::new, |g| format!(" ({g:.0} without tiles)"));
    format!(
        "\npeak            {:.0} GFLOP/s in a large matmul{vectors}, {:.1} GB/s in a large sum\n\n{}\n\
         The slowest {} of {} steps, {:.0} % of the time:\n{}",
        peak.device.gflops,
        peak.device.gbps,
        kernels_text(&lines, peak),
        lines.len().min(SLOWEST),
        lines.len(),
        100.0 * shown,
        print::table(&rows, &[1, 2, 3, 10])
    )
}

/// Sums over all calls of a kernel in a stage.
#[derive(Default)]
struct KernelSum {
    calls: usize,
    us: f64,
    share: f64,
    flops: f64,
    bytes: f64,
    bound_us: f64,
}

/// One row for each kernel of each stage: its time, and its share of peak speed.
fn kernels_text(lines: &[Line<'_>], peak: Peak) -> String {
    let mut sums: BTreeMap<(&str, &str), KernelSum> = BTreeMap::new();
    for l in lines {
        let (s, n) = (l.step, calls(l.step));
        let sum = sums.entry((s.stage, s.kernel.as_str())).or_default();
        sum.calls += s.calls;
        sum.us += s.us * n;
        sum.share += l.share;
        sum.flops += s.flops as f64 * n;
        sum.bytes += s.bytes as f64 * n;
        sum.bound_us += s.bound_us(peak) * n;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
    let head = ["stage", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "of peak"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(sums.iter().map(|((stage, kernel), s)| {
        vec![
            (*stage).to_owned(),
            (*kernel).to_owned(),
            s.calls.to_string(),
            format!("{:.3}", s.us / 1e3),
            format!("{:.1} %", 100.0 * s.share),
            format!("{:.1}", rate(s.flops, s.us)),
            format!("{:.1}", rate(s.bytes, s.us)),
            percent(rate(s.bound_us, s.us) * 1e3),
        ]
    }));
    print::table(&rows, &[1])
}

pub(super) fn peak_json(peak: Peak) -> Value {
    json!({ "gflops": peak.device.gflops, "vector_gflops": peak.vector_gflops, "gbps": peak.device.gbps })
}

pub(super) fn profile_json(profile: &[StepTime], peak: Peak) -> Value {
    let line = |l: &Line<'_>| {
        let s = l.step;
        json!({
            "stage": s.stage, "op": s.op, "kernel": s.kernel, "shape": s.shape, "weight": s.label,
            "calls": s.calls, "us": s.us, "share": l.share, "gflops": gflops(s), "gbps": gbps(s),
            "of_peak": s.share_of_peak(peak),
        })
    };
    profile_lines(profile).iter().map(line).collect()
}

/// All steps of an utterance in sequence, in the Chrome trace format.
pub(super) fn trace(profile: &[StepTime], device: &str) -> Value {
    let mut events = vec![json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": device } })];
    let mut at = 0.0;
    let stages = profile.chunk_by(|a, b| a.stage == b.stage);
    for (row, stage) in stages.enumerate() {
        let name = stage[0].stage;
        events.push(
            json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": { "name": name } }),
        );
        for _ in 0..stage[0].calls {
            for s in stage {
                events.push(json!({
                    "ph": "X", "name": s.op, "cat": s.kernel, "pid": 1, "tid": row, "ts": at, "dur": s.us,
                    "args": {
                        "kernel": s.kernel, "shape": s.shape, "weight": s.label,
                        "GFLOP/s": gflops(s), "GB/s": gbps(s),
                    },
                }));
                at += s.us;
            }
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}
