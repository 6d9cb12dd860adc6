"""The keys of Triton's restricted APIs, read from its arguments.

Who restricts an API shuts the box out too: the box shows each key with whatever it asks itself. Callers of
``/v2`` show theirs, or are refused by Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

HTTP, GRPC = "--http-restricted-api", "--grpc-restricted-protocol"
#: The API of Triton's that lists, loads and unloads models.
REPOSITORY = "model-repository"
#: What Triton puts before a key's name over gRPC.
GRPC_PREFIX = "triton-grpc-protocol-"


def http_keys(arguments: Sequence[str]) -> dict[str, str]:
    """HTTP headers that open what ``arguments`` restrict."""
    return dict(_parse_keys(arguments, HTTP))


def grpc_keys(arguments: Sequence[str]) -> dict[str, str]:
    """The same as gRPC metadata, whose names are in lower case."""
    return {f"{GRPC_PREFIX}{name}".lower(): value for name, value in _parse_keys(arguments, GRPC)}


def repository_keys(arguments: Sequence[str]) -> dict[str, str]:
    """HTTP headers that open Triton's list of models, and with it ``/models``."""
    return {key: value for apis, key, value in _groups(arguments, HTTP) if REPOSITORY in apis}


def _parse_keys(arguments: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    return ((key, value) for _, key, value in _groups(arguments, option))


def _groups(arguments: Sequence[str], option: str) -> Iterator[tuple[list[str], str, str]]:
    """The APIs, the key's name and its value of each ``--option=api,api:name=value``.

    It may come in two arguments. What is malformed Triton will say.
    """
    for index, argument in enumerate(arguments):
        name, joined, text = argument.partition("=")
        if name != option:
            continue
        if not joined:
            text = next(iter(arguments[index + 1 :]), "")
        apis, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if equals:
            yield apis.split(","), key, value
