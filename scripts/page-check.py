#!/usr/bin/env python3
"""The server's page in a headless Chromium: speaks, stops, mixes, clones, downloads, shows errors.

    pip install playwright httpx
    scripts/page-check.py [PROGRAM] [FOLDER] [MODEL]    screenshots go to the folder

MODEL clones voices. Without it, cargo makes a small Chatterbox with random weights.
"""
import io, json, os, pathlib, shutil, subprocess, sys, tempfile, time, wave

import httpx
from playwright.sync_api import sync_playwright

program = sys.argv[1] if len(sys.argv) > 1 else "target/release/orate"
folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
folder.mkdir(exist_ok=True)
RECORDING = "oracle/chatterbox/golden/ref.wav"
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
        own = (base, "blob:", "data:")
        self.page.on("request", lambda r: None if r.url.startswith(own) else self.foreign.append(r.url))
        self.page.goto(base)
        until(self.page, "document.querySelector('#voice').options.length > 0")

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
    assert metric(base, "orate_cancelled_total") == before + 1, httpx.get(base + "/metrics").text
    page.fill("#text", "A short one.")
    page.fill("#seed", "7")
    page.keyboard.press("Control+Enter") if page.focus("#text") is None else None
    until(page, "!document.querySelector('#download').disabled")
    until(page, "document.querySelector('#state').textContent === ''")
    page.select_option("#format", "wav")
    with page.expect_download() as download:
        page.click("#download")
    got = pathlib.Path(download.value.path()).read_bytes()
    body = {"model": "tts-1", "input": "A short one.", "seed": 7, "response_format": "wav", "stream": False}
    want = httpx.post(base + "/v1/audio/speech", json=body, timeout=60).content
    assert got == want, (len(got), len(want))
    with wave.open(io.BytesIO(got)) as file:
        seconds = file.getnframes() / file.getframerate()
        print("spoken:", round(seconds, 2), "s; first audio", page.text_content("#first"))
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


def cloning_model():
    if len(sys.argv) > 3:
        return sys.argv[3]
    made = tempfile.mkdtemp()
    example = ["cargo", "run", "--release", "-p", "orate-testing", "--example", "chatterbox_checkpoint"]
    subprocess.run([*example, "--", made, "turbo", "tiny"], check=True)
    return made


def clones(browser):
    """Voices from a file, and from a microphone that Chromium imitates."""
    voices = pathlib.Path(tempfile.mkdtemp())
    process, base = start("--model", f"{cloning_model()}=cloner", env={"ORATE_VOICE_FOLDER": str(voices)})
    state = "document.querySelector('#clone-state').textContent"
    try:
        context = browser.new_context(permissions=["microphone"])
        watched = Watched(context, base)
        page = watched.page
        page.fill("#text", "A voice of a recording.")

        def save(name, becomes):
            page.fill("#clone-name", name)
            page.click("#clone")
            try:
                until(page, f"{state}.includes({json.dumps(becomes)})", timeout=30000)
            except AssertionError:
                raise AssertionError(f"not {becomes!r}, but {page.evaluate(state)!r}")

        # Nothing is sent without a name, a recording and consent.
        save("", "Enter a name")
        page.set_input_files("#clone-file", RECORDING)
        save("ada", "Ask the speaker")
        assert not list(voices.iterdir())
        page.check("#clone-consent")
        save("ada", "Saved ada")
        kept = (voices / "ada.safetensors").read_bytes()
        assert b"confirmed on the page" in kept and not page.is_checked("#clone-consent")
        # The voice is chosen, and speaks.
        assert page.input_value("#voice") == "ada"
        page.click("#speak")
        until(page, "document.querySelector('#used').textContent === 'ada'")
        until(page, "!document.querySelector('#download').disabled")
        assert "\"voice\":\"ada\"" in page.text_content("#code")
        watched.check()
        # Errors of the server: a taken name, a name that is a path, a file without speech.
        page.check("#clone-consent")
        page.set_input_files("#clone-file", RECORDING)
        save("ada", "is kept already")
        save("../ada", "letters, digits")
        page.set_input_files("#clone-file", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"no sound"})
        save("eve", "the recording")
        problem = page.evaluate(state)
        assert "bad" in page.get_attribute("#clone-state", "class"), problem
        print("a file without speech:", problem)
        assert (voices / "ada.safetensors").read_bytes() == kept and len(list(voices.iterdir())) == 1
        # The microphone. A recording takes the place of the chosen file.
        page.click("#record")
        until(page, f"{state} === 'recording …'")
        page.wait_for_timeout(8000)
        page.click("#record")
        until(page, f"{state}.startsWith('recorded')")
        print("from the microphone:", page.evaluate(state))
        assert page.input_value("#clone-file") == ""
        save("mic", "Saved mic")
        page.check("#clone-consent")
        save("mic2", "choose a recording")
        assert page.locator("#kept li").all_text_contents() == ["adaDelete", "micDelete"]
        def without_a_name(page):
            page.set_input_files("#clone-file", RECORDING)
            page.click("#clone")

        pictures(browser, base, "clone", without_a_name)
        # Deleting asks first.
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.click("[aria-label='Delete ada']")
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("[aria-label='Delete mic']")
        until(page, f"{state} === 'Deleted mic.'")
        assert page.input_value("#voice") == ""
        names = page.locator("#voice option").all_text_contents()
        assert names == ["default", "ada (saved)"], names
        assert [path.name for path in voices.iterdir()] == ["ada.safetensors"]
        watched.check(allowed=["400", "409"])
    finally:
        process.terminate()
        process.wait(40)
    # A server that takes no voices does not offer it.
    process, base = start("--model", "oracle/supertonic/golden/tiny")
    try:
        watched = Watched(browser.new_context(), base)
        assert watched.page.is_hidden("#cloning")
    finally:
        process.terminate()
        process.wait(40)


def pictures(browser, base, name, prepare):
    """A page in both widths and schemes."""
    for width, height in [(360, 760), (1280, 900)]:
        for scheme in ["light", "dark"]:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            watched = Watched(context, base)
            prepare(watched.page)
            watched.page.screenshot(path=folder / f"page-{name}-{width}-{scheme}.png", full_page=True)
            overflow = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{overflow} px wider than {width}"
            watched.check()
            context.close()


def screenshots(browser, base):
    for width, height in [(360, 760), (1280, 900)]:
        for scheme in ["light", "dark"]:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            watched = Watched(context, base)
            page = watched.page
            page.fill("#text", "Good morning. The kettle is on, and the day is yours. What shall we read?")
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
        until(page, "document.querySelector('#voice').options.length > 0")
        assert key not in page.url
    finally:
        process.terminate()
        process.wait(20)


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=browser_path,
        args=["--autoplay-policy=no-user-gesture-required", "--no-sandbox",
              "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
              f"--use-file-for-fake-audio-capture={os.path.abspath(RECORDING)}"])
    process, base = start()
    try:
        speaks(browser, base)
        screenshots(browser, base)
    finally:
        process.terminate()
        assert process.wait(40) == 0
    mixes(browser)
    clones(browser)
    asks_for_a_key(browser)
    browser.close()
print("the page works; screenshots in", folder)
