"""The image's AWS SDK."""

from __future__ import annotations

import ast

from tests.support.containers import Container


def test_the_image_has_what_s3_needs_and_not_the_other_services(shared_container: Container) -> None:
    code = "import boto3; s = boto3.Session(region_name='eu-west-1'); s.client('s3'); print(s.get_available_services())"
    services = shared_container.python(code)
    assert set(ast.literal_eval(services)) <= {"s3", "sts", "sso", "sso-oidc", "signin"}
