//! Programs in C, built with the installed header and libraries, do what the Rust library does.

use orate::{DeviceChoice, Engine, EngineOptions, Options};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries of this build, installed into a temporary folder.
struct Installed(tempfile::TempDir);

/// Runs a command that has to succeed, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && !stderr.contains("panicked"), "{command:?}\n{stdout}{stderr}");
    stdout
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Cargo puts the libraries beside the tests.
        let test = std::env::current_exe().expect("a path");
        let built = test.parent().expect("a folder");
        run(Command::new(repository("scripts/c-install")).arg(folder.path().join("usr")).arg(built));
        Installed(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What the file for pkg-config says under a name.
    fn says(&self, name: &str) -> Vec<String> {
        let file = std::fs::read_to_string(self.path("usr/lib/pkgconfig/orate.pc")).expect("installed");
        let prefix = self.path("usr").display().to_string();
        let line = file.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).expect("a line");
        let line = line.replace("${libdir}", "${prefix}/lib").replace("${includedir}", "${prefix}/include");
        line.replace("${prefix}", &prefix).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program with these flags of the linker.
    fn compile(&self, source: &str, libraries: &[String], name: &str) -> Command {
        let program = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"]);
        run(cc.arg(&program).arg(repository(source)).args(self.says("Cflags")).args(libraries));
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("usr/lib")).env_remove("ORATE_VOICE").current_dir(&self.0);
        command
    }

    fn compile_static(&self, source: &str, name: &str) -> Command {
        let library = self.path("usr/lib/liborate.a").display().to_string();
        self.compile(source, &[vec![library], self.says("Libs.private")].concat(), name)
    }

    /// Samples that a program wrote.
    fn samples(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

fn bytes(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

#[test]
fn programs_in_c_speak_as_rust_does() {
    let installed = Installed::new();
    let device = DeviceChoice::Cpu;
    let engine = Engine::with_options(EngineOptions { device, ..Default::default() }).expect("the voice");

    // The example, with the shared library and with the static one.
    let expected = engine.say("Hello from C.").expect("speech");
    expected.write(installed.path("rust.wav")).expect("a file");
    let shared = installed.compile("examples/c/say.c", &installed.says("Libs"), "shared");
    let linked = installed.compile_static("examples/c/say.c", "static");
    for mut program in [shared, linked] {
        let printed = run(program.args(["c.wav", "Hello from C.", "device=cpu"]));
        assert!(
            printed.contains("\"Hello from C.\"") && printed.ends_with("stopped: cancelled\n"),
            "{printed}"
        );
        assert!(installed.samples("c.wav") == installed.samples("rust.wav"), "other samples than in Rust");
        std::fs::remove_file(installed.path("c.wav")).expect("a file");
    }

    // Mistakes, threads and samples.
    run(installed.compile("crates/orate-c/tests/c/check.c", &installed.says("Libs"), "check").arg("."));
    let options = Options { seed: 3, ..Options::default() }.set("speed", 1.5);
    let (text, mut stream) = ("One.\n\nTwo.", vec![]);
    for chunk in engine.stream(text, &options).expect("a stream") {
        stream.append(&mut chunk.expect("speech").samples);
    }
    let say = engine.speak(text, &options).expect("speech").samples;
    assert!(say != stream, "the gain differs");
    assert!(installed.samples("say.f32") == bytes(&say), "other samples than in Rust");
    assert!(installed.samples("stream.f32") == bytes(&stream), "other samples than in Rust");
}

/// Names of the interface, and nothing else that could be another library's.
#[test]
fn the_library_exports_nothing_else() {
    let test = std::env::current_exe().expect("a path");
    let library = test.with_file_name("liborate_c.so");
    let listed = run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library));
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(repository("crates/orate-c/include/orate.h")).expect("a header");
    let declared = header.lines().filter(|line| !line.starts_with([' ', '/', '#', 't'])).filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        Some(before.rsplit([' ', '*']).next().unwrap_or(before))
    });
    let mut declared: Vec<&str> = declared.collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    assert!(exported.len() > 15 && exported.iter().all(|name| name.starts_with("orate_")), "{exported:?}");
}
