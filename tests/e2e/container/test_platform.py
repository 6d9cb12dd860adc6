"""The real image as the instances of an endpoint, on the tests' SageMaker host."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.support.containers import PYTHON, podman, write_team_repository
from tests.support.played_aws import Account, as_container, played_aws


def test_the_image_runs_an_archive_of_the_bucket(image: str, tmp_path: Path) -> None:
    with played_aws(tmp_path / "boxes", as_container) as aws:
        account = Account(aws.url)
        url = account.upload("model.tar.gz", write_team_repository(tmp_path / "team"))
        record = account.create("real", url, image)
        assert record["EndpointStatus"] == "InService", record
        assert json.loads(account.invoke_text("real", "four"))["result"] == [4.0, 4.0, 4.0]


def test_the_image_has_what_s3_needs_and_not_the_other_services(image: str) -> None:
    code = "import boto3; s = boto3.Session(region_name='eu-west-1'); s.client('s3'); print(s.get_available_services())"
    services = podman("run", "--rm", "--entrypoint", PYTHON, image, "-c", code)
    assert set(ast.literal_eval(services)) <= {"s3", "sts", "sso", "sso-oidc", "signin"}
