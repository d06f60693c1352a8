//! Machine code of the kernels of one device: read from the cache or compiled when plans need it.

use crate::cache::{Cache, Key};
use crate::driver::{Context, Function, Module};
use crate::kernels::{Unit, in_parallel, units_of};
use crate::nvrtc::Nvrtc;
use orate_graph::{DeviceError, Precision};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Program and name of a kernel.
pub(crate) type Name = (&'static str, &'static str);

/// The kernel whose unit is there from the start.
const BASE: Name = ("copy", "copy");

/// Name of notes in the cache.
const NOTE: &str = "prepared";

/// Compiles a source with options; see [`Nvrtc::compile`].
type Compile = Box<dyn Fn(&str, &str, &[String]) -> Result<Vec<u8>, String> + Send + Sync>;

/// Kernels of one device. The machine code of a unit is read from the cache or compiled when an executable
/// first needs it. The driver then loads it, which takes about a millisecond per unit.
pub(crate) struct Kernels {
    device: String,
    compile: Compile,
    cache: Option<Cache>,
    units: Vec<Code>,
    /// Unit of each kernel, and its index in the unit.
    places: HashMap<Name, (usize, usize)>,
    /// Number of units compiled so far.
    compiled: AtomicUsize,
}

/// A unit, its machine code, and its kernels after loading.
struct Code {
    unit: Unit,
    /// Set by the thread that makes `cubin`; other threads do other units first.
    begun: AtomicBool,
    /// A unit that does not compile keeps its error.
    cubin: OnceLock<Result<Vec<u8>, String>>,
    loaded: OnceLock<Loaded>,
}

struct Loaded {
    functions: Vec<Function>,
    _module: Module,
}

impl Kernels {
    /// Lists the kernels, for matmuls in some precisions and in f32, which is always included. Obtains the
    /// machine code of one unit only, so that a missing compiler is noticed early. Needs no context, so that
    /// one can be created at the same time.
    ///
    /// # Errors
    /// The unit is not in the cache, and NVRTC was not found or cannot compile it.
    pub fn open(
        device: &str,
        arch: u32,
        precisions: &[Precision],
        cache: Option<Cache>,
    ) -> Result<Kernels, DeviceError> {
        // Opened on first use: loading it is a large part of the time to the first sentence.
        let nvrtc = OnceLock::new();
        let compile = move |name: &str, text: &str, options: &[String]| {
            let nvrtc = nvrtc.get_or_init(Nvrtc::open).as_ref().map_err(String::clone)?;
            Ok(nvrtc.compile(name, text, options)?.0)
        };
        Self::with_compiler(device, arch, precisions, cache, Box::new(compile))
    }

    fn with_compiler(
        device: &str,
        arch: u32,
        precisions: &[Precision],
        cache: Option<Cache>,
        compile: Compile,
    ) -> Result<Kernels, DeviceError> {
        let (mut units, mut places) = (vec![], HashMap::new());
        for unit in units_of(arch, precisions) {
            for (i, function) in unit.functions.iter().enumerate() {
                places.insert((unit.name(), *function), (units.len(), i));
            }
            let (begun, cubin, loaded) = Default::default();
            units.push(Code { unit, begun, cubin, loaded });
        }
        let (device, compiled) = (device.to_owned(), AtomicUsize::new(0));
        let kernels = Kernels { device, compile, cache, units, places, compiled };
        kernels.obtain([BASE])?;
        Ok(kernels)
    }

    fn place(&self, kernel: Name) -> (usize, usize) {
        *self.places.get(&kernel).expect("lowering names kernels of the table")
    }

    /// Names of all kernels.
    pub fn names(&self) -> Vec<Name> {
        self.places.keys().copied().collect()
    }

    /// Notes in the cache that it has what `what` needs from this version of the program.
    pub fn note(&self, what: &str) {
        if let Some(cache) = &self.cache {
            cache.put(NOTE, self.key_of_note(what), b"noted");
        }
    }

    /// Whether the cache has such a note.
    pub fn is_noted(&self, what: &str) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has(NOTE, self.key_of_note(what)))
    }

    fn key_of_note(&self, what: &str) -> Key {
        let arch = self.units[self.place(BASE).0].unit.arch;
        Key::of(&[what, env!("CARGO_PKG_VERSION"), &arch.to_string()])
    }

    /// Reads or compiles the machine code of all units of `kernels` on several threads. Each unit is compiled
    /// once, also when several threads ask for it.
    ///
    /// # Errors
    /// A unit does not compile, or NVRTC was not found.
    pub fn obtain(&self, kernels: impl IntoIterator<Item = Name>) -> Result<(), DeviceError> {
        self.units_of(kernels).map(drop)
    }

    fn units_of(&self, kernels: impl IntoIterator<Item = Name>) -> Result<Vec<&Code>, DeviceError> {
        let start = Instant::now();
        let units: BTreeSet<usize> = kernels.into_iter().map(|kernel| self.place(kernel).0).collect();
        let all: Vec<&Code> = units.into_iter().map(|i| &self.units[i]).collect();
        let missing: Vec<&Code> = all.iter().copied().filter(|c| c.cubin.get().is_none()).collect();
        let before = self.compiled.load(Ordering::Relaxed);
        in_parallel(missing.len(), |i| {
            if !missing[i].begun.swap(true, Ordering::Relaxed) {
                let _ = self.cubin(missing[i]);
            }
        });
        let compiled = self.compiled.load(Ordering::Relaxed) - before;
        // Cached files are within bounds already.
        if let Some(cache) = self.cache.as_ref().filter(|_| compiled > 0) {
            cache.trim();
        }
        // Waits for units that other threads have begun, and returns errors, also earlier ones.
        all.iter().try_for_each(|code| self.cubin(code).map(drop))?;
        if !missing.is_empty() {
            let (units, elapsed) = (missing.len(), start.elapsed());
            tracing::debug!(device = self.device, units, compiled, ?elapsed, "machine code is there");
        }
        Ok(all)
    }

    /// The machine code of a unit. If another thread makes it, waits for that thread.
    fn cubin<'c>(&self, code: &'c Code) -> Result<&'c [u8], DeviceError> {
        let made = code.cubin.get_or_init(|| self.make(&code.unit));
        let setup =
            |problem: &String| DeviceError::Setup { device: self.device.clone(), problem: problem.clone() };
        made.as_deref().map_err(setup)
    }

    /// Reads the machine code of a unit from the cache, or compiles it.
    fn make(&self, unit: &Unit) -> Result<Vec<u8>, String> {
        let (name, text) = (unit.name(), unit.text());
        let key = unit.key(&text);
        if let Some(code) = self.cache.as_ref().and_then(|c| c.get(name, key)) {
            return Ok(code);
        }
        let code = (self.compile)(name, &text, &unit.options())?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.put(name, key, &code);
        }
        Ok(code)
    }

    /// Loads the units of `kernels` on the device, if they are not there yet.
    ///
    /// # Errors
    /// A unit does not compile, NVRTC was not found, or the driver refuses a unit.
    pub fn load(
        &self,
        context: &Arc<Context>,
        kernels: impl IntoIterator<Item = Name>,
    ) -> Result<(), DeviceError> {
        self.units_of(kernels)?.into_iter().try_for_each(|code| self.loaded(context, code).map(drop))
    }

    fn loaded<'c>(&self, context: &Arc<Context>, code: &'c Code) -> Result<&'c Loaded, DeviceError> {
        if let Some(loaded) = code.loaded.get() {
            return Ok(loaded);
        }
        let module = Module::load(context, self.cubin(code)?)?;
        let one = |name: &&str| {
            let name = CString::new(*name)
                .map_err(|e| DeviceError::Setup { device: context.name.clone(), problem: e.to_string() })?;
            module.function(&name)
        };
        let functions = code.unit.functions.iter().map(one).collect::<Result<_, _>>()?;
        // Another thread may have been faster; its module is equivalent.
        Ok(code.loaded.get_or_init(|| Loaded { functions, _module: module }))
    }

    /// Returns a kernel. Executables load theirs in advance; the unit of any other is loaded now.
    ///
    /// # Errors
    /// As [`Kernels::load`].
    pub fn get(&self, context: &Arc<Context>, kernel: Name) -> Result<&Function, DeviceError> {
        let (unit, i) = self.place(kernel);
        Ok(&self.loaded(context, &self.units[unit])?.functions[i])
    }

    /// Reason why machine code could not be stored.
    pub fn cache_problem(&self) -> Option<String> {
        self.cache.as_ref().and_then(Cache::problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Folder;
    use crate::kernels::CLUSTER_ARCH;
    use std::sync::Mutex;
    use std::time::Duration;

    /// Kernels of four units.
    const SOME: [Name; 5] = [
        ("gather", "gather"),
        ("gather", "row_at"),
        ("pad", "pad"),
        ("dot", "dot"),
        ("matmul-bf16", "matmul_1_dense"),
    ];

    /// Names of the programs that were compiled, in order.
    type Log = Arc<Mutex<Vec<String>>>;

    fn open(cache: Option<&Folder>, compile: Compile) -> Result<Kernels, DeviceError> {
        let cache = cache.map(|folder| Cache::new(&folder.0));
        Kernels::with_compiler("cuda:0", CLUSTER_ARCH, &[Precision::Bf16], cache, compile)
    }

    /// A compiler that takes a while and logs what it compiles. It cannot compile `broken`.
    fn slow(log: &Log, broken: &'static str) -> Compile {
        let log = log.clone();
        Box::new(move |name, _, _| {
            log.lock().expect("no panics").push(name.to_owned());
            std::thread::sleep(Duration::from_millis(20));
            if name == broken { Err(format!("{name}: broken")) } else { Ok(name.as_bytes().to_vec()) }
        })
    }

    fn sorted(log: &Log) -> Vec<String> {
        let mut names = log.lock().expect("no panics").clone();
        names.sort();
        names
    }

    #[test]
    fn opening_compiles_one_unit() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "")).expect("opens");
        assert!(kernels.units.len() > 50);
        assert_eq!(sorted(&log), ["copy"]);
        kernels.obtain(kernels.names()).expect("compiles");
        assert_eq!(log.lock().expect("no panics").len(), kernels.units.len(), "all, once");
    }

    #[test]
    fn threads_compile_each_named_unit_once() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "")).expect("opens");
        std::thread::scope(|scope| {
            for i in 0..6 {
                let kernels = &kernels;
                scope.spawn(move || {
                    let names = SOME.into_iter().cycle().skip(i).take(SOME.len());
                    let units = kernels.units_of(names).expect("compiles");
                    assert_eq!(units.len(), 4);
                    assert!(units.iter().all(|u| matches!(u.cubin.get(), Some(Ok(_)))), "all are there");
                });
            }
        });
        assert_eq!(sorted(&log), ["copy", "dot", "gather", "matmul-bf16", "pad"]);
    }

    #[test]
    fn the_second_start_compiles_nothing() {
        let (folder, log) = (Folder::new("second-start"), Log::default());
        open(Some(&folder), slow(&log, "")).expect("opens").obtain(SOME).expect("compiles");
        let files = || std::fs::read_dir(&folder.0).expect("is there").count();
        assert_eq!((log.lock().expect("no panics").len(), files()), (5, 5));
        let second = open(Some(&folder), Box::new(|name, _, _| panic!("{name} is compiled"))).expect("opens");
        assert!(!second.is_noted("a model"));
        second.note("a model");
        let units = second.units_of(SOME).expect("reads");
        assert!(units.iter().all(|u| u.cubin.get() == Some(&Ok(u.unit.name().as_bytes().to_vec()))));
        assert_eq!((second.compiled.load(Ordering::Relaxed), files()), (0, 6), "a note more");
        let third = open(Some(&folder), slow(&log, "")).expect("opens");
        assert!(
            third.is_noted("a model")
                && !third.is_noted("another")
                && !open(None, slow(&log, "")).expect("opens").is_noted("a model")
        );
        assert_eq!(second.units.iter().filter(|u| u.cubin.get().is_some()).count(), 5, "no other is read");
    }

    #[test]
    fn without_a_compiler_opening_fails_unless_its_unit_is_cached() {
        let (folder, none) =
            (Folder::new("no-compiler"), || -> Compile { Box::new(|_, _, _| Err("no NVRTC".to_owned())) });
        let failed = |e: Option<DeviceError>| e.expect("fails").to_string();
        assert_eq!(failed(open(Some(&folder), none()).err()), "device `cuda:0`: no NVRTC");
        drop(open(Some(&folder), slow(&Log::default(), "")).expect("opens"));
        let kernels = open(Some(&folder), none()).expect("is cached");
        assert_eq!(failed(kernels.obtain(SOME).err()), "device `cuda:0`: no NVRTC");
    }

    #[test]
    fn a_unit_that_does_not_compile_keeps_its_error() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "pad")).expect("opens");
        for _ in 0..2 {
            let e = kernels.obtain(SOME).expect_err("fails");
            assert_eq!(e.to_string(), "device `cuda:0`: pad: broken");
        }
        kernels.obtain([("dot", "dot")]).expect("is there");
        assert_eq!(sorted(&log), ["copy", "dot", "gather", "matmul-bf16", "pad"], "each once");
    }
}
