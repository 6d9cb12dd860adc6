"""The simulated platform unpacks archives as AWS does, and stops instances without an error."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.aws import fake_aws
from tests.support.platform.account import BUCKET, Account
from tests.support.platform.archives import ArchiveStore
from tests.support.platform.host import aws_client
from tests.support.platform.logs import LogStream

SCRIPT = b"#!/bin/sh\necho from the archive\n"


@pytest.fixture(scope="module")
def simulated_account() -> Iterator[Account]:
    with fake_aws() as address:
        yield Account(f"http://{address}")


def pack_scripts(**modes: int) -> bytes:
    """A ``.tar.gz`` with the same script under several names, each with its mode."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, mode in modes.items():
            header = tarfile.TarInfo(f"environment/bin/{name}")
            header.size, header.mode = len(SCRIPT), mode
            tar.addfile(header, io.BytesIO(SCRIPT))
    return packed.getvalue()


def test_the_simulated_platform_keeps_the_execute_bits_of_an_archive(
    simulated_account: Account, tmp_path: Path
) -> None:
    body = pack_scripts(tool=0o755, private=0o700, data=0o644)
    simulated_account.s3.put_object(Bucket=BUCKET, Key="bits/model.tar.gz", Body=body)
    model = ArchiveStore(simulated_account.s3, tmp_path).unpack_current(f"s3://{BUCKET}/bits/model.tar.gz")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (model / "environment/bin").iterdir()}
    # Read-only for everybody, as /opt/ml/model is. Executable files stay executable.
    assert modes == {"tool": 0o555, "private": 0o555, "data": 0o444}
    completed = subprocess.run([model / "environment/bin/tool"], capture_output=True, check=True)
    assert completed.stdout == b"from the archive\n"


def test_an_instance_whose_log_group_was_deleted_stops_without_an_error(simulated_account: Account) -> None:
    """``aws logs delete-log-group`` may come before the last instance has stopped."""
    logs = aws_client(simulated_account.url, "logs")
    stream = LogStream(logs, "pets", "AllTraffic/i-1")
    stream.send_new_lines("first\n")
    group = "/aws/sagemaker/Endpoints/pets"
    events = logs.get_log_events(logGroupName=group, logStreamName="AllTraffic/i-1")["events"]
    assert [event["message"] for event in events] == ["first"]
    logs.delete_log_group(logGroupName=group)
    stream.send_new_lines("first\nlast\n")
    assert logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"] == []


def test_an_instance_stops_without_an_error_if_aws_does_not_respond() -> None:
    with fake_aws() as address:
        stream = LogStream(aws_client(f"http://{address}", "logs"), "pets", "AllTraffic/i-1")
    stream.send_new_lines("last\n")
