"""``sm images`` gives the addresses of AWS's Triton image that the example notebooks have."""

from __future__ import annotations

import pytest

from tests.support.sm_command import RunSm, sm

__all__ = ["sm"]

#: The notebooks' account_id_map. They use it with 23.02 and with 23.12.
ACCOUNTS = {
    "us-east-1": "785573368785",
    "us-east-2": "007439368137",
    "us-west-1": "710691900526",
    "us-west-2": "301217895009",
    "eu-west-1": "802834080501",
    "eu-west-2": "205493899709",
    "eu-west-3": "254080097072",
    "eu-north-1": "601324751636",
    "eu-south-1": "966458181534",
    "eu-central-1": "746233611703",
    "ap-east-1": "110948597952",
    "ap-south-1": "763008648453",
    "ap-northeast-1": "941853720454",
    "ap-northeast-2": "151534178276",
    "ap-southeast-1": "324986816169",
    "ap-southeast-2": "355873309152",
    "cn-northwest-1": "474822919863",
    "cn-north-1": "472730292857",
    "sa-east-1": "756306329178",
    "ca-central-1": "464438896020",
    "me-south-1": "836785723513",
    "af-south-1": "774647643957",
}


def notebook_uri(region: str, version: str) -> str:
    """The image's address, built as the notebooks do."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{ACCOUNTS[region]}.dkr.ecr.{region}.{domain}/sagemaker-tritonserver:{version}-py3"


@pytest.mark.parametrize("version", ["23.02", "23.12"])
def test_every_region_of_the_notebooks_has_their_image(sm: RunSm, version: str) -> None:
    for region in ACCOUNTS:
        command = sm("images", "--region", region, "--version", version)
        assert (command.status, command.out) == (0, f"{notebook_uri(region, version)}\n"), command.err


def test_a_release_that_two_accounts_may_hold_is_listed_with_both(sm: RunSm) -> None:
    other_uri = "763104351884.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:23.12-py3"
    # One line on stdout for a script, the other account on stderr.
    command = sm("images", "--region", "us-east-1", "--version", "23.12")
    assert command.out == f"{notebook_uri('us-east-1', '23.12')}\n"
    assert other_uri in command.err
    rows = {line.split()[0]: line for line in sm("images", "--version", "23.12").out.splitlines()}
    assert rows["us-east-1"].endswith(f"{notebook_uri('us-east-1', '23.12')} or {other_uri}")
    # Only the SDK's table has this Region.
    sdk_uri = "204538143572.dkr.ecr.ca-west-1.amazonaws.com/sagemaker-tritonserver:23.12-py3"
    assert rows["ca-west-1"].split()[1:] == [sdk_uri]
