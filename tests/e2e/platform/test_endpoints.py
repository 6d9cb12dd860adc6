"""Endpoints with the real boto3, moto's SageMaker and real boxes: created, invoked, killed, updated and deleted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.aws_command import run_aws
from tests.support.boxes import wait_until
from tests.support.platform.account import BUCKET, Account
from tests.support.platform.fixtures import Platform, write_team_repository
from tests.support.platform.host import aws_client


@pytest.fixture(scope="module")
def account(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Account:
    """Two endpoints: ``plain`` of two instances, and ``later``, an asynchronous one."""
    account = platform.account
    url = account.upload("plain/model.tar.gz", write_team_repository(tmp_path_factory.mktemp("team")))
    account.create("plain", url, instance_count=2)
    output = {"S3OutputPath": f"s3://{BUCKET}/answers", "S3FailurePath": f"s3://{BUCKET}/failures"}
    account.create("later", url, AsyncInferenceConfig={"OutputConfig": output})
    for name in ("plain", "later"):
        assert account.wait_until_steady(name)["EndpointStatus"] == "InService"
    return account


def error_of(caught: pytest.ExceptionInfo[ClientError]) -> tuple[int, str, dict[str, Any]]:
    response: Any = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"], response


def test_an_endpoint_answers_and_passes_custom_attributes_both_ways(account: Account) -> None:
    answer = account.runtime.invoke_endpoint(
        EndpointName="plain", ContentType="text/plain", Body=b"so so", CustomAttributes="a=1"
    )
    assert json.loads(answer["Body"].read())["result"] == ["SO", "SO"]
    assert (answer["CustomAttributes"], answer["InvokedProductionVariant"]) == ("seen=a=1", "AllTraffic")


def test_a_containers_error_is_a_model_error_with_its_status_and_message(
    account: Account,
) -> None:
    with pytest.raises(ClientError) as caught:
        account.invoke_text("plain", "boom")
    status, code, response = error_of(caught)
    assert (status, code, response["OriginalStatusCode"]) == (424, "ModelError", 500)
    assert json.loads(response["OriginalMessage"])["code"] == "client_failed"


def stream_events(account: Account, text: str) -> Iterator[str]:
    """Yield the events of a streamed answer. A part may hold several: HTTP keeps no borders within a body."""
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName="plain", ContentType="text/plain", Accept="text/event-stream", Body=text.encode()
    )
    received = ""
    for part in answer["Body"]:
        *events, received = (received + part["PayloadPart"]["Bytes"].decode()).split("\n\n")
        yield from events
    assert not received, "the stream ended within an event"


def result_of(event: str) -> str:
    result: str = json.loads(event.removeprefix("data: "))["result"]
    return result


def test_a_streams_first_event_arrives_before_its_second_exists(account: Account, tmp_path: Path) -> None:
    permission = tmp_path / "permission"
    events = stream_events(account, f"a {permission} b")
    assert result_of(next(events)) == "A"
    permission.touch()
    assert [result_of(event) for event in events] == ["B"]


def test_a_broken_stream_ends_with_the_error(account: Account) -> None:
    first, last = stream_events(account, "a boom")
    assert result_of(first) == "A"
    assert last.startswith("event: error")
    with pytest.raises(ClientError, match="client_failed"):
        list(stream_events(account, "boom"))


def test_the_aws_command_invokes_an_endpoint_and_shows_its_error(
    platform: Platform, account: Account, tmp_path: Path
) -> None:
    def invoke(body: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "body").write_text(body)
        flags = ("--endpoint-name", "plain", "--content-type", "text/plain", "--body", "fileb://body")
        command = ("sagemaker-runtime", "invoke-endpoint", *flags, *words, "answer.json")
        return run_aws(tmp_path, platform.host.url, *command)

    done = invoke("so so", "--custom-attributes", "a=1")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text())["result"] == ["SO", "SO"]
    output = json.loads(done.stdout)
    assert (output["CustomAttributes"], output["InvokedProductionVariant"]) == ("seen=a=1", "AllTraffic")
    failed = invoke("boom")
    assert failed.returncode != 0
    assert "(ModelError)" in failed.stderr
    assert "client_failed" in failed.stderr


def test_the_aws_command_invokes_an_asynchronous_endpoint(
    platform: Platform, account: Account, tmp_path: Path
) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="cli", Body=b"at last")
    flags = ("--endpoint-name", "later", "--content-type", "text/plain")
    input_location = ("--input-location", f"s3://{BUCKET}/cli")
    done = run_aws(
        tmp_path, platform.host.url, "sagemaker-runtime", "invoke-endpoint-async", *flags, *input_location
    )
    assert done.returncode == 0, done.stderr
    key = json.loads(done.stdout)["OutputLocation"].removeprefix(f"s3://{BUCKET}/")

    def has_answer() -> bool:
        rows = account.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return any(row["Key"] == key for row in rows)

    wait_until(has_answer, description="the answer in S3")
    answer = account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert json.loads(answer)["result"] == ["AT", "LAST"]


def test_an_asynchronous_endpoint_writes_answers_and_failures_to_s3(account: Account) -> None:
    def invoke_async(text: str) -> Any:
        account.s3.put_object(Bucket=BUCKET, Key="question", Body=text.encode())
        answer = account.runtime.invoke_endpoint_async(
            EndpointName="later", InputLocation=f"s3://{BUCKET}/question", ContentType="text/plain"
        )
        return answer["OutputLocation"], answer["FailureLocation"]

    def read_object(url: str) -> str:
        keys = account.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        key = url.removeprefix(f"s3://{BUCKET}/")
        is_there = any(row["Key"] == key for row in keys)
        return account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode() if is_there else ""

    output, _ = invoke_async("in time")
    assert json.loads(wait_until(lambda: read_object(output)))["result"] == ["IN", "TIME"]
    output, failure = invoke_async("boom")
    assert "client_failed" in wait_until(lambda: read_object(failure))
    assert not read_object(output)


def test_the_containers_log_is_in_cloudwatch(platform: Platform, account: Account) -> None:
    logs = aws_client(platform.host.url, "logs")
    streams = logs.describe_log_streams(logGroupName="/aws/sagemaker/Endpoints/plain")["logStreams"]
    assert any(stream["logStreamName"].startswith("AllTraffic/i-") for stream in streams)
    name = streams[0]["logStreamName"]

    def has_line() -> bool:
        group = "/aws/sagemaker/Endpoints/plain"
        events = logs.get_log_events(logGroupName=group, logStreamName=name)["events"]
        return any("ready" in event["message"] for event in events)

    # They are sent now and then.
    wait_until(has_line, description="the line that says that the box is ready")
