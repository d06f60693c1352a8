// The demo page: one engine, a player, and the last text's audio to download.

import { Engine, join, Player, VERSION, wav } from "./orate/index.js";

const $ = (id) => document.getElementById(id);
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

let engine, player, running, last;
let loading; // ends loading, when another model is chosen meanwhile
let clones = new Map(); // names of cloned voices, with their files

function fail(error) {
  if (error?.name === "AbortError" || error?.kind === "cancelled") return;
  $("error").textContent = error.message;
  $("error").hidden = false;
  $("state").textContent = "";
}

function ready(isReady, isSpeaking = false) {
  $("speak").disabled = !isReady || isSpeaking;
  $("stop").disabled = !isSpeaking;
  $("voice").disabled = !isReady || $("voice").options.length === 0;
}

function choices(select, values, chosen) {
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
}

// Opens a model, the English voice by default. `problem` is why the model before could not be opened.
async function open(model, problem) {
  running?.abort();
  loading?.abort();
  const own = (loading = new AbortController());
  engine?.close();
  engine = undefined;
  clones = new Map();
  ready(false);
  $("error").hidden = true;
  if (problem) fail(problem);
  $("download").disabled = true;
  $("loading").hidden = false;
  $("loading-text").textContent = "Loading the voice …";
  $("progress").removeAttribute("value");
  try {
    const opened = await Engine.open({
      model,
      signal: own.signal,
      onProgress({ loaded, total }) {
        if (own.signal.aborted) return;
        if (total) $("progress").value = loaded / total;
        const of = total ? ` of ${megabytes(total)}` : "";
        const rest = total && loaded >= total ? "; preparing it …" : "";
        $("loading-text").textContent = `Loading the voice: ${megabytes(loaded)}${of} MB${rest}`;
      },
    });
    if (own.signal.aborted) return opened.close();
    engine = opened;
    const { voices, defaultVoice, languages, options, device, canClone } = engine.info;
    choices($("voice"), voices, defaultVoice);
    choices($("language"), languages, "en");
    $("language-field").hidden = languages.length < 2;
    $("clone-field").hidden = !canClone;
    $("recording").value = "";
    const speed = options.find((option) => option.name === "speed");
    $("speed-field").hidden = !speed;
    if (speed?.range) [$("speed").min, $("speed").max] = speed.range;
    $("about").textContent = `Orate ${VERSION}, ${engine.info.family}, ${device}`;
    ready(true);
    keepOffline();
  } catch (error) {
    if (own.signal.aborted) return;
    fail(error);
    if (model) open(undefined, error);
  } finally {
    if (loading === own) $("loading").hidden = true;
  }
}

// Makes a voice of a recording, and chooses it.
async function clone(recording) {
  const from = engine;
  $("error").hidden = true;
  $("state").textContent = "Listening to the recording …";
  ready(false);
  try {
    const voice = await from.clone(recording);
    if (engine !== from) return;
    clones.set(recording.name, voice);
    choices($("voice"), [...from.voices, ...clones.keys()], recording.name);
    $("state").textContent = "";
  } catch (error) {
    if (engine === from) fail(error);
  } finally {
    if (engine === from) ready(true);
  }
}

async function speak() {
  const clicked = performance.now();
  if (engine.info.canClone && !$("voice").options.length) {
    return fail(new Error("This model has no voice of its own: choose a recording first."));
  }
  const text = $("text").value,
    own = (running = new AbortController());
  player ??= new Player();
  player.stop();
  player.context.resume();
  $("error").hidden = true;
  $("download").disabled = true;
  $("state").textContent = "Speaking …";
  ready(true, true);
  const chunks = [],
    spoken = { seconds: 0 };
  try {
    const voice = $("voice").value || undefined;
    const options = { voice: clones.get(voice) ?? voice, signal: own.signal };
    if (!$("language-field").hidden) options.language = $("language").value;
    if (!$("speed-field").hidden) options.speed = Number($("speed").value);
    for await (const chunk of engine.stream(text, options)) {
      const wait = player.add(chunk);
      spoken.first ??= performance.now() - clicked + 1000 * wait;
      spoken.seconds += chunk.samples.length / chunk.sampleRate;
      chunks.push(chunk);
      $("state").textContent = `Speaking: first sound after ${Math.round(spoken.first)} ms`;
    }
    const took = (performance.now() - clicked) / 1000;
    last = join(chunks);
    $("download").disabled = false;
    $("state").textContent =
      `First sound after ${Math.round(spoken.first)} ms; ${spoken.seconds.toFixed(1)} s of speech made in ` +
      `${took.toFixed(1)} s`;
    await Promise.race([
      player.played(),
      new Promise((_, stop) => own.signal.addEventListener("abort", stop)),
    ]);
  } catch (error) {
    if (!own.signal.aborted) fail(error);
    else if (running === own) {
      $("state").textContent = "Stopped.";
      if (chunks.length && engine) {
        last = join(chunks);
        $("download").disabled = false;
      }
    }
  } finally {
    if (running === own) {
      player.stop();
      running = undefined;
      ready(Boolean(engine));
    }
  }
}

function download() {
  const url = URL.createObjectURL(wav(last));
  Object.assign(document.createElement("a"), { href: url, download: "orate.wav" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// The module is fetched by a worker that may be older than the service worker; this puts it into the cache.
async function keepOffline() {
  if (!navigator.serviceWorker?.controller) return;
  await fetch(engine.info.module).catch(() => {});
  navigator.storage?.persist?.().catch(() => {});
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("speak").disabled) speak();
});
$("stop").addEventListener("click", () => {
  running?.abort();
  player?.stop();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("speed").addEventListener("input", () => ($("speed-value").value = Number($("speed").value).toFixed(2)));
$("download").addEventListener("click", download);
$("pick-file").addEventListener("click", () => $("file").click());
$("pick-folder").addEventListener("click", () => $("folder").click());
$("built-in").addEventListener("click", () => open());
$("file").addEventListener("change", ({ target }) => {
  if (target.files.length) open(target.files[0]);
  target.value = ""; // so that the same file can be chosen again
});
$("folder").addEventListener("change", ({ target }) => {
  // Paths begin with the name of the folder.
  const inside = (file) => file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
  if (target.files.length) open(Object.fromEntries([...target.files].map((file) => [inside(file), file])));
  target.value = "";
});
$("recording").addEventListener("change", ({ target }) => {
  if (target.files.length) clone(target.files[0]);
});

navigator.serviceWorker?.register("sw.js").catch((error) => console.warn(`no offline use: ${error.message}`));
navigator.serviceWorker?.addEventListener("controllerchange", () => engine && keepOffline());
open();
