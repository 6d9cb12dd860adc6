"""What ``sm invoke`` says when AWS, the network or the disk fails."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.tools.invoke.reply import Reply
from sm.tools.invoke.showing import save_body
from tests.support.answering_server import answering
from tests.support.sm_command import RunSm


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (429, "ThrottlingException", "AWS asks to slow down"),
        (403, "AccessDeniedException", "these AWS credentials may not do "),
        (400, "ValidationError", "Endpoint my-endpoint of account 1 not found"),
        (403, "ExpiredTokenException", "the AWS credentials have expired"),
    ],
)
def test_a_refusal_of_aws_is_a_sentence(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch, status: int, code: str, sentence: str
) -> None:
    words = {"message": "Endpoint my-endpoint of account 1 not found"}
    with answering(status, words, code) as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        said = sm("invoke", "my-endpoint", "--text", "a")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"sm: cannot ask the endpoint my-endpoint: {sentence}")


def test_what_is_throttled_is_counted_not_tried_again(sm: RunSm, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(429, {"message": "slow down"}, "ThrottlingException") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        said = sm("invoke", "my-endpoint", "--text", "a", "-n", 6, "-c", 2)
    assert said.status == 1
    assert "6 × ThrottlingException: " in said.out
    assert len(aws.asked) == 6


@pytest.mark.parametrize("by", ["url", "name"])
def test_an_answer_that_is_cut_off_is_none(sm: RunSm, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    with answering(200, {"result": "half"}, missing=10) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        said = sm("invoke", server.url if by == "url" else "my-endpoint", "--text", "a")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("sm: the connection to" if by == "url" else "sm: cannot ask the endpoint")
    assert "Traceback" not in said.err


def test_half_a_picture_is_none(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as a full disk would
    try:
        with pytest.raises(StartError, match=r"the answer cannot be written to .*cat\.png: "):
            save_body(Reply(200, "image/png", bytes(100_000)), "cat", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
