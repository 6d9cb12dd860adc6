"""``python -m tests.support.platform COMMAND …``: run a command against a fake AWS account.

Its SageMaker endpoints are boxes of this checkout, started as SageMaker starts them. They stop with the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.aws import fake_aws
from tests.support.platform.host import REGION, Host
from tests.support.platform.machines import ProcessLauncher


def aws_environment(url: str) -> dict[str, str]:
    """Return variables with which boto3 and the ``aws`` command call the fake AWS at ``url`` and nothing else."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="platform-") as folder, fake_aws() as moto:
        with Host(f"http://{moto}", ProcessLauncher(), Path(folder)).run() as host:
            completed = subprocess.run(
                sys.argv[1:], env={**os.environ, **aws_environment(host.url)}, check=False
            )
        return completed.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
