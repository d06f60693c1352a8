// Keeps the page for offline use. The voice is not kept here but in the browser's file system. Pages that
// come from here are isolated, so that the module may have threads, whatever headers the server sends.

const CACHE = "orate-page-VERSION"; // scripts/npm puts a hash of all files here
const FILES = [
  "./",
  "page.css",
  "page.js",
  "icon.svg",
  "manifest.webmanifest",
  ...["index", "error", "gpu", "player", "storage", "thread", "threads", "wasi", "worker"].map(
    (name) => `orate/${name}.js`,
  ),
];

self.addEventListener("install", (event) => {
  event.waitUntil(
    caches
      .open(CACHE)
      .then((cache) => cache.addAll(FILES))
      .then(() => self.skipWaiting()),
  );
});

self.addEventListener("activate", (event) => {
  const old = (name) => name.startsWith("orate-page-") && name !== CACHE;
  event.waitUntil(
    caches
      .keys()
      .then((names) => Promise.all(names.filter(old).map((name) => caches.delete(name))))
      .then(() => self.clients.claim()),
  );
});

self.addEventListener("fetch", (event) => {
  const { request } = event,
    url = new URL(request.url);
  // Ranges are those of models, which have their own storage.
  const isOwn = request.method === "GET" && url.origin === location.origin && !request.headers.has("Range");
  if (isOwn && !url.pathname.endsWith(".gguf")) event.respondWith(answer(request));
});

async function answer(request) {
  const cache = await caches.open(CACHE);
  const kept = await cache.match(request.mode === "navigate" ? "./" : request);
  if (kept) return isolated(kept);
  const response = await fetch(request);
  if (response.status === 200) await cache.put(request, response.clone());
  return isolated(response);
}

function isolated(response) {
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
