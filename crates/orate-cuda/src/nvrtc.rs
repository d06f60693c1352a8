//! NVRTC, NVIDIA's run-time compiler: CUDA C++ to machine code.
//!
//! It is a separate library (not part of the driver), loaded on demand. It compiles to machine code instead
//! of PTX, since a driver that is older than the compiler rejects its PTX.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// Environment variable with the path of the library, or of its folder.
pub(crate) const VARIABLE: &str = "ORATE_NVRTC";

/// How to install it.
const HELP: &str = "install it with `pip install nvidia-cuda-nvrtc` or as a part of the CUDA toolkit, and set \
                    ORATE_NVRTC to the library or its folder if it is not found by itself";

/// Names of the library for the system's loader.
const NAMES: [&str; 6] = [
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
    "nvrtc64_12.dll",
];

type Program = *mut c_void;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// The library and its functions.
pub(crate) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: Create,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log: Text,
    log_size: Size,
    cubin: Text,
    cubin_size: Size,
    /// Keep the functions alive. NVRTC opens the second library by name, and finds it because it is loaded
    /// already.
    _library: Library,
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// It was not found; the message has the searched places and how to install it.
    pub fn open() -> Result<Nvrtc, String> {
        if let Some(named) = std::env::var_os(VARIABLE) {
            let named = PathBuf::from(named);
            let files = if named.is_dir() { libraries_in(&named) } else { vec![named.clone()] };
            let first = files.first().ok_or_else(|| {
                format!(
                    "{VARIABLE} is {}, where there is no NVRTC library (libnvrtc.so.*); {HELP}",
                    named.display()
                )
            })?;
            return Nvrtc::load(first).map_err(|e| format!("{VARIABLE} is {}: {e}; {HELP}", named.display()));
        }
        let mut tried = vec![];
        for name in NAMES {
            match Nvrtc::load(Path::new(name)) {
                Ok(found) => return Ok(found),
                Err(_) => tried.push(name.to_owned()),
            }
        }
        for folder in folders() {
            for file in libraries_in(&folder) {
                match Nvrtc::load(&file) {
                    Ok(found) => return Ok(found),
                    Err(e) => tried.push(format!("{} ({e})", file.display())),
                }
            }
        }
        Err(format!("NVIDIA's compiler library NVRTC was not found (tried {}); {HELP}", tried.join(", ")))
    }

    fn load(path: &Path) -> Result<Nvrtc, String> {
        let builtins = path.parent().filter(|p| !p.as_os_str().is_empty()).and_then(|folder| {
            let files = files_in(folder, |name| name.contains("nvrtc-builtins"));
            // SAFETY: part of NVRTC; it contains data and has no relevant initializers.
            files.iter().find_map(|f| unsafe { Library::new(f) }.ok())
        });
        // SAFETY: the user or the system names this file as NVRTC. The signatures below are those of its
        // header.
        unsafe {
            let library = Library::new(path).map_err(|e| e.to_string())?;
            macro_rules! function {
                ($name:literal) => {
                    *library.get($name.to_bytes()).map_err(|e| e.to_string())?
                };
            }
            Ok(Nvrtc {
                version: function!(c"nvrtcVersion"),
                create: function!(c"nvrtcCreateProgram"),
                compile: function!(c"nvrtcCompileProgram"),
                destroy: function!(c"nvrtcDestroyProgram"),
                log: function!(c"nvrtcGetProgramLog"),
                log_size: function!(c"nvrtcGetProgramLogSize"),
                cubin: function!(c"nvrtcGetCUBIN"),
                cubin_size: function!(c"nvrtcGetCUBINSize"),
                _library: library,
                _builtins: builtins,
            })
        }
    }

    /// Version, such as `13.0`.
    pub fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// Compiles `source`, called `name` in messages, and returns machine code and the compiler's log.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<(Vec<u8>, String), String> {
        let text = |s: &str| CString::new(s).map_err(|_| format!("{name}: a zero byte in source or options"));
        let (name_c, source_c) = (text(name)?, text(source)?);
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: all texts end with zero and outlive the calls; buffers have the requested sizes; the
        // program is destroyed at the end and not used afterwards.
        unsafe {
            let (none, source) = (std::ptr::null(), source_c.as_ptr());
            if (self.create)(&mut program, source, name_c.as_ptr(), 0, none, std::ptr::null()) != 0 {
                return Err(format!("{name}: NVRTC cannot create a program"));
            }
            let code = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            let log = self.fetch(program, self.log_size, self.log).unwrap_or_default();
            let log = CStr::from_bytes_until_nul(&log)
                .map(|s| s.to_string_lossy().into_owned())
                .unwrap_or_default();
            let cubin = if code == 0 { self.fetch(program, self.cubin_size, self.cubin) } else { None };
            (self.destroy)(&mut program);
            match cubin {
                Some(cubin) if !cubin.is_empty() => Ok((cubin, log)),
                _ => Err(format!(
                    "{name}: NVRTC {} cannot compile it (code {code}): {}",
                    self.version(),
                    log.trim()
                )),
            }
        }
    }

    /// # Safety
    /// `program` lives, and the two functions belong together.
    unsafe fn fetch(&self, program: Program, size: Size, get: Text) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the caller guarantees it; the second function writes as many bytes as the first returned.
        unsafe {
            if size(program, &mut bytes) != 0 {
                return None;
            }
            let mut data = vec![0u8; bytes];
            (get(program, data.as_mut_ptr().cast()) == 0).then_some(data)
        }
    }
}

/// Folders where CUDA toolkits and Python packages install it.
fn folders() -> Vec<PathBuf> {
    let mut all = vec![];
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable).map(PathBuf::from) {
            all.extend(["lib64", "lib", "bin", "targets/x86_64-linux/lib"].map(|f| root.join(f)));
        }
    }
    all.extend(["/usr/local/cuda/lib64", "/opt/cuda/lib64"].map(PathBuf::from));
    // Python environments: the active one, the user's, and the system's.
    let mut roots: Vec<PathBuf> = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).into_iter().collect();
    roots.extend(std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local")));
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for root in roots {
        for python in files_in(&root.join("lib"), |name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                all.extend(["cu13/lib", "cuda_nvrtc/lib"].map(|f| nvidia.join(f)));
            }
        }
    }
    all
}

/// NVRTC libraries in a folder, newest first.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let is_library = |name: &str| {
        let linux = name.starts_with("libnvrtc.so") || name.starts_with("libnvrtc.dylib");
        linux || name.starts_with("nvrtc64_") && name.ends_with(".dll") && !name.contains("alt")
    };
    files_in(folder, is_library)
}

fn files_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(&wanted))
        .collect();
    files.sort();
    files.reverse();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_distinguished_from_other_files() {
        let folder = std::env::temp_dir().join(format!("orate-nvrtc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("writable");
        for name in [
            "libnvrtc.so.12",
            "libnvrtc.so.13",
            "libnvrtc-builtins.so.13.0",
            "libcudart.so",
            "nvrtc64_130_0.dll",
        ] {
            std::fs::write(folder.join(name), "x").expect("writable");
        }
        let names: Vec<_> =
            libraries_in(&folder).iter().filter_map(|p| Some(p.file_name()?.to_str()?.to_owned())).collect();
        assert_eq!(names, ["nvrtc64_130_0.dll", "libnvrtc.so.13", "libnvrtc.so.12"]);
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error() {
        let file = std::env::temp_dir().join(format!("orate-no-nvrtc-{}", std::process::id()));
        std::fs::write(&file, "not a library").expect("writable");
        assert!(Nvrtc::load(&file).is_err());
        std::fs::remove_file(&file).expect("ours");
    }
}
