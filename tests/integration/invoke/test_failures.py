"""The errors of ``sm invoke`` when AWS, the network or the disk fails."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sm.errors import CommandError
from tests.support.answering_server import server_with_fixed_response
from tests.support.sm_command import RunSm
from trireme_tools.invoke.messages import Reply
from trireme_tools.invoke.showing import save_body


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "ThrottlingException"), (403, "ExpiredTokenException"), (400, "ValidationError")],
)
def test_an_error_of_aws_names_the_endpoint_and_many_are_counted_and_not_repeated(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    with server_with_fixed_response(status, {"message": "of AWS"}, code) as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        result = sm("invoke", "my-endpoint", "--text", "a")
        assert (result.status, result.out, "my-endpoint" in result.err) == (1, "", True)
        result = sm("invoke", "my-endpoint", "--text", "a", "-n", 6, "-c", 2)
    assert (result.status, f"6 × {code}" in result.out) == (1, True)
    assert len(aws.request_bodies) == 7


@pytest.mark.parametrize("addressed_by", ["url", "name"])
def test_a_truncated_response_is_an_error(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch, addressed_by: str
) -> None:
    with server_with_fixed_response(200, {"result": "half"}, missing_bytes=10) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        result = sm("invoke", server.url if addressed_by == "url" else "my-endpoint", "--text", "a")
    assert (result.status, result.out, "Traceback" in result.err) == (1, "", False)


def test_a_picture_that_cannot_be_written_completely_leaves_no_file(tmp_path: Path) -> None:
    limit_before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit_before[1]))  # as a full disk would
    try:
        with pytest.raises(CommandError, match=r"cat\.png"):
            save_body(Reply(200, "image/png", bytes(100_000)), "cat", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit_before)
    assert list(tmp_path.iterdir()) == []
