//! What the tests of this crate share.

use orate_gpu::GpuDevice;
use orate_graph::{DeviceKind, PrecisionPolicy};

/// Which device tests run on, such as `vulkan:1`; without it the first Vulkan device, be it a rasteriser.
pub const VARIABLE: &str = "ORATE_TEST_GPU";

/// The device to test.
///
/// # Panics
/// There is none: a test that tests nothing must not pass.
pub fn device() -> GpuDevice {
    let wish = std::env::var(VARIABLE).unwrap_or_else(|_| "vulkan:0".to_owned());
    let (kind, index) = wish.split_once(':').unwrap_or((&wish, "0"));
    let kind =
        [DeviceKind::Vulkan, DeviceKind::Metal, DeviceKind::Dx12].into_iter().find(|k| k.name() == kind);
    let (Some(kind), Ok(index)) = (kind, index.parse()) else {
        panic!("{VARIABLE} is `{wish}`; it should be like vulkan:0, metal:0 or dx12:0")
    };
    GpuDevice::new(Some(kind), index, PrecisionPolicy::default(), None).unwrap_or_else(|e| {
        panic!(
            "{e}\nThese tests need a GPU or a rasteriser. On Debian and Ubuntu: apt-get install mesa-vulkan-drivers \
             libvulkan1. {VARIABLE} chooses a device, and VK_DRIVER_FILES a driver."
        )
    })
}
