//! Staging buffers, through which values are copied to the host.

use crate::gpu::Gpu;
use orate_graph::{AtHome, DeviceError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wgpu::{Buffer, BufferAsyncError, BufferUsages, MapMode, SubmissionIndex};

/// Minimum size of a buffer in bytes.
const SMALLEST: u64 = 4096;

/// Maximum time for another thread to deliver the callback of a mapping.
const LONGEST_CALL: Duration = Duration::from_secs(10);

/// Result of a request to map memory.
type Mapped = (Mutex<Option<Result<(), BufferAsyncError>>>, Condvar);

/// A buffer that commands copy to. It is mapped only while the host reads it, and can be reused afterwards.
pub(crate) struct Staging {
    buffer: AtHome<Buffer>,
    mapped: Arc<Mapped>,
}

impl Staging {
    /// Returns the buffer `there`, if it holds `bytes`, or a new one; and the number of buffers created.
    pub fn of(gpu: &Gpu, there: Option<Staging>, bytes: u64) -> Result<(Staging, u64), DeviceError> {
        if let Some(staging) = there.filter(|s| s.bytes() >= bytes) {
            return Ok((staging, 0));
        }
        let size = bytes.next_power_of_two().max(SMALLEST).min(gpu.largest_buffer.max(bytes));
        let buffer = gpu.buffer("read back", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        Ok((Staging { buffer: AtHome::new(buffer), mapped: Arc::default() }, 1))
    }

    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub fn bytes(&self) -> u64 {
        self.buffer.size()
    }

    /// Waits for the submission that copies to this buffer, but not for later ones, and returns the first
    /// bytes.
    ///
    /// # Errors
    /// The device failed. The buffer must not be used again.
    pub fn read(
        &self,
        gpu: &Gpu,
        bytes: u64,
        copied: SubmissionIndex,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        let slice = self.buffer.slice(0..bytes);
        let told = self.mapped.clone();
        slice.map_async(MapMode::Read, move |result| {
            *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            told.1.notify_all();
        });
        gpu.wait_for(copied)?;
        // If several threads poll, another one may be about to deliver the callback.
        let (result, told) = &*self.mapped;
        let result = result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = told.wait_timeout_while(result, LONGEST_CALL, |r| r.is_none());
        match waited.unwrap_or_else(PoisonError::into_inner).0.take() {
            Some(Ok(())) => {}
            Some(Err(e)) => return Err(gpu.refused(e.to_string())),
            None => return Err(gpu.refused("memory was not mapped".to_owned())),
        }
        let view = slice.get_mapped_range().map_err(|e| gpu.refused(e.to_string()))?;
        take(&view);
        drop(view);
        self.buffer.unmap();
        Ok(())
    }
}
