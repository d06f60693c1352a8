// Files of models: fetched in ranges, and kept in the browser's private file system (OPFS). A download that
// was interrupted goes on where it was. A file has its bytes and a record, named by a hash of its URL.

import { OrateError } from "./error.js";

const FOLDER = "orate";
const RANGE = 8 << 20; // bytes of a request
const TRIES = 4; // of each request
const PAUSE = 500; // milliseconds before the second try, twice as many before each next one

const folder = async () =>
  (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });

async function nameOf(url) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url)));
  return [...hash.subarray(0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Returns the file at `url` as a Blob: the kept one, or after a download. Without `keep`, nothing is stored.
 * `progress(loaded, total)` has bytes; `total` may be undefined.
 */
export async function load(url, keep, progress) {
  let place;
  try {
    place = keep && (await folder());
  } catch {
    // No such storage, as in private windows of some browsers.
  }
  if (!place) {
    const parts = [];
    await download(
      url,
      {},
      (bytes) => parts.push(bytes),
      () => (parts.length = 0),
      progress,
    );
    return new Blob(parts);
  }
  const name = await nameOf(url);
  // Another tab may be loading the same.
  return navigator.locks.request(`${FOLDER}:${name}`, () => kept(place, name, url, progress));
}

async function kept(place, name, url, progress) {
  const record = (await read(place, name)) ?? { url, loaded: 0 };
  const file = await place.getFileHandle(name, { create: true });
  if (record.complete) {
    const blob = await file.getFile();
    if (blob.size === record.total) {
      progress(blob.size, blob.size);
      return blob;
    }
    Object.assign(record, { loaded: 0, complete: false });
  }
  const handle = await file.createSyncAccessHandle();
  try {
    const write = async (bytes) => {
      if (handle.write(bytes, { at: record.loaded }) !== bytes.length)
        throw new DOMException("", "QuotaExceededError");
      handle.flush();
      record.loaded += bytes.length;
      await save(place, name, record);
    };
    const restart = () => {
      record.loaded = 0;
      handle.truncate(0);
    };
    handle.truncate(record.loaded);
    await download(url, record, write, restart, progress);
    Object.assign(record, { complete: true, total: record.loaded });
    await save(place, name, record);
  } catch (e) {
    if (e.name !== "QuotaExceededError") throw e;
    handle.close();
    await remove(place, name);
    const size = record.total ? ` of ${Math.ceil(record.total / 1e6)} MB` : "";
    throw new OrateError(
      "system",
      `${url}${size}: no room in the browser's storage; free some, or open with keep: false`,
    );
  } finally {
    handle.close();
  }
  return file.getFile();
}

// Fetches what is missing. `record` has what is known: loaded, total, and the tag of the server's version.
async function download(url, record, write, restart, progress) {
  record.loaded ??= 0;
  let loaded = record.loaded,
    total = record.total;
  while (total === undefined || loaded < total) {
    const headers = { Range: `bytes=${loaded}-${loaded + RANGE - 1}` };
    if (loaded && record.tag) headers["If-Range"] = record.tag;
    const response = await request(url, headers);
    const range = /^bytes (\d+)-\d+\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
    const isPart = response.status === 206 && range && Number(range[1]) === loaded;
    if (response.status === 206 && !isPart) {
      // A server that does not show its ranges to pages of other origins.
      await response.body?.cancel();
      await whole(await request(url, {}));
      return;
    }
    if (!isPart) {
      await whole(response);
      return;
    }
    record.total = total = Number(range[2]);
    record.tag = strong(response.headers.get("ETag")) ?? response.headers.get("Last-Modified") ?? undefined;
    loaded += await receive(response, url);
  }

  // The server sends all: because it has no ranges, or another version of the file than was begun.
  async function whole(response) {
    restart();
    loaded = 0;
    total = Number(response.headers.get("Content-Length")) || undefined;
    if (response.headers.get("Content-Encoding")) total = undefined;
    record.total = total;
    record.tag = undefined;
    await receive(response, url);
  }

  async function receive(response) {
    let received = 0;
    const reader = response.body.getReader();
    for (let parts = [], size = 0; ;) {
      const { done, value } = await reader.read().catch((e) => {
        throw new OrateError(
          "system",
          `${url}: the download was interrupted (${e.message}); try again, it goes on`,
        );
      });
      if (value) {
        parts.push(value);
        size += value.length;
        received += value.length;
        progress(loaded + received, total);
      }
      // Small parts are collected, since each write is followed by one of the record.
      if (size >= 1 << 20 || (done && size)) {
        await write(joined(parts, size));
        [parts, size] = [[], 0];
      }
      if (done) return received;
    }
  }
}

const strong = (tag) => (tag?.startsWith('"') ? tag : undefined);

function joined(parts, size) {
  const all = new Uint8Array(size);
  parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
  return all;
}

async function request(url, headers) {
  for (let tries = 1; ; tries++) {
    let problem;
    try {
      const response = await fetch(url, { headers });
      if (response.ok) return response;
      problem = `the server answers ${response.status} ${response.statusText}`.trim();
      if (response.status < 500 && response.status !== 429) tries = TRIES;
    } catch (e) {
      problem = `${e.message}; is there a network, and does the server allow this page (CORS)?`;
    }
    if (tries >= TRIES) throw new OrateError("system", `${url}: ${problem}`);
    await new Promise((resolve) => setTimeout(resolve, PAUSE * 2 ** (tries - 1)));
  }
}

async function read(place, name) {
  try {
    return JSON.parse(await (await (await place.getFileHandle(`${name}.json`)).getFile()).text());
  } catch {
    return undefined; // there is none, or it was cut short
  }
}

async function save(place, name, record) {
  const handle = await (await place.getFileHandle(`${name}.json`, { create: true })).createSyncAccessHandle();
  try {
    handle.truncate(0);
    handle.write(new TextEncoder().encode(JSON.stringify(record)), { at: 0 });
  } finally {
    handle.close();
  }
}

async function remove(place, name) {
  for (const file of [name, `${name}.json`]) await place.removeEntry(file).catch(() => {});
}

/** Lists what is kept: `{ url, loaded, total, complete }`. */
export async function stored() {
  const place = await folder(),
    records = [];
  for await (const name of place.keys()) {
    if (name.endsWith(".json")) records.push(await read(place, name.slice(0, -5)));
  }
  return records.filter(Boolean);
}

/** Removes the file of a URL from the storage, or all files. */
export async function removeStored(url) {
  const place = await folder();
  if (url !== undefined) return remove(place, await nameOf(String(new URL(url, globalThis.location?.href))));
  for await (const name of place.keys()) await place.removeEntry(name);
}
