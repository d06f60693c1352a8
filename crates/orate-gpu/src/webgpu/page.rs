//! What the page's JavaScript does for the module: `npm/gpu.js` of `orate-wasm` implements these imports.
//!
//! Objects of WebGPU are numbers here, never 0. Functions marked *suspends* return when a promise is settled;
//! meanwhile the page may do other things, but it does not call the module. Errors that nobody waits for are
//! queued; [`next_error`] takes the first.

/// The imports. Texts and lists are an address and a length; sizes are `f64`, which JavaScript has.
mod imports {
    #[link(wasm_import_module = "webgpu")]
    unsafe extern "C" {
        pub fn adapter(fact: u32) -> f64;
        pub fn adapter_name(text: *mut u8, room: usize) -> usize;
        pub fn is_lost() -> u32;
        pub fn next_error(text: *mut u8, room: usize) -> u32;
        pub fn create_layout(read_only: *const u32, count: usize) -> u32;
        pub fn create_pipeline_layout(layouts: *const u32, count: usize, immediate_bytes: usize) -> u32;
        pub fn create_pipeline(
            layout: u32,
            label: *const u8,
            label_length: usize,
            text: *const u8,
            length: usize,
        ) -> u32;
        pub fn settle();
        pub fn create_buffer(size: f64, usage: u32) -> u32;
        pub fn create_bind_group(layout: u32, buffers: *const u32, count: usize) -> u32;
        pub fn write_buffer(buffer: u32, offset: f64, bytes: *const u8, length: usize);
        pub fn read_buffer(buffer: u32, offset: f64, to: *mut u8, length: usize) -> u32;
        pub fn submit(commands: *const u32, count: usize, dispatches: usize);
        pub fn wait();
        pub fn release(object: u32);
    }
}

/// Facts about the adapter.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Fact {
    /// 1 if there is an adapter that this module may use.
    Exists,
    /// 1 if it is a software rasterizer.
    IsSoftware,
    /// Largest buffer in bytes.
    BufferBytes,
    /// Largest buffer that a kernel can access.
    BindingBytes,
    /// Memory of a workgroup in bytes.
    WorkgroupBytes,
    /// Most threads of a workgroup.
    WorkgroupThreads,
    /// Fewest threads of a subgroup; 0 without subgroups.
    FewestLanes,
    /// Most threads of a subgroup.
    MostLanes,
}

/// Kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Validation,
    OutOfMemory,
    Internal,
}

/// Longest text that is taken from the page.
const LONGEST_TEXT: usize = 4000;

pub fn adapter(fact: Fact) -> f64 {
    // SAFETY: takes and returns numbers.
    unsafe { imports::adapter(fact as u32) }
}

pub fn adapter_name() -> String {
    let mut text = vec![0; LONGEST_TEXT];
    // SAFETY: the page writes at most as many bytes as there is room, and returns their number.
    let length = unsafe { imports::adapter_name(text.as_mut_ptr(), text.len()) };
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}

/// Whether the device was lost.
pub fn is_lost() -> bool {
    // SAFETY: returns a number.
    unsafe { imports::is_lost() != 0 }
}

/// Takes the first error that was not taken yet.
pub fn next_error() -> Option<(Kind, String)> {
    let mut text = vec![0; LONGEST_TEXT];
    // SAFETY: as in `adapter_name`. The result is the length of the text, times 4, plus the kind, or 0.
    let told = unsafe { imports::next_error(text.as_mut_ptr(), text.len()) };
    let kind = match told % 4 {
        0 => return None,
        1 => Kind::Validation,
        2 => Kind::OutOfMemory,
        _ => Kind::Internal,
    };
    text.truncate(told as usize / 4);
    Some((kind, String::from_utf8_lossy(&text).into_owned()))
}

/// Creates a layout of a bind group: for each binding, whether kernels only read it.
pub fn create_layout(read_only: &[u32]) -> u32 {
    // SAFETY: the page reads the list before it returns.
    unsafe { imports::create_layout(read_only.as_ptr(), read_only.len()) }
}

/// Creates a layout of pipelines. The group after the last has the immediates.
pub fn create_pipeline_layout(layouts: &[u32], immediate_bytes: usize) -> u32 {
    // SAFETY: the page reads the list before it returns.
    unsafe { imports::create_pipeline_layout(layouts.as_ptr(), layouts.len(), immediate_bytes) }
}

/// Begins to compile a kernel. Errors are queued until the next [`settle`].
pub fn create_pipeline(layout: u32, label: &str, text: &str) -> u32 {
    // SAFETY: the page reads the texts before it returns.
    unsafe { imports::create_pipeline(layout, label.as_ptr(), label.len(), text.as_ptr(), text.len()) }
}

/// Waits until all pipelines are compiled; suspends.
pub fn settle() {
    // SAFETY: takes and returns nothing.
    unsafe { imports::settle() }
}

/// Creates a buffer; suspends. Without memory for it, that is the next error.
pub fn create_buffer(size: u64, usage: u32) -> u32 {
    // SAFETY: takes and returns numbers.
    unsafe { imports::create_buffer(size as f64, usage) }
}

/// Creates a bind group of whole buffers.
pub fn create_bind_group(layout: u32, buffers: &[u32]) -> u32 {
    // SAFETY: the page reads the list before it returns.
    unsafe { imports::create_bind_group(layout, buffers.as_ptr(), buffers.len()) }
}

/// Writes bytes before the next submission.
pub fn write_buffer(buffer: u32, offset: u64, bytes: &[u8]) {
    // SAFETY: the page copies the bytes before it returns.
    unsafe { imports::write_buffer(buffer, offset as f64, bytes.as_ptr(), bytes.len()) }
}

/// Copies bytes of a buffer that can be mapped, after all submissions that write it; suspends. Returns false
/// if it cannot be mapped.
pub fn read_buffer(buffer: u32, offset: u64, to: &mut [u8]) -> bool {
    // SAFETY: the page writes as many bytes as there are. Nobody else has them, and the module's memory does
    // not change while it waits.
    unsafe { imports::read_buffer(buffer, offset as f64, to.as_mut_ptr(), to.len()) != 0 }
}

/// Submits commands; `dispatches` is their number of immediates.
pub fn submit(commands: &[u32], dispatches: usize) {
    // SAFETY: the page reads the list before it returns.
    unsafe { imports::submit(commands.as_ptr(), commands.len(), dispatches) }
}

/// Waits until all that was submitted is done; suspends.
pub fn wait() {
    // SAFETY: takes and returns nothing.
    unsafe { imports::wait() }
}

/// Forgets an object. The memory of a buffer is freed when nothing that was submitted needs it.
pub fn release(object: u32) {
    // SAFETY: each object has one owner, which is being dropped.
    unsafe { imports::release(object) }
}
