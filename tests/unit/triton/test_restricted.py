"""The keys of restricted APIs are read from Triton's arguments, as Triton does."""

from __future__ import annotations

import pytest

from sm.triton.server import grpc_keys, http_keys


@pytest.mark.parametrize(
    "arguments",
    [
        ("--http-restricted-api=metadata,health:key=value",),
        ("--log-info=false", "--http-restricted-api", "metadata,health:key=value", "--x"),
    ],
)
def test_option_and_value_may_be_one_argument_or_two(arguments: tuple[str, ...]) -> None:
    assert http_keys(arguments) == {"key": "value"}
    assert grpc_keys(arguments) == {}


def test_several_restrictions_have_several_keys() -> None:
    arguments = ("--http-restricted-api=health:a=1", "--http-restricted-api=metadata:b=x=y:z")
    assert http_keys(arguments) == {"a": "1", "b": "x=y:z"}


def test_a_grpc_key_has_tritons_prefix_and_is_lower_case() -> None:
    assert grpc_keys(("--grpc-restricted-protocol=health:Admin=Yes",)) == {
        "triton-grpc-protocol-admin": "Yes"
    }


@pytest.mark.parametrize("text", ["", "health", "health:key", "health=key"])
def test_malformed_arguments_are_ignored(text: str) -> None:
    assert http_keys(("--http-restricted-api", text)) == {}
    assert http_keys(("--http-restricted-api",)) == {}
