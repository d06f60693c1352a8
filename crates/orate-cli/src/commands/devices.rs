//! `orate devices`: devices that models can run on.

use crate::print;
use orate::{DeviceClass, DeviceInfo};
use serde_json::json;

/// List the devices that models can run on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orate say \"Hello.\" --device cuda:0

Without --device, the best hardware GPU that can be opened is used (discrete before integrated, then by free \
memory, CUDA before Vulkan), or else the CPU. A software rasterizer must be named.")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let all = orate::devices();
    if args.json {
        let devices: Vec<_> = all.found.iter().map(as_json).collect();
        let problems: Vec<_> =
            all.problems.iter().map(|(kind, why)| json!({ "kind": kind.name(), "problem": why })).collect();
        return print::json(&json!({ "devices": devices, "problems": problems }));
    }
    let head = ["device", "name", "class", "memory", "free", "driver", "features"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(all.found.iter().map(row));
    print::out(&print::table(&rows, &[1, 2, 5, 6]))?;
    for (kind, why) in &all.problems {
        print::out(&format!("no {}: {why}\n", kind.name()))?;
    }
    Ok(())
}

fn class(d: &DeviceInfo) -> &'static str {
    match d.class {
        DeviceClass::Discrete => "discrete",
        DeviceClass::Integrated => "integrated",
        DeviceClass::Cpu => "cpu",
        DeviceClass::Software => "software",
    }
}

fn row(d: &DeviceInfo) -> Vec<String> {
    let bytes = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), print::bytes);
    vec![
        d.id(),
        d.name.clone(),
        class(d).to_owned(),
        bytes(d.memory),
        bytes(d.free_memory),
        d.driver.clone(),
        d.features.join(", "),
    ]
}

fn as_json(d: &DeviceInfo) -> serde_json::Value {
    json!({
        "device": d.id(), "kind": d.kind.name(), "index": d.index, "name": d.name, "class": class(d),
        "memory": d.memory, "free_memory": d.free_memory, "driver": d.driver, "features": d.features,
        "card": d.card,
    })
}

#[cfg(test)]
mod tests {
    use orate::DeviceChoice;

    #[test]
    fn every_device_can_be_asked_for_by_its_name() {
        for d in orate::devices().found {
            assert!(d.id().parse::<DeviceChoice>().is_ok(), "{}", d.id());
        }
    }
}
