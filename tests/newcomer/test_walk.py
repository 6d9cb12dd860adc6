"""A newcomer's first steps, by the README, in a fresh clone.

Virtual environment, weights and pip's cache are new. Needs the network and takes some minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.boxes import free_port, wait_until
from tests.support.pages import README, code_block, curl_commands, run_commands

SET_UP_TIMEOUT_S = 600
*REQUESTS, HELLO_REQUEST = sorted(curl_commands(README), key=lambda request: "hello" in request)


@contextmanager
def serving(clone: Path, environment: dict[str, str]) -> Iterator[int]:
    """Run ``make serve``, and yield the box's port once it prints its page's address; end it like Ctrl-C."""
    port, log = free_port(), clone.with_suffix(".log")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ("make", "serve"),
            cwd=clone,
            env={**environment, "SAGEMAKER_BIND_TO_PORT": str(port)},
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


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_make_serve_answers_the_readmes_requests_and_serves_its_client_at_the_next_start(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "trireme"
    subprocess.run(["git", "clone", "--quiet", str(HERE), str(clone)], check=True)
    excluded = ("TRIREME_", "SAGEMAKER_", "PYTHONPATH", "VIRTUAL_ENV", "PYTEST_")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(excluded)},
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "npm_config_cache": str(tmp_path / "npm"),
        "TRIREME_PRECISION": "fp32",  # a processor with bf16 gives other digits than the README
        # The pages say: export PATH="$PWD/.venv/bin:$PATH"
        "PATH": f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
    with serving(clone, environment) as port:
        answers = [answer for each in REQUESTS for answer in run_commands(each, clone, port, environment)]
    assert [answer["modelname"] for answer in answers][:4] == ["resnet", "yolov5", "bert_base", "resnet"]
    assert list(differences(answers[3], json.loads(code_block(README, "json", '"result"')))) == []
    (clone / "clients" / "hello").mkdir()
    (clone / "clients" / "hello" / "client.py").write_text(code_block(README, "python", "class Hello"))
    with serving(clone, environment) as port:
        (answer,) = run_commands(HELLO_REQUEST, clone, port, environment)
    assert answer["modelname"] == "hello" and answer["result"]["cat"] > 0.5
