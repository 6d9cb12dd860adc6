"""An AWS whose endpoints are real boxes: moto keeps the records, and for each endpoint one box is started.

``python -m tests.support.played_aws COMMAND …`` runs a command in such an account.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from botocore.exceptions import ClientError
from werkzeug import Response

from tests.support.aws import ENVIRONMENT, REGION, registry_config, running_registry
from tests.support.aws_proxy import Call, Proxy, add, json_error, running_proxy
from tests.support.boxes import RunningBox, running_box
from tests.support.containers import provide_base
from tests.support.played_codebuild import PlayedCodeBuild, machine
from trireme_tools.deploy.model_data import url_of

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:test"
ROLE = "arn:aws:iam::123456789012:role/serving"
HOP_BY_HOP = {"connection", "transfer-encoding"}
#: The most boxes of an endpoint, whatever its number of instances.
MAX_INSTANCES = 2


@dataclass
class Endpoint:
    """An endpoint's state, and the boxes of its instances once they are ready; ``stack`` stops them."""

    status: str
    reason: str = ""
    boxes: list[RunningBox] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    changing: threading.Thread = field(default_factory=threading.Thread)
    strategy: str = "RANDOM"
    #: Requests under way at each box, by its URL.
    in_flight: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def routed(self) -> Iterator[str]:
        """Choose a box as the routing strategy says, and yield its URL."""
        with self.lock:
            urls = [box.url for box in self.boxes]
            # With as many at both, neither is first for ever.
            random.shuffle(urls)
            url = urls[0] if self.strategy == "RANDOM" else min(urls, key=self.in_flight.__getitem__)
            self.in_flight[url] += 1
        try:
            yield url
        finally:
            with self.lock:
                self.in_flight[url] -= 1


@dataclass
class PlayedAws(Proxy):
    """Starts, replaces and stops boxes as the account's endpoints are created, updated and deleted."""

    folder: Path = Path()
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    #: The boxes of inference components, by name.
    copies: dict[str, Endpoint] = field(default_factory=dict)

    def respond(self, call: Call) -> Response:
        if call.operation == "InvokeEndpoint":
            return self._invoke(call)
        response = super().respond(call)
        if "InferenceComponent" in call.operation and call.is_change:
            self._play_component(call.parameters["InferenceComponentName"])
        if response.status_code != 200 or not call.operation.endswith("Endpoint"):
            return response
        name = call.parameters["EndpointName"]
        if call.operation == "DescribeEndpoint" and (endpoint := self.endpoints.get(name)):
            add(response, {"EndpointStatus": endpoint.status, "FailureReason": endpoint.reason})
        elif call.operation in ("CreateEndpoint", "UpdateEndpoint"):
            endpoint = self.endpoints.setdefault(name, Endpoint("Creating"))
            endpoint.status = "Updating" if endpoint.boxes else "Creating"
            self._replace(name, endpoint, self._variant(name))
        elif call.operation == "DeleteEndpoint":
            self._stop(self.endpoints.pop(name))
        return response

    def _play_component(self, name: str) -> None:
        """Start, replace or stop the boxes of an inference component: one for each copy."""
        endpoint = self.copies.setdefault(name, Endpoint("Creating"))
        if (component := self.components.get(name)) is None:
            self._stop(self.copies.pop(name))
            return
        count = component["RuntimeConfig"]["DesiredCopyCount"]
        variant = {"ModelName": component["Specification"]["ModelName"], "InitialInstanceCount": count}
        component["InferenceComponentStatus"] = "Updating" if endpoint.boxes else "Creating"
        self._replace(name, endpoint, variant, component)

    def _replace(self, *arguments: Any) -> None:
        """Run :meth:`_replace_boxes` in a thread."""
        endpoint: Endpoint = arguments[1]
        endpoint.changing = threading.Thread(target=self._replace_boxes, args=arguments)
        endpoint.changing.start()

    def close(self) -> None:
        for endpoint in (*self.endpoints.values(), *self.copies.values()):
            self._stop(endpoint)

    def _stop(self, endpoint: Endpoint) -> None:
        endpoint.changing.join()
        endpoint.stack.close()

    def _invoke(self, call: Call) -> Response:
        """Send the request to the box, whose route of this path answers as SageMaker's runtime does."""
        endpoint = self.endpoints.get(call.path.split("/")[2])
        if component := call.headers.get("X-Amzn-SageMaker-Inference-Component"):
            endpoint = self.copies.get(component)
            if endpoint and not endpoint.boxes:
                self._count_no_capacity(component)
                return json_error(400, "ValidationError", f"Inference component {component} has no capacity.")
        if endpoint is None or not endpoint.boxes:
            return json_error(400, "ValidationError", "The endpoint is not in service.")
        with endpoint.routed() as url:
            headers, where = dict(call.headers), url + call.path
            answer = requests.request(call.method, where, data=call.body, headers=headers, timeout=60)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)

    def _count_no_capacity(self, component: str) -> None:
        """Write the metric of the alarm that starts a component's first copy."""
        dimension = {"Name": "InferenceComponentName", "Value": component}
        row = {"MetricName": "NoCapacityInvocationFailures", "Value": 1.0, "Dimensions": [dimension]}
        self.client("cloudwatch").put_metric_data(Namespace="AWS/SageMaker", MetricData=[row])

    def _replace_boxes(
        self, name: str, endpoint: Endpoint, variant: Mapping[str, Any], component: Any = None
    ) -> None:
        """Start the boxes of a variant or of a component. The old ones serve until the new ones are ready.

        A variant without a model has only instances, for components.
        """
        stack = ExitStack()
        try:
            wanted = variant.get("InitialInstanceCount", 1) if "ModelName" in variant else 0
            count = min(wanted, MAX_INSTANCES)
            boxes = [stack.enter_context(self._start_box(variant)) for _ in range(count)]
            for box in boxes:
                box.wait_ready()
                self._send_log(name, box.log.read_text())
        except (AssertionError, ClientError, tarfile.TarError) as error:
            stack.close()
            endpoint.status, endpoint.reason = "Failed", str(error)
            if component:
                component |= {"InferenceComponentStatus": "Failed", "FailureReason": str(error)}
            return
        old, endpoint.stack = endpoint.stack, stack
        endpoint.boxes, endpoint.status = boxes, "InService"
        endpoint.strategy = variant.get("RoutingConfig", {}).get("RoutingStrategy", "RANDOM")
        if component:
            component["InferenceComponentStatus"] = "InService"
        old.close()

    def _variant(self, name: str) -> dict[str, Any]:
        sagemaker = self.client("sagemaker")
        config_name = sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
        config = sagemaker.describe_endpoint_config(EndpointConfigName=config_name)
        return dict(config["ProductionVariants"][0])

    def _start_box(self, variant: Mapping[str, Any]) -> AbstractContextManager[RunningBox]:
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir(parents=True)
        described = self.client("sagemaker").describe_model(ModelName=variant["ModelName"])
        container = described["PrimaryContainer"]
        model = folder / "model" if (url := url_of(container)) else None
        if model:
            self._fetch(url, model)
        # A box of this checkout, whatever the image.
        return running_box(folder, model, False, (), "", "serve", **container.get("Environment", {}))

    def _fetch(self, url: str, folder: Path) -> None:
        """Unpack an archive, or download all files below a prefix, readable for the user of a container."""
        s3, parts = self.client("s3"), urlsplit(url)
        bucket, key = parts.netloc, parts.path.lstrip("/")
        folder.mkdir()
        if url.endswith("/"):
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key):
                for row in page["Contents"]:
                    file = folder / row["Key"].removeprefix(key)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    s3.download_file(bucket, row["Key"], str(file))
        else:
            with tempfile.TemporaryFile() as packed:
                s3.download_fileobj(bucket, key, packed)
                packed.seek(0)
                with tarfile.open(fileobj=packed) as archive:
                    archive.extractall(folder, filter="data")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)

    def _send_log(self, name: str, log: str) -> None:
        """Write the lines to the endpoint's log group, each start into a stream of its own."""
        logs, group = self.client("logs"), f"/aws/sagemaker/Endpoints/{name}"
        stream = {"logGroupName": group, "logStreamName": f"AllTraffic/i-{uuid.uuid4().hex[:17]}"}
        if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
            logs.create_log_group(logGroupName=group)
        logs.create_log_stream(**stream)
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line} for line in log.splitlines() if line.strip()]
        if events:
            logs.put_log_events(**stream, logEvents=events)


@contextmanager
def played_aws(folder: Path) -> Iterator[PlayedAws]:
    """Run such an AWS; the boxes stop with the block."""
    with running_proxy(PlayedAws(folder=folder)) as aws:
        try:
            yield aws
        finally:
            aws.close()


@contextmanager
def playing_builds(aws: PlayedAws) -> Iterator[None]:
    """Let CodeBuild's builds run here, with Podman and a registry in ECR's place. Without these, nothing is built."""
    if not (shutil.which("podman") and shutil.which("docker-registry")):
        yield
        return
    folder = aws.folder / "registry"
    folder.mkdir(parents=True)
    provide_base()
    with running_registry(registry_config(folder)) as registry:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**ENVIRONMENT, **machine(registry, aws.url, aws.folder / "machine", path)}
        # Amazon's mirror is not reached from everywhere, and its images are Docker Hub's.
        for image in ("debian:trixie-slim",):
            names = (f"docker.io/library/{image}", f"public.ecr.aws/docker/library/{image}")
            subprocess.run(["podman", "tag", *names], capture_output=True)
        aws.codebuild = PlayedCodeBuild(aws.client, aws.folder / "builds", environment)
        try:
            yield
        finally:
            aws.codebuild.close()


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="played-") as folder,
        played_aws(Path(folder)) as aws,
        playing_builds(aws),
    ):
        variables = {**ENVIRONMENT, "AWS_ENDPOINT_URL": aws.url, "AWS_REGION": REGION}
        del variables["AWS_MAX_ATTEMPTS"]
        return subprocess.run(sys.argv[1:], env={**os.environ, **variables}).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
