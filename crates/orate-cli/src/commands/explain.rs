//! `orate explain`: what runs, and how long it must take at least.

use crate::args::{EngineArgs, SizeArgs};
use crate::engine_report::note_warnings;
use crate::failure::UsageError;
use crate::print;
use orate::Engine;
use orate_graph::{Cost, Roofline};
use orate_tools::bench;
use std::fmt::Write as _;

/// Sizes when nothing is said: a sentence of five seconds.
const TOKENS: usize = 80;
const LATENTS: usize = 72;

/// Shorter steps say little about what the machine can do.
const LEAST_US: f64 = 20.0;

/// At which sizes, on what machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate explain                                    the built-in voice, a sentence of 80 characters
  orate explain --tokens 40 --latents 30 --gflops 190 --gbps 15
  orate explain --model supertonic-2 --measure
  orate explain --model Qwen3-TTS-12Hz-0.6B-Base --weights q8_0 --gflops 380 --gbps 31

The bound of a step is the larger of its arithmetic and its memory traffic at the given speeds.")]
pub struct Args {
    #[command(flatten)]
    sizes: SizeArgs,

    /// Arithmetic speed of the machine, in GFLOP/s, for the bound
    #[arg(long, value_name = "X", allow_negative_numbers = true, requires = "gbps")]
    gflops: Option<f64>,

    /// Memory speed of the machine, in GB/s, for the bound
    #[arg(long, value_name = "X", allow_negative_numbers = true, requires = "gflops")]
    gbps: Option<f64>,

    /// Take the best speeds that any step of this model reaches on this machine (Supertonic)
    #[arg(long, conflicts_with_all = ["gflops", "gbps"])]
    measure: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Prints the plans.
pub fn run(args: &Args) -> anyhow::Result<()> {
    for (name, value) in [("--gflops", args.gflops), ("--gbps", args.gbps)] {
        if let Some(x) = value.filter(|x| !(x.is_finite() && *x > 0.0)) {
            return Err(UsageError(format!("{name} is {x}; it must be a number above 0")).into());
        }
    }
    let engine = args.engine.open()?;
    if engine.qwen3_tts().is_ok() {
        for (given, option, instead) in [
            (args.measure, "--measure", "give --gflops and --gbps"),
            (args.sizes.steps.is_some(), "--steps", "leave it out"),
        ] {
            if given {
                let name = engine.model_name();
                let problem = format!("{option} is for Supertonic models, and {name} is none; {instead}");
                return Err(UsageError(problem).into());
            }
        }
    }
    let sizes = bench::Sizes {
        tokens: args.sizes.tokens.map_or(TOKENS, |n| n as usize),
        latents: args.sizes.latents.map_or(LATENTS, |n| n as usize),
        steps: args.sizes.steps(&engine)?,
    };
    let roofline = match (args.gflops, args.gbps) {
        (Some(gflops), Some(gbps)) => Some(Roofline { gflops, gbps }),
        _ if args.measure => Some(measure(&engine, sizes)?),
        _ => None,
    };
    print::out(&describe(&engine, sizes, roofline)?)?;
    note_warnings(&engine);
    Ok(())
}

/// The best rates of all steps.
fn measure(engine: &Engine, sizes: bench::Sizes) -> anyhow::Result<Roofline> {
    let steps = bench::profile(engine, sizes, 5)?;
    let best = |rate: fn(&bench::StepTime) -> f64| {
        let long_enough = steps.iter().filter(|s| s.us >= LEAST_US).map(rate);
        long_enough.fold(0.0, f64::max).max(f64::MIN_POSITIVE)
    };
    Ok(Roofline {
        gflops: best(|s| s.flops as f64 / s.us / 1e3),
        gbps: best(|s| s.bytes as f64 / s.us / 1e3),
    })
}

fn describe(engine: &Engine, sizes: bench::Sizes, roofline: Option<Roofline>) -> anyhow::Result<String> {
    let bench::Sizes { tokens, latents: frames, steps } = sizes;
    let mut options = orate::Options::default();
    options.own.extend([("steps", (steps > 0).then(|| steps.into()))]);
    let runs = engine.plans(orate::Size { tokens, frames }, &options)?;
    let mut text = format!("{} on {}: {}\n", engine.model_name(), engine.device(), runs.size);
    let (mut total, mut bound_us) = (Cost::default(), 0.0);
    for (executable, times) in &runs.plans {
        let plan = executable.plan();
        let _ = write!(text, "\n{}", plan.explain(roofline));
        for _ in 0..*times {
            total += plan.cost();
        }
        if let Some(r) = roofline {
            bound_us += plan.steps().iter().map(|s| r.bound_us(s.cost)).sum::<f64>() * *times as f64;
        }
    }
    let _ = write!(
        text,
        "\nall, with {}: {:.3} GFLOP, {:.1} MB moved",
        runs.what,
        total.flops as f64 / 1e9,
        total.bytes as f64 / 1e6
    );
    if let Some(r) = roofline {
        let _ = write!(
            text,
            ", at least {:.2} ms at {:.0} GFLOP/s and {:.1} GB/s",
            bound_us / 1e3,
            r.gflops,
            r.gbps
        );
    }
    text.push('\n');
    Ok(text)
}
