"""Deployments that succeed, and options that are refused."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from s3transfer.manager import TransferManager
from werkzeug import Response

from tests.e2e.deploy.account import BUCKET, IMAGE, FakeAccount, write_repository
from tests.support.aws_proxy import json_response
from trireme_tools.deploy import file_upload, gpu_hosts
from trireme_tools.deploy.model_data import url_of


def test_a_folder_becomes_an_endpoint_once_and_its_answers_are_compared(cloud: FakeAccount) -> None:
    options = ("--count", "2", "--startup-timeout", "900", "--env", "A=1", "--tags", "team=sea", "cost=7")
    assert cloud.deployed(*options).equal == {"ship"}
    things, sagemaker = cloud.list_resources(), cloud.client("sagemaker")
    assert things["endpoints"] == ["ships"] and things["configurations"] == [cloud.deployed_configuration()]
    (model,), (version,) = things["models"], things["archives"]
    container = sagemaker.describe_model(ModelName=model)["PrimaryContainer"]
    source = container.pop("ModelDataSource")["S3DataSource"]
    assert container == {"Image": IMAGE, "Mode": "SingleModel", "Environment": {"A": "1"}}
    assert source.items() >= {
        ("S3DataType", "S3Prefix"),
        ("CompressionType", "None"),
        ("S3Uri", f"s3://{BUCKET}/{version}"),
    }
    (variant,) = cloud.created()["ProductionVariants"]
    assert variant.items() >= {
        ("InitialInstanceCount", 2),
        ("InstanceType", "ml.g4dn.xlarge"),
        ("ContainerStartupHealthCheckTimeoutInSeconds", 900),
        ("InferenceAmiVersion", gpu_hosts.known_amis()[-1]),
    }
    arn = sagemaker.describe_endpoint(EndpointName="ships")["EndpointArn"]
    tags = {each["Key"]: each["Value"] for each in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    assert tags == {"trireme:deployment": "ships", "team": "sea", "cost": "7"}
    cloud.proxy.changes = []
    cloud.deployed(*options)
    assert cloud.proxy.changes == [] and cloud.list_resources() == things


def test_an_image_with_its_models_needs_no_model_data_and_aws_gets_none(cloud: FakeAccount) -> None:
    cloud.succeed("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large")
    container = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]
    assert container["Image"] == IMAGE and not {"ModelDataUrl", "ModelDataSource"} & container.keys()
    assert cloud.list_resources()["archives"] == []


def test_wrong_answers_are_an_error_and_the_endpoint_stays(cloud: FakeAccount) -> None:
    wrong = json.dumps({"result": {"label": "dog", "score": 0.75}}).encode()
    cloud.proxy.fixed_responses["InvokeEndpoint"] = Response(wrong, content_type="application/json")
    done = cloud.deploy()
    assert done.code == 1 and "result['label']" in done.out
    assert cloud.list_resources()["endpoints"] == ["ships"]


def test_a_large_archive_is_sent_in_parts(cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_upload, "PART_BYTES", 5 << 20)  # S3's smallest
    (cloud.repository / "ship/1/noise").write_bytes(secrets.token_bytes(6 << 20))
    cloud.deployed("--archive")
    (archive,) = cloud.list_resources()["archives"]
    assert "-" in cloud.client("s3").head_object(Bucket=BUCKET, Key=archive)["ETag"], "it has one part only"


def test_a_new_version_sends_what_has_changed_and_copies_the_rest(
    cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cloud.repository / "both/1").mkdir(parents=True)  # an ensemble's version has no file
    (cloud.repository / "both/config.pbtxt").write_text('name: "both" platform: "ensemble"')
    (cloud.repository / "ship/1/same").symlink_to("weight")
    sent: list[str] = []
    upload = TransferManager.upload

    def upload_noted(self: Any, body: Any, bucket: str, key: str, *rest: Any) -> Any:
        sent.append(key)
        return upload(self, body, bucket, key, *rest)

    monkeypatch.setattr(TransferManager, "upload", upload_noted)
    cloud.deployed()
    (first,) = cloud.list_resources()["archives"]
    names = {key.removeprefix(first) for key in cloud.keys(BUCKET)}
    assert {"ship/1/same", "both/1/.keep", "code/ship/client.py"} <= names and len(sent) == len(names)
    sent.clear()
    (cloud.repository / "ship/1/model.py").write_text("class TritonPythonModel:\n    pass\n")
    cloud.deployed()
    (second,) = {*cloud.list_resources()["archives"]} - {first}
    assert sent == [f"{second}ship/1/model.py"]
    assert {key.removeprefix(second) for key in cloud.keys(BUCKET) if key.startswith(second)} == names
    s3 = cloud.client("s3")
    assert s3.get_object(Bucket=BUCKET, Key=f"{second}ship/1/same")["Body"].read() == b"1"
    assert s3.get_object(Bucket=BUCKET, Key=f"{second}ship/1/model.py")["Body"].read().endswith(b"pass\n")


def test_a_file_that_changes_while_it_is_sent_is_not_kept(
    cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = cloud.repository / "ship/1/weight"
    transfer = file_upload.FileUploader._transfer

    def transfer_changing(self: file_upload.FileUploader, *rest: Any) -> None:
        weight.write_text("22")
        transfer(self, *rest)

    monkeypatch.setattr(file_upload.FileUploader, "_transfer", transfer_changing)
    assert cloud.deploy().code == 1
    assert not any(key.endswith("ship/1/weight") for key in cloud.keys(BUCKET))
    assert cloud.list_resources()["models"] == []


@pytest.mark.parametrize(
    ("url", "key"), [("s3://ours/ships/", "ships/ship/1/weight"), ("s3://ours/m.tar.gz", "m.tar.gz")]
)
def test_what_is_on_s3_is_used_unchanged(cloud: FakeAccount, url: str, key: str) -> None:
    s3 = cloud.make_bucket("ours")
    assert cloud.deploy(data=url).code == 1, "there is nothing"
    configurations = set()
    for content in (b"1", b"2"):  # under the same name
        s3.put_object(Bucket="ours", Key=key, Body=content)
        cloud.deployed(data=url)
        configurations.add(cloud.deployed_configuration())
        assert url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]) == url
    assert len(configurations) == 2
    s3.put_object(Bucket="ours", Key="ships/code/")  # as S3's console makes a folder
    cloud.proxy.changes = []
    assert cloud.deploy(data=url).code == (1 if url.endswith("/") else 0) and cloud.proxy.changes == []


def test_a_field_without_an_option_reaches_its_call_and_a_shadow_keeps_it(
    cloud: FakeAccount, tmp_path: Path
) -> None:
    network = {"Subnets": ["s"], "SecurityGroupIds": ["g"]}
    fields = ("ProductionVariants[0].VolumeSizeInGB=50", f"VpcConfig={json.dumps(network)}")
    cloud.deployed("--set", fields[0], "--set", fields[1])
    assert cloud.proxy.bodies.pop("CreateModel")["VpcConfig"] == network
    cloud.succeed("deploy", "ships", "--shadow", str(write_repository(tmp_path / "next", "2")))
    variants = (*cloud.created()["ProductionVariants"], *cloud.created()["ShadowProductionVariants"])
    assert [row["VolumeSizeInGB"] for row in variants] == [50, 50]
    assert cloud.proxy.bodies["CreateModel"]["VpcConfig"] == network


def test_a_client_is_compared_by_its_own_name_and_only_if_its_model_is_served(
    cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = cloud.repository / "code"
    (code / "ship").rename(code / "harbour")
    assert cloud.deployed().equal == {"harbour"}
    monkeypatch.setenv("TRIREME_CLIENTS", str(code))
    message = json.dumps({"error": "there is no model ship", "code": "unknown_model", "request_id": "1"})
    body = {"Message": "the model failed", "OriginalStatusCode": 404, "OriginalMessage": message}
    cloud.proxy.fixed_responses["InvokeEndpoint"] = json_response(
        body, 424, **{"x-amzn-ErrorType": "ModelError"}
    )
    done = cloud.deployed(data=url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]))
    assert done.equal == set()


def test_a_multi_model_endpoint_has_an_archive_for_each_model_and_compares_each(cloud: FakeAccount) -> None:
    write_repository(cloud.repository, model="boat")
    assert cloud.deployed("--mme").equal == {"ship", "boat"}
    archives = [key.rpartition("/")[2] for key in cloud.list_resources()["archives"]]
    assert sorted(archives) == ["boat.tar.gz", "ship.tar.gz"]
    container = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]
    assert container["Mode"] == "MultiModel" and container["ModelDataUrl"].endswith("/")


def test_asynchronous_answers_are_compared_through_s3_and_a_backlog_starts_an_instance(
    cloud: FakeAccount,
) -> None:
    cloud.make_bucket("answers")
    scaling = ("--autoscale", "0:4", "--target-invocations", "5")
    topic = "arn:aws:sns:eu-west-1:123456789012:answers"
    done = cloud.deployed("--async", "s3://answers/out", "--notify", topic, *scaling)
    assert done.equal == {"ship"}
    assert cloud.created()["AsyncInferenceConfig"]["OutputConfig"] == {
        "S3OutputPath": "s3://answers/out",
        "S3FailurePath": "s3://answers/out/failures/",
        "NotificationConfig": {"SuccessTopic": topic, "ErrorTopic": topic},
    }
    (alarm,) = cloud.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["MetricName"] == "HasBacklogWithoutCapacity"
    assert "policyName/ships-wake" in alarm["AlarmActions"][0]
    assert not [key for key in cloud.list_resources()["archives"] if "trireme-check" in key]


def test_a_dry_run_prints_the_calls_and_makes_none(cloud: FakeAccount) -> None:
    targets = ("--target-invocations", "9", "--target-cpu", "70", "--target-gpu", "90")
    done = cloud.deployed("--dry-run", "--autoscale", "1:2", *targets, "--alarm", "errors")
    assert [line.split()[1:3] for line in done.out.splitlines()] == [
        ["s3api", "create-bucket"],
        ["s3", "cp"],
        ["cloudwatch", "put-metric-alarm"],
        ["sagemaker", "create-model"],
        ["sagemaker", "create-endpoint-config"],
        ["sagemaker", "create-endpoint"],
        ["application-autoscaling", "register-scalable-target"],
        *[["application-autoscaling", "put-scaling-policy"]] * 3,
    ]
    assert cloud.proxy.changes == [] and not any(cloud.list_resources().values())


def test_wrong_options_are_refused_before_any_change(cloud: FakeAccount) -> None:
    for words in (
        ("--serverless", "2048:5", "--mme"),
        ("--serverless", "2000:5"),
        ("--serverless", "2048:5", "--model-data", "s3://ours/ships/"),
        ("--startup-timeout", "5000"),
        ("--env", "A"),
        ("--notify", "arn:aws:sns:eu-west-1:123456789012:t"),
        ("--set", "ProductionVariants[0].VolumSizeInGB=50"),
        ("--ami", "al2-ami-sagemaker-inference-gpu-0"),
        ("--instance-type", "ml.p3.2xlarge", "--image", IMAGE.replace(":1", ":0.1.0-3f2c9a1b7d04")),
    ):
        assert cloud.deploy(*words).code in (1, 2), words
    assert cloud.sm("deploy", "ships").code == 1
    assert cloud.proxy.changes == []
