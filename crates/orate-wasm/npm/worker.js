// The worker of an engine: loads module and model, and answers calls, one after the other.

import { OrateError } from "./error.js";
import * as gpus from "./gpu.js";
import { load } from "./storage.js";
import * as threads from "./threads.js";
import { Wasi } from "./wasi.js";

let instance; // exports of the module, and its memory
let wasi; // files of the module
let uploads = 0; // files that were given with a call
let printed = ""; // what the module wrote, which is the message of a panic
let dead; // why the module cannot be used any more

async function open({ module: url, gpuModule, device, threads: most, files, model, options, warmUp, keep, alarm }) {
  const gpu = await chosen(device);
  const count = gpu ? 1 : most;
  const loaded = new Map(),
    totals = new Map();
  const report = () => {
    const sum = (i) => [...totals.values()].reduce((all, pair) => all + (pair[i] ?? 0), 0);
    postMessage({ progress: { loaded: sum(0), total: sum(1) } });
  };
  const one = async ([path, source]) => {
    const isLocal = source instanceof Blob;
    const progress = (...pair) => {
      totals.set(path, pair);
      report();
    };
    loaded.set(path, isLocal ? source : await load(source, keep, progress));
  };
  const [module] = await Promise.all([compile(gpu ? gpuModule : url), ...files.map(one)]);
  wasi = new Wasi(loaded, (text) => (printed = (printed + text).slice(-2000)));
  const [memory, control] = count > 1 ? [sharedMemory(), threads.control(count - 1)] : [];
  const { exports } = await WebAssembly.instantiate(module, {
    wasi_snapshot_preview1: wasi.imports(module, () => memory ?? instance.memory),
    ...gpu?.imports(() => instance.memory),
    ...(memory && threads.imports(control, memory)),
  });
  instance = {
    exports,
    memory: memory ?? exports.memory,
    isShared: Boolean(memory),
    run: gpu ? WebAssembly.promising(exports.orate_call) : exports.orate_call,
  };
  if (memory)
    await Promise.all(
      Array.from({ length: count - 1 }, (_, worker) => begin({ module, memory, control, worker, alarm })),
    );
  exports._initialize();
  const settings = { ...options, threads: count, ...(device === "webgpu" && { device }) };
  const info = (await call({ call: "open", model, options: settings })).answer;
  if (warmUp && info.voices.length) await call({ call: "warmUp" });
  return { answer: { ...info, gpu: gpu?.name, memory } };
}

// The GPU that was asked for, or one that is there; undefined for the CPU.
async function chosen(device) {
  if (device === "cpu") return;
  try {
    return await gpus.open(device === "webgpu");
  } catch (e) {
    if (device === "webgpu") throw new OrateError("system", `this browser cannot speak on WebGPU: ${e.message}`);
  }
}

// As much as this browser gives a page, since shared memory cannot have an open end.
function sharedMemory() {
  for (let maximum = 65536; ; maximum /= 2) {
    try {
      return new WebAssembly.Memory({ initial: 512, maximum, shared: true });
    } catch (e) {
      if (maximum <= 8192) throw new OrateError("system", `no memory for a model: ${e.message}`);
    }
  }
}

// Starts a worker for threads, and waits until it is ready.
function begin(message) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL("./thread.js", import.meta.url), {
      type: "module",
      name: "orate thread",
    });
    worker.onmessage = resolve;
    worker.onerror = (e) => reject(new OrateError("system", `a thread could not be started: ${e.message}`));
    worker.postMessage(message);
  });
}

async function compile(url) {
  try {
    return await WebAssembly.compileStreaming(fetch(url));
  } catch {
    // Servers that do not know the type of the file, and errors, which the second try describes.
  }
  const response = await fetch(url).catch((e) => {
    throw new OrateError("system", `${url}: ${e.message}`);
  });
  if (!response.ok) throw new OrateError("system", `${url}: the server answers ${response.status}`);
  return WebAssembly.compile(await response.arrayBuffer());
}

// Whether a file is a cloned voice (safetensors): it begins with the length of its header in eight bytes.
function isVoice(blob) {
  const head = new Uint8Array(new FileReaderSync().readAsArrayBuffer(blob.slice(0, 9)));
  return head[7] === 0 && head[8] === 0x7b;
}

// A call with a file: the samples to clone, or a voice to speak with. The module reads it during the call.
async function callWithFile({ file, ...request }) {
  const folder = `upload-${++uploads}`;
  let path = `${folder}/samples`;
  if (request.call !== "clone") {
    // Models go by the extension.
    const name = (file.name ?? "voice").replace(/\.(json|safetensors)$/, "").replace(/[^\w.-]+/g, "_");
    path = `${folder}/${name}${isVoice(file) ? ".safetensors" : ".json"}`;
    request.options = { ...request.options, voice: `/${path}` };
  } else {
    request.path = `/${path}`;
  }
  wasi.files.set(path, file);
  try {
    return await call(request);
  } finally {
    wasi.files.delete(path);
  }
}

async function call(request) {
  if (request.file) return callWithFile(request);
  if (dead)
    throw new OrateError("bug", `the engine ended after an error; open another one. The error was: ${dead}`);
  const { exports, memory, run } = instance,
    bytes = new TextEncoder().encode(JSON.stringify(request));
  let answer;
  try {
    const at = exports.orate_request(bytes.length);
    new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
    const length = await run();
    answer = JSON.parse(
      new TextDecoder().decode(new Uint8Array(memory.buffer, exports.orate_answer(), length).slice()),
    );
  } catch (e) {
    dead = printed.trim() || e.message;
    const isMemory = /memory allocation of|no room for/.test(dead);
    throw new OrateError(
      isMemory ? "system" : "bug",
      isMemory ? `out of memory: ${dead}` : `a bug of Orate: ${dead}`,
    );
  }
  if (answer.error) throw new OrateError(answer.error.kind, answer.error.message);
  // Where the page can end the text while the module runs.
  if (request.call === "speak" && instance.isShared) answer.cancelled = exports.orate_cancelled(request.id);
  if (request.call === "clone") {
    return { answer: new Blob([new Uint8Array(memory.buffer, exports.orate_voice(), answer.bytes).slice()]) };
  }
  if (!answer.samples) return { answer };
  return {
    answer,
    samples: new Float32Array(memory.buffer, exports.orate_samples(), answer.samples).slice(),
  };
}

let queue = Promise.resolve();
self.onmessage = ({ data: { id, request } }) => {
  queue = queue.then(async () => {
    try {
      const { answer, samples } = await (request.call === "load" ? open(request) : call(request));
      postMessage({ id, answer, samples }, samples ? [samples.buffer] : []);
    } catch (e) {
      postMessage({ id, error: { kind: e.kind ?? "system", message: e.message } });
    }
  });
};
