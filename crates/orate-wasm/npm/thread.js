// A worker that runs threads of a module.

import { imports, run } from "./threads.js";
import { Wasi } from "./wasi.js";

self.onmessage = async ({ data: { module, memory, control, worker, alarm } }) => {
  let printed = "";
  try {
    const wasi = new Wasi(new Map(), (text) => (printed += text));
    const { exports } = await WebAssembly.instantiate(module, {
      wasi_snapshot_preview1: wasi.imports(module, () => memory),
      ...imports(control, memory),
    });
    postMessage("ready");
    run(control, worker, exports.wasi_thread_start);
  } catch (e) {
    // The engine's worker may wait for this thread, so the page ends it.
    new BroadcastChannel(alarm).postMessage(printed.trim() || e.message);
  }
};
