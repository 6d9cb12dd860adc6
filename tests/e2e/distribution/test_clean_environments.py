"""Wheel and sdist in clean environments of the oldest and the newest Python: every command, and ``sm demo``."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from sm import __version__
from sm.settings import Settings
from tests.support.boxes import free_port, wait_until
from tests.support.deploy_account import IMAGE, FakeAccount, cloud, proxy
from tests.support.distribution import (
    Distribution,
    Installed,
    build,
    install_with_dependencies,
    interpreters,
    supported_versions,
)

__all__ = ["cloud", "proxy"]
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

PYTHONS = dict(interpreters())
#: The oldest and the newest that the package supports, one with the wheel and one with the sdist.
CASES = [(supported_versions()[0], "wheel"), (supported_versions()[-1], "sdist")]


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def installed(
    distribution: Distribution, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Installed:
    version, kind = request.param
    if version not in PYTHONS:
        pytest.skip(f"there is no Python {version} on this machine")
    package = f"{distribution.wheel if kind == 'wheel' else distribution.sdist}[cpu,tools]"
    return install_with_dependencies(
        package, distribution.tools.parent, PYTHONS[version], tmp_path_factory.mktemp("home")
    )


@pytest.fixture(scope="module")
def demo(installed: Installed) -> Iterator[str]:
    """``sm demo``, with Triton fetched into a cache of its own; the models' downloads are shared."""
    port, log = free_port(), installed.home / "demo.log"
    cache, clean_cache = Settings.read({}).cache.expanduser(), installed.home / ".cache" / "trireme"
    clean_cache.mkdir(parents=True)
    for folder in ("downloads", "models", "pictures"):
        if (cache / folder).is_dir():
            (clean_cache / folder).symlink_to(cache / folder)
    environment = installed.environment({"SAGEMAKER_BIND_TO_PORT": str(port)})
    command = [str(installed.python.with_name("sm")), "demo"]
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=installed.home, env=environment, stdout=stream, stderr=stream)
        try:
            wait_until(lambda: "The box is ready" in log.read_text() or process.poll() is not None, 400)
            assert process.poll() is None, log.read_text()
            assert f"trireme-serving {__version__} on Python" in log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_the_demo_gives_the_golden_answers(installed: Installed, demo: str) -> None:
    done = installed.sm("test", "--url", demo)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["bert_base", "equal"],
        ["resnet", "equal"],
        ["yolov5", "equal"],
    ]


def test_invoke_sends_a_request_and_prints_the_answer(installed: Installed, demo: str) -> None:
    done = installed.sm("invoke", demo, "--model", "bert_base", "--text", "The world has [MASK] people.")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"][0]["token"] == "The world has no people."


@pytest.mark.usefixtures("demo")  # which fetched a Triton
def test_a_new_client_passes_its_check(installed: Installed) -> None:
    assert installed.sm("new-client", "signs").returncode == 0
    done = installed.sm("check-client", "signs")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dry_run_of_deploy_prints_its_calls(installed: Installed, cloud: FakeAccount) -> None:
    words = ["--image", IMAGE, "--model-data", cloud.repository, "--instance-type", "ml.g4dn.xlarge"]
    done = installed.sm("deploy", "ships", *words, "--dry-run", extra=cloud.env)
    assert done.returncode == 0, done.stderr
    calls = [" ".join(line.split()[1:3]) for line in done.stdout.splitlines()]
    assert calls[-3:] == [
        "sagemaker create-model",
        "sagemaker create-endpoint-config",
        "sagemaker create-endpoint",
    ]
