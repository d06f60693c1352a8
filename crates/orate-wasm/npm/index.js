// Orate in a browser: engines in workers, streams as asynchronous iterators. The types are in index.d.ts.

import { OrateError } from "./error.js";

export { OrateError } from "./error.js";
export { Player } from "./player.js";
export { removeStored, stored } from "./storage.js";

/** Version of the package. It is part of the voice's URL, so that a new version fetches its own. */
export const VERSION = "0.1.0";

// Bundlers copy files that are named by `new URL` with a constant.
const voice = new URL("./orate-default.gguf", import.meta.url);
voice.searchParams.set("v", VERSION);
const VOICE = voice.href;
const MODULES = {
  plain: new URL("./orate.wasm", import.meta.url).href,
  relaxed: new URL("./orate-relaxed.wasm", import.meta.url).href,
  "plain threads": new URL("./orate-threads.wasm", import.meta.url).href,
  "relaxed threads": new URL("./orate-relaxed-threads.wasm", import.meta.url).href,
};
const GPU_MODULE = new URL("./orate-webgpu.wasm", import.meta.url).href;
const DEVICES = ["auto", "cpu", "webgpu"];
/** Threads by default: more gain little. */
const MOST_DEFAULT_THREADS = 8;

// Modules of one function: i8x16.splat, and f32x4.relaxed_madd. Browsers without the instruction refuse them.
const module = (hex) => Uint8Array.from(hex.match(/\w\w/g), (byte) => parseInt(byte, 16));
const START = "0061736d 01000000 01 05 01 60 00 01 7b 03 02 01 00";
const SIMD = module(`${START} 0a 08 01 06 00 4100 fd0f 0b`);
const RELAXED = module(`${START} 0a 13 01 11 00 4100 fd0f 4100 fd0f 4100 fd0f fd8502 0b`);

/** Checks what this browser has: `{ simd, relaxedSimd, isolated, storage }`. */
export function support() {
  return {
    simd: WebAssembly.validate(SIMD),
    relaxedSimd: WebAssembly.validate(RELAXED),
    isolated: globalThis.crossOriginIsolated === true,
    storage: typeof navigator.storage?.getDirectory === "function",
  };
}

// The module and the number of threads for this browser, and where it may compute.
function choose(device = "auto", simd = "auto", threads) {
  const has = support();
  if (!DEVICES.includes(device)) {
    throw new OrateError("invalid-input", `device is ${device}; choose ${DEVICES.join(", ")}`);
  }
  if (!["auto", "plain", "relaxed"].includes(simd)) {
    throw new OrateError("invalid-input", `simd is ${simd}; choose plain, relaxed or auto`);
  }
  if (threads !== undefined && !(Number.isInteger(threads) && threads >= 1 && threads <= 64)) {
    throw new OrateError("invalid-input", `threads is ${threads}; choose 1 to 64`);
  }
  // Other pages have no storage, and lack functions that are used here.
  if (!globalThis.isSecureContext) {
    throw new OrateError("system", "this page is not secure; serve it by https:, or open it at localhost");
  }
  if (!has.simd) {
    const browsers = "Chrome 91, Firefox 89, Safari 16.4 or newer";
    throw new OrateError("system", `this browser has no SIMD in WebAssembly; use ${browsers}`);
  }
  if (simd === "relaxed" && !has.relaxedSimd) {
    throw new OrateError("system", "this browser has no relaxed SIMD; leave simd out");
  }
  if (threads > 1 && !has.isolated) {
    const headers = "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp";
    throw new OrateError("system", `threads need an isolated page; serve it with the headers ${headers}`);
  }
  threads ??= has.isolated ? Math.min(navigator.hardwareConcurrency || 1, MOST_DEFAULT_THREADS) : 1;
  const kind = simd === "auto" ? (has.relaxedSimd ? "relaxed" : "plain") : simd;
  return { module: MODULES[threads > 1 ? `${kind} threads` : kind], gpuModule: GPU_MODULE, device, threads };
}

// Bytes as a Blob; undefined for other values.
function blobOf(value) {
  if (value instanceof Blob) return value;
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) return new Blob([value]);
}

// A source of bytes as a Blob, or as the URL to fetch.
function source(value, what) {
  const blob = blobOf(value);
  if (blob) return blob;
  if (typeof value === "string" || value instanceof URL) {
    try {
      return new URL(value, globalThis.location?.href).href;
    } catch {
      throw new OrateError("invalid-input", `${what} is ${value}, which is not a URL`);
    }
  }
  throw new OrateError("invalid-input", `${what} is ${value}; give a URL, a File, a Blob or bytes`);
}

const isFile = (value) =>
  typeof value === "string" ||
  value instanceof URL ||
  value instanceof Blob ||
  value instanceof ArrayBuffer ||
  ArrayBuffer.isView(value);

// Paths in the module's file system, with their sources, and the path of the model.
function filesOf(model, folder) {
  if (isFile(model)) {
    const where = source(model, folder);
    const name = model.name ?? (typeof where === "string" ? new URL(where).pathname.split("/").pop() : "");
    const path = `/${folder}/${name || "model.gguf"}`;
    return { path, files: [[path, where]] };
  }
  const entries = model && typeof model === "object" ? Object.entries(model) : [];
  if (!entries.length)
    throw new OrateError(
      "invalid-input",
      `${folder} is ${model}; give a file, or an object of paths and files`,
    );
  return {
    path: `/${folder}`,
    files: entries.map(([path, value]) => [`/${folder}/${path}`, source(value, path)]),
  };
}

export class Engine {
  #worker;
  #calls = new Map();
  #next = 1;
  #closed;
  #memory; // shared with the module, if it has threads
  #alarm;

  /** Use `Engine.open`. */
  constructor(worker, alarm, onProgress) {
    this.#worker = worker;
    this.#alarm = new BroadcastChannel(alarm);
    this.#alarm.onmessage = ({ data }) => this.#end(new OrateError("bug", `a thread ended: ${data}`));
    worker.onmessage = ({ data: { id, answer, samples, error, progress } }) => {
      if (progress) return onProgress?.(progress);
      const { resolve, reject } = this.#calls.get(id) ?? {};
      this.#calls.delete(id);
      if (error) reject?.(new OrateError(error.kind, error.message));
      else resolve?.(samples ? { ...answer, samples } : answer);
    };
    worker.onerror = (e) => {
      e.preventDefault?.();
      this.#end(
        new OrateError(
          "system",
          `the engine's worker failed: ${e.message || "its script could not be loaded"}`,
        ),
      );
    };
  }

  static async open(given = {}) {
    const {
      model = VOICE,
      codec,
      device,
      simd,
      threads,
      keep = true,
      warmUp = true,
      options,
      onProgress,
      signal,
    } = given;
    signal?.throwIfAborted();
    const chosen = choose(device, simd, threads),
      main = filesOf(model, "model");
    const second = codec && filesOf(codec, "codec"),
      alarm = `orate ${crypto.randomUUID()}`;
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "orate" });
    const engine = new Engine(worker, alarm, onProgress);
    const stop = () => engine.#end(signal.reason);
    signal?.addEventListener("abort", stop, { once: true });
    try {
      const { memory, ...info } = await engine.#call({
        call: "load",
        ...chosen,
        alarm,
        files: [...main.files, ...(second?.files ?? [])],
        model: main.path,
        options: { ...options, ...(second && { codec: second.path }) },
        warmUp,
        keep,
      });
      engine.info = { ...info, module: info.gpu ? GPU_MODULE : chosen.module };
      engine.#memory = memory;
    } catch (e) {
      engine.close();
      throw e;
    } finally {
      signal?.removeEventListener("abort", stop);
    }
    return engine;
  }

  get sampleRate() {
    return this.info.sampleRate;
  }

  get voices() {
    return this.info.voices;
  }

  #call(request) {
    if (this.#closed) return Promise.reject(this.#closed);
    return new Promise((resolve, reject) => {
      const id = this.#next++;
      this.#calls.set(id, { resolve, reject });
      this.#worker.postMessage({ id, request });
    });
  }

  #end(reason) {
    this.#closed ??= reason;
    this.#worker.terminate();
    this.#alarm.close();
    for (const { reject } of this.#calls.values()) reject(reason);
    this.#calls.clear();
  }

  async warmUp(options = {}) {
    await this.#call({ call: "warmUp", ...given(options) });
  }

  /** The voice of a recording, as a file for `voice`. */
  async clone(recording, { transcript, signal } = {}) {
    const { canClone, family } = this.info;
    if (!canClone)
      throw new OrateError("invalid-input", `this ${family} model does not clone voices; open one that does`);
    const { samples, sampleRate } = await abortable(decoded(recording, this.sampleRate), signal);
    const request = { call: "clone", file: new Blob([samples]), sampleRate, transcript };
    return abortable(this.#call(request), signal);
  }

  /** Chunks of a text's audio, each computed when it is asked for. */
  async *stream(text, options = {}) {
    const { signal, ...rest } = options;
    const spoken = this.#speak(text, false, rest, signal);
    try {
      let warnings = (await spoken.begin()).warnings;
      for (let chunk; (chunk = await spoken.next()); warnings = []) {
        yield { ...chunk, sampleRate: this.sampleRate, warnings };
      }
    } finally {
      spoken.stop();
    }
  }

  async speak(text, options = {}) {
    const { signal, ...rest } = options;
    const spoken = this.#speak(text, true, rest, signal),
      chunks = [];
    try {
      const { warnings } = await spoken.begin();
      for (let chunk; (chunk = await spoken.next());) {
        chunks.push(chunk);
      }
      return { ...join(chunks), sampleRate: this.sampleRate, warnings };
    } finally {
      spoken.stop();
    }
  }

  #speak(text, whole, options, signal) {
    if (typeof text !== "string") throw new OrateError("invalid-input", `the text is ${text}; give a string`);
    const id = this.#next++;
    let cancelled; // where the module looks whether to end the text, if its memory is shared
    // Without shared memory, the worker ends the chunk that it is at, and drops it.
    const end = () => cancelled && Atomics.store(new Uint8Array(this.#memory.buffer), cancelled, 1);
    return {
      begin: async () => {
        const speak = { call: "speak", id, text, whole, ...given(options) };
        const answer = await abortable(this.#call(speak), signal, end);
        cancelled = answer.cancelled;
        return answer;
      },
      next: async () => {
        const chunk = await abortable(this.#call({ call: "next", id }), signal, end);
        return chunk.done ? undefined : { ...chunk, samples: chunk.samples || new Float32Array(0) };
      },
      stop: () => void this.#call({ call: "stop", id }).catch(() => {}),
    };
  }

  /** Ends the worker and frees its memory. What is running fails. */
  close() {
    this.#end(new OrateError("cancelled", "the engine was closed"));
  }
}

// Mono samples of a recording. Files are decoded by the browser.
async function decoded(recording, sampleRate) {
  if (recording?.samples instanceof Float32Array) {
    const { samples, sampleRate } = recording;
    if (!Number.isInteger(sampleRate))
      throw new OrateError("invalid-input", `sampleRate is ${sampleRate}; give samples per second`);
    return { samples, sampleRate };
  }
  const file = blobOf(recording);
  if (!file)
    throw new OrateError(
      "invalid-input",
      `the recording is ${recording}; give a File, a Blob, bytes or samples`,
    );
  if (typeof OfflineAudioContext !== "function")
    throw new OrateError("system", "only pages decode files; give samples here: { samples, sampleRate }");
  const name = file.name ?? "the recording";
  const bytes = await file.arrayBuffer().catch((e) => {
    throw new OrateError("system", `${name}: ${e.message}`);
  });
  const audio = await new OfflineAudioContext(1, 1, sampleRate).decodeAudioData(bytes).catch(() => {
    const problem = "this browser cannot decode it; give WAV, MP3, FLAC or Ogg";
    throw new OrateError("invalid-input", `${name}: ${problem}`);
  });
  const channels = Array.from({ length: audio.numberOfChannels }, (_, i) => audio.getChannelData(i));
  const mean = (at) => channels.reduce((sum, one) => sum + one[at], 0) / channels.length;
  const samples = channels[0].map((_, at) => mean(at));
  return { samples, sampleRate: audio.sampleRate };
}

// The promise, until the signal rejects it.
function abortable(promise, signal, onAbort) {
  if (!signal) return promise;
  promise.catch(() => {}); // nobody waits for it after an abort
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const abort = () => {
      onAbort?.();
      reject(signal.reason);
    };
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

// Options of speech for the worker, and the file of a voice beside them, since options are sent on as JSON.
function given({ voice, ...options }) {
  for (const [name, value] of Object.entries(options)) {
    if (typeof value === "number" && !Number.isFinite(value))
      throw new OrateError("invalid-input", `${name} is ${value}; give a number`);
  }
  const file = blobOf(voice);
  return file ? { file, options } : { options: { ...options, voice } };
}

/** The audio of all chunks of a stream. */
export function join(chunks) {
  const samples = new Float32Array(chunks.reduce((length, chunk) => length + chunk.samples.length, 0));
  chunks.reduce((at, chunk) => (samples.set(chunk.samples, at), at + chunk.samples.length), 0);
  const all = (name) => chunks.flatMap((chunk) => chunk[name] ?? []);
  return { samples, sampleRate: chunks[0]?.sampleRate, words: all("words"), warnings: all("warnings") };
}

/** A WAV file (16 bits, mono) of samples. */
export function wav({ samples, sampleRate }) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) =>
    [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) =>
    view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true),
  );
  return new Blob([view], { type: "audio/wav" });
}
