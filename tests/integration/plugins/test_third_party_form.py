"""A distribution of somebody else brings forms of a request: it is installed, and a box answers in them.

One form is that of ``sm/router/forms/__init__.py``, as it stands there.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import requests

from sm.router import forms
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox

PROJECT = """
[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"
[project]
name = "forms-of-others"
version = "1.0"
[project.entry-points."sm.forms"]
texts = "forms_of_others:FORMS"
"""
#: Beside it, a text of lines under a type of its own at ``/invocations``, with errors and a list of its own.
MODULE = """
from sm.http.messages import write_error


class LinesCall(Call):
    content_type = "text/x-lines"

    def write(self, kept, request, room):
        return "\\n".join(kept).encode()


class Lines(Form):
    def has(self, reading):
        return reading.kind == "text/x-lines" and reading.client is not None

    def read(self, reading):
        return LinesCall(reading.body.decode().split("\\n"), root=("lines",), many=True)


class Shouted(Texts):
    paths = ("/predict", "/shout")
    lists = {"/names": lambda models: sorted(client.name for client in models.clients())}

    def has(self, reading):
        return isinstance(reading.value, dict) and "shout" in reading.value

    def read(self, reading):
        reading.echo = reading.value.get("id")
        return TextsCall([str(reading.value["shout"]).upper()], model="reverse", root=("shout",))

    def write_error(self, error, request_id, echo):
        return write_error(error, request_id, {"wrong": error.sentence, "id": echo})

    def schema(self):
        described = {"operationId": "shout", "summary": "Shout.", "responses": {"200": {"description": "Done."}}}
        return {"paths": {"/shout": {"post": described}}}


FORMS = (Shouted(), *FORMS, Lines())
"""
CLIENT = '''
from sm.client import Client, TextPayload


class {name}(Client):
    """Answers a text."""

    payload = TextPayload

    def inference(self, payload):
        return {result}
'''
CLIENTS = {
    f"{name.lower()}/client.py": CLIENT.format(name=name, result=result)
    for name, result in (("Upper", "payload.text.upper()"), ("Reverse", "payload.text[::-1]"))
}


def install(source: Path, target: Path, module: str) -> Path:
    """Install the distribution by pip from its source, and return the folder that it is in."""
    (source / "forms_of_others").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "forms_of_others" / "__init__.py").write_text(module)
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*command, "--target", str(target), str(source)], check=True, cwd=source)
    return target


def documented() -> str:
    """Return the code of the page that says how to add a form."""
    code = (forms.__doc__ or "").partition("::\n")[2].partition("\nand, in the pyproject.toml")[0]
    return textwrap.dedent(code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    return install(source, target, documented() + MODULE)


@pytest.fixture
def box(boxes: Boxes, installed: Path) -> RunningBox:
    return boxes(
        ("echo",), (CLIENTS,), PYTHONPATH=str(installed), SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="upper"
    )


def post(box: RunningBox, path: str, body: object, **headers: str) -> requests.Response:
    return requests.post(f"{box.url}{path}", json=body, headers=headers, timeout=30)


def test_a_path_of_its_own_answers_for_the_default_or_the_named_model(box: RunningBox) -> None:
    body = {"texts": ["ab", "cd"]}
    assert post(box, "/predict", body).json() == {"answers": ["AB", "CD"]}
    assert post(box, "/predict?modelname=reverse", body).json() == {"answers": ["ba", "dc"]}
    target = {"X-Amzn-SageMaker-Target-Model": "reverse"}
    assert post(box, "/predict", body, **target).json() == {"answers": ["ba", "dc"]}
    # Another form of the same path is asked first, and names its client itself.
    assert post(box, "/predict", {"shout": "ab"}).json() == {"answers": ["BA"]}
    assert requests.get(f"{box.url}/names", timeout=30).json() == ["reverse", "upper"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"texts": ["a", 3]}, 422, "texts[1]"),
        ({"texts": ["a", {"txt": "b"}]}, 422, "texts[1].text"),
        ({"texts": "a"}, 422, "texts"),
        ({"texts": ["a"] * 100_001}, 413, None),
    ],
)
def test_an_error_names_the_members_of_the_form(
    box: RunningBox, body: object, status: int, field: str | None
) -> None:
    answer = post(box, "/predict", body)
    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert "payload" not in answer.json()["error"]


def test_a_form_writes_errors_in_its_own_shape_also_where_the_body_cannot_be_read(box: RunningBox) -> None:
    for body in (b"{", b"", b'{"texts": 3}'):
        answer = requests.post(f"{box.url}/shout", data=body, timeout=30)
        assert (answer.status_code >= 400, answer.json()["id"]) == (True, None), body
        assert answer.json().keys() == {"wrong", "id"}
    assert requests.get(f"{box.url}/shout", timeout=30).status_code == 405


@pytest.mark.parametrize("body", [{"id": 7}, {"id": 7, "shout": "a", "unused": 1}])
def test_an_error_repeats_what_its_form_noted_of_that_request_alone(
    box: RunningBox, body: dict[str, object]
) -> None:
    answer = post(box, "/shout", body, Accept="application/json", **{"X-Amzn-SageMaker-Session-Id": "none"})
    assert (answer.status_code >= 400, answer.json()["id"]) == (True, 7)
    assert post(box, "/shout", {}).json()["id"] is None


def test_a_form_without_a_path_is_found_at_invocations_and_leaves_the_others_alone(box: RunningBox) -> None:
    headers = {"Content-Type": "text/x-lines"}
    answer = requests.post(f"{box.url}/invocations", data=b"ab\ncd", headers=headers, timeout=30)
    assert (answer.content, answer.headers["Content-Type"]) == (b"AB\nCD", "text/x-lines")
    refused = requests.post(
        f"{box.url}/invocations", data=b"ab", headers={**headers, "Accept": "image/png"}, timeout=30
    )
    assert refused.status_code == 406
    assert box.invoke("reverse", ["ab"]).json()["result"] == ["ba"]


def test_it_is_described_counted_and_refused_like_any_other_route(box: RunningBox) -> None:
    described = requests.get(f"{box.url}/openapi.json", timeout=30).json()
    assert described["paths"]["/shout"]["post"]["summary"] == "Shout."
    assert "401" in described["paths"]["/shout"]["post"]["responses"]
    before = box.metric("trireme_invocations_total", model="upper", status="200")
    post(box, "/predict", {"texts": ["a"]})
    assert box.metric("trireme_invocations_total", model="upper", status="200") == before + 1
    assert post(box, "/predict", {"texts": ["a"]}, Accept="text/html").status_code == 406


@pytest.mark.parametrize("fault", ['Texts.paths = ("/ping",)', 'raise RuntimeError("broken")'])
def test_a_form_that_cannot_be_served_stops_the_start_with_its_name(
    boxes: Boxes, tmp_path: Path, fault: str
) -> None:
    folder = install(tmp_path / "source", tmp_path / "installed", f"{documented()}\n{fault}\n")
    log = boxes.failed_start(("echo",), PYTHONPATH=str(folder))
    assert "forms_of_others" in log or "forms-of-others" in log
