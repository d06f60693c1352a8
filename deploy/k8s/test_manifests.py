"""The manifests, and the program in the environment that they give it. `scripts/cluster-check` runs this."""

import concurrent.futures
import copy
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

import checks
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OVERLAYS = sorted(p.parent.name for p in checks.HERE.glob("overlays/*/kustomization.yaml"))
PLACES = ["base", "pull", *(f"overlays/{name}" for name in OVERLAYS)]
RENDERED = {place: checks.render(checks.HERE / place) for place in PLACES}
ORATE = os.environ.get("ORATE", "orate")
STREAMS = int(checks.options(RENDERED["base"])["ORATE_SERVE_STREAMS"])
LONG = "The kettle is on, and the morning is quiet. " * 12


@pytest.mark.parametrize("place", PLACES)
def test_manifests_hold(place):
    assert checks.problems(RENDERED[place]) == []


def test_overlays_have_what_their_names_say():
    kinds = {place: {o["kind"] for o in objects} for place, objects in RENDERED.items()}
    custom = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
    assert kinds["base"] == {"ConfigMap", "Deployment", "Service", "PersistentVolumeClaim"}
    assert kinds["overlays/monitoring"] & custom == {"ServiceMonitor", "PrometheusRule"}
    assert kinds["overlays/keda"] & custom == kinds["overlays/cuda-keda"] & custom == custom
    for place in ("overlays/cuda", "overlays/cuda-keda"):
        template = checks.find(RENDERED[place], "Deployment")["spec"]["template"]
        container = template["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert container["image"].endswith("-cuda") and "cuda" in container["args"]
    pulled = checks.find(RENDERED["pull"], "Job")["spec"]["template"]["spec"]["containers"][0]["args"][1]
    assert checks.options(RENDERED["overlays/cuda"])["ORATE_SERVE_MODEL"] == pulled


def test_the_kustomization_of_the_docs_holds(tmp_path):
    docs = (checks.HERE.parents[1] / "docs/cluster.md").read_text()
    text = re.search(r"```yaml\n(.*?)```", docs, re.S)[1]
    place = os.path.relpath(checks.HERE, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(text.replace("../orate/deploy/k8s", place))
    objects = checks.render(tmp_path)
    assert checks.problems(objects) == []
    assert {o["metadata"]["namespace"] for o in objects} == {"speech"}
    assert checks.options(objects)["ORATE_SERVE_STREAMS"] == "8"


def edit(kind, path, value):
    """Sets a field (or removes it, if the value is None) in the object of a kind."""

    def apply(objects):
        place = checks.find(objects, kind)
        *way, last = path
        for key in way:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return apply


POD = ["spec", "template", "spec"]
SERVER = [*POD, "containers", 0]
TRIGGER = ["spec", "triggers", 0]
RULE = ["spec", "groups", 0, "rules", 0]
DAMAGE = {
    "unknown field": edit("Deployment", [*SERVER, "livenesProbe"], {}),
    "wrong type": edit("Service", ["spec", "ports", 0, "port"], "http"),
    "missing field": edit("Deployment", ["spec", "selector"], None),
    "root": edit("Deployment", [*POD, "securityContext", "runAsUser"], 0),
    "writable root": edit("Deployment", [*SERVER, "securityContext", "readOnlyRootFilesystem"], False),
    "capabilities": edit("Deployment", [*SERVER, "securityContext", "capabilities"], {"add": ["SYS_ADMIN"]}),
    "seccomp": edit("Deployment", [*POD, "securityContext", "seccompProfile"], {"type": "Unconfined"}),
    "no volume": edit("Deployment", [*POD, "volumes"], []),
    "short grace": edit("Deployment", [*POD, "terminationGracePeriodSeconds"], 30),
    "long drain": edit("ConfigMap", ["data", "ORATE_SERVE_DRAIN_TIMEOUT"], "120"),
    "misspelt option": edit("ConfigMap", ["data", "ORATE_SERVE_STREAM"], "4"),
    "liveness by models": edit("Deployment", [*SERVER, "livenessProbe", "httpGet", "path"], "/ready"),
    "probe's port": edit("Deployment", [*SERVER, "readinessProbe", "httpGet", "port"], "web"),
    "labels": edit("Service", ["spec", "selector"], {"app": "orate"}),
    "fixed replicas": edit("Deployment", ["spec", "replicas"], 3),
    "CPU limit": edit("Deployment", [*SERVER, "resources", "limits", "cpu"], None),
    "scaler's field": edit("ScaledObject", ["spec", "pollingSeconds"], 5),
    "scaler's type": edit("ScaledObject", ["spec", "maxReplicaCount"], "many"),
    "scaler's target": edit("ScaledObject", ["spec", "scaleTargetRef"], {"name": "speech"}),
    "threshold": edit("ScaledObject", [*TRIGGER, "metadata", "threshold"], "5"),
    "trigger's field": edit("ScaledObject", [*TRIGGER, "metadata", "address"], "x"),
    "query": edit("ScaledObject", [*TRIGGER, "metadata", "query"], "sum(orate_requests_waiting{"),
    "metric type": edit("ScaledObject", [*TRIGGER, "metricType"], "Value"),
    "monitor's field": edit("ServiceMonitor", ["spec", "endpoints", 0, "bearer"], "x"),
    "monitor's port": edit("ServiceMonitor", ["spec", "endpoints", 0, "port"], "metrics"),
    "monitor's key": edit("ServiceMonitor", ["spec", "endpoints", 0, "authorization"], None),
    "alert's field": edit("PrometheusRule", [*RULE, "after"], "5m"),
    "alert's PromQL": edit("PrometheusRule", [*RULE, "expr"], 'rate(orate_panics{job="orate"}) >'),
    "alert's job": edit("PrometheusRule", [*RULE, "expr"], 'absent(orate_model_info{job="speech"})'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage):
    objects = copy.deepcopy(RENDERED["overlays/keda"])
    DAMAGE[damage](objects)
    assert objects != RENDERED["overlays/keda"]
    assert checks.problems(objects) != []


# The program


def environment(folder, port):
    """Variables of the image and the ConfigMap, with another folder and port."""
    image = (checks.HERE.parent / "Dockerfile").read_text()
    pairs = (pair for line in re.findall(r"^ENV (.*)$", image, re.M) for pair in line.split())
    own = {k: v.replace("/data", str(folder)) for k, v in (pair.split("=") for pair in pairs)}
    assert own["ORATE_SERVE_LISTEN"] == "0.0.0.0:8880"
    own["ORATE_SERVE_LISTEN"] = f"0.0.0.0:{port}"
    return {**os.environ, **own, **checks.options(RENDERED["base"])}


def container():
    return checks.find(RENDERED["base"], "Deployment")["spec"]["template"]["spec"]["containers"][0]


class Pod:
    """The program as the Deployment starts it."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        made = subprocess.run([ORATE, "serve", "--new-key", "prometheus"], capture_output=True, text=True, check=True)
        self.key = re.search(r"orate-[0-9a-f]+", made.stderr)[0]
        self.log = open(folder / "log", "w+")
        # However busy the machine is, requests wait for their turn.
        own = {"ORATE_API_KEYS": made.stdout, "ORATE_SERVE_QUEUE_TIMEOUT": "600"}
        environ = environment(folder, self.port) | own
        # The CPU: tests run beside others on machines with a GPU, too.
        command = [ORATE, *container()["args"], "--device", "cpu"]
        self.process = subprocess.Popen(command, env=environ, stderr=self.log)
        probe = container()["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.probe("startupProbe") == 200:
                return
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)
        raise AssertionError("not ready: " + self.text())

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def send(self, method, path, body=None, key=None, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if body is not None:
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def get(self, path, key=None, timeout=60):
        connection, response = self.send("GET", path, key=key, timeout=timeout)
        text = response.read().decode()
        connection.close()
        return response.status, text

    def probe(self, name):
        """Status of a probe, within its time; None if nothing answers or the connection is closed."""
        probe = container()[name]
        try:
            return self.get(probe["httpGet"]["path"], timeout=probe["timeoutSeconds"])[0]
        except ConnectionError:
            return None

    def say(self, text):
        """Speaks, and returns the number of bytes."""
        body = {"model": "tts-1", "input": text, "response_format": "pcm"}
        connection, response = self.send("POST", "/v1/audio/speech", body, self.key)
        assert response.status == 200, response.read()
        count = len(response.read())
        connection.close()
        return count

    def samples(self):
        """All samples that Prometheus would read, strictly parsed."""
        status, text = self.get("/metrics", self.key)
        assert status == 200
        return [s for family in text_string_to_metric_families(text) for s in family.samples]

    def sum(self, name):
        return sum(s.value for s in self.samples() if s.name == name)

    def until(self, condition):
        end = time.time() + 30
        while not condition():
            assert time.time() < end, "not within 30 s"
            time.sleep(0.02)


@pytest.fixture
def pod(tmp_path):
    pod = Pod(tmp_path)
    yield pod
    pod.process.kill()
    pod.process.wait()


def test_without_keys_the_server_ends(tmp_path):
    environ = environment(tmp_path, 18880)
    assert "ORATE_API_KEYS" not in environ and "ORATE_SERVE_NO_AUTH" not in environ
    done = subprocess.run([ORATE, *container()["args"]], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "--no-auth" in done.stderr


def test_metrics_are_those_that_manifests_name(pod):
    assert pod.get("/metrics")[0] == 401
    assert pod.say("Hello.") > 10_000
    # A client that leaves.
    body = {"model": "tts-1", "input": LONG, "response_format": "pcm"}
    connection, response = pod.send("POST", "/v1/audio/speech", body, pod.key)
    response.read(1000)
    response.close()
    connection.close()
    pod.until(lambda: pod.sum("orate_cancelled_total") == 1)
    samples = pod.samples()
    names = {s.name for s in samples}
    asked = {e for place in PLACES for e in checks.expressions(RENDERED[place])}
    assert len(asked) > 15
    for expression in asked:
        selectors, by = checks.parts(expression)
        known = set(checks.ADDED)
        for name, matchers in selectors:
            same = [s for s in samples if s.name == name]
            assert same, f"{expression}: the server has no {name}, but {sorted(names)}"
            known |= {label for s in same for label in s.labels}
            assert set(matchers) <= known, expression
            if "route" in matchers:
                routes = {s.labels["route"] for s in same}
                counted = {r for r in routes if re.fullmatch(matchers["route"].value, r)}
                assert counted == {"POST /v1/audio/speech"}, (expression, routes)
        assert by <= known, expression


def test_a_busy_server_answers_probes_and_asks_for_replicas(pod):
    with concurrent.futures.ThreadPoolExecutor(12) as clients:
        spoken = [clients.submit(pod.say, LONG) for _ in range(12)]
        pod.until(lambda: pod.sum("orate_requests_waiting") == 12 - STREAMS)
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod.probe(name) == 200
        load = pod.sum("orate_requests_waiting") + pod.sum("orate_requests_running")
        trigger = checks.find(RENDERED["overlays/keda"], "ScaledObject")["spec"]["triggers"][0]
        assert load / float(trigger["metadata"]["threshold"]) == 12 / STREAMS
        assert len({future.result() for future in spoken}) == 1
    assert pod.sum("orate_requests_waiting") + pod.sum("orate_requests_running") == 0


def test_a_pod_that_ends_finishes_its_requests(pod):
    whole = pod.say(LONG)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as clients:
        spoken = [clients.submit(pod.say, LONG) for _ in range(STREAMS)]
        pod.until(lambda: pod.sum("orate_requests_running") == STREAMS)
        begun = time.time()
        pod.process.send_signal(signal.SIGTERM)
        pod.until(lambda: pod.probe("readinessProbe") is None)
        assert [future.result() for future in spoken] == [whole] * STREAMS
        assert pod.process.wait(30) == 0
    drain = int(checks.options(RENDERED["base"])["ORATE_SERVE_DRAIN_TIMEOUT"])
    assert time.time() - begun < drain
