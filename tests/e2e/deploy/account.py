"""Run ``sm`` deploy commands with boto3 against moto's fake AWS, behind a proxy that injects faults."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from moto.moto_api._internal.models import moto_api_backend
from moto.sagemakerruntime.models import sagemakerruntime_backends

from sm import cli
from sm.commands import client_loading
from sm.repository.problems import Problem
from tests.support.aws import ENVIRONMENT, REGION
from tests.support.aws_proxy import ACCOUNT, Proxy, running_proxy
from trireme_tools import aws
from trireme_tools.deploy.account import Account
from trireme_tools.progress import Progress

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trireme:1"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
GOLDEN_RESULT = {"label": "cat", "score": 0.75}
#: The code of repositories whose clients load, which takes a second in a process of their own.
LOADABLE_CODE: set[tuple[object, ...]] = set()
load_clients = client_loading.find_problems


def find_problems(repository: Path, *, mme: bool) -> list[Problem]:
    """Load a repository's clients, unless the same code was loaded before."""
    files = sorted(repository.rglob("*.py"))
    code = (mme, *((file.relative_to(repository), file.read_text()) for file in files))
    problems = [] if code in LOADABLE_CODE else load_clients(repository, mme=mme)
    if not problems:
        LOADABLE_CODE.add(code)
    return problems


@cache
def session_of(_user: str) -> Any:
    """Return a user's one session, which creates a service's client once: a client takes 50 ms.

    The first call creates it, when its environment is set.
    """
    session = aws.session()
    session.client = cache(session.client)
    return session


@dataclass
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def equal(self) -> set[str]:
        """The clients whose answers were compared and are equal."""
        return {line.split()[0] for line in self.out.splitlines() if line.split()[1:2] == ["equal"]}


@dataclass
class FakeAccount:
    """A fake AWS account with the image and the role, and a repository to deploy."""

    proxy: Proxy
    repository: Path
    #: boto3's session, shared because loading the services' descriptions takes seconds. None: one per command.
    session: Any = None
    clients: dict[str, Any] = field(default_factory=dict)

    def sm(self, *arguments: str, stdin: str = "") -> Done:
        """Run ``sm`` in this process, which has loaded boto3 already."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["sm", *arguments])
            patch.setattr(sys, "stdin", Terminal(stdin))
            patch.setattr(client_loading, "find_problems", find_problems)
            if self.session:
                patch.setattr(aws, "session", lambda region, profile: self.session)
            try:
                code = cli.main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def deploy(self, *arguments: str, name: str = "ships", data: str = "") -> Done:
        """Run ``sm deploy``, with an instance type that moto knows."""
        instance_type = () if "--serverless" in arguments else ("--instance-type", "ml.g4dn.xlarge")
        data = data or str(self.repository)
        return self.sm("deploy", name, "--image", IMAGE, "--model-data", data, *instance_type, *arguments)

    def deployed(self, *arguments: str, name: str = "ships", data: str = "") -> Done:
        """Run ``sm deploy``, which must succeed."""
        return succeeded(self.deploy(*arguments, name=name, data=data))

    def succeed(self, *arguments: str) -> Done:
        """Run ``sm``, which must succeed."""
        return succeeded(self.sm(*arguments))

    def created(self) -> dict[str, Any]:
        """Return the arguments that the newest configuration was created with."""
        created: dict[str, Any] = self.proxy.bodies["CreateEndpointConfig"]
        return created

    def client(self, service: str) -> Any:
        """Return a client that calls moto directly, without the proxy's faults."""
        if service not in self.clients:
            self.clients[service] = self.proxy.client(service)
        return self.clients[service]

    def set_results(self, *results: Any) -> None:
        """Set the results of the endpoint's next invocations, in order."""
        bodies = [json.dumps({"modelname": "ship", "result": result}) for result in results]
        runtime = sagemakerruntime_backends[ACCOUNT][REGION]
        runtime.results_queue.extend((body, "application/json", "AllTraffic", "") for body in bodies)
        runtime.async_results_queue.extend((False, body) for body in bodies)

    def account(self) -> Account:
        """Return the account as a deploy command sees it."""
        return Account(self.session, Progress(io.StringIO()), Progress(io.StringIO()))

    def make_bucket(self, name: str) -> Any:
        """Create a bucket, and return the client of S3."""
        location = {"LocationConstraint": REGION}
        self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=location)
        return self.client("s3")

    def put_image(self, tag: str) -> None:
        """Put an image into the account's registry."""
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []})
        self.client("ecr").put_image(repositoryName="trireme", imageTag=tag, imageManifest=manifest)

    def put_metrics(self, namespace: str, dimensions: dict[str, str], **values: float) -> None:
        """Write metrics of the last hour."""
        moment = datetime.now(timezone.utc) - timedelta(minutes=9)
        named = [{"Name": name, "Value": value} for name, value in dimensions.items()]
        rows = [
            {"MetricName": name, "Value": value, "Timestamp": moment, "Dimensions": named}
            for name, value in values.items()
        ]
        self.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=rows)

    def put_log_lines(self, *lines: str, instance: str = "i-0") -> None:
        """Write lines to the endpoint's log group, as its container would."""
        client, group = self.client("logs"), "/aws/sagemaker/Endpoints/ships"
        if not client.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
            client.create_log_group(logGroupName=group)
        stream = {"logGroupName": group, "logStreamName": f"AllTraffic/{instance}"}
        client.create_log_stream(**stream)
        now = int(time.time() + 600) * 1000  # later than the command's start, so that it shows them
        events = [{"timestamp": now + number, "message": line} for number, line in enumerate(lines)]
        client.put_log_events(**stream, logEvents=events)

    def list_resources(self) -> dict[str, list[str]]:
        """Return the names of the account's resources, by kind."""
        sagemaker = self.client("sagemaker")
        scaling = self.client("application-autoscaling")
        targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
        alarms = self.client("cloudwatch").describe_alarms()["MetricAlarms"]
        buckets = [each["Name"] for each in self.client("s3").list_buckets()["Buckets"]]
        configs = sagemaker.list_endpoint_configs()["EndpointConfigs"]
        return {
            "endpoints": [each["EndpointName"] for each in sagemaker.list_endpoints()["Endpoints"]],
            "configurations": [each["EndpointConfigName"] for each in configs],
            "models": [each["ModelName"] for each in sagemaker.list_models()["Models"]],
            "alarms": [each["AlarmName"] for each in alarms],
            "targets": [each["ResourceId"] for each in targets],
            "archives": sorted({archive_or_version(key) for bucket in buckets for key in self.keys(bucket)}),
        }

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of a bucket's objects."""
        objects = self.client("s3").list_objects_v2(Bucket=bucket).get("Contents", ())
        return [each["Key"] for each in objects]

    def deployed_configuration(self) -> str:
        """Return the name of the endpoint's configuration."""
        return str(self.client("sagemaker").describe_endpoint(EndpointName="ships")["EndpointConfigName"])


def succeeded(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


def archive_or_version(key: str) -> str:
    """Return an archive's key, or the prefix of the version that a single file belongs to."""
    return key if key.endswith(".tar.gz") else "/".join(key.split("/")[:3]) + "/"


class Terminal(io.StringIO):
    """Standard input that claims to be a terminal if it has text."""

    def isatty(self) -> bool:
        return bool(self.getvalue())


@pytest.fixture(scope="session")
def proxy() -> Iterator[Proxy]:
    with running_proxy(Proxy()) as made:
        yield made


@pytest.fixture
def cloud(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    moto_api_backend.reset()
    proxy.reset()
    (tmp_path / "clients").mkdir()
    env = {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": proxy.url,
        "NO_PROXY": "127.0.0.1",
        "TRIREME_CACHE": str(tmp_path / "cache"),
        "TRIREME_CLIENTS": str(tmp_path / "clients"),
    }
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    repository = write_repository(tmp_path / "repository")
    made = FakeAccount(proxy, repository, session_of(proxy.url))
    made.client("ecr").create_repository(repositoryName="trireme")
    made.put_image("1")
    made.client("iam").create_role(RoleName="trireme", AssumeRolePolicyDocument="{}")
    made.set_results(*[GOLDEN_RESULT] * 5)
    return made


#: A client that only has to load.
CLIENT = """from sm.client import Client


class Ship(Client):
    models = ({model!r},)

    def inference(self, payload):
        return None
"""


def write_repository(folder: Path, weight: str = "1", model: str = "ship") -> Path:
    """Write a repository with a model and its client. ``weight`` is a file's content that changes the archive."""
    files = {
        f"{model}/config.pbtxt": f'name: "{model}" backend: "python"',
        f"{model}/1/model.py": "class TritonPythonModel: ...\n",
        f"{model}/1/weight": weight,
        f"code/{model}/client.py": CLIENT.format(model=model),
        f"code/{model}/sample/payload.json": "{}",
        f"code/{model}/sample/golden.json": json.dumps(GOLDEN_RESULT),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
