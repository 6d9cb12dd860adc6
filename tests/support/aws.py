"""Start stand-ins for AWS on loopback: moto's fake AWS, a server that always fails, and a real image registry; call them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from werkzeug import Response

from tests.support.http_server import serving

ECR_PASSWORD = "123456789012-auth-token"  # what moto's ECR gives
BCRYPT_SALT = "$2a$05$abcdefghijklmnopqrstuu"  # bcrypt, the only hash that the registry takes


REGION = "eu-west-1"
#: With these variables boto3 and the aws command call an AWS of the tests, and read no file or service of a machine.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}


def aws_client(service: str, url: str, region: str = REGION, **options: Any) -> Any:
    """Return a boto3 client for an AWS of the tests, or a box, that tries each call once."""
    config = Config(retries={"total_max_attempts": 1}, **options)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client(service, endpoint_url=url, region_name=region, config=config, **keys)


def runtime_client(url: str) -> Any:
    """Return a boto3 client of ``sagemaker-runtime`` whose endpoint is the box at ``url``."""
    return aws_client("sagemaker-runtime", url)


@contextmanager
def running_server(
    command: list[str], port_pattern: str, host: str = "127.0.0.1", **env: str
) -> Iterator[str]:
    """Run a server. Its port is the first group of `port_pattern` in its log."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}
    )
    assert process.stdout is not None
    log = threading.Thread(target=process.stdout.read)  # a full pipe would stop the server
    try:
        ports = (found[1] for line in process.stdout if (found := re.search(port_pattern, line)))
        port = next(ports, "")
        assert port, "the server has ended"
        log.start()
        yield f"{host}:{port}"
    finally:
        process.kill()  # nothing is to be kept, and moto's own end takes seconds on a busy machine
        process.wait(10)
        if log.ident:
            log.join(10)
        process.stdout.close()


def fake_aws(host: str = "127.0.0.1", **env: str) -> AbstractContextManager[str]:
    """Run moto's server on an address of this machine; the block gets its `host:port`."""
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", "0"]
    return running_server(command, rf"Running on http://{host}:(\d+)", host, **env)


def running_registry(config: Path) -> AbstractContextManager[str]:
    """Run Debian's docker-registry; the block gets its `host:port`."""
    return running_server(["docker-registry", "serve", str(config)], r"listening on 127\.0\.0\.1:(\d+)")


@contextmanager
def refusing_aws(code: str, message: str) -> Iterator[str]:
    """Run an AWS that answers every call with one error, in STS's form."""
    body = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    with serving(lambda _: Response(body, 403, content_type="text/xml")) as url:
        yield url.removeprefix("http://")


def registry_config(folder: Path, password: str = ECR_PASSWORD, storage: str = "") -> Path:
    """Write the configuration of a registry that accepts only the fake ECR's password, and return its path."""
    command = ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, BCRYPT_SALT]
    password_hash = subprocess.check_output(command, text=True)
    (folder / "htpasswd").write_text(f"AWS:{password_hash}\n")
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/images}}{storage}}}\n"
        "http: {addr: '127.0.0.1:0'}\n"
        f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    )
    return config
