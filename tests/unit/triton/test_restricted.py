"""The keys of restricted APIs are read from Triton's arguments, as Triton does."""

from __future__ import annotations

import pytest

from sm.triton.server import grpc_keys, http_keys


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("--http-restricted-api=metadata,health:key=value",), {"key": "value"}),
        (("--log-info=false", "--http-restricted-api", "metadata:key=value", "--x"), {"key": "value"}),
        (("--http-restricted-api=health:a=1", "--http-restricted-api=metadata:b=x=y:z"), {"a": "1", "b": "x=y:z"}),
        *((("--http-restricted-api", text), {}) for text in ("", "health", "health:key", "health=key")),
        (("--http-restricted-api",), {}),
    ],
)  # fmt: skip
def test_the_keys_of_http_are_in_arguments_of_each_form(
    arguments: tuple[str, ...], keys: dict[str, str]
) -> None:
    assert http_keys(arguments) == keys
    assert grpc_keys(arguments) == {}


def test_a_grpc_key_has_tritons_prefix_and_is_lower_case() -> None:
    keys = grpc_keys(("--grpc-restricted-protocol=health:Admin=Yes",))
    assert keys == {"triton-grpc-protocol-admin": "Yes"}
