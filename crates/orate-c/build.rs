//! Names the shared library as it is installed: programs look for `liborate.so.0.1` when they start.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (major, minor) = (variable("CARGO_PKG_VERSION_MAJOR"), variable("CARGO_PKG_VERSION_MINOR"));
    // Before 1.0, a minor version may change the interface.
    let abi = if major == "0" { format!("0.{minor}") } else { major };
    let argument = match variable("CARGO_CFG_TARGET_OS").as_str() {
        "macos" | "ios" => format!("-Wl,-install_name,@rpath/liborate.{abi}.dylib"),
        "linux" | "android" | "freebsd" | "netbsd" | "openbsd" => format!("-Wl,-soname,liborate.so.{abi}"),
        _ => return,
    };
    println!("cargo::rustc-cdylib-link-arg={argument}");
}
