"""``sm template`` for clusters: its documents are valid in the oldest supported release and the last three."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from sm.settings import HERE
from tests.support.helm_runner import documents_of, fetch_helm, render_chart
from tests.support.sm_command import RunSm

IMAGE = "registry.example/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
AUTOSCALED = ("--autoscale", "2:6", "--target-in-flight", "5", "--target-cpu", "60")
MODELS_ON_A_VOLUME = ("--model-data", "pvc://models/cats/one", "--count", "3")
FETCHED = (
    *("--model-data", "s3://models/cats/", "--env", "AWS_ENDPOINT_URL=http://minio:9000"),
    *("--cache", "pvc://fetched"),
)
WITH_GPUS = ("--instance-type", "ml.g5.12xlarge", "--startup-timeout", "601")
CALLING_OUT = ("--env", "TRIREME_CAPTURE=s3://pictures", "--env", 'B="{{ }}" #', "--tags", "team=cats")
SLOW_TO_DRAIN = ("--env", "TRIREME_DRAIN_SECONDS=90", "--env", "SAGEMAKER_BIND_TO_PORT=9090")
SIZED = ("--cpu", "500m", "--memory", "3Gi", "--sticky-sessions")
#: The options of every kind of deployment.
OPTIONS_BY_KIND: dict[str, tuple[str, ...]] = {
    "plain": (),
    "scaled": AUTOSCALED,
    "volume": MODELS_ON_A_VOLUME,
    "fetched": FETCHED,
    "gpus": WITH_GPUS,
    "calls out": CALLING_OUT,
    "slow": SLOW_TO_DRAIN,
    "sized": SIZED,
    "all": (
        "--service-monitor",
        *SIZED,
        *AUTOSCALED,
        *MODELS_ON_A_VOLUME,
        *WITH_GPUS,
        *CALLING_OUT,
        *SLOW_TO_DRAIN,
    ),
}
#: The oldest that docs/deploy/kubernetes.md promises, and the last three, which Kubernetes maintains.
OLDEST = (1, 25)
RELEASES = [
    OLDEST,
    *sorted({tuple(map(int, each.split(".")[:2])) for each in kubernetes_validate.utils.all_versions()})[-3:],
]
#: Member names of documents whose schema is not part of Kubernetes. ServiceMonitor: prometheus-operator's
#: type of that name in monitoring.coreos.com/v1. KServe: ServingRuntimeSpec with its ServingRuntimePodSpec of
#: pkg/apis/serving/v1alpha1 at commit 0217bdab, and ComponentExtensionSpec and ModelSpec of v1beta1 at 017d86a9.
SERVICE_MONITOR, SERVICE_MONITOR_ENDPOINT = (
    {"selector", "endpoints"},
    {"port", "path", "interval", "scrapeTimeout"},
)
SERVING_RUNTIME = {"supportedModelFormats", "protocolVersions", "multiModel", "containers", "volumes"}
MODEL_FORMAT = {"name", "version", "autoSelect", "priority"}
EXTENSIONS = {"minReplicas": int, "maxReplicas": int, "scaleTarget": int, "scaleMetric": str}
MODEL_SPEC = {"modelFormat", "runtime", "storageUri", "protocolVersion"}


def print_documents(sm: RunSm, format_: str, *options: str) -> dict[str, Any]:
    """The documents that ``sm template`` prints, by kind."""
    command = sm("template", "cats", "--format", format_, "--image", IMAGE, *options)
    assert command.status == 0, command.err
    return {document["kind"]: document for document in yaml.safe_load_all(command.out)}


def validate(document: dict[str, Any]) -> None:
    for release in RELEASES:
        kubernetes_validate.validate(document, ".".join(map(str, release)), strict=True)


def pod_spec(documents: dict[str, Any]) -> dict[str, Any]:
    return dict(documents["Deployment"]["spec"]["template"]["spec"])


@pytest.mark.parametrize("kind", ["plain", "fetched", "all"])
def test_every_document_is_valid_in_the_oldest_and_the_last_releases(sm: RunSm, kind: str) -> None:
    assert len(set(RELEASES)) == 4
    documents = print_documents(sm, "kubernetes", *OPTIONS_BY_KIND[kind])
    # A cluster without Prometheus' operator refuses a ServiceMonitor, so it is written only on request.
    monitor = documents.pop("ServiceMonitor", None)
    for document in documents.values():
        validate(document)
    if kind != "all":
        assert monitor is None
        return
    assert monitor is not None
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() <= SERVICE_MONITOR
    assert monitor["spec"]["endpoints"][0].keys() <= SERVICE_MONITOR_ENDPOINT


def test_the_files_that_people_copy_are_what_sm_template_prints(sm: RunSm) -> None:
    """The Kustomize base; a chart's files are compared with the same documents by Helm, below."""
    folder = HERE / "deploy" / "kubernetes"
    words = ("trireme", "--image", "registry.example/trireme:1", "--instance-type", "ml.c5.xlarge")
    command = sm("template", *words, "--format", "kubernetes")
    printed = {document["kind"]: document for document in yaml.safe_load_all(command.out)}
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    copied = [yaml.safe_load((folder / name).read_text()) for name in names]
    assert {document["kind"]: document for document in copied} == printed
    more = {path.name for path in folder.iterdir()} - {*names, "kustomization.yaml"}
    assert more == {"horizontalpodautoscaler.yaml", "servicemonitor.yaml"}


def test_every_document_selects_the_same_pods(sm: RunSm) -> None:
    documents = print_documents(sm, "kubernetes", *AUTOSCALED, "--service-monitor")
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor"):
        assert documents[kind]["spec"]["selector"]["matchLabels"] == labels
    assert documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert documents["ServiceMonitor"]["metadata"]["labels"].items() >= labels.items()
    assert documents["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "cats"


def test_the_autoscaler_uses_a_metric_that_the_box_has(sm: RunSm) -> None:
    spec = print_documents(sm, "kubernetes", *AUTOSCALED)["HorizontalPodAutoscaler"]["spec"]
    pods, cpu = spec["metrics"]
    assert f'"{pods["pods"]["metric"]["name"]}"' in (HERE / "sm" / "metrics.py").read_text()
    assert pods["pods"]["target"]["averageValue"] == "5"
    assert cpu["resource"]["target"]["averageUtilization"] == 60
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)


def test_a_deployment_has_an_autoscaler_or_a_number_of_replicas_but_not_both(sm: RunSm) -> None:
    assert "replicas" not in print_documents(sm, "kubernetes", *AUTOSCALED)["Deployment"]["spec"]
    documents = print_documents(sm, "kubernetes", "--count", "3")
    assert documents["Deployment"]["spec"]["replicas"] == 3
    assert "HorizontalPodAutoscaler" not in documents


def test_a_pods_grace_period_covers_its_sleep_and_its_drain(sm: RunSm) -> None:
    pod = pod_spec(print_documents(sm, "kubernetes", *SLOW_TO_DRAIN))
    (container,) = pod["containers"]
    *drain, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert drain[-2:] == ["drain", "--seconds"]
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + 90 + 5
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["TRIREME_DRAIN_SECONDS"] == "90"
    assert environment["SAGEMAKER_BIND_TO_PORT"] == "9090"
    assert container["ports"][0]["containerPort"] == 9090


def test_a_pod_runs_unprivileged_and_writes_only_to_its_volumes(sm: RunSm) -> None:
    pod = pod_spec(print_documents(sm, "kubernetes"))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert f"ARG RUN_AS={user}:{group}" in (HERE / "Dockerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {"/tmp", "/dev/shm"} <= mounts.keys()
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert pod["enableServiceLinks"] is False


def test_a_pod_asks_for_what_its_options_or_its_models_say(sm: RunSm, tmp_path: Path) -> None:
    (container,) = pod_spec(print_documents(sm, "kubernetes", *SIZED))["containers"]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "3Gi"}
    write_model_of(tmp_path / "large", megabytes=600, instances=3)
    command = sm("template", "cats", "--format", "kubernetes", "--image", IMAGE, "--models", str(tmp_path))
    assert "1 models with 0.66 GiB and at most 3 instances" in command.out.splitlines()[0]
    deployment = next(each for each in yaml.safe_load_all(command.out) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "3", "memory": "4Gi"}


def write_model_of(folder: Path, *, megabytes: int, instances: int) -> None:
    """Write a Python model whose version folder has a file of that size."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("")
    with (folder / "1" / "weights").open("wb") as file:
        file.truncate(megabytes * 2**20)
    text = f'backend: "python" instance_group [{{ count: {instances} kind: KIND_CPU }}]'
    (folder / "config.pbtxt").write_text(text)


@pytest.mark.parametrize("size", ["much", "0", "-1", "8GB", "1e3"])
def test_a_size_that_kubernetes_would_refuse_is_refused(sm: RunSm, size: str) -> None:
    with pytest.raises(SystemExit):
        sm("template", "cats", "--format", "kubernetes", "--image", IMAGE, f"--memory={size}")


def test_sticky_sessions_keep_an_address_at_its_pod_as_long_as_a_session_lasts(sm: RunSm) -> None:
    words = ("--sticky-sessions", "--env", "SAGEMAKER_SESSIONS_EXPIRATION=90")
    service = print_documents(sm, "kubernetes", *words)["Service"]["spec"]
    assert service["sessionAffinity"] == "ClientIP"
    assert service["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 90}}
    assert "sessionAffinity" not in print_documents(sm, "kubernetes")["Service"]["spec"]


def test_egress_is_allowed_only_for_a_box_that_calls_out(sm: RunSm) -> None:
    assert "egress" not in print_documents(sm, "kubernetes")["NetworkPolicy"]["spec"]
    ports = print_documents(sm, "kubernetes", *CALLING_OUT)["NetworkPolicy"]["spec"]["egress"][0]["ports"]
    assert {443, 53} <= {port["port"] for port in ports}


@pytest.mark.parametrize(
    "source", ["s3://models/cats/", "https://models.example/cats.tar.gz", "hf://team/cats"]
)
def test_a_pod_fetches_its_models_itself(sm: RunSm, source: str) -> None:
    documents = print_documents(sm, "kubernetes", "--model-data", source)
    pod = pod_spec(documents)
    assert "initContainers" not in pod
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["TRIREME_MODEL_REPOSITORY"] == source
    assert "egress" in documents["NetworkPolicy"]["spec"]


def test_a_volume_keeps_what_pods_fetch_and_the_policy_lets_them_reach_its_host(sm: RunSm) -> None:
    documents = print_documents(sm, "kubernetes", *FETCHED)
    pod = pod_spec(documents)
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    cache = volumes[mounts[environment["TRIREME_CACHE"]]]
    assert cache == {"persistentVolumeClaim": {"claimName": "fetched"}}
    ports = documents["NetworkPolicy"]["spec"]["egress"][0]["ports"]
    assert {53, 443, 9000} <= {port["port"] for port in ports}


@pytest.mark.parametrize(
    ("source", "stored"), [("s3://models/cats/", True), ("pvc://cats/one", True), ("hf://team/cats", False)]
)
def test_kserve_brings_what_it_knows_and_the_box_fetches_the_rest(
    sm: RunSm, source: str, stored: bool
) -> None:
    documents = print_documents(sm, "kserve", "--model-data", source)
    (container,) = documents["ServingRuntime"]["spec"]["containers"]
    model = documents["InferenceService"]["spec"]["predictor"]["model"]
    environment = [
        variable for variable in container["env"] if variable["name"] == "TRIREME_MODEL_REPOSITORY"
    ]
    assert [variable["value"] for variable in environment] == ["/mnt/models" if stored else source]
    assert model.get("storageUri") == (source if stored else None)


@pytest.mark.parametrize("options", [(), ("--autoscale", "1:4"), ("--instance-type", "ml.g5.12xlarge")])
def test_kserves_documents_describe_valid_pods(sm: RunSm, options: tuple[str, ...]) -> None:
    documents = print_documents(sm, "kserve", "--model-data", DATA, "--env", "A=b", *options)
    runtime, service = documents["ServingRuntime"], documents["InferenceService"]
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    spec, predictor = runtime["spec"], service["spec"]["predictor"]
    assert spec.keys() <= SERVING_RUNTIME
    assert all(format_.keys() <= MODEL_FORMAT for format_ in spec["supportedModelFormats"])
    model = predictor.pop("model")
    assert model.keys() <= MODEL_SPEC
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {format_["name"] for format_ in spec["supportedModelFormats"]}
    assert model["storageUri"] == DATA
    pod = {name: value for name, value in predictor.items() if name not in EXTENSIONS}
    for name in predictor.keys() - pod.keys():
        assert type(predictor[name]) is EXTENSIONS[name]
    assert predictor.get("scaleMetric", "cpu") in {"cpu", "memory", "concurrency", "rps"}
    pod_with_containers = {**pod, "containers": spec["containers"], "volumes": spec["volumes"]}
    validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": service["metadata"], "spec": pod_with_containers}
    )


def test_a_serving_runtime_reads_the_models_where_kserve_puts_them(sm: RunSm) -> None:
    options = ("--model-data", DATA, "--instance-type", "ml.g5.12xlarge", "--startup-timeout", "601")
    (container,) = print_documents(sm, "kserve", *options)["ServingRuntime"]["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ping"
    # During a restart of Triton /ping is 503: a probe of it would kill a box that mends itself.
    liveness = container["livenessProbe"]
    assert liveness["httpGet"] == {"path": "/", "port": "http"}
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 605
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["TRIREME_MODEL_REPOSITORY"] == "/mnt/models"
    assert "/opt/ml/model" not in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("format_", ["kubernetes", "kserve"])
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), None),
        (AUTOSCALED, None),
        (("--instance-type", "ml.c5.xlarge"), None),
        (("--instance-type", "ml.g5.xlarge"), "1"),
        (("--instance-type", "ml.g5.12xlarge"), "4"),
        (("--instance-type", "ml.p6-b200.48xlarge"), "8"),
        (("--gpus", "2"), "2"),
        (("--gpus", "2", "--instance-type", "ml.g5.xlarge"), "2"),
        (("--gpus", "0", "--instance-type", "ml.g5.xlarge"), None),
    ],
)
def test_a_pod_asks_for_a_gpu_only_if_an_option_says_so(
    sm: RunSm, format_: str, options: tuple[str, ...], count: str | None
) -> None:
    documents = print_documents(sm, format_, *options)
    if format_ == "kserve":
        (container,) = documents["ServingRuntime"]["spec"]["containers"]
    else:
        (container,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"].get("limits", {}).get("nvidia.com/gpu") == count


def test_the_readmes_command_asks_for_no_gpu(sm: RunSm) -> None:
    readme = (HERE / "README.md").read_text()
    (command,) = re.findall(r"^sm (template .*--format kubernetes .*?) \|", readme, re.MULTILINE)
    result = sm(*shlex.split(command))
    assert result.status == 0, result.err
    assert "nvidia.com/gpu" not in result.out


@pytest.mark.parametrize(("options", "count"), [((), None), (("--gpus", "1"), "1")])
def test_a_chart_asks_for_a_gpu_only_if_an_option_says_so(
    sm: RunSm, tmp_path: Path, options: tuple[str, ...], count: str | None
) -> None:
    values = yaml.safe_load((write_chart(sm, tmp_path / "chart", *options) / "values.yaml").read_text())
    assert values["resources"]["limits"].get("nvidia.com/gpu") == count


def test_gpus_are_an_option_of_kubernetes_only(sm: RunSm) -> None:
    result = sm("template", "cats", "--image", IMAGE, "--gpus", "1")
    assert result.status != 0
    assert result.out == ""


def test_the_pages_commands_work_as_written(sm: RunSm) -> None:
    page = (HERE / "docs" / "deploy" / "kubernetes.md").read_text()
    commands = re.findall(r"^sm (template .*?)(?: > cats.yaml)?$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        result = sm(*shlex.split(command))
        assert result.status == 0, result.err


def write_chart(sm: RunSm, folder: Path, *options: str) -> Path:
    command = sm("template", "cats", "--format", "helm", "--out", str(folder), "--image", IMAGE, *options)
    assert command.status == 0, command.err
    return folder


def test_a_chart_has_a_template_for_each_document_and_a_comment_for_each_value(
    sm: RunSm, tmp_path: Path
) -> None:
    folder = write_chart(sm, tmp_path / "chart")
    kinds = {kind.lower() for kind in print_documents(sm, "kubernetes", "--service-monitor", *AUTOSCALED)}
    assert {path.stem for path in (folder / "templates").glob("*.yaml")} == kinds
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["name"]) == ("v2", "cats")
    lines = (folder / "values.yaml").read_text().splitlines()
    for index, line in enumerate(lines):
        if line[:1].isalpha():
            assert lines[index - 1].startswith("# "), line


def test_a_chart_is_not_written_into_a_folder_with_other_files(sm: RunSm, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    command = sm("template", "cats", "--format", "helm", "--out", str(tmp_path), "--image", IMAGE)
    assert command.status == 1
    assert "has files that are not a Helm chart" in command.err


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_helm(tmp_path_factory.mktemp("helm"))


def render_with_helm(helm: Path, folder: Path, values: dict[str, Any]) -> Any:
    return render_chart(helm, folder, "cats", values)


def documents_by_kind(rendered: Any) -> dict[str, Any]:
    return {document["kind"]: document for document in documents_of(rendered)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", OPTIONS_BY_KIND)
def test_helm_renders_the_documents_that_sm_template_prints(
    sm: RunSm, helm: Path, tmp_path: Path, kind: str
) -> None:
    rendered = render_with_helm(helm, write_chart(sm, tmp_path / "chart", *OPTIONS_BY_KIND[kind]), {})
    assert rendered["lint"]["errors"] == []
    assert documents_by_kind(rendered) == print_documents(sm, "kubernetes", *OPTIONS_BY_KIND[kind])


@pytest.mark.exhaustive
def test_helms_values_change_the_documents_as_the_options_do(sm: RunSm, helm: Path, tmp_path: Path) -> None:
    folder = write_chart(sm, tmp_path / "chart")
    values = {
        "env": {
            "AWS_ENDPOINT_URL": "http://minio:9000",
            "B": '"{{ }}" #',
            "TRIREME_CAPTURE": "s3://pictures",
        },
        "networkPolicy": {"callsOut": True, "ports": [9000]},
        "cache": {"claim": "fetched"},
        "autoscaling": {"enabled": True, "min": 2, "max": 6, "inFlight": 5, "cpu": 60},
        "models": {"claim": "models", "folder": "cats/one"},
        "annotations": {"team": "cats"},
    }
    expected = print_documents(
        *(sm, "kubernetes", *AUTOSCALED, *CALLING_OUT, "--model-data", "pvc://models/cats/one"),
        *("--cache", "pvc://fetched", "--env", "AWS_ENDPOINT_URL=http://minio:9000"),
    )
    assert documents_by_kind(render_with_helm(helm, folder, values)) == expected
    all_off = {"disruptionBudget": False, "serviceMonitor": False, "networkPolicy": {"enabled": False}}
    assert documents_by_kind(render_with_helm(helm, folder, all_off)).keys() == {"Deployment", "Service"}


@pytest.mark.exhaustive
def test_helm_refuses_an_unknown_value(sm: RunSm, helm: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="replica"):
        render_with_helm(helm, write_chart(sm, tmp_path / "chart"), {"replica": 3})
