"""The keys of Triton's restricted APIs, as its arguments name them.

Who restricts an API shuts the box out too: the box shows each key with whatever it asks itself. Callers of
``/v2`` show theirs, or are refused by Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

HTTP, GRPC = "--http-restricted-api", "--grpc-restricted-protocol"
#: What Triton puts before a key's name over gRPC.
GRPC_PREFIX = "triton-grpc-protocol-"


def http_keys(arguments: Sequence[str]) -> dict[str, str]:
    """HTTP headers that open what ``arguments`` restrict."""
    return dict(_pairs(arguments, HTTP))


def grpc_keys(arguments: Sequence[str]) -> dict[str, str]:
    """The same as gRPC metadata, whose names are in lower case."""
    return {f"{GRPC_PREFIX}{name}".lower(): value for name, value in _pairs(arguments, GRPC)}


def _pairs(arguments: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """``--option=api,api:name=value``, or the same in two arguments; what is malformed Triton will say."""
    for index, argument in enumerate(arguments):
        name, joined, text = argument.partition("=")
        if name != option:
            continue
        if not joined:
            text = next(iter(arguments[index + 1 :]), "")
        key, equals, value = text.partition(":")[2].partition("=")
        if equals:
            yield key, value
