"""What somebody does who has never seen this project: the README and the pages of Start, in a clone of its own.

Nothing of this machine's set-up is used but its package indexes: the virtual environment, the weights and pip's
cache are all new. Needs the network; takes some minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE
from sm.tools.golden import differences
from tests.support.boxes import free_port, wait_until
from tests.support.pages import blocks

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

SET_UP_TIMEOUT_S, COMMAND_TIMEOUT_S = 600, 300
README = (HERE / "README.md").read_text()
REQUESTS = re.findall(r"^curl (?:.|\n)*?(?=\n(?:```|curl ))", README, re.M)
#: Made for the picture of a cat in the README's first JSON block that is an answer.
CAT = next(json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.S) if '"result"' in text)
TEN_LINES = next(text for text in re.findall(r"```python\n(.*?)```", README, re.S) if "class Hello" in text)
#: How two packages of the index are downloaded, and their models served: nobody here has prepared them.
TWO_MODELS = """
pip download --quiet --retries 5 --no-deps silero-vad==6.2.3 rapidocr_onnxruntime==1.4.4
for wheel in *.whl; do python -m zipfile -e "$wheel" packages; done
sm build-model speech --source packages/silero_vad/data/silero_vad.onnx --out model
sm build-model lines --source packages/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx --out model
sm inspect model
TRIREME_MODEL_REPOSITORY=model sm serve &
until curl -sf localhost:8080/ping; do sleep 1; kill -0 $!; done
curl -s localhost:8080/v2/models/speech/infer -d "$(python -c 'import json; print(json.dumps({"inputs": [
  {"name": "input", "datatype": "FP32", "shape": [1, 512], "data": [0] * 512},
  {"name": "state", "datatype": "FP32", "shape": [2, 1, 128], "data": [0] * 256},
  {"name": "sr", "datatype": "INT64", "shape": [1], "data": [16000]}]}))')"
python -c 'import json; print(json.dumps({"inputs": [
  {"name": "x", "datatype": "FP32", "shape": [1, 3, 64, 96], "data": [0] * (3 * 64 * 96)}]}))' > picture.json
curl -s localhost:8080/v2/models/lines/infer -d @picture.json
kill $! && wait $!
"""


@dataclass(frozen=True)
class Newcomer:
    """A clone with nothing set up, and an environment without this machine's caches."""

    checkout: Path
    environment: dict[str, str]

    @property
    def with_tools(self) -> dict[str, str]:
        """After ``export PATH="$PWD/.venv/bin:$PATH"``, as the pages say."""
        path = f"{self.checkout / '.venv' / 'bin'}:{self.environment['PATH']}"
        return {**self.environment, "PATH": path}

    @contextmanager
    def serving(self, log: Path, *command: str, **variables: str) -> Iterator[int]:
        """The port of a box that has said where its page is; ended as Ctrl-C ends it."""
        port = free_port()
        environment = {**self.with_tools, "SAGEMAKER_BIND_TO_PORT": str(port), **variables}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=self.checkout,
                env=environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:

            def is_ready() -> bool:
                assert process.poll() is None, log.read_text()[-3000:]
                return "The page to try it" in log.read_text()

            wait_until(is_ready, SET_UP_TIMEOUT_S, "the box")
            yield port
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)

    def types(self, commands: str, folder: Path, port: int) -> list[dict[str, Any]]:
        """The answers in JSON among what the commands print."""
        completed = subprocess.run(
            ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{port}")],
            cwd=folder,
            env={**self.with_tools, "SAGEMAKER_BIND_TO_PORT": str(port)},
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert completed.returncode == 0, (
            f"{commands}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
        )
        found = re.finditer(r'\{"(id|model_?name)":', completed.stdout)
        return [json.JSONDecoder().raw_decode(completed.stdout, at.start())[0] for at in found]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    folder = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["git", "clone", "--quiet", str(HERE), str(folder / "trireme")], check=True)
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "npm_config_cache": str(folder / "npm")}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRIREME_", "SAGEMAKER_", "PYTHONPATH", "VIRTUAL_ENV", "PYTEST_"))
    }
    return Newcomer(folder / "trireme", {**kept, **caches})


@pytest.fixture(scope="module")
def set_up(newcomer: Newcomer, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """After the first ``make serve``, whose requests have been answered."""
    log = tmp_path_factory.mktemp("first") / "log"
    with newcomer.serving(log, "make", "serve") as port:
        answers = [
            answer
            for request in REQUESTS
            if "hello" not in request
            for answer in newcomer.types(request, newcomer.checkout, port)
        ]
    assert [answer["modelname"] for answer in answers][:4] == ["resnet", "yolov5", "bert_base", "resnet"]
    assert list(differences(answers[3], CAT)) == []
    return newcomer


def test_the_first_make_serve_answers_the_readmes_requests(set_up: Newcomer) -> None:
    assert (set_up.checkout / ".venv" / "bin" / "sm").exists()


def test_a_client_in_ten_lines_is_served_at_the_next_start(set_up: Newcomer, tmp_path: Path) -> None:
    client = set_up.checkout / "clients" / "hello" / "client.py"
    client.parent.mkdir()
    client.write_text(TEN_LINES)
    (request,) = [request for request in REQUESTS if "hello" in request]
    try:
        with set_up.serving(tmp_path / "log", "make", "serve") as port:
            (answer,) = set_up.types(request, set_up.checkout, port)
    finally:
        client.unlink()
        client.parent.rmdir()
    assert answer["modelname"] == "hello"
    assert answer["result"]["cat"] > 0.5


def test_the_page_bring_your_model_works_command_by_command(set_up: Newcomer, tmp_path: Path) -> None:
    page = "start/bring-your-model.md"
    commands = [block for block in blocks(page) if "docker" not in block]
    # The page is read in the clone's folder; what it makes is put elsewhere.
    (tmp_path / ".venv").symlink_to(set_up.checkout / ".venv")
    answers = set_up.types("\n".join(commands), tmp_path, free_port())
    expected = [json.loads(line) for line in blocks(page, "json")[0].splitlines()]
    assert list(differences(answers, expected)) == []


def test_two_models_that_nobody_prepared_are_built_served_and_answered(
    set_up: Newcomer, tmp_path: Path
) -> None:
    speech, lines = set_up.types(TWO_MODELS, tmp_path, free_port())
    (probability,) = [output for output in speech["outputs"] if output["name"] == "output"]
    assert probability["shape"] == [1, 1]
    assert 0 <= probability["data"][0] < 0.5
    assert lines["outputs"][0]["shape"] == [1, 1, 64, 96]


def refused(newcomer: Newcomer, folder: Path, **variables: str) -> str:
    """What ``sm serve`` says before it ends with 1."""
    completed = subprocess.run(
        ["sm", "serve"],
        cwd=folder,
        env={**newcomer.with_tools, "SAGEMAKER_BIND_TO_PORT": str(free_port()), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert completed.returncode == 1, completed.stdout
    return completed.stdout + completed.stderr


def test_an_empty_model_folder_is_named(set_up: Newcomer, tmp_path: Path) -> None:
    assert f"There is no model in {tmp_path}" in refused(
        set_up, tmp_path, TRIREME_MODEL_REPOSITORY=str(tmp_path)
    )


def test_a_folder_of_clients_that_is_not_there_is_named(set_up: Newcomer, tmp_path: Path) -> None:
    (tmp_path / "model" / "m" / "1").mkdir(parents=True)
    (tmp_path / "model" / "m" / "config.pbtxt").write_text('backend: "python"\n')
    (tmp_path / "model" / "m" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    said = refused(set_up, tmp_path, TRIREME_MODEL_REPOSITORY="model", TRIREME_CLIENTS="cleints")
    assert "cleints" in said
    assert "TRIREME_CLIENTS" in said


def test_a_mistake_in_a_configuration_is_named_with_its_line(set_up: Newcomer, tmp_path: Path) -> None:
    (tmp_path / "model" / "m" / "1").mkdir(parents=True)
    (tmp_path / "model" / "m" / "config.pbtxt").write_text('backend: "python"\nmax_batch_siz: 8\n')
    said = refused(set_up, tmp_path, TRIREME_MODEL_REPOSITORY="model")
    assert re.search(r"config\.pbtxt.*\b2\b.*max_batch_siz", said)


def test_a_wrong_name_and_a_forgotten_content_type_are_explained(set_up: Newcomer, tmp_path: Path) -> None:
    with set_up.serving(tmp_path / "log", "make", "serve") as port:

        def ask(*words: str) -> dict[str, Any]:
            completed = subprocess.run(
                ["curl", "-s", *words], cwd=set_up.checkout, capture_output=True, check=True
            )
            answer: dict[str, Any] = json.loads(completed.stdout)
            return answer

        url, cat = f"http://127.0.0.1:{port}/invocations", "@clients/resnet/sample/cat.png"
        unknown = ask(f"{url}?modelname=resnt", "-H", "Content-Type: image/png", "--data-binary", cat)
        assert (unknown["code"], "resnet" in str(unknown)) == ("unknown_model", True)
        untyped = ask(f"{url}?modelname=resnet", "--data-binary", cat)
        assert untyped["code"] == "unsupported_content_type"
        assert "image/png" in str(untyped)
