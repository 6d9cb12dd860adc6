"""Find, load and check all clients of a box; each has a name of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from sm.client.base import Client, Triton
from sm.client.tensor_roles import UnsuitableModel
from sm.errors import StartError
from sm.plugins.checks import ModelMissing, UncheckedClient, check
from sm.plugins.loading import load, plain_names
from sm.plugins.sources import ClientSource, discover, discover_in_models
from sm.repository.models import CODE, CodeFolder

log = logging.getLogger(__name__)


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
        differing = next(iter(find_differences(source, other)), "")
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
        if first is source or source.is_bundled or find_differences(first, source):
            yield source


def find_differences(first: ClientSource, second: ClientSource) -> list[str]:
    """Return the names of the files in which two clients differ, or which only one has."""
    if first.has_folder != second.has_folder or first.kind != second.kind:
        return [first.file.name]
    contents, others = _files(first), _files(second)
    return sorted(name for name in {**contents, **others} if contents.get(name) != others.get(name))


def _files(source: ClientSource) -> dict[str, bytes]:
    """Return a client's files by their paths, without those that Python and pytest write."""
    home = source.file.parent
    paths = home.rglob("*") if source.has_folder else [source.file]
    files = {str(path.relative_to(home)): path for path in paths if path.is_file() and path.suffix != ".pyc"}
    return {name: path.read_bytes() for name, path in files.items() if "/." not in f"/{name}"}


@dataclass(frozen=True)
class DiscoveredClients:
    """The clients that were found, by name, and the reasons why others were left out."""

    clients: Mapping[str, Client]
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: The clients that were left out because Triton did not serve their models, by name.
    unserved: Mapping[str, UncheckedClient] = field(default_factory=dict)
    #: The reasons why clients that the user meant to serve are left out, by name.
    broken: Mapping[str, str] = field(default_factory=dict)
    #: The reasons why clients whose files have changed cannot serve, and why others still run their old
    #: version, by name.
    errors: Mapping[str, str] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)

    def with_served(self, name: str) -> DiscoveredClients:
        """Return what was found when one of ``unserved`` has passed its check."""
        added = self.unserved[name]
        names = {name, added.source.name}
        return replace(
            self,
            clients={**self.clients, name: added.client},
            unserved={other: each for other, each in self.unserved.items() if other != name},
            errors={other: reason for other, reason in self.errors.items() if other not in names},
        )


def log_broken_client(_source: ClientSource, error: StartError) -> None:
    """Log a client that cannot load; the box serves without it."""
    log.error("left out: %s", error)


def find_sources(folders: tuple[Path, ...], code: CodeFolder, repository: Path) -> list[ClientSource]:
    """Return the files of all clients, without second copies of one client.

    A user's clients come first: one may replace a bundled client, which is then not loaded.
    """
    sources = list(without_copies((*discover(folders), *discover((code.folder,), code.program))))
    sources += discover_in_models(repository, sources)
    return sorted(sources, key=lambda source: source.is_bundled)


def find_clients(
    folders: tuple[Path, ...],
    triton: Triton,
    repository: Path,
    skip_broken: bool = False,
    code: CodeFolder | None = None,
    reusable: dict[Path, Client] | None = None,
    report: Callable[[ClientSource, StartError], None] = log_broken_client,
) -> DiscoveredClients:
    """Find, load and check every client. :class:`StartError` names the first that fails, and why.

    Args:
        folders: Where clients are.
        repository: The model repository.
        skip_broken: Call ``report`` for a client that fails, instead of raising.
        code: The user's code folder; by default ``code/`` of the repository.
        reusable: Clients of an earlier build by file, which are used again. New clients are added.
    """
    sources = find_sources(folders, code or CodeFolder(repository / CODE), repository)
    bundled = {source.name: source for source in sources if source.is_bundled}
    reusable = {} if reusable is None else reusable
    broken: dict[str, str] = {}

    def report_error(source: ClientSource, error: StartError) -> None:
        broken[source.name] = str(error)
        if not skip_broken:
            raise error
        report(source, error)

    clients: dict[str, Client] = {}
    sources_by_name: dict[str, ClientSource] = {}
    left_out: dict[str, str] = {}
    unserved: dict[str, UncheckedClient] = {}
    for source in sources:
        if source.is_bundled and source.name in sources_by_name:
            log.info("%s is replaced by %s", source.display_path, sources_by_name[source.name].display_path)
            continue
        try:
            with plain_names(source) if source.file not in reusable else nullcontext():
                client = reusable.get(source.file) or load(source, triton, repository)
                check_name(client, source, {**bundled, **sources_by_name})
                sources_by_name[client.name] = source
                if source.file not in reusable:
                    check(client, source, triton)
        except ModelMissing as missing:
            left_out[source.name] = str(missing)
            unserved[client.name] = UncheckedClient(client, source, triton)
            if not source.is_bundled:
                report_error(source, StartError(f"{source.display_path}: {missing}."))
        except StartError as error:
            left_out[source.name] = str(error)
            if source.is_bundled and isinstance(error, UnsuitableModel):
                log.warning("%s The model is served without it, by the v2 protocol.", error)
            else:
                report_error(source, error)
            if not isinstance(error, NameTaken | UnsuitableModel):
                # The broken client may be meant to replace the bundled one. No answer is better than one of
                # the wrong client.
                sources_by_name.setdefault(source.name, source)
        else:
            clients[client.name] = reusable[source.file] = client
    return DiscoveredClients(clients, left_out, unserved, broken)
