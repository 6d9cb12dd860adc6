"""``sm template`` for clusters: its documents are valid in the oldest supported release and the last three."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from sm.settings import HERE
from tests.support.helm_runner import documents_of, fetch_helm, read_yaml, render_chart, try_values
from tests.support.sm_command import RunSm
from tests.support.snapshots import changes, check_snapshot

IMAGE = "registry.example/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
AUTOSCALED = "--autoscale 2:6 --target-in-flight 5 --target-cpu 60"
MODELS_ON_A_VOLUME = "--model-data pvc://models/cats/one --count 3"
WITH_GPUS = "--instance-type ml.g5.12xlarge --startup-timeout 601"
CALLING_OUT = """--env TRIREME_CAPTURE=s3://pictures --env 'B="{{ }}" #' --tags team=cats"""
SLOW_TO_DRAIN = "--env TRIREME_DRAIN_SECONDS=90 --env SAGEMAKER_BIND_TO_PORT=9090"
SIZED = "--cpu 500m --memory 3Gi --sticky-sessions --env SAGEMAKER_SESSIONS_EXPIRATION=90"
#: The options of every kind of deployment; ``all`` has most at once.
KUBERNETES = {
    "plain": "",
    "fetched": "--model-data s3://models/cats/ --env AWS_ENDPOINT_URL=http://minio:9000 --cache pvc://fetched",
    "downloaded": "--model-data https://models.example/cats.tar.gz",
    "all": f"--service-monitor {SIZED} {AUTOSCALED} {MODELS_ON_A_VOLUME} {WITH_GPUS} {CALLING_OUT} {SLOW_TO_DRAIN}",
}
KSERVE = {
    "plain": f"--model-data {DATA}",
    "scaled": f"--model-data {DATA} --autoscale 1:4",
    "gpus": f"--model-data {DATA} {WITH_GPUS}",
    "volume": "--model-data pvc://cats/one",
    "fetched": "--model-data hf://team/cats",
    "baked": "",
}
#: The oldest that docs/deploy/kubernetes.md promises, and the last three, which Kubernetes maintains.
OLDEST = (1, 25)
RELEASES = [
    OLDEST,
    *sorted({tuple(map(int, each.split(".")[:2])) for each in kubernetes_validate.utils.all_versions()})[-3:],
]
#: Of KServe's InferenceService: ComponentExtensionSpec of pkg/apis/serving/v1beta1 at commit 017d86a9.
EXTENSIONS = {"minReplicas", "maxReplicas", "scaleTarget", "scaleMetric"}


def print_template(sm: RunSm, format_: str, *options: str) -> str:
    """Return what ``sm template`` prints with some words of options."""
    words = [word for each in options for word in shlex.split(each)]
    command = sm("template", "cats", "--format", format_, "--image", IMAGE, *words)
    assert command.status == 0, command.err
    return command.out


def by_kind(documents: Iterable[Any]) -> dict[str, Any]:
    return {document["kind"]: document for document in documents}


def print_documents(sm: RunSm, format_: str, *options: str) -> dict[str, Any]:
    return by_kind(yaml.safe_load_all(print_template(sm, format_, *options)))


def validate(document: dict[str, Any]) -> None:
    for release in RELEASES:
        kubernetes_validate.validate(document, ".".join(map(str, release)), strict=True)


@pytest.mark.parametrize("kind", ["plain", "fetched", "all"])
def test_every_document_is_valid_in_the_oldest_and_the_last_releases(sm: RunSm, kind: str) -> None:
    assert len(set(RELEASES)) == 4
    documents = print_documents(sm, "kubernetes", KUBERNETES[kind])
    # A cluster without Prometheus' operator refuses a ServiceMonitor, so it is written only on request.
    assert (documents.pop("ServiceMonitor", None) is None) == (kind != "all")
    for document in documents.values():
        validate(document)


def test_the_files_that_people_copy_are_what_sm_template_prints(sm: RunSm) -> None:
    """The Kustomize base; a chart's files are compared with the same documents by Helm, below."""
    folder = HERE / "deploy" / "kubernetes"
    words = ("trireme", "--image", "registry.example/trireme:1", "--instance-type", "ml.c5.xlarge")
    command = sm("template", *words, "--format", "kubernetes")
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    copied = [yaml.safe_load((folder / name).read_text()) for name in names]
    assert by_kind(copied) == by_kind(yaml.safe_load_all(command.out))
    more = {path.name for path in folder.iterdir()} - {*names, "kustomization.yaml"}
    assert more == {"horizontalpodautoscaler.yaml", "servicemonitor.yaml"}


@pytest.mark.parametrize(("format_", "kinds"), [("kubernetes", KUBERNETES), ("kserve", KSERVE)])
def test_the_documents_are_those_that_were_read_last(sm: RunSm, format_: str, kinds: dict[str, str]) -> None:
    printed = {kind: print_template(sm, format_, options) for kind, options in kinds.items()}
    plain = printed.pop("plain")
    check_snapshot(f"{format_}.yaml", plain)
    check_snapshot(f"{format_}-options.diff", changes(plain, printed))


def test_the_documents_fit_the_box(sm: RunSm) -> None:
    documents = print_documents(sm, "kubernetes", AUTOSCALED, SLOW_TO_DRAIN)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert f"ARG RUN_AS={user}:{group}" in (HERE / "Dockerfile").read_text()
    seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + 90 + 5


def test_a_pod_asks_for_what_its_models_need(sm: RunSm, tmp_path: Path) -> None:
    """A Python model with three instances of 600 MB."""
    folder = tmp_path / "large"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").touch()
    with (folder / "1" / "weights").open("wb") as file:
        file.truncate(600 * 2**20)
    (folder / "config.pbtxt").write_text('backend: "python" instance_group [{ count: 3 kind: KIND_CPU }]')
    assert resources(sm, f"--models {tmp_path}")["requests"] == {"cpu": "3", "memory": "4Gi"}


def resources(sm: RunSm, options: str) -> Any:
    deployment = print_documents(sm, "kubernetes", options)["Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container["resources"]


@pytest.mark.parametrize("size", ["much", "0", "-1", "8GB", "1e3"])
def test_a_size_that_kubernetes_would_refuse_is_refused(sm: RunSm, size: str) -> None:
    with pytest.raises(SystemExit):
        sm("template", "cats", "--format", "kubernetes", "--image", IMAGE, f"--memory={size}")


@pytest.mark.parametrize("kind", ["plain", "scaled", "gpus"])
def test_kserves_documents_describe_valid_pods(sm: RunSm, kind: str) -> None:
    documents = print_documents(sm, "kserve", KSERVE[kind])
    runtime, service = documents["ServingRuntime"], documents["InferenceService"]
    spec, predictor = runtime["spec"], service["spec"]["predictor"]
    model = predictor.pop("model")
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {format_["name"] for format_ in spec["supportedModelFormats"]}
    pod = {name: value for name, value in predictor.items() if name not in EXTENSIONS}
    pod |= {"containers": spec["containers"], "volumes": spec["volumes"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": service["metadata"], "spec": pod})


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--instance-type ml.c5.xlarge", None),
        ("--instance-type ml.p6-b200.48xlarge", "8"),
        ("--gpus 2 --instance-type ml.g5.xlarge", "2"),
        ("--gpus 0 --instance-type ml.g5.xlarge", None),
    ],
)
def test_a_pod_asks_for_a_gpu_only_if_an_option_says_so(
    sm: RunSm, tmp_path: Path, options: str, count: str | None
) -> None:
    assert resources(sm, options).get("limits", {}).get("nvidia.com/gpu") == count
    values = yaml.safe_load((write_chart(sm, tmp_path / "chart", options) / "values.yaml").read_text())
    assert values["resources"]["limits"].get("nvidia.com/gpu") == count


@pytest.mark.parametrize(("page", "count"), [("README.md", 1), ("docs/deploy/kubernetes.md", 5)])
def test_the_commands_of_the_readme_and_the_page_work_as_written(sm: RunSm, page: str, count: int) -> None:
    text = (HERE / page).read_text()
    commands = re.findall(
        r"^sm (template .*?--format (?:helm|kserve|kubernetes)[^|>\n]*)", text, re.MULTILINE
    )
    assert len(commands) == count
    for command in commands:
        result = sm(*shlex.split(command))
        assert result.status == 0, result.err
        assert page != "README.md" or "nvidia.com/gpu" not in result.out


def write_chart(sm: RunSm, folder: Path, options: str = "") -> Path:
    print_template(sm, "helm", f"--out {folder}", options)
    return folder


def test_a_chart_has_a_template_for_each_document_and_a_comment_for_each_value(
    sm: RunSm, tmp_path: Path
) -> None:
    folder = write_chart(sm, tmp_path / "chart")
    kinds = {kind.lower() for kind in print_documents(sm, "kubernetes", "--service-monitor", AUTOSCALED)}
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
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_helm(tmp_path_factory.mktemp("helm"))


def documents_by_kind(helm: Path, folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    rendered = render_chart(helm, folder, "cats", values)
    assert rendered["lint"]["errors"] == []
    return by_kind(documents_of(rendered))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KUBERNETES)
def test_helm_renders_the_documents_that_sm_template_prints(
    sm: RunSm, helm: Path, tmp_path: Path, kind: str
) -> None:
    chart = write_chart(sm, tmp_path / "chart", KUBERNETES[kind])
    assert documents_by_kind(helm, chart, {}) == print_documents(sm, "kubernetes", KUBERNETES[kind])


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
        *(sm, "kubernetes", AUTOSCALED, CALLING_OUT, "--model-data pvc://models/cats/one"),
        "--cache pvc://fetched --env AWS_ENDPOINT_URL=http://minio:9000",
    )
    assert documents_by_kind(helm, folder, values) == expected
    all_off = {"disruptionBudget": False, "serviceMonitor": False, "networkPolicy": {"enabled": False}}
    assert documents_by_kind(helm, folder, all_off).keys() == {"Deployment", "Service"}


#: Without quotation marks YAML makes a number, a boolean or nothing of each; Go does so with more than PyYAML.
WORDS = (
    *("16777216", "2", "1e3", "1.5e3", "0o17", "010", "089", "0x1F", "0b11", "1.10", "1_000", "+5", "-5"),
    *(".5", "20260101", "20260101123456789", "true", "yes", "No", "on", "y", "Y", "n", "null", "~"),
)
#: These are texts without quotation marks too.
PLAIN_TEXTS = ("2026-01-01", "12:30", "1.10.0", "500m", "a")
#: Where a values file has a text, a whole number, and yes or no.
TEXTS = (
    *("env: {X: V}", "annotations: {a/b: V}", "image: V", "serviceAccount: V", "sharedMemory: V"),
    *("models: {claim: V}", "models: {claim: a, folder: V}", "cache: {claim: V}"),
    *("resources: {requests: {cpu: V}}", "resources: {limits: {memory: V}}"),
    "resources: {limits: {nvidia.com/gpu: V}}",
)
NUMBERS = (
    *("replicas: V", "port: V", "stickySessionSeconds: V", "startupSeconds: V", "preStopSeconds: V"),
    *("drainSeconds: V", "networkPolicy: {callsOut: true, ports: [V]}"),
    *(f"autoscaling: {{enabled: true, {name}: V}}" for name in ("min", "max", "inFlight", "cpu")),
)
FLAGS = (
    *("disruptionBudget: V", "serviceMonitor: V", "autoscaling: {enabled: V}"),
    *("networkPolicy: {enabled: V}", "networkPolicy: {callsOut: V}"),
)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return [leaf for member in members for leaf in leaves(member)]
    return [value]


@pytest.mark.exhaustive
def test_helm_renders_each_value_as_it_is_written_or_refuses_it(helm: Path) -> None:
    """Helm reads a number as a float, and wrote 1.6777216e+07 for 16777216."""

    def rendered(files: Any) -> list[Any]:
        documents = documents_of(files)
        assert len(documents) >= 3
        return leaves(documents)

    def answers(places: Iterable[str], words: Iterable[str]) -> list[tuple[str, str, Any]]:
        given = [(place, word) for place in places for word in words]
        tried = try_values(
            helm, HERE / "deploy" / "helm", [place.replace("V", word) for place, word in given]
        )
        return [(*each, answer) for each, answer in zip(given, tried, strict=True)]

    resource_or_not = ("null", "~")
    for place, word, answer in answers(TEXTS, WORDS):
        # Nothing takes a default away, of a resource or a claim, as everywhere in Helm.
        may_be_empty = word in resource_or_not and place.startswith(("resources", "models", "cache"))
        assert may_be_empty or isinstance(answer, str), (place, word)
    for place, word, answer in answers(TEXTS, [f"'{word}'" for word in WORDS] + list(PLAIN_TEXTS)):
        assert word.strip("'") in rendered(answer), (place, word, answer)
    whole = {"3": 3, "3.0": 3, "0x1F": 31, "1e1": 10}
    for place, word, answer in answers(NUMBERS, whole):
        found = rendered(answer)
        # Of the seconds until a start is over, a fifth; of those of the end, the sum.
        number = -(-whole[word] // 5) if "startup" in place else whole[word]
        assert number in found or str(number) in found, (place, word)
        assert not any(isinstance(leaf, float) for leaf in found), (place, word)
    wrong = ("1.5", "'3'", "true", "yes", "null", "-1", "16777216", "1e30", "a", "2026-01-01")
    for place, word, answer in answers(NUMBERS, wrong):
        assert isinstance(answer, str), (place, word)
    for place, word, answer in answers(FLAGS, ("1", "0", "'true'", "null", "a")):
        assert isinstance(answer, str), (place, word)
    for place, word, answer in answers(FLAGS, ("true", "yes", "off")):
        assert not isinstance(answer, str), (place, word, answer)
    more = [
        "nodeSelector: {a: b}",
        "tolerations: []",
        "args: [1]",
        "labels: {a: 1}",
        "env: {NO: a}",
        "models:",
    ]
    for text, answer in zip(more, try_values(helm, HERE / "deploy" / "helm", more), strict=True):
        assert isinstance(answer, str), text
    commented_out = ["env:", "annotations:", "resources: {limits: }"]
    for text, answer in zip(
        commented_out, try_values(helm, HERE / "deploy" / "helm", commented_out), strict=True
    ):
        assert not isinstance(answer, str), (text, answer)


def given_words() -> tuple[dict[str, str], str]:
    """Variables whose values are all words, and the options that set them and a tag."""
    variables = {f"X{number}": word for number, word in enumerate((*WORDS, *PLAIN_TEXTS))}
    options = " ".join(f"--env {name}={word}" for name, word in variables.items())
    return variables, f"{options} --tags team=1e3"


@pytest.mark.parametrize("format_", ["kubernetes", "kserve", "helm", "cloudformation", "terraform"])
def test_a_variable_stays_a_text_in_every_format(sm: RunSm, tmp_path: Path, format_: str) -> None:
    variables, options = given_words()
    out = f"--out {tmp_path / 'chart'}" if format_ == "helm" else ""
    role = "--role arn:aws:iam::123456789012:role/r --model-data s3://models/a.tar.gz"
    printed = print_template(
        sm, format_, options, out, "" if format_ in ("kubernetes", "kserve", "helm") else role
    )
    if format_ == "helm":
        printed = (tmp_path / "chart" / "values.yaml").read_text()
    if format_ in ("cloudformation", "terraform"):
        assert [leaf for leaf in leaves(json.loads(printed)) if leaf in variables.values()] != []
        texts = [leaf for leaf in leaves(json.loads(printed)) if isinstance(leaf, str)]
        assert {*variables.values()} <= {*texts}
        return
    for text in ("1e3", "1.5e3", "0o17", "089", "y", "Y", "n", "16777216", "yes", "null"):
        assert f": '{text}'\n" in printed, text
    assert {*variables.values()} <= {*leaves([*yaml.safe_load_all(printed)])}


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_", ["kubernetes", "kserve", "helm"])
def test_kubectl_and_helm_read_the_variables_that_were_given(
    sm: RunSm, helm: Path, tmp_path: Path, format_: str
) -> None:
    variables, options = given_words()
    printed = print_template(sm, format_, options, f"--out {tmp_path / 'chart'}" if format_ == "helm" else "")
    if format_ == "helm":
        (values,) = read_yaml(helm, [(tmp_path / "chart" / "values.yaml").read_text()])
        assert values["env"] == variables
        assert values["annotations"] == {"team": "1e3"}
        (answer,) = try_values(helm, tmp_path / "chart", ["{}"])
        printed = "---\n".join(
            text for path, text in answer["files"].items() if path.endswith("deployment.yaml")
        )
    documents = read_yaml(helm, [text for text in printed.split("---\n") if "kind: " in text])
    (containers,) = [
        each["spec"].get("template", each)["spec"]["containers"]
        for each in documents
        if each["kind"] in ("Deployment", "ServingRuntime")
    ]
    found = {each["name"]: each["value"] for each in containers[0]["env"]}
    assert {name: found.get(name) for name in variables} == variables


@pytest.mark.exhaustive
def test_helm_refuses_an_unknown_value(sm: RunSm, helm: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="replica"):
        render_chart(helm, write_chart(sm, tmp_path / "chart"), "cats", {"replica": 3})
