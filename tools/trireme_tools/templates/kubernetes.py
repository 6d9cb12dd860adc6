"""The deployment for Kubernetes, as a Helm chart and for KServe: the files of ``deploy``, filled."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

import trireme_tools
from sm import __version__
from sm.errors import CommandError
from sm.models.fetch.addresses import REMOTE
from sm.models.memory_room import needed_bytes
from sm.repository.models import read as read_repository
from sm.settings import Settings
from trireme_tools.deploy.gpu_hosts import gpus
from trireme_tools.templates.stack import Stack

Document = dict[str, Any]

PACKAGE = Path(trireme_tools.__file__).parent
#: The files that people read and copy: inside the wheel, or in a checkout.
FILES = PACKAGE / "deploy_files" if (PACKAGE / "deploy_files").is_dir() else PACKAGE.parents[1] / "deploy"
#: In the order in which they are created.
DOCUMENTS = (
    *("deployment", "service", "horizontalpodautoscaler", "poddisruptionbudget", "servicemonitor"),
    "networkpolicy",
)
#: Seconds until every proxy of the cluster has stopped sending requests to a pod that ends.
PRE_STOP_S = 10
#: Seconds to stop the servers after the drain; SIGKILL comes after all three.
STOP_S = 10
#: Invocations in flight in each pod, on average, above which a pod is added. See docs/deploy/kubernetes.md.
IN_FLIGHT = 8
CPU_PERCENT = 70
#: The most that Kubernetes accepts.
MAX_AFFINITY_S = 86_400
STARTUP_S, PROBE_PERIOD_S = 480, 5
#: The prefix of a volume that has the models, as KServe writes it: pvc://CLAIM/FOLDER.
CLAIM = "pvc://"
#: The label by which every document selects the pods.
INSTANCE = "app.kubernetes.io/instance"
#: Settings that the documents set themselves, because other parts of them depend on these.
RESERVED_SETTINGS = ("TRIREME_DRAIN_SECONDS", "SAGEMAKER_BIND_TO_PORT", "TRIREME_CACHE")
#: The setting for what the box fetches at its start.
REPOSITORY = "TRIREME_MODEL_REPOSITORY"
#: Settings that make the box call other machines, and the ports that they need: DNS, HTTPS, OTLP.
CALLS_OUT = ("TRIREME_CAPTURE", "TRIREME_INSTALL_REQUIREMENTS", "OTEL_")
EGRESS_PORTS = ((53, "UDP"), (53, "TCP"), (443, "TCP"), (4318, "TCP"))
#: Settings that lead to another S3 or hub, whose port may be any.
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HF_ENDPOINT")


#: Texts that kubectl and Helm read as a number, or as yes and no, and PyYAML as a text: 1e3, 089, 0o17, y.
AMBIGUOUS = re.compile(r"[-+.0-9][0-9a-fA-FxXoO_.+-]*|[yYnN]")


class Dumper(yaml.SafeDumper):
    """Writes YAML whose texts are texts for every reader."""


def _represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
    style = "'" if AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


Dumper.add_representer(str, _represent_text)


def to_yaml(documents: Iterable[Any], explicit_start: bool = False) -> str:
    """Return the documents as YAML."""
    return yaml.dump_all(
        documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, explicit_start=explicit_start
    )


def template(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`CommandError` for options that only SageMaker has."""
    check(stack)
    return list(documents(chart_values(stack)))


def chart_values(stack: Stack) -> dict[str, Any]:
    """Return the options of the command line by their names in a chart's ``values.yaml``."""
    plan = stack.plan
    claim, folder = _claim(plan.data.url)
    # Wrong settings are reported here, not by the first pod that does not start.
    settings = Settings.read(plan.env)
    environment = {name: value for name, value in plan.env.items() if name not in RESERVED_SETTINGS}
    if plan.data.url.startswith(REMOTE):
        environment[REPOSITORY] = plan.data.url
    fetches = environment.get(REPOSITORY, "").startswith(REMOTE)
    return {
        "name": plan.name,
        "image": plan.image,
        "pullPolicy": "IfNotPresent",
        "replicas": plan.count,
        "port": settings.port,
        "env": environment,
        "serviceAccount": "default",
        "models": {"claim": claim, "folder": folder},
        "cache": {"claim": _claim(stack.cache)[0]},
        "resources": _resources(stack),
        "sharedMemory": "1Gi",
        "stickySessionSeconds": _affinity_seconds(settings) if stack.sticky_sessions else 0,
        "startupSeconds": plan.startup_timeout or STARTUP_S,
        "preStopSeconds": PRE_STOP_S,
        "drainSeconds": round(settings.drain),
        "autoscaling": scaling(stack),
        "disruptionBudget": True,
        "serviceMonitor": stack.service_monitor,
        "networkPolicy": {
            "enabled": True,
            "callsOut": fetches or any(name.startswith(CALLS_OUT) for name in plan.env),
            "ports": _endpoint_ports(environment),
        },
        "annotations": dict(plan.tags),
    }


def _claim(url: str) -> tuple[str, str]:
    """Return the name and the folder of ``pvc://CLAIM/FOLDER``; empty texts for another address."""
    claim, _, folder = url.removeprefix(CLAIM).partition("/") if url.startswith(CLAIM) else ("", "", "")
    return claim, folder


def _endpoint_ports(environment: Mapping[str, str]) -> list[int]:
    """Return the ports of the settings' endpoints that a box may not call anyway."""
    addresses = [urlsplit(environment[name]) for name in ENDPOINTS if name in environment]
    ports = {address.port or (80 if address.scheme == "http" else 443) for address in addresses}
    return sorted(ports - {port for port, _ in EGRESS_PORTS})


def _affinity_seconds(settings: Settings) -> int:
    """Return for how long an address keeps its pod: as long as a session, and at most a day."""
    return min(math.ceil(settings.sessions_expiration), MAX_AFFINITY_S)


def _resources(stack: Stack) -> dict[str, dict[str, str]]:
    """Add a memory limit to the pod's resources; its /dev/shm counts against the limit."""
    requirements = resources(stack)
    limits = {**requirements.get("limits", {}), "memory": requirements["requests"]["memory"]}
    return {**requirements, "limits": limits}


def scaling(stack: Stack) -> dict[str, Any]:
    autoscaling = stack.scaling
    targets = {target.kind: target.value for target in autoscaling.targets} if autoscaling else {}
    if "target" in targets or "gpu" in targets:
        raise CommandError(
            "--target-invocations and --target-gpu are SageMaker's: on Kubernetes pods are added by what is "
            "in flight (--target-in-flight) and by --target-cpu."
        )
    return {
        "enabled": bool(autoscaling),
        "min": autoscaling.least if autoscaling else stack.plan.count,
        "max": autoscaling.most if autoscaling else stack.plan.count,
        "inFlight": stack.in_flight or IN_FLIGHT,
        "cpu": round(targets.get("cpu", CPU_PERCENT)),
    }


def check(stack: Stack) -> None:
    """Raise :class:`CommandError` for what only SageMaker has."""
    plan = stack.plan
    for is_set, option in ((plan.mme, "--mme"), (plan.output, "--async"), (plan.serverless, "--serverless")):
        if is_set:
            raise CommandError(f"{option} is SageMaker's: on Kubernetes each pod is a box with its models.")
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", plan.name):
        raise CommandError(
            f"{plan.name!r} is not a name for Kubernetes: lower-case letters, digits and hyphens."
        )
    if plan.data.url and not plan.data.url.startswith((CLAIM, *REMOTE)):
        raise CommandError(
            f"a pod cannot reach {plan.data.url!r}: name where it can fetch the models "
            f"({', '.join(REMOTE)}), or a volume (--model-data pvc://CLAIM/FOLDER), or put them into "
            "the image (make image MODELS=…)."
        )
    if stack.cache and not _claim(stack.cache)[0]:
        raise CommandError(f"--cache {stack.cache} must be pvc://CLAIM.")


def documents(chart: dict[str, Any]) -> Iterator[Document]:
    """Yield the documents with the values that a chart of Helm has."""
    deployment, service, autoscaler, budget, monitor, policy = (
        read(f"kubernetes/{name}.yaml", chart["name"]) for name in DOCUMENTS
    )
    fill_deployment(deployment["spec"], chart)
    service["spec"]["ports"][0]["port"] = chart["port"]
    if seconds := chart["stickySessionSeconds"]:
        service["spec"]["sessionAffinity"] = "ClientIP"
        service["spec"]["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": seconds}}
    yield from (deployment, service)
    scaling = chart["autoscaling"]
    if scaling["enabled"]:
        spec = autoscaler["spec"]
        spec.update(minReplicas=scaling["min"], maxReplicas=scaling["max"])
        spec["scaleTargetRef"]["name"] = chart["name"]
        spec["metrics"][0]["pods"]["target"]["averageValue"] = str(scaling["inFlight"])
        spec["metrics"][1]["resource"]["target"]["averageUtilization"] = scaling["cpu"]
        yield autoscaler
    yield budget
    if chart["serviceMonitor"]:
        yield monitor
    if chart["networkPolicy"]["callsOut"]:
        more = [(port, "TCP") for port in chart["networkPolicy"]["ports"]]
        ports = [{"port": port, "protocol": protocol} for port, protocol in (*EGRESS_PORTS, *more)]
        policy["spec"]["egress"] = [{"ports": ports}]
    yield policy


def read(file: str, name: str) -> Document:
    """Read a document of :data:`FILES`, and give it and its labels the deployment's name."""
    document: Document = yaml.safe_load((FILES / file).read_text())
    document["metadata"]["name"] = name
    _label(document, name)
    return document


def _label(value: Any, name: str) -> None:
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        if key == INSTANCE:
            value[key] = name
        elif isinstance(member, dict | list):
            _label(member, name)


def fill_deployment(spec: dict[str, Any], chart: dict[str, Any]) -> None:
    if chart["autoscaling"]["enabled"]:
        del spec["replicas"]
    else:
        spec["replicas"] = chart["replicas"]
    spec["template"]["metadata"]["annotations"] = chart["annotations"]
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = grace_seconds(chart)
    (container,) = pod["containers"]
    fill_container(container, chart)
    container["resources"] = chart["resources"]
    models = chart["models"]
    if models["claim"]:
        pod["volumes"][0] = {
            "name": "models",
            "persistentVolumeClaim": {"claimName": models["claim"], "readOnly": True},
        }
    if claim := chart["cache"]["claim"]:
        (cache,) = (volume for volume in pod["volumes"] if volume["name"] == "cache")
        del cache["emptyDir"]
        cache["persistentVolumeClaim"] = {"claimName": claim}
    if models["folder"]:
        container["volumeMounts"][0]["subPath"] = models["folder"]


def fill_container(container: dict[str, Any], chart: dict[str, Any]) -> None:
    container["image"] = chart["image"]
    container["ports"][0]["containerPort"] = chart["port"]
    set_here = {"TRIREME_DRAIN_SECONDS": chart["drainSeconds"], "SAGEMAKER_BIND_TO_PORT": chart["port"]}
    for variable in container["env"]:
        variable["value"] = str(set_here.get(variable["name"], variable["value"]))
    container["env"] += [{"name": name, "value": value} for name, value in sorted(chart["env"].items())]
    container["startupProbe"]["failureThreshold"] = -(-chart["startupSeconds"] // PROBE_PERIOD_S)


def grace_seconds(chart: dict[str, Any]) -> int:
    """Return the seconds from the end's announcement to SIGKILL."""
    return int(chart["preStopSeconds"] + chart["drainSeconds"] + STOP_S)


def resources(stack: Stack) -> dict[str, dict[str, str]]:
    """Return the resource requests of a pod."""
    size = expected_size(stack.models) if stack.models else DEFAULT_SIZE
    requests = {"cpu": stack.cpu or size.cpu, "memory": stack.memory or size.memory}
    count = gpus(stack.plan.instance_type) if stack.gpus is None else stack.gpus
    if not count:
        return {"requests": requests}
    return {"requests": requests, "limits": {"nvidia.com/gpu": str(count)}}


@dataclass(frozen=True)
class PodSize:
    """The resources that a pod asks for, and why."""

    cpu: str
    memory: str
    reason: str


DEFAULT_SIZE = PodSize("2", "8Gi", "a guess: --models DIR, or --cpu and --memory, say what the models need")
#: GiB of a box without models, with room for requests in /dev/shm. The demo's box has 0.5 without its models.
BOX_GIB = 1.5
#: How many times its files a model may take: as it is loaded, the file, the graph and the engine's own copy.
COPIES = 3


def expected_size(repository: Path) -> PodSize:
    """Return what a pod with these models needs, by their files and instances."""
    models = read_repository(repository)
    if not models:
        raise CommandError(f"{repository} has no models: --models takes a model repository.")
    files = needed_bytes(models) / 2**30
    instances = max((model.instances for model in models if not model.wants_gpu), default=1)
    return PodSize(
        str(instances),
        f"{math.ceil(BOX_GIB + COPIES * files)}Gi",
        f"{len(models)} models with {files:.2f} GiB and at most {instances} instances of one: "
        f"{BOX_GIB} GiB for the box and {COPIES} times the models; measure and adapt",
    )


def comment(stack: Stack) -> str:
    """Return where the pod's size is from, as a line of YAML."""
    if stack.cpu and stack.memory:
        return ""
    reason = expected_size(stack.models).reason if stack.models else DEFAULT_SIZE.reason
    return f"# The processors and the memory of a pod are {reason}.\n"


def write_chart(stack: Stack, folder: Path) -> None:
    """Write the chart.

    Raises :class:`CommandError` for options that only SageMaker has, or a folder with other files.
    """
    if folder.exists() and not (folder / "Chart.yaml").is_file() and any(folder.iterdir()):
        raise CommandError(f"{folder} has files that are not a Helm chart: name another folder with --out.")
    check(stack)
    chart = {"name": stack.plan.name, "version": __version__, "appVersion": __version__}
    try:
        shutil.copytree(FILES / "helm", folder, dirs_exist_ok=True)
        for file, values in (("Chart.yaml", chart), ("values.yaml", chart_values(stack))):
            path = folder / file
            path.write_text("\n".join(fill(path.read_text(), values)) + "\n")
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name another with --out."
        ) from error


def fill(text: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a file with other values of its first level; its comments stay."""
    is_replaced = False
    for line in text.splitlines():
        name, is_member, _ = line.partition(":")
        if is_member and name.isalpha():
            is_replaced = name in values
            if is_replaced:
                yield to_yaml([{name: values[name]}]).rstrip()
        if not (is_replaced and line.strip() and not line.startswith("#")):
            yield line


#: The label that both documents have instead of Kubernetes' own.
DEPLOYMENT = "trireme/deployment"
#: Sources that KServe brings to /mnt/models; the box fetches all others itself.
STORED = (CLAIM, "s3://")


def kserve(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`CommandError` for options that only SageMaker has."""
    check(stack)
    if stack.cache:
        raise CommandError("--cache needs --format kubernetes or helm.")
    plan, values = stack.plan, chart_values(stack)
    is_stored = plan.data.url.startswith(STORED)
    if is_stored:
        values["env"].pop(REPOSITORY, None)
    runtime, service = (
        read(f"kserve/{name}.yaml", plan.name) for name in ("servingruntime", "inferenceservice")
    )
    for document in (runtime, service):
        document["metadata"]["labels"][DEPLOYMENT] = plan.name
    (container,) = runtime["spec"]["containers"]
    fetched = [variable for variable in container["env"] if variable["name"] == REPOSITORY]
    container["env"] = [variable for variable in container["env"] if variable["name"] != REPOSITORY]
    fill_container(container, values)
    container["resources"] = resources(stack)
    predictor = service["spec"]["predictor"]
    predictor["terminationGracePeriodSeconds"] = grace_seconds(values)
    predictor["model"].update(runtime=plan.name, storageUri=plan.data.url)
    if is_stored:
        container["env"] += fetched
    else:
        del predictor["model"]["storageUri"]
    scaling = stack.scaling
    predictor["minReplicas"] = scaling.least if scaling else plan.count
    predictor["maxReplicas"] = scaling.most if scaling else plan.count
    if scaling:
        # The target is a percentage of a pod's requested CPU: Kubernetes does not count requests.
        targets = {target.kind: target.value for target in scaling.targets}
        predictor.update(scaleMetric="cpu", scaleTarget=round(targets.get("cpu", CPU_PERCENT)))
    return [runtime, service]
