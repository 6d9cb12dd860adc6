"""The keys of Triton's restricted APIs, read from its arguments.

A restriction also holds for the box, which sends the keys with its own calls. Callers of ``/v2`` must send
the keys themselves, or Triton refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

HTTP, GRPC = "--http-restricted-api", "--grpc-restricted-protocol"
#: Triton's API that lists, loads and unloads models.
REPOSITORY = "model-repository"
#: Triton's prefix for a key's name over gRPC.
GRPC_PREFIX = "triton-grpc-protocol-"


def http_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the HTTP headers for the APIs that ``arguments`` restrict."""
    return dict(_parse_keys(arguments, HTTP))


def grpc_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the same as gRPC metadata, with names in lower case."""
    return {f"{GRPC_PREFIX}{name}".lower(): value for name, value in _parse_keys(arguments, GRPC)}


def repository_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the HTTP headers for Triton's list of models, which ``/models`` also requires."""
    return {key: value for apis, key, value in _groups(arguments, HTTP) if REPOSITORY in apis}


def _parse_keys(arguments: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    return ((key, value) for _, key, value in _groups(arguments, option))


def _groups(arguments: Sequence[str], option: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield the APIs, the key's name and its value of each ``--option=api,api:name=value``.

    The option may be one argument or two. Triton reports malformed ones.
    """
    for index, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if name != option:
            continue
        if not equals:
            text = next(iter(arguments[index + 1 :]), "")
        apis, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if equals:
            yield apis.split(","), key, value
