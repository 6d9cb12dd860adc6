"""Deployments that succeed, and the checks of their options."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from s3transfer.manager import TransferManager

from tests.support.aws_proxy import Response
from tests.support.deploy_account import BUCKET, IMAGE, FakeAccount, write_repository
from trireme_tools.deploy import file_upload, gpu_hosts
from trireme_tools.deploy.model_data import url_of


def variant(cloud: FakeAccount) -> dict[str, Any]:
    config = cloud.client("sagemaker").describe_endpoint_config(
        EndpointConfigName=cloud.deployed_configuration()
    )
    return dict(config["ProductionVariants"][0])


def test_a_folder_becomes_an_endpoint_whose_answers_are_compared(cloud: FakeAccount) -> None:
    done = cloud.deploy(
        "--count", "2", "--startup-timeout", "900", "--env", "A=1", "--tags", "team=sea", "cost=7"
    )
    assert done.code == 0, done.err
    assert "ship  equal" in done.out
    things = cloud.list_resources()
    assert things["endpoints"] == ["ships"] and things["configurations"] == [cloud.deployed_configuration()]
    sagemaker = cloud.client("sagemaker")
    (model,), (version,) = things["models"], things["archives"]
    container = sagemaker.describe_model(ModelName=model)["PrimaryContainer"]
    source = container.pop("ModelDataSource")["S3DataSource"]
    assert container == {"Image": IMAGE, "Mode": "SingleModel", "Environment": {"A": "1"}}
    assert (source["S3DataType"], source["CompressionType"]) == ("S3Prefix", "None")
    assert source["S3Uri"] == f"s3://{BUCKET}/{version}"
    instances = variant(cloud)
    assert instances["InitialInstanceCount"] == 2 and instances["InstanceType"] == "ml.g4dn.xlarge"
    assert (
        cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"][0][
            "ContainerStartupHealthCheckTimeoutInSeconds"
        ]
        == 900
    )
    arn = sagemaker.describe_endpoint(EndpointName="ships")["EndpointArn"]
    tags = {each["Key"]: each["Value"] for each in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    assert tags == {"trireme:deployment": "ships", "team": "sea", "cost": "7"}


def test_a_gpu_host_has_the_newest_driver_and_an_update_brings_it(cloud: FakeAccount) -> None:
    assert cloud.deploy("--ami", "none").code == 0
    assert "InferenceAmiVersion" not in cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"][0]
    assert cloud.deploy().code == 0
    (created,) = cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"]
    assert created["InferenceAmiVersion"] == gpu_hosts.known_amis()[-1]
    named = gpu_hosts.known_amis()[0]
    assert cloud.deploy("--ami", named).code == 0
    (created,) = cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"]
    assert created["InferenceAmiVersion"] == named


@pytest.mark.parametrize(
    "options",
    [
        ("--ami", "al2-ami-sagemaker-inference-gpu-2-1"),
        ("--ami", "none"),
        ("--ami", "al2-ami-sagemaker-inference-gpu-0"),
        ("--instance-type", "ml.p3.2xlarge"),
    ],
)
def test_a_host_that_cannot_run_the_image_is_refused_before_anything_is_created(
    cloud: FakeAccount, options: tuple[str, ...]
) -> None:
    tagged = IMAGE.partition("@")[0].rpartition(":")[0] + ":0.1.0-3f2c9a1b7d04"
    cloud.proxy.changes = []
    done = cloud.deploy("--image", tagged, *options)
    assert done.code == 1
    assert cloud.proxy.changes == []


def test_deploying_the_same_again_changes_nothing(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    before, cloud.proxy.changes = cloud.list_resources(), []
    done = cloud.deploy()
    assert done.code == 0, done.err
    assert cloud.proxy.changes == [] and cloud.list_resources() == before


def test_wrong_answers_are_an_error_and_the_endpoint_stays(cloud: FakeAccount) -> None:
    wrong = json.dumps({"result": {"label": "dog", "score": 0.75}}).encode()
    cloud.proxy.fixed_responses["InvokeEndpoint"] = Response(200, {"Content-Type": "application/json"}, wrong)
    done = cloud.deploy()
    assert done.code == 1
    assert "result['label']" in done.out
    assert cloud.list_resources()["endpoints"] == ["ships"]


def test_a_large_archive_is_sent_in_parts(cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_upload, "PART_BYTES", 5 << 20)  # S3's smallest
    (cloud.repository / "ship/1/noise").write_bytes(secrets.token_bytes(6 << 20))
    done = cloud.deploy("--archive")
    assert done.code == 0, done.err
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
    assert cloud.deploy().code == 0
    (first,) = cloud.list_resources()["archives"]
    names = {key.removeprefix(first) for key in cloud.keys(BUCKET)}
    assert {"ship/1/same", "both/1/.keep", "code/ship/client.py"} <= names and len(sent) == len(names)
    sent.clear()
    (cloud.repository / "ship/1/model.py").write_text("class TritonPythonModel:\n    pass\n")
    assert cloud.deploy().code == 0
    (second,) = {*cloud.list_resources()["archives"]} - {first}
    assert sent == [f"{second}ship/1/model.py"]
    assert {key.removeprefix(second) for key in cloud.keys(BUCKET) if key.startswith(second)} == names
    s3 = cloud.client("s3")
    assert s3.get_object(Bucket=BUCKET, Key=f"{second}ship/1/same")["Body"].read() == b"1"
    assert s3.get_object(Bucket=BUCKET, Key=f"{second}ship/1/model.py")["Body"].read().endswith(b"pass\n")


def test_a_field_without_an_option_reaches_its_call_and_a_shadow_keeps_it(cloud: FakeAccount) -> None:
    cloud.proxy.changes = []
    refused = cloud.deploy("--set", "ProductionVariants[0].VolumSizeInGB=50")
    assert refused.code == 1 and "VolumeSizeInGB" in refused.err and cloud.proxy.changes == []
    refused = cloud.deploy("--set", "VpcConfig.Subnets[0]=subnet-1")
    assert refused.code == 1 and "SecurityGroupIds" in refused.err and cloud.proxy.changes == []
    fields = (
        "ProductionVariants[0].VolumeSizeInGB=50",
        'VpcConfig={"Subnets":["s"],"SecurityGroupIds":["g"]}',
    )
    assert cloud.deploy("--set", fields[0], "--set", fields[1]).code == 0
    assert cloud.proxy.bodies["CreateModel"]["VpcConfig"] == {"Subnets": ["s"], "SecurityGroupIds": ["g"]}
    assert cloud.sm("deploy", "ships", "--shadow", str(cloud.repository)).code == 0
    created = cloud.proxy.bodies["CreateEndpointConfig"]
    variants = (*created["ProductionVariants"], *created["ShadowProductionVariants"])
    assert [row["VolumeSizeInGB"] for row in variants] == [50, 50]
    assert cloud.proxy.bodies["CreateModel"]["VpcConfig"] == {"Subnets": ["s"], "SecurityGroupIds": ["g"]}


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


def test_the_files_below_a_prefix_on_s3_are_used_unchanged(cloud: FakeAccount) -> None:
    s3, url = cloud.client("s3"), "s3://ours/ships/"
    s3.create_bucket(Bucket="ours", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert cloud.deploy(data=url).code == 1, "there is nothing"
    s3.put_object(Bucket="ours", Key="ships/ship/1/weight", Body=b"1")
    assert cloud.deploy(data=url).code == 0
    first = cloud.deployed_configuration()
    assert url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]) == url
    s3.put_object(Bucket="ours", Key="ships/ship/1/weight", Body=b"2")
    assert cloud.deploy(data=url).code == 0
    assert cloud.deployed_configuration() != first, "a file has changed under its name"
    s3.put_object(Bucket="ours", Key="ships/code/")  # as S3's console makes a folder
    cloud.proxy.changes = []
    assert cloud.deploy(data=url).code == 1 and cloud.proxy.changes == []


def test_an_archive_on_s3_is_used_unchanged(cloud: FakeAccount) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="ours", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="ours", Key="model.tar.gz", Body=b"one")
    url = "s3://ours/model.tar.gz"
    assert cloud.deploy(data=url).code == 0
    first = cloud.deployed_configuration()
    s3.put_object(Bucket="ours", Key="model.tar.gz", Body=b"two")
    assert cloud.deploy(data=url).code == 0
    assert cloud.deployed_configuration() != first, "the archive has changed under its name"
    assert cloud.deploy(data="s3://ours/modle.tar.gz").code == 1


def test_a_client_whose_model_is_not_served_is_not_compared(
    cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.deploy().code == 0
    monkeypatch.setenv("TRIREME_CLIENTS", str(cloud.repository / "code"))
    message = json.dumps({"error": "there is no model ship", "code": "unknown_model", "request_id": "1"})
    body = {"Message": "the model failed", "OriginalStatusCode": 404, "OriginalMessage": message}
    headers = {"x-amzn-ErrorType": "ModelError", "Content-Type": "application/json"}
    cloud.proxy.fixed_responses["InvokeEndpoint"] = Response(424, headers, json.dumps(body).encode())
    done = cloud.deploy(data=url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]))
    assert done.code == 0 and "ship  equal" not in done.out


def test_a_client_with_another_name_than_its_model_is_compared(cloud: FakeAccount) -> None:
    code = cloud.repository / "code"
    (code / "ship").rename(code / "harbour")
    assert "harbour  equal" in cloud.deploy().out


def test_a_multi_model_endpoint_has_an_archive_for_each_model_and_compares_each(cloud: FakeAccount) -> None:
    write_repository(cloud.repository, model="boat")
    done = cloud.deploy("--mme")
    assert done.code == 0, done.err
    assert "ship  equal" in done.out and "boat  equal" in done.out
    assert sorted(key.rpartition("/")[2] for key in cloud.list_resources()["archives"]) == [
        "boat.tar.gz",
        "ship.tar.gz",
    ]
    container = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]
    assert container["Mode"] == "MultiModel" and container["ModelDataUrl"].endswith("/")


def test_a_serverless_endpoint_has_no_instances(cloud: FakeAccount) -> None:
    assert cloud.deploy("--serverless", "2048:5").code == 0
    assert variant(cloud)["ServerlessConfig"] == {"MemorySizeInMB": 2048, "MaxConcurrency": 5}
    assert "InstanceType" not in variant(cloud)


def test_asynchronous_answers_are_compared_through_s3_and_a_backlog_starts_an_instance(
    cloud: FakeAccount,
) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="answers", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    scaling = ("--autoscale", "0:4", "--target-invocations", "5")
    topic = "arn:aws:sns:eu-west-1:123456789012:answers"
    done = cloud.deploy("--async", "s3://answers/out", "--notify", topic, *scaling)
    assert done.code == 0, done.err
    assert "ship  equal" in done.out
    output = cloud.proxy.bodies["CreateEndpointConfig"]["AsyncInferenceConfig"]["OutputConfig"]
    assert output == {
        "S3OutputPath": "s3://answers/out",
        "S3FailurePath": "s3://answers/out/failures/",
        "NotificationConfig": {"SuccessTopic": topic, "ErrorTopic": topic},
    }
    (alarm,) = cloud.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["MetricName"] == "HasBacklogWithoutCapacity"
    assert "policyName/ships-wake" in alarm["AlarmActions"][0]
    assert not [key for key in cloud.list_resources()["archives"] if "trireme-check" in key], (
        "the sample is left"
    )


def test_a_dry_run_prints_the_calls_and_makes_none(cloud: FakeAccount) -> None:
    done = cloud.deploy("--dry-run", "--autoscale", "1:2", "--target-invocations", "9", "--alarm", "errors")
    assert done.code == 0, done.err
    calls = [line.split()[1:3] for line in done.out.splitlines()]
    assert calls == [
        ["s3api", "create-bucket"],
        ["s3", "cp"],
        ["cloudwatch", "put-metric-alarm"],
        ["sagemaker", "create-model"],
        ["sagemaker", "create-endpoint-config"],
        ["sagemaker", "create-endpoint"],
        ["application-autoscaling", "register-scalable-target"],
        ["application-autoscaling", "put-scaling-policy"],
    ]
    assert cloud.proxy.changes == [] and not any(cloud.list_resources().values())


def test_wrong_options_are_refused_before_any_change(cloud: FakeAccount) -> None:
    for words, named in {
        ("--autoscale", "1:4"): "--target-invocations",
        ("--autoscale", "0:4", "--target-invocations", "5"): "--async",
        ("--serverless", "2048:5", "--mme"): "--serverless",
        ("--serverless", "2000:5"): "2000",
        ("--serverless", "2048:5", "--model-data", "s3://ours/ships/"): "--serverless",
        ("--startup-timeout", "5000"): "5000",
        ("--env", "A"): "'A'",
        ("--notify", "arn:aws:sns:eu-west-1:123456789012:t"): "--notify",
    }.items():
        done = cloud.deploy(*words)
        assert done.code in (1, 2) and named in done.err, (words, done.err)
    assert cloud.deploy(name="ships_1").code == 1
    assert cloud.sm("deploy", "ships").code == 1
    assert cloud.proxy.changes == []
