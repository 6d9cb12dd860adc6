"""The real ``aws`` command line, version 1 from PyPI; version 2 is no Python package, and no test runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("aws")
#: No account, no configuration and no network but the address that is named.
ALONE = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "eu-west-1",
}
TIMEOUT_S = 60


def run_aws(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it in ``folder`` against the service at ``url``."""
    return subprocess.run(
        [PROGRAM, *words, "--endpoint-url", url],
        cwd=folder,
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
