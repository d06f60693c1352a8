#!/usr/bin/env python3
"""The server's page in a headless Chromium: speaks, stops, mixes, downloads, shows errors.

    pip install playwright httpx
    scripts/page-check.py [PROGRAM] [FOLDER]    screenshots go to the folder
"""
import io, os, pathlib, shutil, subprocess, sys, tempfile, time, wave

import httpx
from playwright.sync_api import sync_playwright

program = sys.argv[1] if len(sys.argv) > 1 else "target/release/orate"
folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
folder.mkdir(exist_ok=True)
browser_path = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)


def start(*args, env={}):
    port = 8890 + os.getpid() % 1000
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--device", "cpu", "--quiet", *args]
    process = subprocess.Popen(command, env={**os.environ, **env})
    base = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(base + "/ready").status_code == 200:
                return process, base
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not get ready")


def metric(base, name):
    lines = httpx.get(base + "/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def until(page, condition, timeout=30000):
    """Waits for a condition. Playwright's own way is against the page's policy."""
    end = time.time() + timeout / 1000
    while not page.evaluate(condition):
        assert time.time() < end, f"not within {timeout} ms: {condition}"
        time.sleep(0.02)


class Watched:
    """A page whose console and requests are watched."""

    def __init__(self, context, base):
        self.base, self.problems, self.foreign = base, [], []
        self.page = context.new_page()
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.on("request", lambda r: None if r.url.startswith((base, "blob:", "data:")) else self.foreign.append(r.url))
        self.page.goto(base)
        until(self.page, "document.querySelector('#voice').options.length > 1")

    def check(self, allowed=()):
        problems = [p for p in self.problems if not any(a in p for a in allowed)]
        assert not problems and not self.foreign, (problems, self.foreign)


def speaks(browser, base):
    context = browser.new_context(accept_downloads=True)
    watched = Watched(context, base)
    page = watched.page
    page.fill("#text", "Good morning. The kettle is on. " * 400)
    page.click("#speak")
    # Sound begins before the text is spoken to its end.
    until(page, "document.querySelector('#first').textContent.endsWith('ms')", timeout=20000)
    state = [page.text_content(id) for id in ["#state", "#error", "#first", "#length"]]
    assert state[0] == "speaking …", state
    until(page, "parseFloat(document.querySelector('#length').textContent) > 1", timeout=20000)
    before = metric(base, "orate_cancelled_total")
    page.click("#stop")
    for _ in range(100):
        if metric(base, "orate_cancelled_total") == before + 1 and not metric(base, "orate_requests_running"):
            break
        time.sleep(0.02)
    assert metric(base, "orate_cancelled_total") == before + 1, (before, [l for l in httpx.get(base + "/metrics").text.splitlines() if "cancel" in l or "running" in l], page.text_content("#length"))
    page.fill("#text", "A short one.")
    page.fill("#seed", "7")
    page.keyboard.press("Control+Enter") if page.focus("#text") is None else None
    until(page, "!document.querySelector('#download').disabled && document.querySelector('#state').textContent === ''", timeout=30000)
    page.select_option("#format", "wav")
    with page.expect_download() as download:
        page.click("#download")
    got = pathlib.Path(download.value.path()).read_bytes()
    body = {"model": "tts-1", "input": "A short one.", "seed": 7, "response_format": "wav", "stream": False}
    want = httpx.post(base + "/v1/audio/speech", json=body, timeout=60).content
    assert got == want, (len(got), len(want))
    with wave.open(io.BytesIO(got)) as file:
        print("spoken:", round(file.getnframes() / file.getframerate(), 2), "s; first sound", page.text_content("#first"))
    # The code says the same.
    assert '"seed":7' in page.text_content("#code")
    page.click("#tab-python")
    assert "extra_body={\"seed\":7}" in page.text_content("#code")
    watched.check()
    # An error of the server is shown.
    page.click("#stop")
    page.fill("#text", "漢字")
    page.click("#speak")
    page.wait_for_selector("#error:not([hidden])", timeout=10000)
    assert "漢" in page.text_content("#error"), page.text_content("#error")
    page.fill("#text", " ")
    page.click("#speak")
    until(page, "document.querySelector('#error').textContent.includes('nothing to say')")
    watched.check(allowed=["400"])
    context.close()


def mixes(browser):
    """Voices of a small model with random weights."""
    process, base = start("--model", "oracle/supertonic/golden/tiny")
    try:
        watched = Watched(browser.new_context(), base)
        page = watched.page
        # A mix by sliders and by text.
        page.select_option("#voice", label="a mix …")
        assert page.locator(".part").count() == 2
        page.locator(".part input[type=range]").first.fill("0.75")
        assert ":0.75+" in page.input_value("#mix-text")
        page.click("#mix-add")
        assert page.locator(".part").count() == 3
        page.fill("#text", "A mixed voice.")
        page.click("#speak")
        until(page, "document.querySelector('#used').textContent.includes('+')", timeout=30000)
        watched.check()
        page.screenshot(path=folder / "page-mix.png", full_page=True)
    finally:
        process.terminate()
        process.wait(40)


def screenshots(browser, base):
    for width, height in [(360, 760), (1280, 900)]:
        for scheme in ["light", "dark"]:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            watched = Watched(context, base)
            page = watched.page
            page.fill("#text", "Good morning. The kettle is on, and the day is yours. What shall we read first?")
            page.click("#speak")
            until(page, "parseFloat(document.querySelector('#length').textContent) > 2", timeout=30000)
            page.wait_for_timeout(700)
            page.screenshot(path=folder / f"page-{width}-{scheme}.png", full_page=True)
            overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{overflow} px wider than {width}"
            page.click("#stop")
            if width == 1280:
                page.click("#more summary")
                page.screenshot(path=folder / f"page-{width}-{scheme}-open.png", full_page=True)
            watched.check()
            context.close()


def asks_for_a_key(browser):
    line = subprocess.run([program, "serve", "--new-key", "ada"], capture_output=True, text=True, check=True)
    key = line.stderr.strip().rsplit(" ", 1)[1]
    process, base = start(env={"ORATE_API_KEYS": line.stdout.strip()})
    try:
        page = browser.new_context().new_page()
        page.goto(base)
        page.wait_for_selector("#key-dialog[open]")
        page.screenshot(path=folder / "page-key.png")
        page.fill("#key", "wrong")
        page.click("#key-form button")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", key)
        page.click("#key-form button")
        until(page, "document.querySelector('#voice').options.length > 1")
        assert key not in page.url
    finally:
        process.terminate()
        process.wait(20)


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=browser_path, args=["--autoplay-policy=no-user-gesture-required", "--no-sandbox"])
    process, base = start()
    try:
        speaks(browser, base)
        screenshots(browser, base)
    finally:
        process.terminate()
        assert process.wait(40) == 0
    mixes(browser)
    asks_for_a_key(browser)
    browser.close()
print("the page works; screenshots in", folder)
