//! `orate explain`: compiled plans and their roofline bound.

use crate::args::{EngineArgs, SizeArgs, within};
use crate::engine_report::note_warnings;
use crate::own_options::OwnOptions;
use crate::print;
use orate::{Engine, Options, Roofline, Size};
use orate_tools::explain::{self, Explanation};
use std::fmt::Write as _;

/// Sizes of a sentence of five seconds.
const USUAL: Size = Size { tokens: 80, frames: 72 };

/// Show compiled plans: steps, shapes, FLOPs, bytes and the roofline bound
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

    /// Peak arithmetic speed of the machine in GFLOP/s, for the bound
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = within(0.001..=1e9_f64),
        requires = "gbps"
    )]
    gflops: Option<f64>,

    /// Peak memory bandwidth of the machine in GB/s, for the bound
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = within(0.001..=1e9_f64),
        requires = "gflops"
    )]
    gbps: Option<f64>,

    /// Take the best speeds that any step of this model reaches on this machine
    #[arg(long, conflicts_with_all = ["gflops", "gbps"])]
    measure: bool,

    #[command(flatten)]
    own: OwnOptions,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Prints the plans.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args.engine.open()?;
    let size = Size {
        tokens: args.sizes.tokens.map_or(USUAL.tokens, |n| n as usize),
        frames: args.sizes.latents.map_or(USUAL.frames, |n| n as usize),
    };
    let options = args.own.set(Options::default());
    let roofline = match (args.gflops, args.gbps) {
        (Some(gflops), Some(gbps)) => Some(Roofline { gflops, gbps }),
        _ if args.measure => {
            let options = args.own.set(orate_tools::bench::usual_options(&engine)?);
            Some(explain::measured_roofline(&engine, size, &options)?)
        }
        _ => None,
    };
    print::out(&text(&engine, &explain::explain(&engine, size, &options, roofline)?, roofline))?;
    note_warnings(&engine);
    Ok(())
}

fn text(engine: &Engine, explanation: &Explanation, roofline: Option<Roofline>) -> String {
    let Explanation { size, what, plans, total, bound_us } = explanation;
    let mut text = format!("{} on {}: {size}\n", engine.model_name(), engine.device());
    for (executable, _) in plans {
        let _ = write!(text, "\n{}", executable.plan().explain(roofline));
    }
    let (gflop, megabytes) = (total.flops as f64 / 1e9, total.bytes as f64 / 1e6);
    let _ = write!(text, "\nall, with {what}: {gflop:.3} GFLOP, {megabytes:.1} MB moved");
    if let (Some(r), Some(us)) = (roofline, bound_us) {
        let (ms, gflops, gbps) = (us / 1e3, r.gflops, r.gbps);
        let _ = write!(text, ", at least {ms:.2} ms at {gflops:.0} GFLOP/s and {gbps:.1} GB/s");
    }
    text.push('\n');
    text
}
