"""The real image as the instances of an endpoint, on the tests' SageMaker host."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.support.aws import fake_aws
from tests.support.containers import PYTHON, podman
from tests.support.platform.account import Account
from tests.support.platform.fixtures import write_team_repository
from tests.support.platform.host import Host
from tests.support.platform.machines import PodmanLauncher


def test_the_image_runs_an_archive_of_the_bucket(image: str, tmp_path: Path) -> None:
    with fake_aws() as address:
        host = Host(f"http://{address}", PodmanLauncher(), tmp_path / "machines")
        with host.run():
            account = Account(host.url)
            url = account.upload("model.tar.gz", write_team_repository(tmp_path / "team"))
            account.create("real", url, image=image, environment={"NAME": "ann"})
            record = account.wait_until_steady("real")
            assert record["EndpointStatus"] == "InService", record
            assert json.loads(account.invoke_text("real", "my name"))["result"] == ["MY", "ANN"]
            machine = host.endpoints["real"].instances[0].machine
        assert not machine.alive()


def test_the_image_has_what_s3_needs_and_not_the_other_services(image: str) -> None:
    code = "import boto3; s = boto3.Session(region_name='eu-west-1'); s.client('s3'); print(s.get_available_services())"
    services = podman("run", "--rm", "--entrypoint", PYTHON, image, "-c", code)
    assert set(ast.literal_eval(services)) <= {"s3", "sts", "sso", "sso-oidc", "signin"}
