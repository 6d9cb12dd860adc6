"""Decide which client serves a name that two files have."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sm.client.base import Client
from sm.errors import StartError
from sm.plugins.loading import ClientSource


class NameTaken(StartError):
    """Two clients have the same name."""


def check_name(client: Client, source: ClientSource, others: Mapping[str, ClientSource]) -> None:
    """Raise :class:`NameTaken` if one of ``others`` has the client's name. Only bundled clients may be
    replaced.
    """
    other = others.get(client.name, source)
    if client.replaces not in ("", client.name):
        raise NameTaken(
            f"{source.display_path}: it replaces {client.replaces!r}, but its name is {client.name!r}: a "
            "client can replace only one with its own name."
        )
    if other == source or (other.is_bundled and client.replaces):
        return
    if not other.is_bundled:
        differing = next(find_differences(source, other), "")
        copies = f" As copies of one client they differ in {differing}." if source.name == other.name else ""
        raise NameTaken(
            f"{source.display_path}: there is already a client called {client.name!r}: "
            f"{other.display_path}. Rename one, or remove it.{copies}"
        )
    raise NameTaken(
        f"{source.display_path}: the box comes with a client {client.name!r}, {other.display_path}: give "
        f"yours another name, or write replaces = {client.name!r} into its class to serve it instead."
    )


def select_sources(all_sources: Iterable[ClientSource]) -> tuple[ClientSource, ...]:
    """Return the sources without copies and without the bundled clients that others replace."""
    sources = tuple(without_copies(all_sources))
    own_names = {source.name for source in sources if not source.is_bundled}
    return tuple(source for source in sources if not source.is_bundled or source.name not in own_names)


def without_copies(sources: Iterable[ClientSource]) -> Iterator[ClientSource]:
    """Yield each client once: the same files in ``clients/`` and in ``code/`` are one client."""
    first_sources: dict[str, ClientSource] = {}
    for source in sources:
        first = first_sources.setdefault(source.name, source)
        if first is source or source.is_bundled or next(find_differences(first, source), ""):
            yield source


def find_differences(first: ClientSource, second: ClientSource) -> Iterator[str]:
    """Yield the names of the files in which two clients differ, or which only one has."""
    if (first.file.name == "client.py") != (second.file.name == "client.py") or first.module != second.module:
        yield first.file.name
    elif first.file.name != "client.py":
        if not _is_same(first.file, second.file):
            yield first.file.name
    else:
        homes = first.file.parent, second.file.parent
        for name in sorted({*_files(homes[0]), *_files(homes[1])}):
            if not _is_same(homes[0] / name, homes[1] / name):
                yield name


def _files(home: Path) -> Iterator[str]:
    """Yield the paths of a client's files, without those that Python and pytest write."""
    for path in home.rglob("*"):
        name = path.relative_to(home)
        if path.is_file() and path.suffix != ".pyc" and not any(part.startswith(".") for part in name.parts):
            yield str(name)


def _is_same(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False)
