"""What must hold for the manifests: schemas, and what they promise about the server."""

import json
import pathlib
import re
import shutil
import subprocess

import kubernetes_validate
import promql_parser
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

HERE = pathlib.Path(__file__).parent
KUBERNETES = "1.37"
CUSTOM = {kind.__name__: kind for kind in (ScaledObject, PrometheusRule, ServiceMonitor)}
# Labels that Prometheus adds to what it scrapes.
ADDED = {"job", "pod", "namespace", "instance", "service", "endpoint"}


def render(path):
    """Objects of a kustomization."""
    tool = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    if not shutil.which(tool[0]):
        raise SystemExit("kubectl (1.27 or newer) or kustomize (5.0 or newer) is missing; nothing can be rendered")
    done = subprocess.run([*tool, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{path}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def find(objects, kind, name="orate"):
    """The object of a kind whose name begins so; None without one."""
    same = (o for o in objects if o["kind"] == kind and o["metadata"]["name"].startswith(name))
    return next(same, None)


def options(objects):
    """Options of the server: data of the ConfigMap that the Deployment names."""
    container = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    name = container["envFrom"][0]["configMapRef"]["name"]
    return next(o["data"] for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == name)


def dropped(given, kept, path=""):
    """Fields that a model does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from dropped(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is unknown"
    elif isinstance(given, list) and isinstance(kept, list):
        for i, pair in enumerate(zip(given, kept)):
            yield from dropped(*pair, f"{path}[{i}]")
    elif given != kept:
        yield f"{path}: {given!r} is read as {kept!r}"


def schema(thing):
    """Problems with the schema of an object's kind."""
    kind = CUSTOM.get(thing["kind"])
    try:
        if not kind:
            kubernetes_validate.validate(thing, KUBERNETES, strict=True)
            return []
        read = kind.model_validate(thing).model_dump(mode="json", by_alias=True, exclude_unset=True)
        return list(dropped(thing, read))
    except Exception as e:
        return [str(e)]


def pods(objects):
    """Kind and pod template of everything that runs pods."""
    return [(o["kind"], o["spec"]["template"]) for o in objects if "template" in o.get("spec", {})]


def security(kind, template):
    """Where pods may do more than the image needs."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    user = re.search(r"^USER (\d+)$", (HERE.parent / "Dockerfile").read_text(), re.M)[1]
    facts = {
        "runAsNonRoot": pod.get("runAsNonRoot") is True,
        "runAsUser is not the image's": pod.get("runAsUser") == int(user),
        "fsGroup": pod.get("fsGroup") == int(user),
        "seccompProfile": pod.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "automountServiceAccountToken": spec.get("automountServiceAccountToken") is False,
        "enableServiceLinks": spec.get("enableServiceLinks") is False,
    }
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container.get("securityContext", {})
        facts |= {
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "memory limit": "memory" in container.get("resources", {}).get("limits", {}),
            "image without a tag": ":" in container["image"],
        }
        mounted = {m["name"]: m["mountPath"] for m in container.get("volumeMounts", [])}
        facts["/data and /tmp are not writable"] = {"/data", "/tmp"} <= set(mounted.values())
        facts["a mount has no volume"] = set(mounted) <= {v["name"] for v in spec.get("volumes", [])}
    return [f"{kind}: {name}" for name, holds in facts.items() if not holds]


def server(objects):
    """Problems between Deployment, Service, ConfigMap and the program."""
    deployment, service = find(objects, "Deployment"), find(objects, "Service")
    if not deployment:
        return []
    template = deployment["spec"]["template"]
    spec, labels = template["spec"], template["metadata"]["labels"]
    container = spec["containers"][0]
    given = options(objects)
    port = re.search(r"^EXPOSE (\d+)$", (HERE.parent / "Dockerfile").read_text(), re.M)[1]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    limits = container["resources"]["limits"]
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(given["ORATE_SERVE_DRAIN_TIMEOUT"])
    probes = {n: container[n]["httpGet"] for n in ("startupProbe", "readinessProbe", "livenessProbe")}
    claims = {o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"}
    used = {v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v}
    facts = {
        "the Service selects no pod": service["spec"]["selector"].items() <= labels.items(),
        "the Deployment selects no pod": deployment["spec"]["selector"]["matchLabels"].items() <= labels.items(),
        "replicas undo what a scaler has chosen": "replicas" not in deployment["spec"],
        "the port is not the image's": ports.get("http") == int(port),
        "the Service's port leads nowhere": service["spec"]["ports"][0]["targetPort"] in ports,
        "a probe's port leads nowhere": all(p["port"] in ports for p in probes.values()),
        "liveness must not ask for models": probes["livenessProbe"]["path"] == "/health",
        "startup and readiness ask for models": probes["startupProbe"]["path"] == "/ready"
        and probes["readinessProbe"]["path"] == "/ready",
        "running requests are killed": stop + drain + 10 <= spec["terminationGracePeriodSeconds"],
        "the pod ends before the Service forgets it": stop >= 5,
        # The number of threads follows the limit.
        "CPU limit": "cpu" in limits,
        "volumes without a claim": used <= claims,
        "unknown options": set(given) <= known_options(),
    }
    return [name for name, holds in facts.items() if not holds]


def known_options():
    """Environment variables of the program."""
    folder = HERE.parents[1] / "crates/orate-cli/src"
    names = (re.findall(r'env = "(ORATE_\w+)"', file.read_text()) for file in folder.rglob("*.rs"))
    return {name for found in names for name in found}


def expressions(objects):
    """PromQL of scalers, alerts and dashboards."""
    for thing in objects:
        if thing["kind"] == "PrometheusRule":
            for group in thing["spec"]["groups"]:
                yield from (rule["expr"] for rule in group["rules"])
        if thing["kind"] == "ScaledObject":
            yield from (trigger["metadata"]["query"] for trigger in thing["spec"]["triggers"])
        for name, text in thing.get("data", {}).items():
            if name.endswith(".json"):
                panels = json.loads(text)["panels"]
                yield from (target["expr"] for panel in panels for target in panel["targets"])


def parts(expression):
    """Selectors as (metric, matchers), and labels of aggregations."""
    selectors, labels = [], set()

    def visit(node):
        node = getattr(node, "vector_selector", node)
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append((node.name, {m.name: m for m in node.matchers.matchers}))
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            labels.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return selectors, labels


def scaling(objects):
    """Problems of the scaler, and of what it and Prometheus ask for."""
    bad = []
    scaler, monitor = find(objects, "ScaledObject"), find(objects, "ServiceMonitor")
    for expression in expressions(objects):
        try:
            selectors, _ = parts(expression)
        except ValueError as e:
            bad.append(f"{expression}: {e}")
            continue
        jobs = [str(matchers["job"].value) if "job" in matchers else None for _, matchers in selectors]
        # jobLabel is the pods' name.
        bad += [f"{expression}: job is {job}" for job in jobs if job != "orate"]
    if monitor:
        labels, endpoint = find(objects, "Service")["metadata"]["labels"], monitor["spec"]["endpoints"][0]
        names = {p["name"] for p in find(objects, "Service")["spec"]["ports"]}
        facts = {
            "the ServiceMonitor selects no Service": monitor["spec"]["selector"]["matchLabels"].items()
            <= labels.items(),
            "the ServiceMonitor's port leads nowhere": endpoint["port"] in names,
            "the job's name is not orate": labels.get(monitor["spec"]["jobLabel"]) == "orate",
            "/metrics needs a key": "authorization" in endpoint,
        }
        bad += [name for name, holds in facts.items() if not holds]
    if scaler:
        spec = scaler["spec"]
        asked = spec["triggers"][0]["metadata"]
        # Names and types of KEDA's Prometheus scaler; its schema allows any.
        known = {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues"}
        facts = {
            "the scaler has no Deployment": spec["scaleTargetRef"]["name"]
            == find(objects, "Deployment")["metadata"]["name"],
            "the trigger": spec["triggers"][0]["type"] == "prometheus",
            "unknown fields of the trigger": set(asked) <= known
            and all(isinstance(v, str) for v in asked.values()),
            "requests that a replica speaks at once": asked["threshold"] == options(objects)["ORATE_SERVE_STREAMS"],
            # KEDA refuses a fallback for other types.
            "a fallback": spec["triggers"][0]["metricType"] == "AverageValue" and "fallback" in spec,
            "replicas": 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"],
            "waiting requests": "orate_requests_waiting" in asked["query"],
            "nothing fills the metrics": monitor is not None,
        }
        bad += [f"ScaledObject: {name}" for name, holds in facts.items() if not holds]
    return bad


def problems(objects):
    """Everything wrong with the objects of a kustomization."""
    bad = [f"{o['kind']} {o['metadata']['name']}: {p}" for o in objects for p in schema(o)]
    if bad:
        return bad
    for kind, template in pods(objects):
        bad += security(kind, template)
    return bad + server(objects) + scaling(objects)
