"""What ``sm deploy`` refuses before it asks AWS."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from sm.errors import CommandError
from trireme_tools.deploy.preflight import check_architecture

REPOSITORY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme"


@pytest.mark.parametrize(
    ("tag", "instance_type", "platform"),
    [
        (":0.1.0-3f2c9a1b7d04-cpu", "ml.c7g.xlarge", "linux/arm64"),
        (":0.1.0-3f2c9a1b7d04-cpu-arm64", "ml.m5.xlarge", "linux/amd64"),
        (":0.1.0-3f2c9a1b7d04-arm64-models-0123456789ab", "ml.g5.xlarge", "linux/amd64"),
        # Others are left to AWS.
        (":0.1.0-3f2c9a1b7d04-cpu-arm64", "ml.c7g.xlarge", ""),
        (":0.1.0-3f2c9a1b7d04-cpu-amd64", "ml.g4dn.xlarge", ""),
        ("", "ml.m5.xlarge", ""),
    ],
)
def test_an_image_for_the_other_processor_is_refused(tag: str, instance_type: str, platform: str) -> None:
    with pytest.raises(CommandError, match=f"--platform {platform}") if platform else nullcontext():
        check_architecture(REPOSITORY + tag, instance_type)
