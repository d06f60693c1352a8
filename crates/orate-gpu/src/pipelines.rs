//! Compute pipelines of the kernels, compiled once per device and cached on disk.

use crate::cache_file;
use crate::exit;
use crate::failure::attempt;
use crate::parallel;
use crate::sources::sources_hash;
use crate::variant::Variant;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use wgpu::{
    AdapterInfo, ComputePipeline, ComputePipelineDescriptor, PipelineCache, PipelineCacheDescriptor,
    PipelineCompilationOptions, PipelineLayout, ShaderModule, ShaderModuleDescriptor, ShaderRuntimeChecks,
    ShaderSource,
};

/// Cache of compiled pipelines on disk.
struct Disk {
    path: PathBuf,
    key: u64,
    cache: PipelineCache,
    /// Hash of the file's content.
    written: Mutex<u64>,
    /// Reason why it could not be written.
    problem: OnceLock<String>,
}

/// All pipelines of a device.
pub(crate) struct Pipelines {
    layout: PipelineLayout,
    made: Mutex<HashMap<Variant, ComputePipeline>>,
    disk: Option<Disk>,
}

impl Pipelines {
    pub fn new(
        device: &wgpu::Device,
        layout: PipelineLayout,
        info: &AdapterInfo,
        folder: Option<&Path>,
    ) -> Self {
        let disk = folder.map(|folder| {
            let path =
                folder.join(format!("{}-{:04x}-{:04x}.pipelines", info.backend, info.vendor, info.device));
            let identity = format!(
                "{} {} {:x} {:x} {} {} {:x}",
                info.backend,
                info.name,
                info.vendor,
                info.device,
                info.driver,
                info.driver_info,
                sources_hash()
            );
            let key = cache_file::hash(identity.as_bytes());
            let data = cache_file::read(&path, key);
            let descriptor =
                PipelineCacheDescriptor { label: Some("orate"), data: data.as_deref(), fallback: true };
            // SAFETY: the file's key and hash say that this device and driver made these bytes.
            let cache = unsafe { device.create_pipeline_cache(&descriptor) };
            let written = Mutex::new(data.as_deref().map_or(0, cache_file::hash));
            Disk { path, key, cache, written, problem: OnceLock::new() }
        });
        Pipelines { layout, made: Mutex::default(), disk }
    }

    /// Returns the pipelines of `variants` in order. Missing ones are compiled in parallel.
    ///
    /// # Errors
    /// The driver or wgpu rejects a kernel; the error has its message.
    pub fn get(&self, device: &wgpu::Device, variants: &[Variant]) -> Result<Vec<ComputePipeline>, String> {
        let mut missing: Vec<&Variant> = vec![];
        {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            for v in variants {
                if !made.contains_key(v) && !missing.contains(&v) {
                    missing.push(v);
                }
            }
        }
        // Without a lock: two threads may compile the same kernel, with the same result.
        let compiled = parallel::map(missing.len(), usize::MAX, |i| self.compile(device, missing[i]));
        let compiled = compiled.into_iter().collect::<Result<Vec<_>, _>>()?;
        let news = !missing.is_empty();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for (v, pipeline) in missing.into_iter().zip(compiled) {
            made.entry(v.clone()).or_insert(pipeline);
        }
        let all = variants
            .iter()
            .map(|v| made.get(v).cloned().ok_or_else(|| format!("kernel `{}` was not compiled", v.file)))
            .collect();
        drop(made);
        if news {
            exit::compiled();
            self.save();
        }
        all
    }

    fn compile(&self, device: &wgpu::Device, v: &Variant) -> Result<ComputePipeline, String> {
        let text = v.wgsl()?;
        let (pipeline, told) = attempt(|| -> Result<_, String> {
            // SAFETY: kernels bound their loops by parameters and keep indices within the operands that the
            // parameters describe; divisors are extents, which are never 0.
            let module = unsafe { Self::shader(device, v, text) }?;
            Ok(device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: Some(v.file),
                layout: Some(&self.layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.disk.as_ref().map(|d| &d.cache),
            }))
        });
        match (pipeline, told.first()) {
            (Ok(pipeline), None) => Ok(pipeline),
            (Err(e), _) => Err(format!("kernel `{}`: {e}", v.file)),
            (_, Some(e)) => Err(format!("kernel `{}`: {e}", v.file)),
        }
    }

    /// Returns the shader of a kernel, without checks.
    ///
    /// # Safety
    /// The kernel must keep indices within its operands, and must not divide by zero.
    unsafe fn shader(device: &wgpu::Device, v: &Variant, text: String) -> Result<ShaderModule, String> {
        #[cfg(not(any(target_os = "wasi", target_vendor = "apple")))]
        if v.is_cooperative() && device.features().contains(wgpu::Features::PASSTHROUGH_SHADERS) {
            // SAFETY: as above. Devices for which such kernels are selected have what these enable.
            return unsafe { crate::spirv::shader(device, v.file, &text) };
        }
        let module = ShaderModuleDescriptor { label: Some(v.file), source: ShaderSource::Wgsl(text.into()) };
        // SAFETY: as above.
        Ok(unsafe { device.create_shader_module_trusted(module, ShaderRuntimeChecks::unchecked()) })
    }

    /// Reason why compiled pipelines could not be stored, if that was tried.
    pub fn not_kept(&self) -> Option<String> {
        self.disk.as_ref()?.problem.get().cloned()
    }

    /// Stores compiled pipelines for the next process. A failure is recorded, but not an error.
    fn save(&self) {
        let Some(disk) = &self.disk else { return };
        let Some(data) = disk.cache.get_data() else { return };
        let hash = cache_file::hash(&data);
        let mut written = disk.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written != hash {
            match cache_file::write(&disk.path, disk.key, &data) {
                Ok(()) => *written = hash,
                Err(e) => drop(disk.problem.get_or_init(|| {
                    tracing::warn!("{}: {e}", disk.path.display());
                    format!("{}: {e}", disk.path.display())
                })),
            }
        }
    }
}
