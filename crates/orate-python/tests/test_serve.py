"""The server beside other work."""

import gc
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import LONG, ORACLE

import orate


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


def speak(url, **fields):
    fields = {"model": "tts-1", "input": "Hello.", "response_format": "wav", "stream": False, **fields}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/audio/speech", json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def served(url):
    return [model["id"] for model in json.loads(get(f"{url}/v1/models"))["data"]]


def is_refused(url):
    try:
        get(f"{url}/health")
    except urllib.error.URLError as error:
        return isinstance(error.reason, ConnectionRefusedError)
    return False


def wait_for_a_request(url):
    begun = time.perf_counter()
    while time.perf_counter() - begun < 30:
        for line in get(f"{url}/metrics").decode().splitlines():
            if line.startswith("orate_requests_running") and not line.endswith(" 0"):
                return
        time.sleep(0.005)
    raise AssertionError("no request runs")


def threads():
    names = [Path(f"/proc/self/task/{task}/comm") for task in os.listdir("/proc/self/task")]
    return [name for path in names if path.exists() and "orate" in (name := path.read_text())]


def test_a_server_answers_until_it_is_closed(engine):
    with orate.Server(engine, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:") and repr(server) == f"<orate.Server: {server.url}>"
        # It is ready at once, and says what the engine says.
        assert get(f"{server.url}/ready") and served(server.url) == ["orate-default"]
        assert speak(server.url) == engine.say("Hello.").encode("wav")
    assert is_refused(server.url) and repr(server).endswith(", closed>")
    server.close()
    assert engine.say("Hello.").duration > 0.3


def test_models_are_named_by_a_dict(engine, supertonic):
    tiny = ORACLE / "supertonic/golden/tiny"
    with orate.Server({"guest": supertonic, "house": engine, "third": tiny}, port=0, device="cpu") as server:
        assert served(server.url) == ["guest", "house", "third"]
        assert speak(server.url, model="house") == engine.say("Hello.").encode("wav")
        one, three = (speak(server.url, model=model, language="en") for model in ["tts-1", "third"])
        assert one == three == supertonic.say("Hello.", language="en").encode("wav")
    with orate.Server([engine, tiny], port=0) as server:
        assert served(server.url) == ["orate-default", "tiny"]
    with pytest.raises(orate.InputError, match="two models are called orate-default; give them names"):
        orate.Server([engine, engine], port=0)
    with pytest.raises(orate.InputError, match="a/b.* is not a name"):
        orate.Server({"a/b": engine}, port=0)
    with pytest.raises(TypeError, match="a model to serve is a int"):
        orate.Server(3)
    with pytest.raises(orate.ModelError, match="missing"):
        orate.Server("missing/model", port=0)


def test_failures_to_start_are_errors(engine):
    with orate.Server(engine, port=0) as server:
        with pytest.raises(orate.DeviceError, match="cannot listen there; another server is there"):
            orate.Server(engine, port=int(server.url.rsplit(":", 1)[1]))
    with pytest.raises(orate.InputError, match="no keys"):
        orate.Server(engine, host="0.0.0.0", port=0)
    with pytest.raises(orate.InputError, match="alloy=F9: .* has no voice `F9`"):
        orate.Server(engine, port=0, alias="alloy=F9")
    with pytest.raises(TypeError, match=r"Server\(\) got .* 'no_aut'; did you mean no_auth"):
        orate.Server(engine, no_aut=True)
    with pytest.raises(TypeError, match="new_key"):
        orate.Server(engine, new_key="me")


def test_closing_lets_running_requests_end(engine):
    server, answers = orate.Server(engine, port=0), []
    text = LONG[:1500]
    client = threading.Thread(target=lambda: answers.append(speak(server.url, input=text)))
    client.start()
    wait_for_a_request(server.url)
    server.close()
    client.join()
    assert answers == [engine.say(text).encode("wav")] and is_refused(server.url)


def test_closing_cuts_requests_that_take_too_long(engine):
    server, failed = orate.Server(engine, port=0, drain_timeout=0), []

    def ask():
        try:
            speak(server.url, input=LONG[:8000])
        except (OSError, http.client.HTTPException) as error:
            failed.append(error)

    client = threading.Thread(target=ask)
    client.start()
    wait_for_a_request(server.url)
    begun = time.perf_counter()
    server.close()
    assert time.perf_counter() - begun < 2
    client.join()
    assert failed


def test_servers_leave_nothing_behind(supertonic):
    def one():
        with orate.Server(supertonic, port=0) as server:
            speak(server.url, language="en")

    one()
    time.sleep(0.2)
    before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        one()
    # What is not closed is when it is dropped.
    dropped = orate.Server(supertonic, port=0)
    url = dropped.url
    del dropped
    gc.collect()
    begun = time.perf_counter()
    while True:
        now = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        if now <= before and is_refused(url):
            break
        assert time.perf_counter() - begun < 5, (before, now, threads())
        time.sleep(0.01)


def test_a_unix_socket(engine, tmp_path):
    path = tmp_path / "socket"
    with orate.Server(engine, host=f"unix:{path}") as server:
        assert server.url == f"unix:{path}" and path.is_socket()
    assert not path.exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_the_server_alone(engine):
    with orate.Server(engine, port=0) as server:
        if (child := os.fork()) == 0:
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert get(f"{server.url}/health")


def test_python_keeps_its_signals():
    code = """
import orate, time
engine = orate.Engine(device="cpu", threads=2)
try:
    with orate.Server(engine, port=0) as server:
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
engine.say("Hello.")
server = orate.Server(engine, port=0)
print("open", flush=True)
time.sleep({seconds})
"""
    # With a server open, the process ends by itself and by a signal.
    for seconds, status in [(0, 0), (60, -signal.SIGTERM)]:
        command = [sys.executable, "-c", code.format(seconds=seconds)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert child.stdout.readline() == "open\n"
        if status:
            child.terminate()
        assert child.wait(30) == status


def test_control_c_ends_running_requests(engine):
    code = f"""
import json, orate, threading, time, urllib.request
server = orate.Server(orate.Engine(device="cpu", threads=2), port=0)
fields = {{"model": "tts-1", "input": {LONG[:9000]!r}, "stream": False}}
headers = {{"Content-Type": "application/json"}}
request = urllib.request.Request(server.url + "/v1/audio/speech", json.dumps(fields).encode(), headers)
threading.Thread(target=lambda: urllib.request.urlopen(request), daemon=True).start()
time.sleep(0.5)
print("closing", flush=True)
try:
    server.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout.readline() == "closing\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    assert child.stdout.readline() == "interrupted\n" and time.perf_counter() - sent < 2
    child.wait(30)
