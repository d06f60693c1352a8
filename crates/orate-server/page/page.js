// Requests raw samples, plays them as they arrive, and keeps them for playing again.

const $ = (id) => document.getElementById(id);
const RATE = 24000;
const MOST_PARTS = 4;
const MOST_TEXTS = 20;
const CUSTOM = "\u0000mix";
// Seconds of audio buffered before playback starts.
const LEAD = 0.2;
// Seconds of audio scheduled ahead.
const AHEAD = 5;

let models = [];
let voices = [];
let formats = ["wav", "mp3", "opus", "flac"];
let speaking = null; // an AbortController
let player = null;
let spoken = null; // the last Sound

// ---- requests ----------------------------------------------------------------------------------

async function ask(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    const key = sessionStorage.getItem("key");
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401) {
      await askKey();
      continue;
    }
    if (!response.ok) {
      const body = await response.json().catch(() => null);
      throw new Error(body?.error?.message ?? `the server answered ${response.status}`);
    }
    return response;
  }
}

function askKey() {
  return new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("key", $("key").value);
      $("key").value = "";
      resolve();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

const post = (path, body, options) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...options });

// ---- the form ----------------------------------------------------------------------------------

const model = () => models.find((m) => m.id === $("model").value) ?? models[0];
const voicesOf = (kind) => voices.filter((v) => v.model === model().id && v.kind === kind);
const ownVoices = () => voicesOf("model");

function option(value, text = value) {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = text;
  return element;
}

async function load() {
  for (;;) {
    try {
      models = (await (await ask("/v1/models")).json()).data;
      await loadVoices();
      break;
    } catch (error) {
      $("where").textContent = error.message;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  $("model").replaceChildren(...models.map((m) => option(m.id)));
  const routes = await (await ask("/openapi.json")).json();
  formats = routes.components?.schemas?.Speech?.properties?.response_format?.enum?.filter((f) => f !== "pcm") ?? formats;
  $("format").replaceChildren(...formats.map((f) => option(f)));
  showModel();
}

async function loadVoices() {
  voices = (await (await ask("/v1/audio/voices")).json()).voices;
}

function showModel() {
  const m = model();
  $("where").textContent = `${m.family} on ${m.device}`;
  showVoices();
  $("language").replaceChildren(option("", "automatic"), ...m.languages.map((l) => option(l)));
  $("language-field").hidden = m.languages.length < 2;
  const shown = m.options.filter((o) => o.name !== "speed");
  $("options").replaceChildren(...shown.map(optionField));
  $("more").hidden = shown.length === 0;
  $("speed").disabled = !m.options.some((o) => o.name === "speed");
  $("cloning").hidden = !m.can_clone;
  changed();
}

function showVoices(chosen) {
  const m = model();
  const own = ownVoices();
  const kept = voicesOf("kept");
  // Chatterbox calls its own voice `default`.
  const named = own.filter((v) => v.id !== "default");
  const list = [option("", "default"), ...named.map((v) => option(v.id)), ...kept.map((v) => option(v.id, `${v.id} (saved)`))];
  if (m.family === "Supertonic" && own.length > 1) list.push(option(CUSTOM, "a mix …"));
  $("voice").replaceChildren(...list);
  if (list.some((o) => o.value === chosen)) $("voice").value = chosen;
  $("kept").replaceChildren(...kept.map((v) => keptItem(v.id)));
  showMix();
}

function optionField(spec) {
  const field = document.createElement("div");
  const id = `option-${spec.name}`;
  const label = document.createElement("label");
  label.htmlFor = id;
  const name = spec.name.replaceAll("_", " ");
  label.textContent = name[0].toUpperCase() + name.slice(1);
  let input;
  if (spec.choices) {
    input = document.createElement("select");
    input.append(option("", "default"), ...spec.choices.map((c) => option(c)));
  } else if (spec.type === "boolean") {
    input = document.createElement("select");
    input.append(option("", "default"), option("true", "on"), option("false", "off"));
  } else {
    input = document.createElement("input");
    if (spec.type === "integer" || spec.type === "number") {
      input.type = "number";
      input.step = spec.type === "integer" ? "1" : "any";
      if (spec.range) [input.min, input.max] = spec.range;
    }
    // A sentence does not fit; the help says it.
    input.placeholder = spec.default?.length < 12 ? spec.default : "default";
  }
  input.id = id;
  input.dataset.option = spec.name;
  input.dataset.type = spec.type;
  const help = document.createElement("small");
  help.textContent = spec.help;
  help.id = `${id}-help`;
  input.setAttribute("aria-describedby", help.id);
  field.append(label, input, help);
  field.className = "field";
  return field;
}

/** Request body of the form. */
function request() {
  const body = { model: model().id, input: $("text").value };
  const voice = $("voice").value === CUSTOM ? $("mix-text").value.trim() : $("voice").value;
  if (voice) body.voice = voice;
  if (!$("language-field").hidden && $("language").value) body.language = $("language").value;
  if (Number($("speed").value) !== 1 && !$("speed").disabled) body.speed = Number($("speed").value);
  if (Number($("seed").value)) body.seed = Number($("seed").value);
  for (const input of $("options").querySelectorAll("[data-option]")) {
    if (input.value === "") continue;
    const { option: name, type } = input.dataset;
    body[name] = type === "boolean" ? input.value === "true" : type === "string" ? input.value : Number(input.value);
  }
  return body;
}

function changed() {
  const count = [...$("text").value].length;
  $("count").textContent = `${count} character${count === 1 ? "" : "s"}`;
  $("speed-value").textContent = Number($("speed").value).toFixed(2);
  if (models.length) showCode();
}

// ---- mixing ------------------------------------------------------------------------------------

function showMix() {
  $("mix").hidden = $("voice").value !== CUSTOM;
  if (!$("mix").hidden && $("mix-rows").children.length === 0) {
    ownVoices().slice(0, 2).forEach((v) => addPart(v.id, 0.5));
    writeMix();
  }
}

function addPart(name, weight) {
  const part = document.createElement("div");
  part.className = "part";
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Voice of the mix");
  select.append(...ownVoices().map((v) => option(v.id)));
  select.value = name;
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: "0.05", max: "1", step: "0.05", value: String(weight) });
  slider.setAttribute("aria-label", "Weight");
  const value = document.createElement("output");
  const remove = document.createElement("button");
  Object.assign(remove, { type: "button", className: "plain", textContent: "×", title: "Remove" });
  remove.setAttribute("aria-label", `Remove ${name}`);
  remove.addEventListener("click", () => { part.remove(); writeMix(); });
  part.append(select, slider, value, remove);
  part.addEventListener("input", writeMix);
  $("mix-rows").append(part);
}

/** Adds the first voice that the mix lacks. */
function addVoice() {
  const used = [...$("mix-rows").children].map((part) => part.children[0].value);
  addPart((ownVoices().find((v) => !used.includes(v.id)) ?? ownVoices()[0]).id, 0.5);
  writeMix();
}

function writeMix() {
  const parts = [...$("mix-rows").children].map((part) => {
    const weight = Number(part.children[1].value).toFixed(2);
    part.children[2].textContent = weight;
    return `${part.children[0].value}:${Number(weight)}`;
  });
  $("mix-text").value = parts.join("+");
  $("mix-add").disabled = parts.length >= MOST_PARTS;
  changed();
}

function readMix() {
  const parts = $("mix-text").value.split("+").map((part) => part.trim().split(":"));
  const own = ownVoices().map((v) => v.id);
  if (parts.length <= MOST_PARTS && parts.every(([name, w]) => own.includes(name) && (w === undefined || Number(w) > 0))) {
    const text = $("mix-text").value;
    $("mix-rows").replaceChildren();
    parts.forEach(([name, weight]) => addPart(name, Math.min(1, Number(weight ?? 1))));
    writeMix();
    $("mix-text").value = text;
  }
  changed();
}

// ---- sound -------------------------------------------------------------------------------------

/** Plays samples as they arrive, after `LEAD` seconds of them. */
class Player {
  constructor(onEnd) {
    this.context = new AudioContext();
    this.parts = []; // not scheduled yet
    this.waiting = 0; // samples in parts
    this.start = 0; // context time of the first sample
    this.end = 0;
    this.open = 0;
    this.complete = false;
    this.onEnd = onEnd;
  }

  push(samples) {
    if (this.stopped || samples.length === 0) return;
    this.parts.push(samples);
    this.waiting += samples.length;
    if (!this.start && this.waiting >= LEAD * RATE) this.start = this.end = this.context.currentTime + 0.02;
    this.pump();
  }

  /** Schedules up to `AHEAD` seconds: the context visits every scheduled node per 128 samples. */
  pump() {
    while (this.start && this.parts.length > 0 && this.end - this.context.currentTime < AHEAD) {
      // One buffer of about a second.
      let count = 0;
      let length = 0;
      while (count < this.parts.length && length < RATE) length += this.parts[count++].length;
      const samples = joined(this.parts.splice(0, count), length);
      this.waiting -= length;
      this.schedule(samples);
    }
  }

  schedule(samples) {
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(samples, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    // Late sound is played at once.
    const late = this.context.currentTime - this.end;
    if (late > 0) { this.start += late; this.end += late; }
    source.start(this.end);
    this.end += buffer.duration;
    this.open += 1;
    source.addEventListener("ended", () => {
      this.open -= 1;
      if (!this.stopped) this.pump();
      this.stopAtEnd();
    });
  }

  finish() {
    this.complete = true;
    this.start ||= this.end = this.context.currentTime + 0.02;
    this.pump();
    this.stopAtEnd();
  }

  stopAtEnd() {
    if (this.complete && this.open === 0 && this.parts.length === 0) this.stop();
  }

  /** Seconds played so far. */
  position() {
    return this.start ? Math.max(0, Math.min(this.context.currentTime, this.end) - this.start) : 0;
  }

  stop() {
    if (this.stopped) return;
    this.stopped = true;
    this.context.close();
    this.onEnd();
  }
}

function play(samples) {
  player?.stop();
  player = new Player(() => draw());
  player.push(samples);
  player.finish();
  animate();
}

let isAnimated = false;

/** Starts the drawing loop unless it runs. It ends with the player. */
function animate() {
  if (isAnimated) return;
  isAnimated = true;
  const frame = () => {
    draw();
    isAnimated = Boolean(player && !player.stopped);
    if (isAnimated) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

/** Draws peaks of the audio so far, and the played part. */
function draw() {
  const canvas = $("wave");
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  if (!spoken || spoken.length === 0) return;
  const style = getComputedStyle(document.documentElement);
  const bars = Math.max(1, Math.floor(width / 4));
  const played = player && !player.stopped ? player.position() * RATE : 0;
  const step = Math.max(spoken.length, 2 * RATE) / bars;
  for (let i = 0; i < bars; i++) {
    const first = Math.floor(i * step);
    if (first >= spoken.length) break;
    const level = spoken.level(first, Math.min(spoken.length, Math.floor(first + step)));
    const size = Math.max(2, Math.min(1, level * 1.6) * (height - 12));
    c.fillStyle = style.getPropertyValue(first < played ? "--accent" : "--wave");
    c.globalAlpha = first < played || !played ? 1 : 0.6;
    c.fillRect(i * 4 + 0.5, (height - size) / 2, 2.5, size);
  }
  c.globalAlpha = 1;
}

/** Samples received so far, and a peak per 10 ms. */
class Sound {
  constructor(body) {
    this.body = body;
    this.parts = [];
    this.peaks = [];
    this.length = 0;
  }

  push(samples) {
    this.parts.push(samples);
    for (let i = 0; i < samples.length; i++) {
      const at = Math.floor((this.length + i) / 240);
      this.peaks[at] = Math.max(this.peaks[at] ?? 0, Math.abs(samples[i]));
    }
    this.length += samples.length;
  }

  level(first, end) {
    let most = 0;
    for (let i = Math.floor(first / 240); i <= Math.floor((end - 1) / 240); i++) most = Math.max(most, this.peaks[i] ?? 0);
    return most;
  }

  all() {
    return joined(this.parts, this.length);
  }
}

/** Concatenates parts of `length` samples together. */
function joined(parts, length) {
  const all = new Float32Array(length);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// ---- speaking ----------------------------------------------------------------------------------

function fail(error) {
  $("error").textContent = error.message ?? String(error);
  $("error").hidden = false;
}

async function speak(event) {
  event?.preventDefault();
  stop();
  $("error").hidden = true;
  const body = request();
  if (!body.input.trim()) {
    fail(new Error("There is nothing to say: type a text first."));
    $("text").focus();
    return;
  }
  remember(body.input);
  const abort = (speaking = new AbortController());
  const sound = (spoken = new Sound(body));
  const own = (player = new Player(() => { idle(); draw(); }));
  own.context.resume();
  busy();
  const begun = performance.now();
  try {
    const response = await post("/v1/audio/speech", { ...body, response_format: "pcm", sample_rate: RATE }, { signal: abort.signal });
    // A mix may break before a plus sign.
    $("used").textContent = (response.headers.get("x-orate-voice") ?? "–").replaceAll("+", "\u200b+");
    const reader = response.body.getReader();
    let odd = null;
    let first = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      first ||= performance.now() - begun;
      $("first").textContent = `${Math.round(first)} ms`;
      // A read may end inside a sample.
      let bytes = value;
      if (odd !== null) {
        bytes = new Uint8Array(value.length + 1);
        bytes[0] = odd;
        bytes.set(value, 1);
      }
      odd = bytes.length % 2 ? bytes[bytes.length - 1] : null;
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length - (bytes.length % 2));
      const samples = new Float32Array(view.byteLength / 2);
      for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
      sound.push(samples);
      own.push(samples);
      showFacts(sound, performance.now() - begun);
      if (own.start) animate();
    }
    own.finish();
    $("state").textContent = "";
    animate();
  } catch (error) {
    own.stop();
    if (error.name !== "AbortError") fail(error);
  } finally {
    if (speaking === abort) speaking = null;
    $("again").disabled = $("download").disabled = sound.length === 0;
    if (own.stopped) idle();
  }
}

function showFacts(sound, ms) {
  const seconds = sound.length / RATE;
  $("length").textContent = `${seconds.toFixed(1)} s`;
  $("factor").textContent = `${(seconds / (ms / 1000)).toFixed(1)}×`;
}

function busy() {
  $("stop").disabled = false;
  $("state").textContent = "speaking …";
  for (const id of ["first", "length", "factor", "used"]) $(id).textContent = "–";
  draw();
}

function idle() {
  if (speaking || (player && !player.stopped)) return;
  $("stop").disabled = true;
  $("state").textContent = "";
}

function stop() {
  speaking?.abort();
  speaking = null;
  player?.stop();
  idle();
}

async function download() {
  const format = $("format").value;
  $("download").disabled = true;
  try {
    const response = await post("/v1/audio/speech", { ...spoken.body, response_format: format, stream: false });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = /filename=(\S+)/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? `speech.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  } catch (error) {
    fail(error);
  } finally {
    $("download").disabled = false;
  }
}

// ---- voices from recordings --------------------------------------------------------------------

let recorder = null;
let recording = null; // from the microphone; it replaces a chosen file, and a file replaces it

function showClone(text, isError = false) {
  $("clone-state").textContent = text;
  $("clone-state").classList.toggle("bad", isError);
}

async function record() {
  if (recorder) {
    recorder.stop();
    return;
  }
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const parts = [];
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
    recorder.addEventListener("stop", async () => {
      stream.getTracks().forEach((track) => track.stop());
      recorder = null;
      $("record").textContent = "Record";
      try {
        recording = await toWav(new Blob(parts));
        $("clone-file").value = "";
        showClone(`recorded ${recording.seconds.toFixed(1)} s`);
      } catch (error) {
        showClone(error.message, true);
      }
    });
    recorder.start();
    $("record").textContent = "Stop recording";
    showClone("recording …");
  } catch (error) {
    showClone(error.message, true);
  }
}

/** Converts a recording of the browser to WAV, which every build reads. */
async function toWav(blob) {
  const context = new AudioContext();
  const buffer = await context.decodeAudioData(await blob.arrayBuffer());
  context.close();
  const samples = buffer.getChannelData(0);
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (at, text) => [...text].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  word(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true); word(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, buffer.sampleRate, true); view.setUint32(28, 2 * buffer.sampleRate, true);
  view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  word(36, "data"); view.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, x)) * 32767, true));
  return Object.assign(new Blob([view.buffer], { type: "audio/wav" }), { seconds: buffer.duration });
}

async function clone() {
  const file = $("clone-file").files[0] ?? recording;
  const name = $("clone-name").value.trim();
  if (!name || !file) return showClone("Enter a name and choose a recording.", true);
  if (!$("clone-consent").checked) return showClone("Ask the speaker first, then check the box.", true);
  const form = new FormData();
  form.append("name", name);
  form.append("model", model().id);
  form.append("consent", "confirmed on the page");
  if ($("clone-words").value.trim()) form.append("ref_text", $("clone-words").value.trim());
  form.append("audio_sample", file, file.name ?? "recording.wav");
  showClone("cloning …");
  $("clone").disabled = true;
  try {
    await ask("/v1/audio/voices", { method: "POST", body: form });
    await loadVoices();
    showVoices(name);
    showClone(`Saved ${name}.`);
    // The next voice has another name, and perhaps another speaker.
    $("clone-name").value = $("clone-words").value = $("clone-file").value = "";
    $("clone-consent").checked = false;
    recording = null;
    changed();
  } catch (error) {
    showClone(error.message, true);
  } finally {
    $("clone").disabled = false;
  }
}

/** A saved voice, with a button that deletes it. */
function keptItem(name) {
  const item = document.createElement("li");
  const label = document.createElement("span");
  label.textContent = name;
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "plain", textContent: "Delete" });
  button.setAttribute("aria-label", `Delete ${name}`);
  button.addEventListener("click", () => unkeep(name));
  item.append(label, button);
  return item;
}

async function unkeep(name) {
  if (!confirm(`Delete the voice ${name}?`)) return;
  try {
    await ask(`/v1/audio/voices/${encodeURIComponent(name)}`, { method: "DELETE" });
    await loadVoices();
    showVoices($("voice").value);
    showClone(`Deleted ${name}.`);
    changed();
  } catch (error) {
    showClone(error.message, true);
  }
}

// ---- code and history --------------------------------------------------------------------------

function showCode() {
  const body = { ...request(), response_format: "wav" };
  const key = sessionStorage.getItem("key");
  const python = $("tab-python").getAttribute("aria-selected") === "true";
  if (python) {
    const { model: m, input, voice = "default", response_format, speed, ...rest } = body;
    const extra = Object.keys(rest).length ? `,\n    extra_body=${pythonValue(rest)}` : "";
    const fast = speed ? `,\n    speed=${speed}` : "";
    $("code").textContent = `from openai import OpenAI

client = OpenAI(base_url="${location.origin}/v1", api_key="${key ? "YOUR KEY" : "none"}")
with client.audio.speech.with_streaming_response.create(
    model=${JSON.stringify(m)}, voice=${JSON.stringify(voice)}, response_format="${response_format}",
    input=${JSON.stringify(input)}${fast}${extra},
) as response:
    response.stream_to_file("speech.wav")`;
  } else {
    const auth = key ? ` \\\n  -H 'Authorization: Bearer YOUR KEY'` : "";
    $("code").textContent = `curl ${location.origin}/v1/audio/speech -o speech.wav \\
  -H 'Content-Type: application/json'${auth} \\
  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  }
}

const pythonValue = (value) =>
  JSON.stringify(value).replaceAll(/:(true|false)\b/g, (_, word) => (word === "true" ? ":True" : ":False"));

function texts() {
  try {
    const list = JSON.parse(localStorage.getItem("texts") ?? "[]");
    return Array.isArray(list) ? list.filter((text) => typeof text === "string") : [];
  } catch {
    return [];
  }
}

function remember(text) {
  const list = [text, ...texts().filter((other) => other !== text)].slice(0, MOST_TEXTS);
  try {
    localStorage.setItem("texts", JSON.stringify(list));
  } catch {
    // Storage may be full or disabled.
  }
  showTexts();
}

function showTexts() {
  const items = texts().map((text) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.title = text;
    button.addEventListener("click", () => { $("text").value = text; changed(); $("text").focus(); });
    item.append(button);
    return item;
  });
  $("history").replaceChildren(...items);
  $("past").hidden = items.length === 0;
}

// ---- start -------------------------------------------------------------------------------------

function choose(tab) {
  for (const id of ["tab-curl", "tab-python"]) $(id).setAttribute("aria-selected", String(id === tab));
  showCode();
}

$("form").addEventListener("submit", speak);
$("form").addEventListener("input", changed);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) speak(event);
});
$("stop").addEventListener("click", stop);
$("again").addEventListener("click", () => { if (spoken) { $("stop").disabled = false; play(spoken.all()); } });
$("download").addEventListener("click", download);
$("model").addEventListener("change", () => { $("mix-rows").replaceChildren(); showModel(); });
$("voice").addEventListener("change", () => { showMix(); changed(); });
$("mix-add").addEventListener("click", addVoice);
$("mix-text").addEventListener("change", readMix);
$("dice").addEventListener("click", () => { $("seed").value = String(Math.floor(Math.random() * 1e6)); changed(); });
$("tab-curl").addEventListener("click", () => choose("tab-curl"));
$("tab-python").addEventListener("click", () => choose("tab-python"));
$("copy").addEventListener("click", async () => {
  // The clipboard needs a secure context.
  if (navigator.clipboard) await navigator.clipboard.writeText($("code").textContent);
  else getSelection().selectAllChildren($("code"));
  $("copy").textContent = navigator.clipboard ? "Copied" : "Selected";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
});
$("clone").addEventListener("click", clone);
$("record").hidden = !(window.isSecureContext && navigator.mediaDevices && window.MediaRecorder);
$("record").addEventListener("click", record);
$("clone-file").addEventListener("change", () => { recording = null; showClone(""); });
$("forget").addEventListener("click", () => { localStorage.removeItem("texts"); showTexts(); });
window.addEventListener("resize", draw);
$("text").value = texts()[0] ?? "Good morning. The kettle is on, and the day is yours.";
showTexts();
changed();
load();
