"""``python -m tests.support.platform COMMAND …``: run a command in an AWS account that is only played.

Its endpoints are boxes of this checkout, started as SageMaker would; all of it ends with the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.aws import fake_aws
from tests.support.platform.host import REGION, Host
from tests.support.platform.machines import Processes


def environment(url: str) -> dict[str, str]:
    """What has boto3 and the ``aws`` command talk to the account at ``url``, and to no other."""
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
        with Host(f"http://{moto}", Processes(), Path(folder)).follow() as host:
            done = subprocess.run(sys.argv[1:], env={**os.environ, **environment(host.url)}, check=False)
        return done.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
