"""The deployment for plain Kubernetes: the pods, their Service, their autoscaling and their network policy.

Callers still find a pod for some seconds after Kubernetes has begun to end it. So the pod first says
goodbye and goes on serving (``preStop``), and then has the box's own time to drain.
"""

from __future__ import annotations

import re
from typing import Any

from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools.templates.instances import resources
from trireme_tools.templates.stack import Stack
from trireme_tools.templates.values import NAME, VALUE, GivenValues, Values, remove_absent

Document = dict[str, Any]

#: Seconds until every proxy of the cluster has stopped sending requests to a pod that ends.
PRE_STOP_S = 10
#: Seconds to stop the servers after the drain; SIGKILL comes after all three.
STOP_S = 10
#: Invocations in flight in each pod, on average, above which a pod is added. See docs/deploy/kubernetes.md.
IN_FLIGHT = 8
CPU_PERCENT = 70
#: Memory for tensors; a third of the free space of /dev/shm is used for them.
SHARED_MEMORY = "1Gi"
STARTUP_S, PROBE_PERIOD_S, PROBE_TIMEOUT_S = 480, 5, 2
#: A box that has not answered for a minute stands still; its own restarts take seconds.
LIVENESS_PERIOD_S, LIVENESS_FAILURES = 10, 6
#: The image's user. See the Dockerfile.
USER = 1000
#: Makes the box unready and ends kept connections; the next word is how many seconds it takes.
DRAIN = ("/opt/trireme/.venv/bin/python", "-m", "sm.cli", "drain", "--seconds")
MODELS, CACHE = "/opt/ml/model", "/var/cache/trireme"
#: The prefix of a volume that has the models, as KServe writes it: pvc://CLAIM/FOLDER.
CLAIM = "pvc://"
#: Namespaces with this label, beside the deployment's own, may send requests and read metrics.
ACCESS = "trireme/access"
#: The metric of /metrics by which pods are added.
METRIC = "trireme_in_flight"
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
#: Settings that the documents set themselves, because other parts of them depend on these.
RESERVED_SETTINGS = ("TRIREME_DRAIN_SECONDS", "SAGEMAKER_BIND_TO_PORT", "TRIREME_CACHE")
#: Settings that make the box call other machines.
CALLS_OUT = ("TRIREME_S3_BUCKETS", "TRIREME_INSTALL_REQUIREMENTS", "OTEL_")


def template(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`CommandError` for options that only SageMaker has."""
    check(stack)
    return documents(GivenValues(values(stack)))


def values(stack: Stack) -> dict[str, Any]:
    """Return the options of the command line by their names in a chart's ``values.yaml``."""
    plan = stack.plan
    claim, _, folder = (
        plan.data.removeprefix(CLAIM).partition("/") if plan.data.startswith(CLAIM) else ("", "", "")
    )
    # Wrong settings are reported here, not by the first pod that does not start.
    settings = Settings.read(plan.env)
    environment = {name: value for name, value in plan.env.items() if name not in RESERVED_SETTINGS}
    return {
        "name": plan.name,
        "image": plan.image,
        "pullPolicy": "IfNotPresent",
        "replicas": plan.count,
        "port": settings.port,
        "env": environment,
        "serviceAccount": "default",
        "models": {"claim": claim, "folder": folder},
        "resources": _resources(plan.instance_type),
        "sharedMemory": SHARED_MEMORY,
        "startupSeconds": plan.startup_timeout or STARTUP_S,
        "preStopSeconds": PRE_STOP_S,
        "drainSeconds": round(settings.drain),
        "autoscaling": scaling(stack),
        "disruptionBudget": True,
        "serviceMonitor": stack.service_monitor,
        "networkPolicy": {
            "enabled": True,
            "callsOut": any(name.startswith(CALLS_OUT) for name in plan.env),
        },
        "annotations": dict(plan.tags),
    }


def _resources(instance: str) -> dict[str, dict[str, str]]:
    """Add a memory limit to the pod's resources; its /dev/shm counts against the limit."""
    requirements = resources(instance)
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


def check(stack: Stack, *, fetches: bool = False) -> None:
    """Raise :class:`CommandError` for what only SageMaker has; ``fetches`` if the cluster fetches from S3."""
    plan = stack.plan
    for is_set, option in ((plan.mme, "--mme"), (plan.output, "--async"), (plan.serverless, "--serverless")):
        if is_set:
            raise CommandError(f"{option} is SageMaker's: on Kubernetes each pod is a box with its models.")
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", plan.name):
        raise CommandError(
            f"{plan.name!r} is not a name for Kubernetes: lower-case letters, digits and hyphens."
        )
    if plan.data and not plan.data.startswith(CLAIM) and not (fetches and plan.data.startswith("s3://")):
        raise CommandError(
            f"{plan.data!r} cannot be fetched by Kubernetes itself. Put the models into the image "
            "(make image MODELS=…) or on a volume (--model-data pvc://CLAIM/FOLDER), or use --format kserve, "
            "which fetches them from S3."
        )


def documents(chart: Values) -> list[Document]:
    """Return all documents, in the order in which they are created."""
    all_documents = [
        deployment(chart),
        service(chart),
        chart.when("autoscaling.enabled", autoscaler(chart)),
        chart.when("disruptionBudget", disruption_budget(chart)),
        chart.when("serviceMonitor", service_monitor(chart)),
        chart.when("networkPolicy.enabled", network_policy(chart)),
    ]
    return list(remove_absent(all_documents))


def labels(chart: Values) -> dict[str, Any]:
    return {"app.kubernetes.io/name": "trireme", "app.kubernetes.io/instance": chart.get("name")}


def _document(chart: Values, api: str, kind: str, spec: dict[str, Any]) -> Document:
    managed = {"app.kubernetes.io/managed-by": "trireme"}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": chart.get("name"), "labels": {**labels(chart), **managed}},
        "spec": spec,
    }


def deployment(chart: Values) -> Document:
    """Start a new pod before an old one ends, and spread the replicas over the nodes."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(chart)},
    }
    pod = {
        "automountServiceAccountToken": False,
        # A Service named trireme would give every pod TRIREME_PORT and its like: names of our settings.
        "enableServiceLinks": False,
        "serviceAccountName": chart.get("serviceAccount"),
        "terminationGracePeriodSeconds": chart.total("preStopSeconds", "drainSeconds", STOP_S),
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": [spread],
        "containers": [container(chart)],
        "volumes": [
            {"name": "models", **_volume(chart)},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": chart.get("sharedMemory")}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "cache", "emptyDir": {}},
        ],
    }
    spec = {
        "replicas": chart.when("autoscaling.enabled", chart.get("replicas"), negated=True),
        "revisionHistoryLimit": 5,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": labels(chart)},
        "template": {
            "metadata": {"labels": labels(chart), "annotations": chart.get("annotations")},
            "spec": pod,
        },
    }
    return _document(chart, "apps/v1", "Deployment", spec)


def _volume(chart: Values) -> dict[str, Any]:
    return {
        "persistentVolumeClaim": chart.when(
            "models.claim",
            {"claimName": chart.get("models.claim"), "readOnly": True},
        ),
        # Empty: the box serves the models inside the image.
        "emptyDir": chart.when("models.claim", {}, negated=True),
    }


def container(chart: Values) -> dict[str, Any]:
    ping = {"httpGet": {"path": "/ping", "port": "http"}, "timeoutSeconds": PROBE_TIMEOUT_S}
    attempts = chart.attempts("startupSeconds", PROBE_PERIOD_S)
    return {
        "name": "box",
        "image": chart.get("image"),
        "imagePullPolicy": chart.get("pullPolicy"),
        "args": ["serve"],
        "ports": [{"name": "http", "containerPort": chart.get("port"), "protocol": "TCP"}],
        "env": [
            {"name": "TRIREME_DRAIN_SECONDS", "value": chart.text("drainSeconds")},
            {"name": "SAGEMAKER_BIND_TO_PORT", "value": chart.text("port")},
            {"name": "TRIREME_CACHE", "value": CACHE},
            *chart.each("env", {"name": NAME, "value": VALUE}),
        ],
        "resources": chart.get("resources"),
        # The page answers also while a process is restarted, when /ping does not: the box restarts its
        # processes itself, and exits when that does not help. Only a box that stands still is killed.
        "livenessProbe": {
            "httpGet": {"path": "/", "port": "http"},
            "timeoutSeconds": PROBE_TIMEOUT_S,
            "periodSeconds": LIVENESS_PERIOD_S,
            "failureThreshold": LIVENESS_FAILURES,
        },
        "startupProbe": {**ping, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": attempts},
        "readinessProbe": {**ping, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 2},
        "lifecycle": {"preStop": {"exec": {"command": [*DRAIN, chart.text("preStopSeconds")]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {
                "name": "models",
                "mountPath": MODELS,
                "subPath": chart.when("models.folder", chart.get("models.folder")),
                "readOnly": True,
            },
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's
            {"name": "cache", "mountPath": CACHE},
        ],
    }


def service(chart: Values) -> Document:
    port = {"name": "http", "port": chart.get("port"), "targetPort": "http", "protocol": "TCP"}
    return _document(chart, "v1", "Service", {"selector": labels(chart), "ports": [port]})


def autoscaler(chart: Values) -> Document:
    """Add pods by the invocations in flight in each (a metrics adapter reads them), and by CPU."""
    in_flight = {
        "metric": {"name": METRIC},
        "target": {"type": "AverageValue", "averageValue": chart.text("autoscaling.inFlight")},
    }
    cpu = {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": chart.get("autoscaling.cpu")},
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": chart.get("name")},
        "minReplicas": chart.get("autoscaling.min"),
        "maxReplicas": chart.get("autoscaling.max"),
        "metrics": [{"type": "Pods", "pods": in_flight}, {"type": "Resource", "resource": cpu}],
        # A new pod loads its models for minutes, so a pod that is removed too early is missed.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    return _document(chart, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def disruption_budget(chart: Values) -> Document:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(chart)}}
    return _document(chart, "policy/v1", "PodDisruptionBudget", spec)


def service_monitor(chart: Values) -> Document:
    endpoint = {"port": "http", "path": "/metrics", "interval": "15s", "scrapeTimeout": "5s"}
    spec = {"selector": {"matchLabels": labels(chart)}, "endpoints": [endpoint]}
    return _document(chart, "monitoring.coreos.com/v1", "ServiceMonitor", spec)


def network_policy(chart: Values) -> Document:
    """Let in pods of the same namespace and of namespaces with the label; let out only what is needed."""
    callers = [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {ACCESS: "true"}}},
    ]
    names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    others = [{"port": 443, "protocol": "TCP"}, {"port": 4318, "protocol": "TCP"}]
    spec = {
        "podSelector": {"matchLabels": labels(chart)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": callers, "ports": [{"port": "http", "protocol": "TCP"}]}],
        "egress": chart.when("networkPolicy.callsOut", [{"ports": [*names, *others]}]),
    }
    return _document(chart, "networking.k8s.io/v1", "NetworkPolicy", spec)
