"""A Kubernetes cluster by its kubectl: apply what ``sm template`` writes, load it with checked callers, and look at it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import requests
import yaml

from sm.settings import HERE
from tests.cluster.repository import samples
from tests.support.boxes import wait_until
from tests.support.faults.callers import RIGHT, Callers

#: The names of the same documents in releases before 1.23 and 1.21; all that the tests use is the same in them.
OLDER = {"autoscaling/v2": "autoscaling/v2beta2", "policy/v1": "policy/v1beta1"}
#: A pod of the tests' models; four have to fit into a small cluster.
POD = ("--instance-type", "ml.c5.large", "--cpu", "300m", "--memory", "2Gi")
PYTHON = "/opt/trireme/.venv/bin/python"
READY_S, HANG_S = 90.0, 30.0
#: Instead of the documents' five minutes.
STABLE_S = 15
CALLERS = 8
#: Kills the oldest or the youngest process whose command line has the words.
KILL = """
import os, pathlib, signal, sys
words, age = sys.argv[1:]
found = [
    int(folder.name)
    for folder in pathlib.Path("/proc").glob("[0-9]*")
    if words in (folder / "cmdline").read_bytes().replace(b"\\0", b" ").decode()
]
found = sorted(set(found) - {1, os.getpid()})
if not found:
    sys.exit(f"no process has {words} in its command line")
os.kill(found[-1 if age == "youngest" else 0], signal.SIGKILL)
"""


@dataclass
class Cluster:
    """A namespace of the cluster that ``KUBECONFIG`` names."""

    namespace: str
    image: str
    #: A machine that answers on the cluster's node ports.
    address: str = "127.0.0.1"
    kubectl_command: str = field(
        default_factory=lambda: shutil.which("kubectl") or shutil.which("kubectl-lab") or "kubectl"
    )
    report: list[str] = field(default_factory=list)

    def kubectl(self, *words: str, stdin: str = "", check: bool = True, timeout_s: float = 300) -> str:
        """Run kubectl in the namespace, and return what it prints."""
        command = [self.kubectl_command, "--namespace", self.namespace, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0 or not check, f"{shlex.join(command)}: {done.stderr}{done.stdout}"
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "--output", "json"))

    def version(self) -> str:
        return str(json.loads(self.kubectl("version", "--output", "json"))["serverVersion"]["gitVersion"])

    def template(self, name: str, *options: str) -> str:
        """Run ``sm template`` for the cluster's image, and return what it prints."""
        words = ("template", name, "--image", self.image, *POD, *options)
        done = subprocess.run(
            [sys.executable, "-m", "sm.cli", *words], cwd=HERE, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def adapt(self, documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Give the documents the versions of this cluster, and a port that callers outside of it reach."""
        known = self.kubectl("api-versions").split()
        for document in documents:
            version = document["apiVersion"]
            document["apiVersion"] = version if version in known else OLDER[version]
            if document["kind"] == "Service":
                document["spec"]["type"] = "NodePort"
            if document["kind"] == "HorizontalPodAutoscaler":
                document["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = STABLE_S
            # The callers come from outside, which the policy forbids.
            if document["kind"] != "NetworkPolicy":
                yield document

    def deployed(
        self, name: str, *options: str, wait_ready: bool = True
    ) -> AbstractContextManager[Deployment]:
        documents = yaml.safe_load_all(self.template(name, "--format", "kubernetes", *options))
        return self.applied(name, documents, wait_ready)

    @contextmanager
    def applied(
        self, name: str, documents: Iterable[dict[str, Any]], wait_ready: bool = True
    ) -> Iterator[Deployment]:
        written = yaml.safe_dump_all(self.adapt(documents))
        self.kubectl("apply", "--filename", "-", stdin=written)
        try:
            port = self.get("service", name)["spec"]["ports"][0]["nodePort"]
            deployment = Deployment(self, name, port)
            if wait_ready:
                deployment.wait_rolled_out()
            yield deployment
        finally:
            self.kubectl("delete", "--filename", "-", "--wait=false", stdin=written)
            self.kubectl("delete", "pods", "--selector", selector(name), "--grace-period", "1", "--wait")


def wait_slowly(condition: Callable[[], Any], timeout_s: float, description: str) -> Any:
    """Wait without keeping the cluster's API server busy."""
    never = threading.Event()
    return wait_until(lambda: condition() or never.wait(0.5), timeout_s, description)


def selector(name: str) -> str:
    return f"app.kubernetes.io/instance={name}"


@dataclass(frozen=True)
class Deployment:
    """Pods behind a Service."""

    cluster: Cluster
    name: str
    port: int

    @property
    def object(self) -> str:
        return f"deployment/{self.name}"

    @property
    def url(self) -> str:
        return f"http://{self.cluster.address}:{self.port}"

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods that are not ending."""
        pods = self.cluster.get("pods", "--selector", selector(self.name))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def pod_names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def wait_rolled_out(self, timeout_s: float = READY_S) -> None:
        words = ("rollout", "status", self.object, f"--timeout={timeout_s:g}s")
        self.cluster.kubectl(*words, timeout_s=timeout_s + 10)

    def wait_ready(self, count: int) -> None:
        """Wait until the Service sends requests to so many pods, and no other pod is left."""

        def is_so() -> bool:
            subsets = self.cluster.get("endpoints", self.name).get("subsets", [])
            ready = sum(len(subset.get("addresses", [])) for subset in subsets)
            pods = self.cluster.get("pods", "--selector", selector(self.name))["items"]
            return ready == count == len(pods)

        wait_slowly(is_so, READY_S, f"{count} ready pods of {self.name}")

    def scale(self, count: int) -> None:
        self.cluster.kubectl("scale", self.object, f"--replicas={count}")
        self.wait_ready(count)

    def set_env(self, setting: str) -> None:
        self.cluster.kubectl("set", "env", self.object, setting)

    def kill(self, pod: str, words: str, age: Literal["oldest", "youngest"] = "oldest") -> None:
        """End a process of a pod by SIGKILL: of those that have the words, a master is the oldest."""
        self.cluster.kubectl("exec", pod, "--", PYTHON, "-c", KILL, words, age)

    def log(self, *pods: str) -> str:
        """Return the logs of pods, also of their containers that have ended."""
        words = [(pod, *previous) for pod in pods for previous in ((), ("--previous",))]
        return "".join(self.cluster.kubectl("logs", *each, check=False) for each in words)

    def metric(self, pod: str, name: str) -> float:
        """Return the sum of a metric's series in a pod."""
        path = f"/api/v1/namespaces/{self.cluster.namespace}/pods/{pod}:8080/proxy/metrics"
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.cluster.kubectl("get", "--raw", path), re.M)
        return sum(map(float, found))

    def invoke(self, body: dict[str, Any], session: str = "") -> requests.Response:
        headers = {"X-Amzn-SageMaker-Session-Id": session} if session else {}
        return requests.post(f"{self.url}/invocations", json=body, headers=headers, timeout=HANG_S)

    @contextmanager
    def under_load(
        self, scenario: str, model: str = "double", settle_s: float = 3.0, allowed: Sequence[str] = ()
    ) -> Iterator[Counter[str]]:
        """Check the answers of 8 callers during the block; half of them keep their connection.

        Yields the outcomes that were not right, once the block has ended. AssertionError afterwards if there were
        any but the ``allowed`` ones.
        """
        callers = Callers(self.port, samples(model), CALLERS, hang_after_s=HANG_S, host=self.cluster.address)
        callers.start()
        started, wrong = time.monotonic(), Counter[str]()
        try:
            time.sleep(settle_s)
            yield wrong
            time.sleep(settle_s)
        finally:
            callers.stop()
            wrong.update({name: count for name, count in callers.outcomes().items() if name != RIGHT})
            seconds, total = time.monotonic() - started, sum(callers.outcomes().values())
            slowest = max((reply.ended - reply.started for reply in callers.snapshot()), default=0.0)
            found = ", ".join(f"{count} × {name}" for name, count in sorted(wrong.items())) or "0"
            row = f"| {scenario} | {seconds:.0f} s | {total:,} | {found} | {slowest:.1f} s |"
            self.cluster.report.append(row)
        assert {*wrong} <= {*allowed}, f"{scenario}: {found} of {total}; {callers.details}"


def cluster_tool(*words: str) -> None:
    """Run the program that loads images and stops nodes: TRIREME_CLUSTER_TOOL."""
    done = subprocess.run([os.environ["TRIREME_CLUSTER_TOOL"], *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
