//! Commands as a list of words, which the page turns into WebGPU's. Sizes and offsets are two words each, the
//! lower first.

use super::{BindGroup, Buffer, Pipeline, locked};
use std::sync::{Arc, Mutex};
use wgpu::custom::{
    CommandBufferInterface, CommandEncoderInterface, ComputePassInterface, DispatchBindGroup, DispatchBuffer,
    DispatchCommandBuffer, DispatchComputePass, DispatchComputePipeline, DispatchQuerySet,
    DispatchRenderPass, DispatchTexture, DispatchTextureView,
};

/// First words of commands. `npm/gpu.js` has the same numbers.
mod code {
    pub const BEGIN: u32 = 1;
    pub const END: u32 = 2;
    pub const PIPELINE: u32 = 3;
    pub const BIND: u32 = 4;
    pub const IMMEDIATES: u32 = 5;
    pub const DISPATCH: u32 = 6;
    pub const COPY: u32 = 7;
    pub const CLEAR: u32 = 8;
}

/// A list of commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands {
    pub words: Vec<u32>,
    /// How often immediates are set.
    pub dispatches: usize,
}

impl Commands {
    pub fn append(&mut self, other: &Commands) {
        self.words.extend_from_slice(&other.words);
        self.dispatches += other.dispatches;
    }

    fn size(&mut self, bytes: u64) {
        self.words.extend([bytes as u32, (bytes >> 32) as u32]);
    }
}

impl CommandBufferInterface for Commands {}

/// An encoder; its passes write to the same list.
#[derive(Debug, Default)]
pub(super) struct Encoder(Arc<Mutex<Commands>>);

fn number(buffer: &DispatchBuffer) -> u32 {
    buffer.as_custom::<Buffer>().map_or(0, |buffer| buffer.object.0)
}

impl CommandEncoderInterface for Encoder {
    fn copy_buffer_to_buffer(
        &self,
        source: &DispatchBuffer,
        from: u64,
        destination: &DispatchBuffer,
        to: u64,
        bytes: Option<u64>,
    ) {
        let mut list = locked(&self.0);
        list.words.extend([code::COPY, number(source), number(destination)]);
        for size in [from, to, bytes.unwrap_or(0)] {
            list.size(size);
        }
    }

    fn clear_buffer(&self, buffer: &DispatchBuffer, offset: u64, bytes: Option<u64>) {
        let mut list = locked(&self.0);
        list.words.extend([code::CLEAR, number(buffer)]);
        for size in [offset, bytes.unwrap_or(0)] {
            list.size(size);
        }
    }

    fn begin_compute_pass(&self, _: &wgpu::ComputePassDescriptor<'_>) -> DispatchComputePass {
        locked(&self.0).words.push(code::BEGIN);
        DispatchComputePass::custom(Pass(self.0.clone()))
    }

    fn finish(&mut self) -> DispatchCommandBuffer {
        DispatchCommandBuffer::custom(std::mem::take(&mut *locked(&self.0)))
    }

    unused! {
        fn copy_buffer_to_texture(
            &self,
            _: wgpu::TexelCopyBufferInfo<'_>,
            _: wgpu::TexelCopyTextureInfo<'_>,
            _: wgpu::Extent3d,
        );
        fn copy_texture_to_buffer(
            &self,
            _: wgpu::TexelCopyTextureInfo<'_>,
            _: wgpu::TexelCopyBufferInfo<'_>,
            _: wgpu::Extent3d,
        );
        fn copy_texture_to_texture(
            &self,
            _: wgpu::TexelCopyTextureInfo<'_>,
            _: wgpu::TexelCopyTextureInfo<'_>,
            _: wgpu::Extent3d,
        );
        fn begin_render_pass(&self, _: &wgpu::RenderPassDescriptor<'_>) -> DispatchRenderPass;
        fn clear_texture(&self, _: &DispatchTexture, _: &wgpu::ImageSubresourceRange);
        fn insert_debug_marker(&self, _: &str);
        fn push_debug_group(&self, _: &str);
        fn pop_debug_group(&self);
        fn write_timestamp(&self, _: &DispatchQuerySet, _: u32);
        fn resolve_query_set(&self, _: &DispatchQuerySet, _: u32, _: u32, _: &DispatchBuffer, _: u64);
    }

    fn mark_acceleration_structures_built<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::Blas>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
    }

    fn build_acceleration_structures<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::BlasBuildEntry<'a>>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::TextureTransition<&'a DispatchTexture>>,
    ) {
    }
}

/// A compute pass.
#[derive(Debug)]
struct Pass(Arc<Mutex<Commands>>);

impl Drop for Pass {
    fn drop(&mut self) {
        locked(&self.0).words.push(code::END);
    }
}

impl ComputePassInterface for Pass {
    fn set_pipeline(&mut self, pipeline: &DispatchComputePipeline) {
        let number = pipeline.as_custom::<Pipeline>().map_or(0, |pipeline| pipeline.0.0);
        locked(&self.0).words.extend([code::PIPELINE, number]);
    }

    fn set_bind_group(&mut self, index: u32, group: Option<&DispatchBindGroup>, _: &[u32]) {
        let number = group.and_then(|group| group.as_custom::<BindGroup>()).map_or(0, |group| group.object.0);
        locked(&self.0).words.extend([code::BIND, index, number]);
    }

    /// All that a kernel has, from the first on.
    fn set_immediates(&mut self, _: u32, data: &[u8]) {
        let mut list = locked(&self.0);
        list.words.extend([code::IMMEDIATES, (data.len() / 4) as u32]);
        list.words.extend(data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        list.dispatches += 1;
    }

    fn dispatch_workgroups(&mut self, x: u32, y: u32, z: u32) {
        locked(&self.0).words.extend([code::DISPATCH, x, y, z]);
    }

    unused! {
        fn insert_debug_marker(&mut self, _: &str);
        fn push_debug_group(&mut self, _: &str);
        fn pop_debug_group(&mut self);
        fn write_timestamp(&mut self, _: &DispatchQuerySet, _: u32);
        fn begin_pipeline_statistics_query(&mut self, _: &DispatchQuerySet, _: u32);
        fn end_pipeline_statistics_query(&mut self);
        fn dispatch_workgroups_indirect(&mut self, _: &DispatchBuffer, _: u64);
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::TextureTransition<&'a DispatchTextureView>>,
    ) {
    }
}
