//! `orate pull`, `orate models`, and models by name, with an imitation of the hub.

use crate::imitation::{COMMIT, Imitation, REPO, Reply, Request, noise, sha256};
use crate::util::{Folder, Run, finish, tiny};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "supertonic-2";

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// A small model in place of the real one.
fn files() -> Files {
    let mut files = vec![("README.md".to_owned(), b"# Card".to_vec())];
    for part in ["onnx", "voice_styles"] {
        for entry in fs::read_dir(tiny(2).join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            files.push((format!("{part}/{name}"), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

fn hub(
    files: &[(String, Vec<u8>)],
    misbehave: impl Fn(&Request, Option<Reply>) -> Option<Reply> + Send + Sync + 'static,
) -> Imitation {
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    Imitation::new(&files, misbehave)
}

fn good(files: &[(String, Vec<u8>)]) -> Imitation {
    hub(files, |_, good| good)
}

fn command(folder: &Folder, hub: &Imitation, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_TOKEN", "hf_secret").stdin(Stdio::null());
    command
}

fn run(folder: &Folder, hub: &Imitation, args: &[&str]) -> Run {
    finish(&mut command(folder, hub, args))
}

fn cache(folder: &Folder) -> PathBuf {
    folder.path("hub/hub/models--Supertone--supertonic-2")
}

/// Checks that the snapshot has these files.
#[track_caller]
fn assert_whole(folder: &Folder, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files.iter().filter(|(name, _)| name != "README.md") {
        let path = cache(folder).join("snapshots").join(COMMIT).join(name);
        assert!(fs::read(&path).unwrap() == *bytes, "{name}");
    }
    let blobs = fs::read_dir(cache(folder).join("blobs")).unwrap().map(|e| e.unwrap().path());
    let parts: Vec<_> = blobs.filter(|p| p.extension().is_some()).collect();
    assert_eq!(parts, Vec::<PathBuf>::new());
}

#[test]
fn a_pulled_model_speaks_by_its_name() {
    let (folder, files) = (Folder::new(), files());
    let hub = good(&files);
    let say = |model: &str, to: &str| {
        folder.orate(&["say", "Hi.", "--model", model, "-o", to, "-q", "--device", "cpu", "-j", "1"])
    };
    for command in [&["say", "Hi.", "--model", NAME][..], &["inspect", NAME], &["voices", "--model", NAME]] {
        folder.orate(command).fails(1, &["not pulled yet", "`orate pull supertonic-2`"]);
    }
    let state = || {
        let models = folder.orate(&["models", "--json"]).ok().json()["models"].clone();
        models.as_array().unwrap().iter().find(|model| model["name"] == NAME).unwrap().clone()
    };
    assert_eq!((&state()["state"], &state()["bytes_are_exact"]), (&"missing".into(), &false.into()));

    let plan = run(&folder, &hub, &["pull", NAME, "--dry-run"]).ok();
    assert!(plan.text().contains("onnx/vocoder.onnx") && !plan.text().contains("README"), "{}", plan.text());
    assert!(!folder.path("hub").exists());

    let pulled = run(&folder, &hub, &["pull", NAME]).ok();
    let snapshot = cache(&folder).join("snapshots").join(COMMIT);
    assert_eq!(pulled.text(), format!("{}\n", snapshot.display()));
    assert!(
        pulled.stderr.contains("license openrail") && pulled.stderr.contains(&hub.endpoint),
        "{}",
        pulled.stderr
    );
    assert_whole(&folder, &files);
    let token = |r: &Request| r.headers.get("authorization").cloned();
    assert!(hub.log().iter().all(|r| token(r).is_some() != r.is_storage), "{:?}", hub.log());

    say(tiny(2).to_str().unwrap(), "path.wav").ok();
    let with_commit = format!("{REPO}@{COMMIT}");
    for model in
        [NAME, "Supertonic-2", REPO, "Supertone/supertonic-2@main", "supertonic-2@main", &with_commit]
    {
        say(model, "name.wav").ok();
        assert!(folder.read("name.wav") == folder.read("path.wav"), "{model}");
    }
    assert!(folder.orate(&["voices", "--model", NAME]).ok().text().contains("F1"));
    assert!(folder.orate(&["inspect", NAME]).ok().text().contains("Supertonic 2"));
    let goldens = tiny(2);
    let verify = ["verify", "--model", NAME, "--goldens", goldens.to_str().unwrap(), "--device", "cpu"];
    assert!(folder.orate(&verify).ok().text().contains("all within"));
    let bytes: usize = files[1..].iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!((&state()["state"], &state()["bytes"]), (&"pulled".into(), &bytes.into()));
    assert_eq!(state()["path"], snapshot.to_str().unwrap());
    assert!(folder.orate(&["models"]).ok().text().contains("OpenRAIL-M"));

    // Nothing is missing now: no license, no download, and no network at all with --offline.
    let requests = hub.log().len();
    let again = run(&folder, &hub, &["pull", NAME, "--json"]).ok();
    let again = again.json();
    assert_eq!((&again["missing_bytes"], &again["commit"]), (&0.into(), &COMMIT.into()));
    assert_eq!((&again["path"], &again["bytes"]), (&snapshot.to_str().unwrap().into(), &bytes.into()));
    assert_eq!(hub.log().len(), requests + 1);
    let offline = run(&folder, &hub, &["pull", REPO, "--offline"]).ok();
    assert_eq!((offline.text(), &*offline.stderr), (pulled.text(), ""));
    let by_variable = finish(command(&folder, &hub, &["pull", NAME]).env("HF_HUB_OFFLINE", "1")).ok();
    assert_eq!(by_variable.text(), pulled.text());
    assert_eq!(hub.log().len(), requests + 1);
    run(&folder, &hub, &["pull", "supertonic-3", "--offline"]).fails(1, &["it is not in", "--offline"]);

    // A folder of the same name comes first.
    fs::create_dir(folder.path(NAME)).unwrap();
    say(NAME, "name.wav").fails(1, &["not a model folder"]);
    fs::remove_dir(folder.path(NAME)).unwrap();

    fs::remove_file(snapshot.join("onnx/tts.json")).unwrap();
    assert_eq!(state()["state"], "partial");
    say(NAME, "name.wav").fails(1, &["only part of it", "`orate pull supertonic-2` completes it"]);
}

#[test]
fn a_folder_of_choice_and_files_of_choice() {
    let (folder, files) = (Folder::new(), files());
    let hub = good(&files);
    let pulled = run(&folder, &hub, &["pull", REPO, "--to", "model", "--include", "voice_styles/F*"]).ok();
    assert_eq!(pulled.text(), "model\n");
    assert_eq!(fs::read_dir(folder.path("model")).unwrap().count(), 1);
    assert!(folder.path("model/voice_styles/F1.json").is_file());
    run(&folder, &hub, &["pull", NAME, "--to", "model"]).ok();
    folder.orate(&["inspect", "model"]).ok();
    assert!(!folder.path("hub").exists());
    run(&folder, &hub, &["pull", NAME, "--to", "x", "--offline"]).fails(2, &["--to", "cannot be used with"]);
}

/// A repository with one file of `orate quantize`: pulled, inspected, spoken with and served by its name.
#[test]
fn a_model_in_one_file_is_pulled_and_speaks() {
    let folder = Folder::new();
    let model = tiny(2);
    folder.orate(&["quantize", "--model", model.to_str().unwrap(), "-o", "own.gguf"]).ok();
    let hub = good(&[
        ("README.md".to_owned(), b"# Card".to_vec()),
        ("own.gguf".to_owned(), folder.read("own.gguf")),
    ]);
    let pulled = run(&folder, &hub, &["pull", REPO, "--to", "model"]).ok();
    assert_eq!(pulled.text(), "model\n");
    assert!(folder.read("model/own.gguf") == folder.read("own.gguf"));
    let say = |model: &str, to: &str| {
        folder.orate(&["say", "Hi.", "--model", model, "-o", to, "-q", "--device", "cpu", "-j", "1"]).ok();
        folder.read(to)
    };
    assert!(say("model", "a.wav") == say("own.gguf", "b.wav"));
    let found = folder.orate(&["inspect", "model", "--json"]).ok().json();
    assert_eq!(found["layout"], "orate");
    folder.orate(&["quantize", "--model", "model", "-o", "c.gguf"]).fails(1, &["GGUF already", "official"]);
    let model = model.to_str().unwrap();
    let calibrate = |weights: &str, text: &str| {
        let args = ["quantize", "--model", model, "--weights", weights, "--calibrate", text, "-o", "d.gguf"];
        folder.orate(&[&args[..], &["--json"]].concat())
    };
    calibrate("q8_0", "a.txt").fails(2, &["--calibrate changes q4_0", "not q8_0", "leave it out"]);
    calibrate("q4_0", "a.txt").fails(1, &["a.txt: cannot open the text file"]);
    folder.write("a.txt", b" \n");
    calibrate("q4_0", "a.txt").fails(2, &["--calibrate: a.txt has no text"]);
    folder.write("a.txt", b"Hi.");
    assert!(calibrate("q4_0", "a.txt").ok().json()["calibrated_tensors"].as_u64() > Some(4));
    say("d.gguf", "d.wav");
    let args = ["quantize", "--model", model, "--weights", "q4_0", "--calibrate", "a.txt", "-o"];
    let run = folder.orate(&[&args[..], &["d.gguf"]].concat()).ok();
    assert!(run.text().contains("\n  calibrated: ") && run.text().ends_with(" tensors\n"), "{}", run.text());
    folder.orate(&[&args[..], &["-"]].concat()).fails(2, &["-o -: ", "name a file"]);
    folder.orate(&[&args[..], &["e.safetensors"]].concat()).fails(2, &["the file is GGUF; name it e.gguf"]);
    assert!(!folder.path("-").exists());
}

#[test]
fn wrong_names_and_settings_are_explained() {
    let (folder, files) = (Folder::new(), files());
    let hub = good(&files);
    run(&folder, &hub, &["pull", "nonsense"]).fails(2, &["nonsense: no known model", "`orate models`"]);
    run(&folder, &hub, &["pull", "../x/y"]).fails(2, &["no repository"]);
    run(&folder, &hub, &["pull", "Supertone/none"])
        .fails(1, &["Supertone/none: there is no such repository"]);
    run(&folder, &hub, &["pull", "supertonic-2@v9"]).fails(1, &["no revision `v9`"]);
    folder.orate(&["inspect", "some/model"]).fails(1, &["no such file or folder", "`orate pull some/model`"]);
    folder.orate(&["inspect", "none"]).fails(1, &["no such file or folder", "`orate models` lists names"]);
    let plain = |args: &[&str]| finish(folder.command(args).env("HF_ENDPOINT", "http://192.0.2.1:9"));
    plain(&["pull", NAME]).fails(2, &["HF_ENDPOINT", "not encrypted", "--insecure"]);
    // A mirror that lacks a file which the model needs.
    let hub = good(&files[..3]);
    run(&folder, &hub, &["pull", NAME]).fails(1, &["lacks", "onnx/vocoder.onnx"]);
    assert!(!folder.path("hub").exists());
}

#[test]
fn damaged_models_are_never_there() {
    let (folder, files) = (Folder::new(), files());
    let flip = |request: &Request, good: Option<Reply>| {
        good.map(|mut reply| {
            if request.is_storage {
                reply.body[100] ^= 1;
            }
            reply
        })
    };
    let pulled = run(&folder, &hub(&files, flip), &["pull", NAME]);
    assert_eq!(pulled.status, Some(1));
    assert!(pulled.stderr.contains("checksum") && pulled.stderr.contains("was deleted"), "{}", pulled.stderr);
    folder.orate(&["say", "Hi.", "--model", NAME]).fails(1, &["orate pull"]);
    run(&folder, &good(&files), &["pull", NAME]).ok();
    assert_whole(&folder, &files);
}

#[test]
fn an_interrupted_repository_is_not_taken_for_a_whole_one() {
    let (folder, files) = (Folder::new(), files());
    // Known models are known to be whole by their files; of others, only the end of the download says it.
    let fail = |request: &Request, good: Option<Reply>| match request.path.ends_with("F1.json") {
        true => Some(Reply::new(404)),
        false => good,
    };
    let [none, all] = [fail, |_: &Request, good| good].map(|misbehave| hub(&files, misbehave));
    let include = ["pull", REPO, "--include", "*.json"];
    assert_eq!(run(&folder, &none, &include).status, Some(1));
    fs::create_dir_all(cache(&folder).join("snapshots").join(COMMIT)).unwrap();
    folder.orate(&["inspect", REPO]).fails(1, &["only part of it", "orate pull Supertone/supertonic-2"]);
    run(&folder, &all, &include).ok();
    let path = run(&folder, &all, &["pull", REPO, "--offline"]).ok();
    assert!(path.text().trim_end().ends_with(COMMIT));
}

#[test]
fn proxies_are_for_other_machines() {
    let (folder, files) = (Folder::new(), files());
    let [hub, proxy] = [good(&files), good(&files)];
    let mut local = command(&folder, &hub, &["pull", NAME, "--dry-run"]);
    finish(local.env("ALL_PROXY", &proxy.endpoint)).ok();
    assert_eq!(proxy.log().len(), 0);
    let mut outward = command(&folder, &hub, &["pull", NAME, "--insecure"]);
    outward.env("ALL_PROXY", &proxy.endpoint).env("HF_ENDPOINT", "http://hub.example");
    for variable in
        ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "https_proxy", "http_proxy", "no_proxy"]
    {
        outward.env_remove(variable);
    }
    finish(&mut outward).fails(1, &["hub.example", "check HTTPS_PROXY"]);
    let asked: Vec<_> = proxy.log().into_iter().map(|r| (r.method, r.path)).collect();
    assert_eq!(asked, [("CONNECT".to_owned(), "hub.example:80".to_owned())]);
}

/// The files with a large one in front, and a hub that sends it slowly at first.
fn slow() -> (Files, Vec<u8>, Imitation) {
    let (mut files, large) = (files(), noise(4_000_000));
    files.insert(0, ("onnx/a_large.onnx".to_owned(), large.clone()));
    let sum = sha256(&large);
    let misbehave = move |request: &Request, good: Option<Reply>| {
        let is_slow = request.is_storage && request.path.ends_with(&sum) && request.before == 0;
        let pause = Duration::from_millis(if is_slow { 2 } else { 0 });
        good.map(|reply| Reply { pause, ..reply })
    };
    let hub = hub(&files, misbehave);
    (files, large, hub)
}

fn wait_for_part(child: &mut Child, part: &Path) {
    let start = Instant::now();
    while fs::metadata(part).map_or(0, |m| m.len()) < 200_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "no part appears");
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
#[test]
fn killed_or_interrupted_it_goes_on_where_it_stopped() {
    // Not SIGINT, which a background job of a shell ignores.
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let (folder, (files, large, hub)) = (Folder::new(), slow());
        let part = cache(&folder).join("blobs").join(format!("{}.incomplete", sha256(&large)));
        let mut child = command(&folder, &hub, &["pull", NAME])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_part(&mut child, &part);
        // SAFETY: sends a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (signal == libc::SIGTERM).then_some(130));
        let kept = fs::metadata(&part).unwrap().len();
        assert!(kept >= 200_000 && kept < large.len() as u64);
        folder.orate(&["say", "Hi.", "--model", NAME]).fails(1, &["`orate pull supertonic-2` downloads it"]);
        run(&folder, &hub, &["pull", NAME]).ok();
        assert_whole(&folder, &files);
        let asked = hub.downloads("onnx/a_large.onnx", &large);
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[1].headers["range"], format!("bytes={kept}-"));
    }
}

#[test]
fn two_processes_download_a_file_once() {
    let (folder, (files, large, hub)) = (Folder::new(), slow());
    let start = || {
        let mut pull = command(&folder, &hub, &["pull", NAME]);
        pull.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let [one, two] = [start(), start()].map(|child| child.wait_with_output().unwrap());
    assert!(one.status.success() && two.status.success());
    let stderr = String::from_utf8_lossy(&[one.stderr, two.stderr].concat()).into_owned();
    assert!(stderr.contains("another process is downloading this file"), "{stderr}");
    assert_whole(&folder, &files);
    assert_eq!(hub.downloads("onnx/a_large.onnx", &large).len(), 1);
}
