"""``trireme.toml``: ``sm deploy`` reads and writes it, and the other commands find the endpoint in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.e2e.deploy.account import IMAGE, FakeAccount
from trireme_tools.deploy.project_file import FILE

TYPE = "ml.g4dn.xlarge"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def write(cloud: FakeAccount, more: str = "") -> None:
    FILE.write_text(
        f'endpoint = "ships"\nimage = "{IMAGE}"\nmodel-data = "{cloud.repository}"\ninstance-type = "{TYPE}"\n{more}'
    )


def environment(cloud: FakeAccount) -> dict[str, str]:
    variables: dict[str, str] = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]["Environment"]
    return variables


def variant(cloud: FakeAccount) -> Any:
    return cloud.created()["ProductionVariants"][0]


def test_a_file_is_enough_to_deploy_look_ask_and_delete(cloud: FakeAccount) -> None:
    scaled = 'autoscale = "1:4"\ntarget-invocations = 60\ncount = 2\nregion = "eu-west-1"\n'
    write(cloud, f'{scaled}[env]\nTRIREME_WORKERS = 2\nA = "of file"\n[tags]\nteam = "red"\n')
    assert cloud.succeed("deploy").equal == {"ship"}
    assert environment(cloud) == {"TRIREME_WORKERS": "2", "A": "of file"}
    assert variant(cloud)["InstanceType"] == TYPE and variant(cloud)["InitialInstanceCount"] == 2
    assert {"Key": "team", "Value": "red"} in cloud.created()["Tags"]
    assert cloud.list_resources()["targets"] == ["endpoint/ships/variant/AllTraffic"]
    cloud.put_log_lines("a line")
    assert "a line" in cloud.succeed("logs").out
    assert "ships" in cloud.succeed("status").out
    cloud.set_results({"label": "cat"})
    assert "cat" in cloud.succeed("invoke", "--text", "hello").out
    cloud.succeed("delete", "--yes")
    assert not any(cloud.list_resources().values())


def test_the_command_line_comes_first(cloud: FakeAccount) -> None:
    write(cloud, 'count = 3\n[env]\nA = "of file"\nB = "of file"\n')
    cloud.succeed("deploy", "boats", "--count", "1", "--env", "A=given")
    assert cloud.list_resources()["endpoints"] == ["boats"]
    assert environment(cloud) == {"A": "given", "B": "of file"}
    assert variant(cloud)["InitialInstanceCount"] == 1
    assert cloud.sm("status").code == 1, "of the file's"
    assert cloud.sm("status", "boats").code == 0


def test_what_is_saved_deploys_the_same_again(cloud: FakeAccount) -> None:
    given = {
        "--env": 'A=with "quotes", ü, =, \\ and \x7f',
        "--tags": "team=red",
        "--autoscale": "1:4",
        "--target-cpu": "70",
        "--alarms": "2:750",
        "--set": "EnableNetworkIsolation=true",
        "--region": "eu-west-1",
    }
    cloud.deployed("--dry-run", "--save", *[word for pair in given.items() for word in pair])
    assert not FILE.exists()
    cloud.deployed("--save", *[word for pair in given.items() for word in pair])
    document = tomllib.loads(FILE.read_text())
    assert document["endpoint"] == "ships" and document["instance-type"] == TYPE
    assert {f"--{key}" for key in document} >= given.keys() and "count" not in document
    cloud.proxy.changes = []
    assert "up to date" in cloud.succeed("deploy").err
    changes = {"RegisterScalableTarget", "PutScalingPolicy", "PutMetricAlarm"}
    assert {*cloud.proxy.changes} <= changes, "no new version"
    cloud.succeed("deploy", "--save", "--count", "2")
    assert tomllib.loads(FILE.read_text()) == {**document, "count": 2}


def test_a_rollback_and_a_shadow_take_only_the_place_from_the_file(cloud: FakeAccount) -> None:
    write(cloud, 'set = ["EnableNetworkIsolation=true"]\n[env]\nA = "1"\n')
    cloud.succeed("deploy")
    first = cloud.deployed_configuration()
    cloud.succeed("deploy", "--env", "A=2")
    cloud.succeed("deploy", "--rollback")
    assert cloud.deployed_configuration() == first
    cloud.succeed("deploy", "--shadow", IMAGE)
    assert "of the requests" in cloud.succeed("status").out
    assert cloud.sm("deploy", "--shadow", IMAGE, "--image", "another").code == 1
    assert cloud.sm("deploy", "--rollback", "--save").code == 1


@pytest.mark.parametrize("command", ["deploy", "status", "logs", "delete", "invoke"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('instance_type = "x"', "instance-type"),
        ('region = "a"\nendpint = "x"', "endpoint"),
        ("endpoint = 1", "endpoint"),
        ("not toml", str(FILE)),
        ('[env]\nHF_TOKEN = "hf_x"', "HF_TOKEN"),
        ('env = ["DB_PASSWORD=x"]', "DB_PASSWORD"),
    ],
)
def test_what_the_file_may_not_have_is_named_by_every_command(
    cloud: FakeAccount, command: str, text: str, named: str
) -> None:
    FILE.write_text(text)
    done = cloud.sm(command, *(("--text", "x") if command == "invoke" else ()))
    assert done.code == 1 and named in done.err and str(FILE) in done.err
    assert "hf_x" not in done.err and cloud.proxy.changes == []


@pytest.mark.parametrize(
    "text",
    ["count = 0", "count = true", "mme = 1", 'autoscale = "4:1"', "role = []", "env = 3", "env = ['A']"],
)
def test_a_value_that_the_option_does_not_take_is_named(cloud: FakeAccount, text: str) -> None:
    write(cloud, text)
    done = cloud.sm("deploy")
    assert done.code == 1 and f"{FILE}: {text.split()[0]}" in done.err


@pytest.mark.parametrize(
    "option",
    [
        ("--env", "HF_TOKEN=hf_x"),
        ("--set", "PrimaryContainer.Environment.HF_TOKEN=hf_x"),
        ("--set", 'PrimaryContainer.Environment={"HF_TOKEN": "hf_x"}'),
    ],
)
def test_no_secret_is_saved_and_nothing_is_sent_before(cloud: FakeAccount, option: tuple[str, str]) -> None:
    done = cloud.deploy("--save", *option)
    assert done.code == 1 and "HF_TOKEN" in done.err and not FILE.exists()
    assert cloud.proxy.changes == [] and not cloud.list_resources()["archives"]


def test_without_file_and_name_the_error_says_both_ways(cloud: FakeAccount) -> None:
    for command in ("deploy", "status", "delete"):
        done = cloud.sm(command)
        assert done.code == 1 and "NAME" in done.err and str(FILE) in done.err


def test_kinds_that_exclude_each_other_are_refused_also_if_one_is_in_the_file(cloud: FakeAccount) -> None:
    FILE.write_text(f'endpoint = "ships"\nimage = "{IMAGE}"\nasync = "s3://answers/"\n')
    done = cloud.sm("deploy", "--serverless", "2048:5")
    assert done.code == 1 and cloud.proxy.changes == []
