"""Fixture: a fake S3 with buckets for inputs and results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.aws import aws_client, fake_aws

SECRET = "a-secret-that-nobody-logs"
#: Environment variables with which a process can use it.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """The URL of a fake S3 with the buckets ``inputs``, ``results`` and ``others``."""
    with fake_aws() as address:
        s3 = client(f"http://{address}")
        for bucket in ("inputs", "results", "others"):
            s3.create_bucket(Bucket=bucket)
        yield f"http://{address}"


@pytest.fixture
def s3_url(aws: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same URL, which the test's environment has with the credentials."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}.items():
        monkeypatch.setenv(name, value)
    return aws


def client(url: str, read_timeout_s: float = 10) -> Any:
    """Return a boto3 client for the fake S3 at ``url``."""
    return aws_client("s3", url, "us-east-1", read_timeout=read_timeout_s)


def upload(url: str, folder: Path, prefix: str) -> None:
    """Upload the files of a folder to the bucket ``inputs``, below a prefix."""
    for file in filter(Path.is_file, folder.rglob("*")):
        client(url).upload_file(str(file), "inputs", f"{prefix}/{file.relative_to(folder)}")
