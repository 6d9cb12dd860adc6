"""The real ``aws`` command, version 1 from PyPI. Version 2 is not on PyPI, so no test runs it."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("aws")
#: Test credentials, no configuration file and no metadata service.
ISOLATED_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "eu-west-1",
}
