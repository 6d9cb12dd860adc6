"""The Kubernetes documents of ``sm template``, run by ``podman kube play``.

Podman 4 knows no readiness probe and no preStop: the test does what they would do. Its ``emptyDir`` is a
volume that belongs to root, where Kubernetes lets every user write, so the test makes the volumes beforehand.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.support.boxes import wait_until
from tests.support.containers import podman, write_team_repository
from tests.support.sm_command import RunSm, sm
from tests.support.tritons import Model

__all__ = ["sm"]

pytestmark = pytest.mark.exhaustive

NAME, CLAIM = "kubecats", "kubecats-models"
#: Answers after as many seconds as its input says.
SLOW_ECHO = Model(
    'time.sleep(float(tensor(request, "x")[0]))\nreturn {"y": tensor(request, "x")}',
    {"x": ("FP32", [3])},
    {"y": ("FP32", [3])},
)


@dataclass(frozen=True)
class Pod:
    """A pod of the Deployment, as the documents describe it and as it runs."""

    described: dict[str, Any]
    container: str
    address: str

    def ping(self) -> int:
        with suppress(requests.RequestException):
            return requests.get(f"{self.address}/ping", timeout=5).status_code
        return 0

    def invoke(self, seconds: float) -> requests.Response:
        """Send a request that takes so many seconds."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [3], "data": [seconds, 0, 0]}
        return requests.post(f"{self.address}/v2/models/echo/infer", json={"inputs": [tensor]}, timeout=60)

    def inspect(self) -> Any:
        return json.loads(podman("inspect", self.container))[0]


@pytest.fixture
def pod(image: str, sm: RunSm, tmp_path: Path) -> Iterator[Pod]:
    repository = tmp_path / "repository"
    repository.mkdir()
    write_team_repository(repository, model=SLOW_ECHO)
    flags = ("--instance-type", "ml.c5.xlarge", "--model-data", f"pvc://{CLAIM}")
    printed = sm("template", NAME, "--format", "kubernetes", "--image", image, *flags)
    assert printed.status == 0, printed.err
    (tmp_path / "documents.yaml").write_text(printed.out)
    deployment = next(each for each in yaml.safe_load_all(printed.out) if each["kind"] == "Deployment")
    described = deployment["spec"]["template"]["spec"]
    volumes = [CLAIM, *(volume["name"] for volume in described["volumes"] if "emptyDir" in volume)]
    podman("volume", "create", *options(f"type=none o=bind device={repository}"), CLAIM)
    for volume in volumes[1:]:
        shared = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=uid=1000,gid=1000,mode=0777")
        podman("volume", "create", *shared, volume)
    try:
        podman("kube", "play", str(tmp_path / "documents.yaml"))
        infra = podman("pod", "inspect", f"{NAME}-pod-0", "--format", "{{.InfraContainerID}}")
        networks = json.loads(podman("inspect", infra))[0]["NetworkSettings"]["Networks"].values()
        address = next(iter(networks))["IPAddress"]
        yield Pod(described, f"{NAME}-pod-0-box", f"http://{address}:8080")
    finally:
        podman("kube", "down", str(tmp_path / "documents.yaml"))
        subprocess.run(["podman", "volume", "rm", *volumes], capture_output=True, check=False)


def options(words: str) -> list[str]:
    return [part for word in words.split() for part in ("--opt", word)]


def test_a_pod_is_ready_before_it_gets_traffic_and_drains_what_it_has(pod: Pod) -> None:
    # Ready is what the readiness probe would see; the first request after that is answered.
    wait_until(lambda: pod.ping() == 200, description="/ping 200")
    assert pod.invoke(0).status_code == 200

    inspection = pod.inspect()
    assert inspection["HostConfig"]["ReadonlyRootfs"] is True
    assert "no-new-privileges" in str(inspection["HostConfig"]["SecurityOpt"])
    assert not inspection["EffectiveCaps"]
    assert podman("exec", pod.container, "id", "-u") == "1000"
    write_attempts = "touch /tmp/a /dev/shm/a /var/cache/trireme/a; touch /opt/trireme/a || echo refused"
    assert podman("exec", pod.container, "sh", "-c", write_attempts) == "refused"
    assert podman("exec", pod.container, "sh", "-c", "env | grep -c _SERVICE_HOST || true") == "0"

    # While preStop drains the box, callers that still find the pod are served. Then comes SIGTERM.
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(pod.invoke(4).status_code))
    caller.start()
    wait_until(lambda: in_flight(pod) >= 1, description="an invocation in flight")
    command = pod.described["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    podman("exec", pod.container, *command[:-1], "0.5")
    assert pod.ping() == 503
    assert pod.invoke(0).headers["Connection"] == "close"
    limit = pod.described["terminationGracePeriodSeconds"] - int(command[-1])
    podman("stop", "--time", str(limit), pod.container)
    caller.join()
    assert answers == [200]
    assert pod.inspect()["State"]["ExitCode"] == 0


def in_flight(pod: Pod) -> float:
    """The metric by which the autoscaler adds pods."""
    lines = requests.get(f"{pod.address}/metrics", timeout=5).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("trireme_in_flight"))
