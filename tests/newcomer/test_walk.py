"""A newcomer's first steps, by the README and the pages of Start, in a fresh clone.

Virtual environment, weights and pip's cache are new. Needs the network and takes some minutes.
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

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.boxes import free_port, wait_until

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

SET_UP_TIMEOUT_S, COMMAND_TIMEOUT_S = 600, 300
README = (HERE / "README.md").read_text()
REQUESTS = re.findall(r"^curl (?:.|\n)*?(?=\n(?:```|curl ))", README, re.M)
#: The answer for the picture of a cat that the README shows.
README_CAT_ANSWER = next(
    json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.S) if '"result"' in text
)
README_CLIENT = next(
    text for text in re.findall(r"```python\n(.*?)```", README, re.S) if "class Hello" in text
)


@dataclass(frozen=True)
class Newcomer:
    """A clone without any set-up, and an environment without this machine's caches."""

    checkout: Path
    environment: dict[str, str]

    @property
    def environment_with_tools(self) -> dict[str, str]:
        """The environment after ``export PATH="$PWD/.venv/bin:$PATH"``, as the pages say."""
        path = f"{self.checkout / '.venv' / 'bin'}:{self.environment['PATH']}"
        return {**self.environment, "PATH": path}

    @contextmanager
    def serving(self, log: Path, *command: str, **variables: str) -> Iterator[int]:
        """Start a box and yield its port once it prints its page's address; end it like Ctrl-C."""
        port = free_port()
        environment = {**self.environment_with_tools, "SAGEMAKER_BIND_TO_PORT": str(port), **variables}
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

    def run_commands(self, commands: str, folder: Path, port: int) -> list[dict[str, Any]]:
        """Run the commands, and return the JSON answers in their output."""
        completed = subprocess.run(
            ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{port}")],
            cwd=folder,
            env={**self.environment_with_tools, "SAGEMAKER_BIND_TO_PORT": str(port)},
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert completed.returncode == 0, (
            f"{commands}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
        )
        matches = re.finditer(r'\{"(id|model_?name)":', completed.stdout)
        return [json.JSONDecoder().raw_decode(completed.stdout, match.start())[0] for match in matches]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    folder = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["git", "clone", "--quiet", str(HERE), str(folder / "trireme")], check=True)
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "npm_config_cache": str(folder / "npm")}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRIREME_", "SAGEMAKER_", "PYTHONPATH", "VIRTUAL_ENV", "PYTEST_"))
    }
    return Newcomer(folder / "trireme", {**inherited, **caches})


@pytest.fixture(scope="module")
def ready_clone(newcomer: Newcomer, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """A clone after the first ``make serve``, whose box has answered the README's requests."""
    log = tmp_path_factory.mktemp("first") / "log"
    with newcomer.serving(log, "make", "serve") as port:
        answers = [
            answer
            for request in REQUESTS
            if "hello" not in request
            for answer in newcomer.run_commands(request, newcomer.checkout, port)
        ]
    assert [answer["modelname"] for answer in answers][:4] == ["resnet", "yolov5", "bert_base", "resnet"]
    assert list(differences(answers[3], README_CAT_ANSWER)) == []
    return newcomer


def test_the_first_make_serve_answers_the_readmes_requests(ready_clone: Newcomer) -> None:
    assert (ready_clone.checkout / ".venv" / "bin" / "sm").exists()


def test_a_client_in_ten_lines_is_served_at_the_next_start(ready_clone: Newcomer, tmp_path: Path) -> None:
    client = ready_clone.checkout / "clients" / "hello" / "client.py"
    client.parent.mkdir()
    client.write_text(README_CLIENT)
    (request,) = [request for request in REQUESTS if "hello" in request]
    try:
        with ready_clone.serving(tmp_path / "log", "make", "serve") as port:
            (answer,) = ready_clone.run_commands(request, ready_clone.checkout, port)
    finally:
        client.unlink()
        client.parent.rmdir()
    assert answer["modelname"] == "hello"
    assert answer["result"]["cat"] > 0.5
