// The part of WASI preview 1 that the module uses: read-only files, clocks, random numbers, messages.
// https://github.com/WebAssembly/WASI/blob/main/legacy/preview1/docs.md

const OK = 0,
  BADF = 8,
  INVAL = 28,
  IO = 29,
  ISDIR = 31,
  NOENT = 44,
  NOSYS = 52,
  NOTDIR = 54,
  ROFS = 69;
const CHARACTERS = 2,
  FOLDER = 3,
  FILE = 4;
const ROOT = 3; // descriptor of the folder that all paths start from
const MOST_READ = 16 << 20; // bytes read at once, which are in memory twice for a moment

// A path without empty parts and `.`, such as `model/tts.json`; "" for the root. `..` goes up.
function normal(path) {
  const parts = [];
  for (const part of path.split("/")) {
    if (part === "..") parts.pop();
    else if (part && part !== ".") parts.push(part);
  }
  return parts.join("/");
}

export class Wasi {
  /** `files`: path to Blob. `report` receives what the module prints, the message of a panic. */
  constructor(files = new Map(), report = console.error) {
    this.files = new Map([...files].map(([path, blob]) => [normal(path), blob]));
    this.report = report;
    this.open = new Map([[ROOT, { path: "" }]]);
    this.next = ROOT + 1;
  }

  /** Imports of an instance. What is not here is answered with "not supported". */
  imports(module, memory) {
    this.memory = memory;
    const own = Object.fromEntries(
      Object.getOwnPropertyNames(Calls.prototype)
        .filter((name) => name !== "constructor")
        .map((name) => [name, Calls.prototype[name].bind(this)]),
    );
    const needed = WebAssembly.Module.imports(module).filter(
      (needed) => needed.module === "wasi_snapshot_preview1",
    );
    const missing = needed.filter(({ name }) => !own[name]);
    return { ...Object.fromEntries(missing.map(({ name }) => [name, () => NOSYS])), ...own };
  }

  get view() {
    return new DataView(this.memory().buffer);
  }

  bytes(at, length) {
    return new Uint8Array(this.memory().buffer, at, length);
  }

  // A copy, since decoders refuse shared memory.
  text(at, length) {
    return new TextDecoder().decode(this.bytes(at, length).slice());
  }

  *buffers(at, count) {
    for (let i = 0; i < count; i++) {
      yield [this.view.getUint32(at + 8 * i, true), this.view.getUint32(at + 8 * i + 4, true)];
    }
  }

  isFolder(path) {
    return path === "" || [...this.files.keys()].some((file) => file.startsWith(path + "/"));
  }

  // Names in a folder, with their types.
  entries(folder) {
    const start = folder === "" ? "" : folder + "/",
      entries = new Map();
    for (const file of this.files.keys()) {
      if (file.startsWith(start)) {
        const [name, ...inner] = file.slice(start.length).split("/");
        entries.set(name, inner.length ? FOLDER : FILE);
      }
    }
    return [...entries];
  }

  resolve(descriptor, at, length) {
    const folder = this.open.get(descriptor);
    return folder && normal(`${folder.path}/${this.text(at, length)}`);
  }

  // Writes the record about a file or folder.
  describe(path, at) {
    const blob = this.files.get(path);
    if (!blob && !this.isFolder(path)) return NOENT;
    this.bytes(at, 64).fill(0);
    this.view.setUint8(at + 16, blob ? FILE : FOLDER);
    this.view.setBigUint64(at + 24, 1n, true);
    this.view.setBigUint64(at + 32, BigInt(blob?.size ?? 0), true);
    return OK;
  }
}

// Bound to a `Wasi`. Arguments are those of the specification.
class Calls {
  args_sizes_get(count, size) {
    this.view.setUint32(count, 0, true);
    this.view.setUint32(size, 0, true);
    return OK;
  }
  args_get() {
    return OK;
  }
  environ_sizes_get(count, size) {
    this.view.setUint32(count, 0, true);
    this.view.setUint32(size, 0, true);
    return OK;
  }
  environ_get() {
    return OK;
  }
  clock_time_get(clock, _precision, at) {
    // The same for all threads, whose workers were started at different times.
    const now = clock === 0 ? Date.now() : performance.timeOrigin + performance.now();
    this.view.setBigUint64(at, BigInt(Math.round(now * 1e6)), true);
    return OK;
  }
  random_get(at, length) {
    const numbers = new Uint8Array(length);
    for (let i = 0; i < length; i += 65536) crypto.getRandomValues(numbers.subarray(i, i + 65536));
    this.bytes(at, length).set(numbers);
    return OK;
  }
  sched_yield() {
    return OK;
  }
  proc_exit(code) {
    throw new Error(`the module ended with code ${code}`);
  }
  fd_prestat_get(descriptor, at) {
    if (descriptor !== ROOT) return BADF;
    this.view.setUint32(at, 0, true);
    this.view.setUint32(at + 4, 1, true);
    return OK;
  }
  fd_prestat_dir_name(descriptor, at, length) {
    if (descriptor !== ROOT || length < 1) return INVAL;
    this.view.setUint8(at, 0x2f);
    return OK;
  }
  fd_fdstat_get(descriptor, at) {
    const file = this.open.get(descriptor);
    if (!file && descriptor > 2) return BADF;
    this.bytes(at, 24).fill(0);
    this.view.setUint8(at, !file ? CHARACTERS : file.blob ? FILE : FOLDER);
    this.view.setBigUint64(at + 8, 0x1fffffffn, true);
    this.view.setBigUint64(at + 16, 0x1fffffffn, true);
    return OK;
  }
  fd_filestat_get(descriptor, at) {
    const file = this.open.get(descriptor);
    return file ? this.describe(file.path, at) : BADF;
  }
  fd_close(descriptor) {
    return this.open.delete(descriptor) ? OK : BADF;
  }
  fd_read(descriptor, at, count, read) {
    const file = this.open.get(descriptor);
    if (!file) return BADF;
    if (!file.blob) return ISDIR;
    let total = 0;
    for (const [to, room] of this.buffers(at, count)) {
      const length = Math.min(room, MOST_READ - total, file.blob.size - file.position);
      if (length <= 0) break;
      try {
        const part = file.blob.slice(file.position, file.position + length);
        this.bytes(to, length).set(new Uint8Array(new FileReaderSync().readAsArrayBuffer(part)));
      } catch {
        return IO; // the file was changed or removed meanwhile
      }
      file.position += length;
      total += length;
    }
    this.view.setUint32(read, total, true);
    return OK;
  }
  fd_seek(descriptor, offset, from, at) {
    const file = this.open.get(descriptor);
    if (!file?.blob) return BADF;
    const position = Number(offset) + [0, file.position, file.blob.size][from];
    if (!(position >= 0)) return INVAL;
    file.position = position;
    this.view.setBigUint64(at, BigInt(position), true);
    return OK;
  }
  fd_readdir(descriptor, at, room, cookie, used) {
    const folder = this.open.get(descriptor);
    if (!folder || folder.blob) return NOTDIR;
    const entries = this.entries(folder.path);
    let length = 0;
    for (let i = Number(cookie); i < entries.length && length < room; i++) {
      const name = new TextEncoder().encode(entries[i][0]),
        entry = new Uint8Array(24 + name.length);
      const view = new DataView(entry.buffer);
      view.setBigUint64(0, BigInt(i + 1), true);
      view.setUint32(16, name.length, true);
      view.setUint8(20, entries[i][1]);
      entry.set(name, 24);
      // The last one may be cut: the reader asks for it again.
      const part = entry.subarray(0, room - length);
      this.bytes(at + length, part.length).set(part);
      length += part.length;
    }
    this.view.setUint32(used, length, true);
    return OK;
  }
  path_filestat_get(descriptor, _flags, at, length, to) {
    const path = this.resolve(descriptor, at, length);
    return path === undefined ? BADF : this.describe(path, to);
  }
  path_open(descriptor, _lookup, at, length, flags, _rights, _inherited, _status, to) {
    const path = this.resolve(descriptor, at, length);
    if (path === undefined) return BADF;
    const blob = this.files.get(path);
    if (!blob && !this.isFolder(path)) return flags & 1 ? ROFS : NOENT;
    if (blob && flags & 2) return NOTDIR;
    this.open.set(this.next, { path, blob, position: 0 });
    this.view.setUint32(to, this.next++, true);
    return OK;
  }
  fd_write(descriptor, at, count, written) {
    if (descriptor !== 1 && descriptor !== 2) return BADF;
    let text = "",
      total = 0;
    for (const [from, length] of this.buffers(at, count)) {
      text += this.text(from, length);
      total += length;
    }
    this.report(text);
    this.view.setUint32(written, total, true);
    return OK;
  }
}
