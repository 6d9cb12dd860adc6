"""The deployment for plain Kubernetes: what runs, who reaches it, when it grows, how it ends.

A pod that ends gets SIGTERM while callers still find it for some seconds. So it first sleeps and goes on
serving (``preStop``), and then has the box's own time to drain.
"""

from __future__ import annotations

import re
from typing import Any

from sm.errors import StartError
from sm.settings import Settings
from sm.tools.templates.instances import resources
from sm.tools.templates.stack import Stack
from sm.tools.templates.values import NAME, VALUE, GivenValues, Values, present

Document = dict[str, Any]

#: Seconds until every proxy of a cluster has forgotten a pod that ends.
PRE_STOP_S = 10
#: Seconds to stop the servers after the drain; SIGKILL comes after all three.
STOP_S = 10
#: What a pod has in flight, on average, before another one starts. See docs/deploy/kubernetes.md.
IN_FLIGHT = 8
CPU_PERCENT = 70
#: Memory for tensors; a third of the free space of /dev/shm is used for them.
SHARED_MEMORY = "1Gi"
STARTUP_S, PROBE_PERIOD_S, PROBE_TIMEOUT_S = 480, 5, 2
#: The image's user. See the Dockerfile.
USER = 1000
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
#: Settings that the documents set themselves, as other parts of them depend on these.
OWN_SETTINGS = ("TRIREME_DRAIN_SECONDS", "SAGEMAKER_BIND_TO_PORT", "TRIREME_CACHE")
#: Settings with which the box itself calls other machines.
CALLS_OUT = ("TRIREME_S3_BUCKETS", "TRIREME_INSTALL_REQUIREMENTS", "OTEL_")


def template(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`StartError` for options that only SageMaker has."""
    check(stack)
    return documents(GivenValues(values(stack)))


def values(stack: Stack) -> dict[str, Any]:
    """What the command line says, by the names that a chart's ``values.yaml`` has."""
    plan = stack.plan
    claim, _, folder = (
        plan.data.removeprefix(CLAIM).partition("/") if plan.data.startswith(CLAIM) else ("", "", "")
    )
    # Its settings are checked here, not by the first pod that does not start.
    settings = Settings.read(plan.env)
    environment = {name: value for name, value in plan.env.items() if name not in OWN_SETTINGS}
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
        "serviceMonitor": True,
        "networkPolicy": {
            "enabled": True,
            "callsOut": any(name.startswith(CALLS_OUT) for name in plan.env),
        },
        "annotations": dict(plan.tags),
    }


def _resources(instance: str) -> dict[str, dict[str, str]]:
    """With a limit of memory, which the pod's /dev/shm counts against."""
    asked = resources(instance)
    return {**asked, "limits": {**asked.get("limits", {}), "memory": asked["requests"]["memory"]}}


def scaling(stack: Stack) -> dict[str, Any]:
    chosen = stack.scaling
    targets = {target.kind: target.value for target in chosen.targets} if chosen else {}
    if "target" in targets or "gpu" in targets:
        raise StartError(
            "--target-invocations and --target-gpu are SageMaker's: on Kubernetes pods are added by what is "
            "in flight (--target-in-flight) and by --target-cpu."
        )
    return {
        "enabled": bool(chosen),
        "min": chosen.least if chosen else stack.plan.count,
        "max": chosen.most if chosen else stack.plan.count,
        "inFlight": stack.in_flight or IN_FLIGHT,
        "cpu": round(targets.get("cpu", CPU_PERCENT)),
    }


def check(stack: Stack, *, fetches: bool = False) -> None:
    """Raise :class:`StartError` for what only SageMaker has; ``fetches`` if the cluster fetches from S3."""
    plan = stack.plan
    for is_set, option in ((plan.mme, "--mme"), (plan.output, "--async"), (plan.serverless, "--serverless")):
        if is_set:
            raise StartError(f"{option} is SageMaker's: on Kubernetes each pod is a box with its models.")
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", plan.name):
        raise StartError(f"{plan.name!r} is no name for Kubernetes: lower-case letters, digits and hyphens.")
    if plan.data and not plan.data.startswith(CLAIM) and not (fetches and plan.data.startswith("s3://")):
        raise StartError(
            f"{plan.data!r} is nothing that Kubernetes itself can bring. Put the models into the image "
            "(make image MODELS=…) or on a volume (--model-data pvc://CLAIM/FOLDER), or use --format kserve, "
            "which fetches them from S3."
        )


def documents(given: Values) -> list[Document]:
    """All documents, in the order in which they are created."""
    made = [
        deployment(given),
        service(given),
        given.when("autoscaling.enabled", autoscaler(given)),
        given.when("disruptionBudget", disruption_budget(given)),
        given.when("serviceMonitor", service_monitor(given)),
        given.when("networkPolicy.enabled", network_policy(given)),
    ]
    return list(present(made))


def labels(given: Values) -> dict[str, Any]:
    return {"app.kubernetes.io/name": "trireme", "app.kubernetes.io/instance": given.get("name")}


def _document(given: Values, api: str, kind: str, spec: dict[str, Any]) -> Document:
    managed = {"app.kubernetes.io/managed-by": "trireme"}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": given.get("name"), "labels": {**labels(given), **managed}},
        "spec": spec,
    }


def deployment(given: Values) -> Document:
    """A new pod is ready before an old one ends, and replicas are on different nodes if there are some."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(given)},
    }
    pod = {
        "automountServiceAccountToken": False,
        # A Service named trireme would give every pod TRIREME_PORT and its like: names of our settings.
        "enableServiceLinks": False,
        "serviceAccountName": given.get("serviceAccount"),
        "terminationGracePeriodSeconds": given.total("preStopSeconds", "drainSeconds", STOP_S),
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": [spread],
        "containers": [container(given)],
        "volumes": [
            {"name": "models", **_volume(given)},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": given.get("sharedMemory")}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "cache", "emptyDir": {}},
        ],
    }
    spec = {
        "replicas": given.when("autoscaling.enabled", given.get("replicas"), negated=True),
        "revisionHistoryLimit": 5,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": labels(given)},
        "template": {
            "metadata": {"labels": labels(given), "annotations": given.get("annotations")},
            "spec": pod,
        },
    }
    return _document(given, "apps/v1", "Deployment", spec)


def _volume(given: Values) -> dict[str, Any]:
    return {
        "persistentVolumeClaim": given.when(
            "models.claim",
            {"claimName": given.get("models.claim"), "readOnly": True},
        ),
        # Empty: the box serves the models inside the image.
        "emptyDir": given.when("models.claim", {}, negated=True),
    }


def container(given: Values) -> dict[str, Any]:
    ping = {"httpGet": {"path": "/ping", "port": "http"}, "timeoutSeconds": PROBE_TIMEOUT_S}
    attempts = given.attempts("startupSeconds", PROBE_PERIOD_S)
    return {
        "name": "box",
        "image": given.get("image"),
        "imagePullPolicy": given.get("pullPolicy"),
        "args": ["serve"],
        "ports": [{"name": "http", "containerPort": given.get("port"), "protocol": "TCP"}],
        "env": [
            {"name": "TRIREME_DRAIN_SECONDS", "value": given.text("drainSeconds")},
            {"name": "SAGEMAKER_BIND_TO_PORT", "value": given.text("port")},
            {"name": "TRIREME_CACHE", "value": CACHE},
            *given.each("env", {"name": NAME, "value": VALUE}),
        ],
        "resources": given.get("resources"),
        # No liveness probe: the box restarts what died, and ends when it cannot go on. A probe would only
        # end it while it is at work on that.
        "startupProbe": {**ping, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": attempts},
        "readinessProbe": {**ping, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 2},
        "lifecycle": {"preStop": {"sleep": {"seconds": given.get("preStopSeconds")}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {
                "name": "models",
                "mountPath": MODELS,
                "subPath": given.when("models.folder", given.get("models.folder")),
                "readOnly": True,
            },
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's
            {"name": "cache", "mountPath": CACHE},
        ],
    }


def service(given: Values) -> Document:
    port = {"name": "http", "port": given.get("port"), "targetPort": "http", "protocol": "TCP"}
    return _document(given, "v1", "Service", {"selector": labels(given), "ports": [port]})


def autoscaler(given: Values) -> Document:
    """Add pods by what is in flight in each, as an adapter of the cluster reads it, and by CPU."""
    in_flight = {
        "metric": {"name": METRIC},
        "target": {"type": "AverageValue", "averageValue": given.text("autoscaling.inFlight")},
    }
    cpu = {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": given.get("autoscaling.cpu")},
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": given.get("name")},
        "minReplicas": given.get("autoscaling.min"),
        "maxReplicas": given.get("autoscaling.max"),
        "metrics": [{"type": "Pods", "pods": in_flight}, {"type": "Resource", "resource": cpu}],
        # A pod loads its models first, so one that goes too early is missed for minutes.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    return _document(given, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def disruption_budget(given: Values) -> Document:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(given)}}
    return _document(given, "policy/v1", "PodDisruptionBudget", spec)


def service_monitor(given: Values) -> Document:
    endpoint = {"port": "http", "path": "/metrics", "interval": "15s", "scrapeTimeout": "5s"}
    spec = {"selector": {"matchLabels": labels(given)}, "endpoints": [endpoint]}
    return _document(given, "monitoring.coreos.com/v1", "ServiceMonitor", spec)


def network_policy(given: Values) -> Document:
    """Callers are pods of the same namespace and of namespaces with the label; the box calls nobody."""
    callers = [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {ACCESS: "true"}}},
    ]
    names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    others = [{"port": 443, "protocol": "TCP"}, {"port": 4318, "protocol": "TCP"}]
    spec = {
        "podSelector": {"matchLabels": labels(given)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": callers, "ports": [{"port": "http", "protocol": "TCP"}]}],
        "egress": given.when("networkPolicy.callsOut", [{"ports": [*names, *others]}]),
    }
    return _document(given, "networking.k8s.io/v1", "NetworkPolicy", spec)
