//! WebGPU of the page around a WebAssembly module, as a backend of wgpu.
//!
//! wgpu's own needs wasm-bindgen, another target, and results that arrive between two turns of the event
//! loop. Here the page does what [`page`] asks for, and functions that take time suspend the module
//! (JavaScript Promise Integration), so the executor is the same as on other drivers. Only what it uses is
//! here.
//!
//! * **Immediates.** Browsers have none, or too few. Kernels read them from a uniform buffer, which the page
//!   fills with those of all dispatches of a submission.
//! * **Pipelines** are compiled in parallel by the browser; the first submission waits for them.
//! * **Errors** reach wgpu's handler at the next call that can suspend.

/// Methods of wgpu's interfaces that the executor does not call.
macro_rules! unused {
    ($(fn $name:ident($($parameters:tt)*) $(-> $result:ty)?;)*) => {
        $(fn $name($($parameters)*) $(-> $result)? {
            unreachable!(concat!("the executor does not call ", stringify!($name)))
        })*
    };
}

mod commands;
mod page;

use commands::{Commands, Encoder};
use page::{Fact, Kind};
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgpu::custom::{
    AdapterInterface, BindGroupInterface, BindGroupLayoutInterface, BoxDeviceLostCallback,
    BoxSubmittedWorkDoneCallback, BufferInterface, BufferMapCallback, BufferMappedRangeInterface,
    ComputePipelineInterface, DeviceInterface, DispatchBindGroup, DispatchBindGroupLayout, DispatchBlas,
    DispatchBuffer, DispatchBufferMappedRange, DispatchCommandBuffer, DispatchCommandEncoder,
    DispatchComputePipeline, DispatchDevice, DispatchExternalTexture, DispatchPipelineCache,
    DispatchPipelineLayout, DispatchQuerySet, DispatchQueue, DispatchQueueWriteBuffer,
    DispatchRenderBundleEncoder, DispatchRenderPipeline, DispatchSampler, DispatchShaderModule,
    DispatchSurface, DispatchSurfaceOutputDetail, DispatchTexture, DispatchTlas, PipelineLayoutInterface,
    PopErrorScopeFuture, QueueInterface, RequestDeviceFuture, ShaderCompilationInfoFuture,
    ShaderModuleInterface,
};
use wgpu::{
    AdapterInfo, Backend, BindingResource, BindingType, BufferBindingType, BufferUsages, DeviceType,
    DownlevelCapabilities, Error, Features, Limits, MapMode, PollStatus, ShaderSource,
    UncapturedErrorHandler,
};

/// Group of the immediates, after those of the session and of the weights.
const IMMEDIATES: usize = 2;

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the adapter of the page, if there is one.
pub(crate) fn adapter() -> Option<wgpu::Adapter> {
    (page::adapter(Fact::Exists) != 0.0).then(|| wgpu::Adapter::from_custom(Adapter))
}

/// An object of the page, which is released when this is dropped.
#[derive(Debug)]
struct Object(u32);

impl Drop for Object {
    fn drop(&mut self) {
        page::release(self.0);
    }
}

#[derive(Debug)]
struct Adapter;

impl Adapter {
    fn lanes(&self) -> [u32; 2] {
        [Fact::FewestLanes, Fact::MostLanes].map(|fact| page::adapter(fact) as u32)
    }

    fn available(&self) -> Features {
        let subgroups = if self.lanes()[0] > 0 { Features::SUBGROUP } else { Features::empty() };
        Features::IMMEDIATES | subgroups
    }

    fn bounds(&self) -> Limits {
        let threads = page::adapter(Fact::WorkgroupThreads) as u32;
        Limits {
            max_buffer_size: page::adapter(Fact::BufferBytes) as u64,
            max_storage_buffer_binding_size: page::adapter(Fact::BindingBytes) as u64,
            max_compute_workgroup_storage_size: page::adapter(Fact::WorkgroupBytes) as u32,
            max_compute_invocations_per_workgroup: threads,
            max_compute_workgroup_size_x: threads,
            ..Limits::default()
        }
    }

    fn info(&self) -> AdapterInfo {
        let [subgroup_min_size, subgroup_max_size] = self.lanes();
        let is_software = page::adapter(Fact::IsSoftware) != 0.0;
        let class = if is_software { DeviceType::Cpu } else { DeviceType::Other };
        AdapterInfo {
            name: page::adapter_name(),
            driver: "browser".to_owned(),
            subgroup_min_size,
            subgroup_max_size,
            ..AdapterInfo::new(class, Backend::BrowserWebGpu)
        }
    }
}

impl AdapterInterface for Adapter {
    /// The page has opened the device already.
    fn request_device(&self, _: &wgpu::DeviceDescriptor<'_>) -> Pin<Box<dyn RequestDeviceFuture>> {
        let device = Device::default();
        let opened = (DispatchDevice::custom(device.clone()), DispatchQueue::custom(device));
        Box::pin(std::future::ready(Ok(opened)))
    }

    fn features(&self) -> Features {
        self.available()
    }

    fn limits(&self) -> Limits {
        self.bounds()
    }

    fn downlevel_capabilities(&self) -> DownlevelCapabilities {
        DownlevelCapabilities::default()
    }

    fn get_info(&self) -> AdapterInfo {
        self.info()
    }

    unused! {
        fn is_surface_supported(&self, _: &DispatchSurface) -> bool;
        fn get_texture_format_features(&self, _: wgpu::TextureFormat) -> wgpu::TextureFormatFeatures;
        fn get_presentation_timestamp(&self) -> wgpu::PresentationTimestamp;
    }

    fn cooperative_matrix_properties(&self) -> Vec<wgpu::CooperativeMatrixProperties> {
        vec![]
    }
}

/// A device and its queue.
#[derive(Clone, Default)]
struct Device(Arc<State>);

#[derive(Default)]
struct State {
    on_error: Mutex<Option<Arc<dyn UncapturedErrorHandler>>>,
    on_loss: Mutex<Option<BoxDeviceLostCallback>>,
    /// Buffers that the next poll maps.
    maps: Arc<Mutex<Vec<Map>>>,
    /// Whether pipelines were made that may not be compiled yet.
    compiling: AtomicBool,
    submissions: AtomicU64,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

/// A buffer to map, and who waits for it.
struct Map {
    object: Arc<Object>,
    range: Range<u64>,
    mapped: Arc<Mutex<Vec<u64>>>,
    done: BufferMapCallback,
}

impl Device {
    /// Passes errors of the page to wgpu's handlers.
    fn hear(&self) {
        while let Some((kind, description)) = page::next_error() {
            self.tell(kind, description);
        }
        if page::is_lost()
            && let Some(lost) = locked(&self.0.on_loss).take()
        {
            lost(wgpu::DeviceLostReason::Unknown, "by the browser".to_owned());
        }
    }

    fn tell(&self, kind: Kind, description: String) {
        let source = description.clone().into();
        let error = match kind {
            Kind::Validation => Error::Validation { source, description },
            Kind::OutOfMemory => Error::OutOfMemory { source },
            Kind::Internal => Error::Internal { source, description },
        };
        let handler = locked(&self.0.on_error).clone();
        match handler {
            Some(handler) => handler(error),
            None => tracing::warn!("{error}"),
        }
    }

    fn new_buffer(&self, descriptor: &wgpu::BufferDescriptor<'_>) -> DispatchBuffer {
        let invalid = descriptor.usage.is_empty();
        if invalid && !page::is_lost() {
            self.tell(Kind::Validation, "a buffer without a use".to_owned());
        }
        // Sizes of copies are multiples of 4.
        let size = descriptor.size.next_multiple_of(4);
        let usage = if invalid { BufferUsages::COPY_DST } else { descriptor.usage };
        let object = Arc::new(Object(page::create_buffer(size, usage.bits())));
        self.hear();
        DispatchBuffer::custom(Buffer { object, maps: self.0.maps.clone(), mapped: Arc::default() })
    }

    fn new_shader(&self, of: wgpu::ShaderModuleDescriptor<'_>) -> DispatchShaderModule {
        let ShaderSource::Wgsl(text) = of.source else {
            self.tell(Kind::Validation, "kernels are WGSL".to_owned());
            return DispatchShaderModule::custom(Shader(String::new()));
        };
        DispatchShaderModule::custom(Shader(for_browsers(&text)))
    }

    fn new_layout(&self, of: &wgpu::BindGroupLayoutDescriptor<'_>) -> DispatchBindGroupLayout {
        let read_only =
            |ty| matches!(ty, BindingType::Buffer { ty: BufferBindingType::Storage { read_only: true }, .. });
        let all: Vec<u32> = of.entries.iter().map(|entry| u32::from(read_only(entry.ty))).collect();
        DispatchBindGroupLayout::custom(Layout(Object(page::create_layout(&all))))
    }

    fn new_bind_group(&self, of: &wgpu::BindGroupDescriptor<'_>) -> DispatchBindGroup {
        let buffers: Vec<Arc<Object>> = of
            .entries
            .iter()
            .filter_map(|entry| match &entry.resource {
                BindingResource::Buffer(binding) => binding.buffer.as_custom::<Buffer>(),
                _ => None,
            })
            .map(|buffer| buffer.object.clone())
            .collect();
        let numbers: Vec<u32> = buffers.iter().map(|b| b.0).collect();
        let layout = of.layout.as_custom::<Layout>().map_or(0, |layout| layout.0.0);
        let object = Object(page::create_bind_group(layout, &numbers));
        DispatchBindGroup::custom(BindGroup { object, _buffers: buffers })
    }

    fn new_pipeline_layout(&self, of: &wgpu::PipelineLayoutDescriptor<'_>) -> DispatchPipelineLayout {
        let all: Vec<u32> = of
            .bind_group_layouts
            .iter()
            .filter_map(|layout| layout.and_then(|layout| layout.as_custom::<Layout>()))
            .map(|layout| layout.0.0)
            .collect();
        debug_assert_eq!(all.len(), IMMEDIATES, "the group of immediates is part of all kernels");
        let object = Object(page::create_pipeline_layout(&all, of.immediate_size as usize));
        DispatchPipelineLayout::custom(PipelineLayout(object))
    }

    fn new_pipeline(&self, of: &wgpu::ComputePipelineDescriptor<'_>) -> DispatchComputePipeline {
        let layout = of.layout.and_then(|layout| layout.as_custom::<PipelineLayout>());
        let text = of.module.as_custom::<Shader>().map_or("", |shader| &shader.0);
        let layout = layout.map_or(0, |layout| layout.0.0);
        let object = Object(page::create_pipeline(layout, of.label.unwrap_or("kernel"), text));
        self.0.compiling.store(true, Ordering::Relaxed);
        DispatchComputePipeline::custom(Pipeline(object))
    }

    fn settle(&self) {
        if self.0.compiling.swap(false, Ordering::Relaxed) {
            page::settle();
        }
    }

    fn work(&self, all: &mut dyn Iterator<Item = DispatchCommandBuffer>) -> u64 {
        let mut list = Commands::default();
        for commands in all {
            if let Some(commands) = commands.as_custom::<Commands>() {
                list.append(commands);
            }
        }
        self.settle();
        page::submit(&list.words, list.dispatches);
        self.hear();
        self.0.submissions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Maps what is to be mapped, which waits for the submissions that write it; otherwise waits for all.
    fn wait(&self) -> PollStatus {
        let maps = std::mem::take(&mut *locked(&self.0.maps));
        if maps.is_empty() {
            page::wait();
        }
        for Map { object, range, mapped, done } in maps {
            let mut bytes = vec![0u64; (range.end - range.start).div_ceil(8) as usize];
            let length = (range.end - range.start) as usize;
            let is_read =
                page::read_buffer(object.0, range.start, &mut bytemuck::cast_slice_mut(&mut bytes)[..length]);
            *locked(&mapped) = bytes;
            done(if is_read { Ok(()) } else { Err(wgpu::BufferAsyncError) });
        }
        self.hear();
        PollStatus::QueueEmpty
    }
}

/// A kernel's text with what differs in browsers.
fn for_browsers(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let enable =
        if code.into_iter().any(|line| line.contains("subgroup")) { "enable subgroups;\n" } else { "" };
    let place = format!("@group({IMMEDIATES}) @binding(0) var<uniform>");
    enable.to_owned() + &text.replace("var<immediate>", &place)
}

#[derive(Debug)]
struct Shader(String);

impl ShaderModuleInterface for Shader {
    unused! {
        fn get_compilation_info(&self) -> Pin<Box<dyn ShaderCompilationInfoFuture>>;
    }
}

#[derive(Debug)]
struct Layout(Object);

impl BindGroupLayoutInterface for Layout {}

#[derive(Debug)]
struct BindGroup {
    object: Object,
    _buffers: Vec<Arc<Object>>,
}

impl BindGroupInterface for BindGroup {}

#[derive(Debug)]
struct PipelineLayout(Object);

impl PipelineLayoutInterface for PipelineLayout {}

#[derive(Debug)]
struct Pipeline(Object);

impl ComputePipelineInterface for Pipeline {
    unused! {
        fn get_bind_group_layout(&self, _: u32) -> DispatchBindGroupLayout;
    }
}

struct Buffer {
    object: Arc<Object>,
    maps: Arc<Mutex<Vec<Map>>>,
    /// What was read when it was mapped, from the start of the mapped range.
    mapped: Arc<Mutex<Vec<u64>>>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.object.0).finish()
    }
}

impl BufferInterface for Buffer {
    fn map_async(&self, mode: MapMode, range: Range<u64>, done: BufferMapCallback) {
        if mode != MapMode::Read {
            return done(Err(wgpu::BufferAsyncError));
        }
        let map = Map { object: self.object.clone(), range, mapped: self.mapped.clone(), done };
        locked(&self.maps).push(map);
    }

    fn get_mapped_range(&self, range: Range<u64>) -> Result<DispatchBufferMappedRange, wgpu::MapRangeError> {
        let words = std::mem::take(&mut *locked(&self.mapped));
        Ok(DispatchBufferMappedRange::custom(Mapped { words, length: (range.end - range.start) as usize }))
    }

    fn unmap(&self) {}

    fn destroy(&self) {}
}

/// Bytes of a mapped buffer.
#[derive(Debug)]
struct Mapped {
    words: Vec<u64>,
    length: usize,
}

impl BufferMappedRangeInterface for Mapped {
    fn len(&self) -> usize {
        self.length
    }

    unsafe fn read_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        unreachable!("the executor maps buffers to read them")
    }
}

impl DeviceInterface for Device {
    fn features(&self) -> Features {
        Adapter.available()
    }

    fn limits(&self) -> Limits {
        Adapter.bounds()
    }

    fn adapter_info(&self) -> AdapterInfo {
        Adapter.info()
    }

    fn create_shader_module(
        &self,
        of: wgpu::ShaderModuleDescriptor<'_>,
        _: wgpu::ShaderRuntimeChecks,
    ) -> DispatchShaderModule {
        self.new_shader(of)
    }

    fn create_bind_group_layout(&self, of: &wgpu::BindGroupLayoutDescriptor<'_>) -> DispatchBindGroupLayout {
        self.new_layout(of)
    }

    fn create_bind_group(&self, of: &wgpu::BindGroupDescriptor<'_>) -> DispatchBindGroup {
        self.new_bind_group(of)
    }

    fn create_pipeline_layout(&self, of: &wgpu::PipelineLayoutDescriptor<'_>) -> DispatchPipelineLayout {
        self.new_pipeline_layout(of)
    }

    fn create_compute_pipeline(&self, of: &wgpu::ComputePipelineDescriptor<'_>) -> DispatchComputePipeline {
        self.new_pipeline(of)
    }

    fn create_buffer(&self, of: &wgpu::BufferDescriptor<'_>) -> DispatchBuffer {
        self.new_buffer(of)
    }

    fn create_command_encoder(&self, _: &wgpu::CommandEncoderDescriptor<'_>) -> DispatchCommandEncoder {
        DispatchCommandEncoder::custom(Encoder::default())
    }

    fn set_device_lost_callback(&self, lost: BoxDeviceLostCallback) {
        *locked(&self.0.on_loss) = Some(lost);
    }

    fn on_uncaptured_error(&self, handler: Arc<dyn UncapturedErrorHandler>) {
        *locked(&self.0.on_error) = Some(handler);
    }

    fn poll(&self, _: wgpu::wgt::PollType<u64>) -> Result<PollStatus, wgpu::PollError> {
        Ok(self.wait())
    }

    fn destroy(&self) {}

    unsafe fn create_shader_module_passthrough(
        &self,
        _: &wgpu::ShaderModuleDescriptorPassthrough<'_>,
    ) -> DispatchShaderModule {
        unreachable!("kernels are WGSL")
    }

    unsafe fn create_pipeline_cache(&self, _: &wgpu::PipelineCacheDescriptor<'_>) -> DispatchPipelineCache {
        unreachable!("browsers keep compiled kernels themselves")
    }

    unsafe fn start_graphics_debugger_capture(&self) {}

    unsafe fn stop_graphics_debugger_capture(&self) {}

    unused! {
        fn create_render_pipeline(&self, _: &wgpu::RenderPipelineDescriptor<'_>) -> DispatchRenderPipeline;
        fn create_mesh_pipeline(&self, _: &wgpu::MeshPipelineDescriptor<'_>) -> DispatchRenderPipeline;
        fn create_texture(&self, _: &wgpu::TextureDescriptor<'_>) -> DispatchTexture;
        fn create_external_texture(
            &self,
            _: &wgpu::ExternalTextureDescriptor<'_>,
            _: &[&wgpu::TextureView],
        ) -> DispatchExternalTexture;
        fn create_blas(
            &self,
            _: &wgpu::CreateBlasDescriptor<'_>,
            _: wgpu::BlasGeometrySizeDescriptors,
        ) -> (Option<u64>, DispatchBlas);
        fn create_tlas(&self, _: &wgpu::CreateTlasDescriptor<'_>) -> DispatchTlas;
        fn create_sampler(&self, _: &wgpu::SamplerDescriptor<'_>) -> DispatchSampler;
        fn create_query_set(&self, _: &wgpu::QuerySetDescriptor<'_>) -> DispatchQuerySet;
        fn create_render_bundle_encoder(
            &self,
            _: &wgpu::RenderBundleEncoderDescriptor<'_>,
        ) -> DispatchRenderBundleEncoder;
        fn push_error_scope(&self, _: wgpu::ErrorFilter) -> u32;
        fn pop_error_scope(&self, _: u32) -> Pin<Box<dyn PopErrorScopeFuture>>;
        fn get_internal_counters(&self) -> wgpu::InternalCounters;
        fn generate_allocator_report(&self) -> Option<wgpu::AllocatorReport>;
    }
}

impl QueueInterface for Device {
    fn write_buffer(&self, buffer: &DispatchBuffer, offset: u64, data: &[u8]) {
        if let Some(buffer) = buffer.as_custom::<Buffer>() {
            page::write_buffer(buffer.object.0, offset, data);
        }
    }

    fn submit(&self, all: &mut dyn Iterator<Item = DispatchCommandBuffer>) -> u64 {
        self.work(all)
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    unused! {
        fn create_staging_buffer(&self, _: wgpu::BufferSize) -> Option<DispatchQueueWriteBuffer>;
        fn validate_write_buffer(&self, _: &DispatchBuffer, _: u64, _: wgpu::BufferSize) -> Option<()>;
        fn write_staging_buffer(&self, _: &DispatchBuffer, _: u64, _: &DispatchQueueWriteBuffer);
        fn write_texture(
            &self,
            _: wgpu::TexelCopyTextureInfo<'_>,
            _: &[u8],
            _: wgpu::TexelCopyBufferLayout,
            _: wgpu::Extent3d,
        );
        fn on_submitted_work_done(&self, _: BoxSubmittedWorkDoneCallback);
        fn compact_blas(&self, _: &DispatchBlas) -> (Option<u64>, DispatchBlas);
        fn present(&self, _: &DispatchSurfaceOutputDetail);
    }
}
