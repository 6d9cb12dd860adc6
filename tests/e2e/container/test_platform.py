"""The real image as the instances of an endpoint: moto has SageMaker's records, boto3 and the image are real."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containers import PYTHON, Container, podman, write_team_repository
from tests.support.played_aws import Account, PlayedAws, as_container, played_aws


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedAws]:
    with played_aws(tmp_path_factory.mktemp("boxes"), as_container) as started:
        yield started


@pytest.fixture(scope="module")
def account(aws: PlayedAws) -> Account:
    return Account(aws.url)


def test_the_image_runs_an_archive_of_the_bucket(account: Account, image: str, tmp_path: Path) -> None:
    url = account.upload("model.tar.gz", write_team_repository(tmp_path / "team"))
    record = account.create("real", url, image)
    assert record["EndpointStatus"] == "InService", record
    assert json.loads(account.invoke_text("real", "four"))["result"] == [4.0, 4.0, 4.0]


@pytest.mark.exhaustive
def test_an_image_with_models_inside_answers_without_model_data(
    aws: PlayedAws, account: Account, team_image: str
) -> None:
    record = account.create("bare", "", team_image)
    assert record["EndpointStatus"] == "InService", record
    answer = json.loads(account.invoke_text("bare", "four", CustomAttributes="modelname=team"))
    assert answer["result"] == [4.0, 4.0, 4.0]
    (box,) = aws.endpoints["bare"].boxes
    assert isinstance(box, Container)
    source = "from /opt/trireme/repository (baked into the image: there is nothing in /opt/ml/model)"
    assert source in box.logs()
    # Its clients and their samples are inside too.
    sm_test = (PYTHON, "-m", "sm.cli", "test", "--url", "http://localhost:8080")
    assert "tokens     equal" in podman("exec", box.id, *sm_test)


def test_the_image_has_what_s3_needs_and_not_the_other_services(shared_container: Container) -> None:
    code = "import boto3; s = boto3.Session(region_name='eu-west-1'); s.client('s3'); print(s.get_available_services())"
    services = shared_container.python(code)
    assert set(ast.literal_eval(services)) <= {"s3", "sts", "sso", "sso-oidc", "signin"}
