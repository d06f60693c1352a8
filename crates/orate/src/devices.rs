//! Lists devices, and chooses the one that runs a model.

use crate::{DeviceChoice, EngineOptions, Error, Result};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{Device, DeviceClass, DeviceError, DeviceInfo, DeviceKind, PrecisionPolicy};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

/// Devices of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Devices {
    /// All devices, the CPU first unless it is among the problems.
    pub found: Vec<DeviceInfo>,
    /// Drivers that could not list their devices, and why.
    pub problems: Vec<(DeviceKind, String)>,
}

/// Lists the devices of this machine. Loads all drivers.
///
/// ```
/// assert_eq!(orate::devices().found[0].id(), "cpu");
/// ```
pub fn devices() -> Devices {
    let mut all = gpus();
    match open_cpu(&EngineOptions::default(), &PrecisionPolicy::default()) {
        Ok(cpu) => all.found.insert(0, cpu.info()),
        Err(e) => all.problems.push((DeviceKind::Cpu, e.to_string())),
    }
    all
}

/// The GPUs that this build has executors for.
fn gpus() -> Devices {
    let mut all = Devices::default();
    #[cfg(feature = "cuda")]
    match orate_cuda::devices() {
        Ok(found) => all.found.extend(found),
        Err(e) => all.problems.push((DeviceKind::Cuda, e.to_string())),
    }
    #[cfg(feature = "gpu")]
    all.found.extend(orate_gpu::devices());
    let built = [
        (cfg!(feature = "cuda"), DeviceKind::Cuda, "cuda"),
        (cfg!(feature = "gpu"), DeviceKind::Vulkan, "gpu"),
    ];
    for (_, kind, feature) in built.into_iter().filter(|b| !b.0) {
        all.problems.push((kind, format!("this program was built without the feature `{feature}`")));
    }
    all
}

impl Devices {
    /// Hardware GPUs, the best first: discrete before integrated, then by free memory. A card that CUDA can
    /// use is listed for CUDA; through other drivers it comes after all others.
    fn ranked(&self) -> Vec<&DeviceInfo> {
        let cuda: Vec<_> = self.found.iter().filter(|d| d.kind == DeviceKind::Cuda).collect();
        let is_cuda_card = |d: &DeviceInfo| match &d.card {
            Some(card) => cuda.iter().any(|c| c.card.as_ref() == Some(card)),
            None => cuda.iter().any(|c| c.name == d.name),
        };
        let again = |d: &DeviceInfo| d.kind != DeviceKind::Cuda && is_cuda_card(d);
        let hardware = |d: &&DeviceInfo| matches!(d.class, DeviceClass::Discrete | DeviceClass::Integrated);
        let mut gpus: Vec<_> = self.found.iter().filter(hardware).collect();
        gpus.sort_by_key(|d| {
            (again(d), d.class, std::cmp::Reverse(d.free_memory.or(d.memory)), d.kind, d.index)
        });
        gpus
    }

    /// Devices that fit a choice, the best first: one, except for an automatic choice.
    fn resolve(&self, choice: DeviceChoice) -> Result<Vec<(DeviceKind, usize)>, DeviceError> {
        let ranked: Vec<_> = self.ranked().into_iter().map(|d| (d.kind, d.index)).collect();
        match choice {
            DeviceChoice::Auto => Ok([ranked, vec![(DeviceKind::Cpu, 0)]].concat()),
            DeviceChoice::Cpu => Ok(vec![(DeviceKind::Cpu, 0)]),
            DeviceChoice::Kind(kind, index) => Ok(vec![(kind, index)]),
            DeviceChoice::Gpu(index) => ranked.get(index).map(|d| vec![*d]).ok_or_else(|| {
                let mut problem = match ranked.len() {
                    0 => "there is no GPU that this program can use".to_owned(),
                    n => format!("there are only {n}, numbered from 0"),
                };
                for (kind, why) in &self.problems {
                    problem += &format!("; {}: {why}", kind.name());
                }
                if let Some(software) = self.found.iter().find(|d| d.class == DeviceClass::Software) {
                    problem += &format!(
                        "; `{}` is a software rasterizer, which is only used by its name",
                        software.id()
                    );
                }
                DeviceError::Setup { device: format!("gpu:{index}"), problem }
            }),
        }
    }
}

/// Opens the device that `options` name, with weights in the formats of `policy`. A named device is opened or
/// is an error. An automatic choice skips devices that cannot be opened, and adds the reasons to
/// `passed_over`.
pub(crate) fn open(
    options: &EngineOptions,
    policy: &PrecisionPolicy,
    passed_over: &mut Vec<String>,
) -> Result<Arc<dyn Device>> {
    let choice = options.device;
    let choices = match choice {
        DeviceChoice::Auto | DeviceChoice::Gpu(_) => gpus().resolve(choice)?,
        _ => Devices::default().resolve(choice)?,
    };
    for (kind, index) in choices {
        let opened = match kind {
            DeviceKind::Cpu => open_cpu(options, policy).map(|d| Arc::new(d) as Arc<dyn Device>),
            kind => open_gpu(kind, index, options, policy),
        };
        match opened {
            Err(e) if choice == DeviceChoice::Auto && kind != DeviceKind::Cpu => {
                passed_over.push(e.to_string())
            }
            opened => return opened,
        }
    }
    unreachable!("an automatic choice ends with the CPU, and others have one device")
}

#[cfg_attr(
    not(any(feature = "cuda", feature = "gpu")),
    expect(unused_variables, reason = "this build has no executor for GPUs")
)]
fn open_gpu(
    kind: DeviceKind,
    index: usize,
    options: &EngineOptions,
    policy: &PrecisionPolicy,
) -> Result<Arc<dyn Device>> {
    let setup = |problem: &str| {
        let device = DeviceChoice::Kind(kind, index).to_string();
        Err(DeviceError::Setup { device, problem: problem.to_owned() }.into())
    };
    if kind == DeviceKind::WebGpu && !cfg!(target_os = "wasi") {
        return setup("it is for web pages (docs/web.md); choose cpu, cuda, vulkan, metal or dx12");
    }
    let cache = options.cache.clone().or_else(cache_folder);
    match kind {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => {
            let cache = cache.map(|c| c.join("cuda"));
            Ok(Arc::new(orate_cuda::CudaDevice::new(index, policy.clone(), cache)?))
        }
        #[cfg(feature = "gpu")]
        DeviceKind::Vulkan | DeviceKind::Metal | DeviceKind::Dx12 | DeviceKind::WebGpu => {
            let cache = cache.map(|c| c.join("gpu"));
            Ok(Arc::new(orate_gpu::GpuDevice::new(Some(kind), index, policy.clone(), cache)?))
        }
        kind => {
            let feature = if kind == DeviceKind::Cuda { "cuda" } else { "gpu" };
            setup(&format!("this program was built without the feature `{feature}`"))
        }
    }
}

/// Threads by default: more gain little at these sizes.
const MOST_DEFAULT_THREADS: usize = 8;

/// Numbers of threads that a CPU takes.
const THREADS: RangeInclusive<usize> = 1..=1024;

/// Opens the CPU with the threads and instruction set of `options`.
pub(crate) fn open_cpu(options: &EngineOptions, policy: &PrecisionPolicy) -> Result<CpuDevice> {
    if let Some(threads) = options.threads.filter(|threads| !THREADS.contains(threads)) {
        let allowed = format!("choose {} to {}", THREADS.start(), THREADS.end());
        return Err(Error::Option { option: "threads", got: threads.to_string(), allowed });
    }
    let isa = match &options.isa {
        Some(name) => Isa::named(name),
        None => Isa::detect(),
    };
    let isa = isa.map_err(|e| DeviceError::Setup { device: "cpu".to_owned(), problem: e.to_string() })?;
    let threads = options.threads.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS)
    });
    // Weights of 16 bits are widened and multiplied in f32, so rounding them would cost accuracy and save no
    // time.
    let policy = PrecisionPolicy { half: vec![], ..policy.clone() };
    Ok(CpuDevice::new(threads, isa)?.with_precision(policy)?)
}

/// Environment variable that names the folder for compiled kernels.
pub const CACHE_VARIABLE: &str = "ORATE_CACHE";

/// Folder of compiled kernels: [`CACHE_VARIABLE`], or `orate` in the user's cache folder. `None` if there is
/// no such folder: each process then compiles its kernels.
pub fn cache_folder() -> Option<PathBuf> {
    match std::env::var_os(CACHE_VARIABLE) {
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        _ => Some(dirs::cache_dir()?.join("orate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(
        kind: DeviceKind,
        index: usize,
        name: &str,
        class: DeviceClass,
        gib: u64,
        card: &str,
    ) -> DeviceInfo {
        DeviceInfo {
            kind,
            index,
            name: name.to_owned(),
            class,
            memory: Some(gib << 30),
            free_memory: Some(gib << 30),
            driver: "1".to_owned(),
            features: vec![],
            card: (!card.is_empty()).then(|| card.to_owned()),
        }
    }

    fn all(found: Vec<DeviceInfo>) -> Devices {
        Devices { found, problems: vec![] }
    }

    #[test]
    fn automatic_choice() {
        use DeviceClass::{Discrete, Integrated, Software};
        use DeviceKind::{Cuda, Vulkan};
        let auto =
            |found: Vec<DeviceInfo>| all(found).resolve(DeviceChoice::Auto).expect("always finds one")[0];
        assert_eq!(auto(vec![]), (DeviceKind::Cpu, 0));
        assert_eq!(auto(vec![gpu(Vulkan, 0, "llvmpipe", Software, 64, "")]), (DeviceKind::Cpu, 0));
        // Integrated GPUs report the memory of the whole machine.
        let integrated = gpu(Vulkan, 0, "Iris", Integrated, 64, "0000:00:02.0");
        let discrete = gpu(Vulkan, 1, "Arc", Discrete, 8, "0000:03:00.0");
        assert_eq!(auto(vec![integrated.clone(), discrete]), (Vulkan, 1));
        assert_eq!(auto(vec![integrated]), (Vulkan, 0));
        // One card through two drivers, of which one may not report the card.
        for card in ["0000:18:00.0", ""] {
            let seen = vec![
                gpu(Cuda, 0, "H200", Discrete, 100, "0000:18:00.0"),
                gpu(Vulkan, 0, "H200", Discrete, 140, card),
            ];
            let order = all(seen).resolve(DeviceChoice::Auto).expect("always finds one");
            assert_eq!(order, [(Cuda, 0), (Vulkan, 0), (DeviceKind::Cpu, 0)]);
        }
        // The emptier of two cards.
        let two = vec![gpu(Cuda, 0, "A", Discrete, 4, "a"), gpu(Cuda, 1, "B", Discrete, 9, "b")];
        assert_eq!(auto(two.clone()), (Cuda, 1));
        assert_eq!(all(two.clone()).resolve(DeviceChoice::Gpu(1)).expect("there are two"), [(Cuda, 0)]);
        let error = all(two).resolve(DeviceChoice::Gpu(2)).expect_err("there are two").to_string();
        assert!(error.contains("gpu:2") && error.contains("only 2"), "{error}");
    }

    #[test]
    fn wrong_numbers_of_threads_are_input() {
        for threads in [0, 1025, usize::MAX] {
            let options = EngineOptions { threads: Some(threads), ..Default::default() };
            let e = open_cpu(&options, &PrecisionPolicy::default()).err().expect("out of range");
            assert_eq!(e.to_string(), format!("threads is {threads}; choose 1 to 1024"));
            assert_eq!(e.kind(), crate::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn software_is_named_when_there_is_nothing_else() {
        let found = vec![gpu(DeviceKind::Vulkan, 0, "llvmpipe", DeviceClass::Software, 64, "")];
        let error = all(found).resolve(DeviceChoice::Gpu(0)).expect_err("no hardware").to_string();
        assert!(error.contains("vulkan:0") && error.contains("only used by its name"), "{error}");
    }
}
