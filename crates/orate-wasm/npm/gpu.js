// WebGPU for the module: the functions that `src/webgpu/page.rs` of orate-gpu declares.
//
// The module waits for promises by JavaScript Promise Integration: functions under `suspending` suspend it.
// So a caller uses `promising(function)`, and calls nothing else of the module until that has ended.

const VALIDATION = 1,
  OUT_OF_MEMORY = 2,
  INTERNAL = 3;
const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
];
// First words of commands, as in `src/webgpu/commands.rs`.
const BEGIN = 1,
  END = 2,
  PIPELINE = 3,
  BIND = 4,
  IMMEDIATES = 5,
  DISPATCH = 6,
  COPY = 7,
  CLEAR = 8;
const IMMEDIATES_GROUP = 2;

/** Why this browser cannot run the module on WebGPU; undefined if it can, as far as its functions tell. */
export function missing() {
  if (typeof WebAssembly.Suspending !== "function" || typeof WebAssembly.promising !== "function")
    return "it has no JavaScript Promise Integration (Chrome and Edge 137 have it)";
  if (!globalThis.navigator?.gpu) return "it has no WebGPU, or the page is not secure";
}

/** Opens the GPU. `any`: also a software rasterizer. Throws an Error that says why there is none. */
export async function open(any) {
  const problem = missing();
  if (problem) throw new Error(problem);
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("it found no GPU");
  // It moved to the information in 2025.
  const isSoftware = adapter.info.isFallbackAdapter === true || adapter.isFallbackAdapter === true;
  if (isSoftware && !any) throw new Error("it has only a software rasterizer");
  const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
  const requiredFeatures = ["subgroups"].filter((name) => adapter.features.has(name));
  const device = await adapter.requestDevice({ requiredLimits, requiredFeatures });
  return new Gpu(adapter, device, isSoftware);
}

class Gpu {
  #objects = [undefined];
  #free = [];
  #errors = [];
  #compiling = [];
  #lost = false;
  #immediates = { slots: 0 };

  constructor(adapter, device, isSoftware) {
    this.device = device;
    const { info } = adapter,
      has = device.features.has("subgroups");
    this.name =
      [info.description || info.device, info.vendor, info.architecture].filter(Boolean).join(" ") || "GPU";
    const [bytes, binding, workgroup, threads, width] = LIMITS.map((name) => device.limits[name]);
    this.facts = [
      1,
      Number(isSoftware),
      bytes,
      binding,
      workgroup,
      Math.min(threads, width),
      has ? (info.subgroupMinSize ?? 4) : 0,
      has ? (info.subgroupMaxSize ?? 128) : 0,
    ];
    device.onuncapturederror = (e) => {
      e.preventDefault();
      this.#failed(e.error);
    };
    device.lost.then(() => (this.#lost = true));
  }

  close() {
    this.device.destroy();
  }

  #failed(error) {
    const kind =
      typeof GPUOutOfMemoryError === "function" && error instanceof GPUOutOfMemoryError
        ? OUT_OF_MEMORY
        : typeof GPUInternalError === "function" && error instanceof GPUInternalError
          ? INTERNAL
          : VALIDATION;
    this.#errors.push([kind, error.message]);
  }

  #keep(object) {
    const number = this.#free.pop() ?? this.#objects.length;
    this.#objects[number] = object;
    return number;
  }

  /** Imports of an instance; `memory` returns its memory. */
  imports(memory) {
    const { device } = this,
      { queue } = device;
    const words = (at, count) => new Uint32Array(memory().buffer, at, count);
    const objects = (at, count) => Array.from(words(at, count), (number) => this.#objects[number]);
    const text = (at, length) => new TextDecoder().decode(new Uint8Array(memory().buffer, at, length));
    const put = (string, at, room) =>
      new TextEncoder().encodeInto(string, new Uint8Array(memory().buffer, at, room)).written;
    const attempt = (work) => {
      try {
        return work();
      } catch (e) {
        this.#failed(e);
      }
    };
    const own = {
      adapter: (fact) => this.facts[fact],
      adapter_name: (at, room) => put(this.name, at, room),
      is_lost: () => Number(this.#lost),
      next_error: (at, room) => {
        if (!this.#errors.length) return 0;
        const [kind, message] = this.#errors.shift();
        return put(message, at, room) * 4 + kind;
      },
      create_layout: (at, count) => {
        const entries = Array.from(words(at, count), (isReadOnly, binding) => ({
          binding,
          visibility: GPUShaderStage.COMPUTE,
          buffer: { type: isReadOnly ? "read-only-storage" : "storage" },
        }));
        return this.#keep(device.createBindGroupLayout({ entries }));
      },
      create_pipeline_layout: (at, count, bytes) => {
        const buffer = { type: "uniform", hasDynamicOffset: true, minBindingSize: bytes };
        const entries = [{ binding: 0, visibility: GPUShaderStage.COMPUTE, buffer }];
        const layout = device.createBindGroupLayout({ entries }),
          step = device.limits.minUniformBufferOffsetAlignment;
        this.#immediates = { slots: 0, layout, bytes, step: Math.ceil(bytes / step) * step };
        return this.#keep(
          device.createPipelineLayout({ bindGroupLayouts: [...objects(at, count), layout] }),
        );
      },
      create_pipeline: (layout, label, labelLength, at, length) => {
        const entry = { pipeline: undefined },
          name = text(label, labelLength);
        const module = device.createShaderModule({ label: name, code: text(at, length) });
        const made = device.createComputePipelineAsync({
          label: name,
          layout: this.#objects[layout],
          compute: { module, entryPoint: "main" },
        });
        this.#compiling.push(
          made.then(
            (pipeline) => (entry.pipeline = pipeline),
            (e) => this.#failed(new Error(`kernel ${name}: ${e.message}`)),
          ),
        );
        return this.#keep(entry);
      },
      create_bind_group: (layout, at, count) => {
        const entries = objects(at, count).map((buffer, binding) => ({ binding, resource: { buffer } }));
        return this.#keep(
          attempt(() => device.createBindGroup({ layout: this.#objects[layout], entries })),
        );
      },
      write_buffer: (buffer, offset, at, length) =>
        attempt(() => queue.writeBuffer(this.#objects[buffer], offset, memory().buffer, at, length)),
      submit: (at, count, dispatches) => attempt(() => this.#submit(words(at, count), dispatches)),
      release: (number) => {
        const object = this.#objects[number];
        if (typeof GPUBuffer === "function" && object instanceof GPUBuffer) object.destroy();
        this.#objects[number] = undefined;
        this.#free.push(number);
      },
    };
    const suspending = {
      settle: async () => {
        while (this.#compiling.length) await Promise.all(this.#compiling.splice(0));
      },
      create_buffer: async (size, usage) => {
        device.pushErrorScope("out-of-memory");
        const buffer = attempt(() => device.createBuffer({ size, usage }));
        const error = await device.popErrorScope();
        if (error) this.#failed(error);
        return this.#keep(buffer);
      },
      read_buffer: async (number, offset, at, length) => {
        const buffer = this.#objects[number];
        try {
          await buffer.mapAsync(GPUMapMode.READ, offset, Math.ceil(length / 4) * 4);
          const bytes = new Uint8Array(buffer.getMappedRange(offset, Math.ceil(length / 4) * 4), 0, length);
          new Uint8Array(memory().buffer, at, length).set(bytes);
          buffer.unmap();
          return 1;
        } catch (e) {
          if (!this.#lost) this.#failed(e);
          return 0;
        }
      },
      wait: async () => {
        await queue.onSubmittedWorkDone().catch(() => {}); // of a lost device
      },
    };
    for (const [name, work] of Object.entries(suspending)) own[name] = new WebAssembly.Suspending(work);
    return { webgpu: own };
  }

  // Room for the immediates of a submission. Submissions before it have their own copy of them.
  #room(slots) {
    const kept = this.#immediates;
    if (kept.slots >= slots) return kept;
    kept.buffer?.destroy();
    kept.slots = 2 ** Math.ceil(Math.log2(Math.max(slots, 64)));
    const size = kept.slots * kept.step;
    kept.buffer = this.device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    kept.words = new Uint32Array(size / 4);
    const entries = [{ binding: 0, resource: { buffer: kept.buffer, size: kept.bytes } }];
    kept.group = this.device.createBindGroup({ layout: kept.layout, entries });
    return kept;
  }

  #submit(words, dispatches) {
    const { group, step, words: room, buffer } = dispatches ? this.#room(dispatches) : {};
    const encoder = this.device.createCommandEncoder(),
      objects = this.#objects;
    let pass,
      at = 0,
      slot = 0;
    const size = () => words[at++] + words[at++] * 2 ** 32;
    while (at < words.length) {
      switch (words[at++]) {
        case BEGIN:
          pass = encoder.beginComputePass();
          break;
        case END:
          pass.end();
          break;
        case PIPELINE:
          pass.setPipeline(objects[words[at++]].pipeline);
          break;
        case BIND: {
          const index = words[at++];
          pass.setBindGroup(index, objects[words[at++]]);
          break;
        }
        case IMMEDIATES: {
          const count = words[at++];
          room.set(words.subarray(at, at + count), (slot * step) / 4);
          at += count;
          pass.setBindGroup(IMMEDIATES_GROUP, group, [slot++ * step]);
          break;
        }
        case DISPATCH:
          pass.dispatchWorkgroups(words[at++], words[at++], words[at++]);
          break;
        case COPY: {
          const [from, to] = [objects[words[at++]], objects[words[at++]]];
          const [offset, place, bytes] = [size(), size(), size()];
          encoder.copyBufferToBuffer(from, offset, to, place, bytes);
          break;
        }
        case CLEAR: {
          const cleared = objects[words[at++]];
          encoder.clearBuffer(cleared, size(), size());
          break;
        }
        default:
          throw new Error(`command ${words[at - 1]} is unknown`);
      }
    }
    if (slot) this.device.queue.writeBuffer(buffer, 0, room, 0, (slot * step) / 4);
    this.device.queue.submit([encoder.finish()]);
  }
}
