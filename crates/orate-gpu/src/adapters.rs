//! Lists GPUs and their features.

#[cfg(target_os = "wasi")]
use crate::webgpu;
use orate_graph::{COOPERATIVE_MATRICES, DeviceClass, DeviceInfo, DeviceKind, Precision};
use wgpu::{Adapter, Backend, Backends, CooperativeScalarType, DeviceType, DownlevelFlags, Features};
#[cfg(not(target_os = "wasi"))]
use {
    orate_graph::AtHome,
    std::sync::Mutex,
    wgpu::{Instance, InstanceDescriptor, InstanceFlags},
};

/// Features that kernels use if available.
pub(crate) fn wanted() -> Features {
    Features::SUBGROUP | Features::TIMESTAMP_QUERY | Features::PIPELINE_CACHE
}

/// Weight formats of a device. Nearly all devices can unpack f16, whether or not they compute in it; bf16
/// needs only a shift. Scales of blocks are f16.
pub(crate) fn precisions(adapter: &Adapter) -> &'static [Precision] {
    use Precision::{Bf16, F16, F32, Q4_0, Q4K, Q5K, Q6K, Q8_0};
    match adapter.get_downlevel_capabilities().flags.contains(DownlevelFlags::SHADER_F16_IN_F32) {
        true => &[F32, F16, Bf16, Q8_0, Q6K, Q5K, Q4K, Q4_0],
        false => &[F32, Bf16],
    }
}

/// Threads per subgroup. `None` if it varies: a kernel could not know how many subgroups a workgroup has.
pub(crate) fn lanes(adapter: &Adapter) -> Option<usize> {
    let info = adapter.get_info();
    (info.subgroup_min_size == info.subgroup_max_size).then_some(info.subgroup_max_size as usize)
}

/// Cooperative matrices as kernels use them: a subgroup multiplies f16 values and accumulates in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    /// Rows and columns of each of the three matrices: 16 or 8.
    pub fragment: usize,
    /// Threads per subgroup.
    pub lanes: usize,
}

impl Matrices {
    /// Device features that they require.
    pub const FEATURES: Features =
        Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(Features::SHADER_F16).union(Features::SUBGROUP);

    /// Returns those of an adapter, the larger ones if there are two sizes. `None` for adapters with variable
    /// subgroup sizes, and for Metal, on which nothing was measured.
    pub fn of(adapter: &Adapter) -> Option<Self> {
        let lanes = lanes(adapter)?;
        if adapter.get_info().backend != Backend::Vulkan || !adapter.features().contains(Self::FEATURES) {
            return None;
        }
        let sizes = adapter.cooperative_matrix_properties().into_iter().filter_map(|m| {
            let types = (m.ab_type, m.cr_type) == (CooperativeScalarType::F16, CooperativeScalarType::F32);
            (types && m.m_size == m.n_size && m.n_size == m.k_size).then_some(m.m_size as usize)
        });
        let fragment = sizes.filter(|n| [8, 16].contains(n)).max()?;
        Some(Matrices { fragment, lanes })
    }

    /// Text for the list of a device's features.
    pub fn feature(self) -> String {
        format!("{COOPERATIVE_MATRICES} of {0} x {0} for f16", self.fragment)
    }
}

/// Returns all GPUs of the Vulkan, Metal and DX12 drivers, including software rasterizers. Loads the drivers.
pub fn devices() -> Vec<DeviceInfo> {
    open(None).into_iter().map(|(_, info)| info).collect()
}

/// Returns the adapters of one kind, or of all.
pub(crate) fn open(kind: Option<DeviceKind>) -> Vec<(Adapter, DeviceInfo)> {
    let backends = match kind {
        Some(DeviceKind::Vulkan) => Backends::VULKAN,
        Some(DeviceKind::Metal) => Backends::METAL,
        Some(DeviceKind::Dx12) => Backends::DX12,
        Some(DeviceKind::WebGpu) => Backends::BROWSER_WEBGPU,
        Some(DeviceKind::Cpu | DeviceKind::Cuda) => return vec![],
        None => Backends::VULKAN | Backends::METAL | Backends::DX12 | Backends::BROWSER_WEBGPU,
    };
    let mut found: Vec<(Adapter, DeviceInfo)> = vec![];
    for adapter in adapters(backends) {
        let Some(kind) = kind_of(adapter.get_info().backend) else { continue };
        let index = found.iter().filter(|(_, i)| i.kind == kind).count();
        let info = describe(&adapter, kind, index);
        found.push((adapter, info));
    }
    found
}

/// Returns the adapter of the page around the module.
#[cfg(target_os = "wasi")]
fn adapters(backends: Backends) -> Vec<Adapter> {
    webgpu::adapter().filter(|_| backends.contains(Backends::BROWSER_WEBGPU)).into_iter().collect()
}

#[cfg(not(target_os = "wasi"))]
fn adapters(backends: Backends) -> Vec<Adapter> {
    let backends = backends & Instance::enabled_backend_features();
    if backends.is_empty() {
        return vec![];
    }
    let instance = instance_for(backends);
    let found = pollster::block_on(instance.enumerate_adapters(backends));
    if found.iter().any(|adapter| adapter.get_info().device_type != DeviceType::Cpu) {
        keep(backends, instance);
    }
    found
}

/// Instances of hardware drivers, kept until the process ends. NVIDIA's Vulkan driver (580.159) finds no
/// device after a process unloaded and loaded it many times; static thread-local memory is the likely cause.
#[cfg(not(target_os = "wasi"))]
static KEPT: Mutex<Vec<(Backends, AtHome<Instance>)>> = Mutex::new(vec![]);

#[cfg(not(target_os = "wasi"))]
fn instance_for(backends: Backends) -> Instance {
    // Not waited for: in a forked process, a thread that is not there may hold it.
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.retain(|(_, instance)| AtHome::home(instance).is_here());
        if let Some((_, instance)) = kept.iter().find(|(of, _)| *of == backends) {
            return (**instance).clone();
        }
    }
    Instance::new(InstanceDescriptor {
        backends,
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    })
}

#[cfg(not(target_os = "wasi"))]
fn keep(backends: Backends, instance: Instance) {
    if let Ok(mut kept) = KEPT.try_lock()
        && kept.iter().all(|(of, _)| *of != backends)
    {
        kept.push((backends, AtHome::new(instance)));
    }
}

fn kind_of(backend: Backend) -> Option<DeviceKind> {
    match backend {
        Backend::Vulkan => Some(DeviceKind::Vulkan),
        Backend::Metal => Some(DeviceKind::Metal),
        Backend::Dx12 => Some(DeviceKind::Dx12),
        Backend::BrowserWebGpu => Some(DeviceKind::WebGpu),
        _ => None,
    }
}

fn describe(adapter: &Adapter, kind: DeviceKind, index: usize) -> DeviceInfo {
    let info = adapter.get_info();
    let has = adapter.features();
    let mut features = vec![];
    if has.contains(Features::SUBGROUP) {
        features.push(match (info.subgroup_min_size, info.subgroup_max_size) {
            (a, b) if a == b => format!("subgroups of {a}"),
            (a, b) => format!("subgroups of {a} to {b}"),
        });
    }
    for (feature, name) in
        [(Features::TIMESTAMP_QUERY, "timestamps"), (Features::PIPELINE_CACHE, "pipeline cache")]
    {
        if has.contains(feature) {
            features.push(name.to_owned());
        }
    }
    if precisions(adapter).contains(&Precision::F16) {
        features.push("f16 weights".to_owned());
    }
    features.extend(Matrices::of(adapter).map(Matrices::feature));
    let driver = [info.driver, info.driver_info].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
    DeviceInfo {
        kind,
        index,
        name: info.name,
        class: match info.device_type {
            DeviceType::DiscreteGpu | DeviceType::VirtualGpu => DeviceClass::Discrete,
            DeviceType::IntegratedGpu | DeviceType::Other => DeviceClass::Integrated,
            DeviceType::Cpu => DeviceClass::Software,
        },
        memory: None,
        free_memory: None,
        driver: driver.join(" "),
        features,
        card: (!info.device_pci_bus_id.is_empty()).then_some(info.device_pci_bus_id),
    }
}
