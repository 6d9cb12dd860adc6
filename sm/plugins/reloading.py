"""Reload clients whose files change, for development. The others serve on.

Each worker looks for itself and swaps what has changed between two requests: no process ends, and a request
under way keeps the client that it has.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from sm.client.base import Client
from sm.errors import ClientFailed, StartError, TriremeError
from sm.plugins.loading import ClientSource
from sm.plugins.registry import Registry

log = logging.getLogger(__name__)
#: Seconds between two looks. What has changed must be at rest for one: an editor may write in parts.
POLL_INTERVAL_S = 0.2

#: Files by path: when each was written (ns), and its size in bytes.
Files = Mapping[Path, tuple[int, int]]


class Build(Protocol):
    """:func:`sm.plugins.registry.build` for the folders of this box, broken clients left out."""

    def __call__(
        self, *, made: dict[Path, Client], report: Callable[[ClientSource, StartError], None]
    ) -> Registry: ...


class LiveClients(Mapping[str, Client]):
    """What serves by its name. To ask for a client that is broken is :class:`ClientFailed`, with the reason.

    ``folders``: where clients are; ``said``: a folder that all workers share, to say each thing once.
    """

    def __init__(self, build: Build, folders: tuple[Path, ...], said: Path) -> None:
        self._build, self._folders, self._said = build, folders, said
        self._faults: Mapping[str, str] = {}
        #: Why the old version of a client serves, by its name.
        self.reload_errors: Mapping[str, str] = {}
        self._made: dict[Path, Client] = {}
        self.now = Registry({})
        self._seen = self._taken = files(folders)
        self._take(self._seen, {})

    def __getitem__(self, name: str) -> Client:
        if name in self._faults:
            raise ClientFailed(f"the client of {name!r} is broken: {self._faults[name]}")
        return self.now.clients[name]

    def __contains__(self, name: object) -> bool:
        return name in self._faults or name in self.now.clients

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.now.clients if name not in self._faults])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def watch(self, changed: Callable[[], None]) -> None:
        """Look again and again, in a thread of its own; ``changed`` is called after each change."""

        def look() -> None:
            while not resting.wait(POLL_INTERVAL_S):
                try:
                    if self.check_files():
                        changed()
                except BaseException:  # whatever a client does, the next change is to be taken
                    log.exception("the clients could not be looked at")

        resting = threading.Event()
        threading.Thread(target=look, name="reload", daemon=True).start()

    def check_files(self) -> bool:
        """Take what has changed, once it is at rest; whether there was any."""
        seen, before = files(self._folders), self._seen
        self._seen = seen
        if seen != before or seen == self._taken:
            return False
        earlier, before = self._made, self._taken
        try:
            self._take(seen, before)
        except TriremeError:
            # Triton is away: at the next look again.
            return False
        except BaseException as error:
            reason = str(error) if isinstance(error, StartError) else repr(error)
            self._say(logging.ERROR, f"nothing is reloaded, the old versions serve: {reason}", repr(seen))
            changed = {
                client.name: reason
                for file, client in earlier.items()
                if changed_files(seen, before, file.parent)
            }
            self.reload_errors = {**self.reload_errors, **changed}
        self._taken = seen
        self._publish(earlier, repr((before, seen)))
        return True

    def _take(self, seen: Files, before: Files) -> None:
        """Make those clients whose files are others than ``before``."""
        importlib.invalidate_caches()
        names = {file: client.name for file, client in self._made.items()}
        made = {
            file: client
            for file, client in self._made.items()
            if not changed_files(seen, before, file.parent)
        }
        faults: dict[str, str] = {}
        kept: dict[Path, str] = {}

        def report(found: ClientSource, error: StartError) -> None:
            changes = repr((found.file, files_below(seen, found.file.parent)))
            if found.file in self._made and tried_to_exit(error):
                kept[found.file] = str(error)
                sentence = f"the old version of {names[found.file]!r} serves: {error}"
                self._say(logging.ERROR, sentence, changes)
                return
            for name in {found.name, names.get(found.file, found.name)}:
                faults[name] = str(error)
            self._say(logging.ERROR, describe_change(found, error), changes)

        registry = self._build(made=made, report=report)
        # Nothing new may have taken the name meanwhile.
        old = {file: self._made[file] for file in kept if names[file] not in registry.clients}
        clients = {**registry.clients, **{client.name: client for client in old.values()}}
        errors = {
            name: why
            for name, why in self.reload_errors.items()
            if self.now.clients.get(name) in made.values()
        }
        self.reload_errors = {**errors, **{names[file]: kept[file] for file in old}}
        self._made, self._faults, self.now = {**made, **old}, faults, replace(registry, clients=clients)

    def _publish(self, before: Mapping[Path, Client], changes: str) -> None:
        for file, client in self._made.items():
            if before.get(file) is not client:
                self._say(logging.INFO, f"the client {client.name!r} is live", changes)
        for file, client in before.items():
            if not file.exists():
                self._say(logging.INFO, f"the client {client.name!r} is gone", changes)

    def _say(self, level: int, sentence: str, changes: str) -> None:
        """Log it, unless another worker has said the same of the same ``changes``."""
        mark = self._said / sha256(f"{sentence}{changes}".encode()).hexdigest()
        try:
            self._said.mkdir(exist_ok=True)
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:
            # The disk is full: rather twice than never.
            pass
        log.log(level, sentence)


@dataclass(frozen=True)
class LiveRegistry(Registry):
    """The registry of a box that reloads."""

    clients: LiveClients

    def get(self, name: str) -> Client:
        client = self.clients.get(name)
        return replace(self.clients.now, models=self.models).get(name) if client is None else client

    @property
    def reload_errors(self) -> Mapping[str, str]:
        return self.clients.reload_errors

    def default(self, wanted: str) -> str:
        """A client that is broken now may be the one."""
        return wanted if wanted in self.clients else super().default(wanted)


def files(folders: tuple[Path, ...]) -> Files:
    """Every file below ``folders``, but for caches and hidden ones."""
    found = {}
    for folder in folders:
        for place, inner, names in os.walk(folder, followlinks=True):
            inner[:] = [name for name in inner if not name.startswith(("__pycache__", "."))]
            for path in (Path(place, name) for name in names if not name.startswith(".")):
                try:
                    state = path.stat()
                except OSError:
                    continue
                found[path] = (state.st_mtime_ns, state.st_size)
    return found


def files_below(seen: Files, folder: Path) -> Files:
    return {path: state for path, state in seen.items() if folder in path.parents}


def changed_files(seen: Files, before: Files, folder: Path) -> bool:
    """Whether anything in ``folder`` is another."""
    return files_below(seen, folder) != files_below(before, folder)


def tried_to_exit(error: StartError) -> bool:
    """True if the client called ``sys.exit()`` or raised ``KeyboardInterrupt`` while it was made.

    It has not failed at its work then, so there is nothing that its callers should know.
    """
    return error.__cause__ is not None and not isinstance(error.__cause__, Exception)


def describe_change(found: ClientSource, error: StartError) -> str:
    """What is wrong, as the terminal shows it: a sentence, and the client's own lines that lead there."""
    lines = [f"the client {found.name!r} is broken, and its callers are told so until it is mended: {error}"]
    if error.__cause__ is not None:
        own = [
            frame
            for frame in traceback.extract_tb(error.__cause__.__traceback__)
            if found.file.parent in Path(frame.filename).parents
        ]
        lines += [*traceback.format_list(own), *traceback.format_exception_only(error.__cause__)]
    return "\n".join(line.rstrip() for line in lines)
