"""Wheel and sdist in clean environments of the oldest and the newest Python: commands, and ``sm demo``."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from sm import __version__
from sm.settings import Settings
from tests.support.boxes import free_port, wait_until
from tests.support.distribution import (
    Installed,
    build,
    install_with_dependencies,
    interpreters,
    supported_versions,
)

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

PYTHONS = dict(interpreters())
#: The oldest and the newest that the package supports, one with the wheel and one with the sdist.
CASES = [(supported_versions()[0], "wheel"), (supported_versions()[-1], "sdist")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def installed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Installed:
    version, kind = request.param
    if version not in PYTHONS:
        pytest.skip(f"there is no Python {version} on this machine")
    made = build(tmp_path_factory.mktemp("dist"))
    package = f"{made.wheel if kind == 'wheel' else made.sdist}[cpu,tools]"
    home = tmp_path_factory.mktemp("home")
    return install_with_dependencies(package, made.tools.parent, PYTHONS[version], home)


@pytest.fixture(scope="module")
def demo(installed: Installed) -> Iterator[str]:
    """``sm demo``, with Triton fetched into a cache of its own; the models' downloads are shared."""
    port, log = free_port(), installed.home / "demo.log"
    cache, clean_cache = Settings.read({}).cache.expanduser(), installed.home / ".cache" / "trireme"
    clean_cache.mkdir(parents=True)
    for folder in ("downloads", "models", "pictures"):
        if (cache / folder).is_dir():
            (clean_cache / folder).symlink_to(cache / folder)
    environment = installed.environment(SAGEMAKER_BIND_TO_PORT=str(port))
    command = [str(installed.python.with_name("sm")), "demo"]
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=installed.home, env=environment, stdout=stream, stderr=stream)
        try:
            wait_until(lambda: "The box is ready" in log.read_text() or process.poll() is not None, 400)
            assert process.poll() is None, log.read_text()
            assert f"trireme-serving {__version__} " in log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def output_of(installed: Installed, *words: object) -> str:
    done = installed.sm(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_gives_the_golden_answers_and_a_new_client_passes_its_check(
    installed: Installed, demo: str
) -> None:
    rows = [line.split()[:2] for line in output_of(installed, "test", "--url", demo).splitlines()]
    assert rows == [["bert_base", "equal"], ["resnet", "equal"], ["yolov5", "equal"]]
    text = ("--model", "bert_base", "--text", "The world has [MASK] people.")
    answer = json.loads(output_of(installed, "invoke", demo, *text))
    assert answer["result"][0]["token"] == "The world has no people."
    output_of(installed, "new-client", "signs")
    output_of(installed, "check-client", "signs")
