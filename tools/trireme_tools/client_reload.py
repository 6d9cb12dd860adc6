"""Reload clients when their files change, for development.

Each worker checks the files and replaces changed clients between two requests. No process ends, and a
running request keeps its client.
"""

from __future__ import annotations

import importlib
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from sm.client.base import Client
from sm.errors import StartError, TriremeError
from sm.plugins.discovery import DiscoveredClients
from sm.plugins.sources import ClientSource
from sm.polling import Poll

log = logging.getLogger(__name__)
#: Seconds between two checks. A change must be complete for one of them: an editor may write in parts.
POLL_INTERVAL_S = 0.2

#: Files by path: modification time in ns, and size in bytes.
Files = Mapping[Path, tuple[int, int]]
#: In place of both: the file of a client that is served was not found.
GONE = (0, 0)


class Reloader:
    """Finds clients again when their files have changed.

    Args:
        build: Finds them: :func:`~sm.plugins.discovery.find_clients` of this box, which skips broken ones.
        folders: Where clients are.
        log_marks: A folder that all workers share, to log each change once.
        publish: Called with what was found, at first and after each change.
    """

    def __init__(
        self,
        build: Callable[..., DiscoveredClients],
        folders: tuple[Path, ...],
        log_marks: Path,
        publish: Callable[[DiscoveredClients], object],
    ) -> None:
        self._build, self._folders, self._log_marks, self._publish = build, folders, log_marks, publish
        self._clients: dict[Path, Client] = {}
        self._scanned = self._loaded_files = scan(folders)
        self._found = DiscoveredClients({})
        self._load_changed(self._scanned, {})
        publish(self._found)

    def watch(self) -> None:
        """Check at intervals, in a thread."""
        Poll("client-reload", POLL_INTERVAL_S, self.check_files).start()

    def check_files(self) -> bool:
        """Load changed clients once two checks see the same files. Returns True if there was a change."""
        # A client that came during a load may be missing in all earlier scans. GONE makes its end a change.
        scanned, before = {**dict.fromkeys(self._clients, GONE), **scan(self._folders)}, self._scanned
        self._scanned = scanned
        if scanned != before or scanned == self._loaded_files:
            return False
        old_clients, before = self._clients, self._loaded_files
        try:
            self._load_changed(scanned, before)
        except TriremeError:
            # Triton is restarting: retry at the next check.
            return False
        except BaseException as error:
            reason = str(error) if isinstance(error, StartError) else repr(error)
            self._log_once(
                logging.ERROR, f"nothing is reloaded, the old versions serve: {reason}", repr(scanned)
            )
            changed = {
                client.name: reason
                for file, client in old_clients.items()
                if changed_files(scanned, before, file.parent)
            }
            self._found = replace(self._found, stale={**self._found.stale, **changed})
        self._loaded_files = {
            path: state for path, state in scanned.items() if state != GONE or path in self._clients
        }
        self._publish(self._found)
        self._log_changes(old_clients, repr((before, scanned)))
        return True

    def _load_changed(self, scanned: Files, before: Files) -> None:
        """Load the clients whose files differ from ``before``."""
        importlib.invalidate_caches()
        names = {file: client.name for file, client in self._clients.items()}
        reusable = {
            file: client
            for file, client in self._clients.items()
            if not changed_files(scanned, before, file.parent)
        }
        load_errors: dict[str, str] = {}

        def report(source: ClientSource, error: StartError) -> None:
            changes = repr((source.file, files_below(scanned, source.file.parent)))
            for name in {source.name, names.get(source.file, source.name)}:
                load_errors[name] = str(error)
            self._log_once(logging.ERROR, describe_change(source, error), changes)

        self._found = replace(self._build(reusable=reusable, report=report), errors=load_errors)
        for client in reusable.values():
            client._marks.is_edited = True
        self._clients = reusable

    def _log_changes(self, before: Mapping[Path, Client], changes: str) -> None:
        for file, client in self._clients.items():
            if before.get(file) is not client:
                self._log_once(logging.INFO, f"the client {client.name!r} is live", changes)
        for file, client in before.items():
            if not file.exists():
                self._log_once(logging.INFO, f"the client {client.name!r} is gone", changes)

    def _log_once(self, level: int, sentence: str, changes: str) -> None:
        """Log a change, unless another worker has logged the same one."""
        mark = self._log_marks / sha256(f"{sentence}{changes}".encode()).hexdigest()
        try:
            self._log_marks.mkdir(exist_ok=True)
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:
            # The disk is full: logging twice is better than not at all.
            pass
        log.log(level, sentence)


def scan(folders: tuple[Path, ...]) -> Files:
    """Return every file below ``folders``, without caches and hidden files."""
    states = {}
    for folder in folders:
        for folder_path, subfolders, names in os.walk(folder, followlinks=True):
            subfolders[:] = [name for name in subfolders if not name.startswith(("__pycache__", "."))]
            for path in (Path(folder_path, name) for name in names if not name.startswith(".")):
                try:
                    state = path.stat()
                except OSError:
                    continue
                states[path] = (state.st_mtime_ns, state.st_size)
    return states


def files_below(scanned: Files, folder: Path) -> Files:
    """Return those of the files that are in ``folder`` or below it."""
    return {path: state for path, state in scanned.items() if folder in path.parents}


def changed_files(scanned: Files, before: Files, folder: Path) -> bool:
    """True if any file in ``folder`` has changed."""
    return files_below(scanned, folder) != files_below(before, folder)


def describe_change(source: ClientSource, error: StartError) -> str:
    """Format the error for a terminal: a sentence, and the client's own lines of the traceback."""
    sentence = "is broken, and its callers get this error until it is fixed"
    lines = [f"the client {source.name!r} {sentence}: {error}"]
    if error.__cause__ is not None:
        own_frames = [
            frame
            for frame in traceback.extract_tb(error.__cause__.__traceback__)
            if source.file.parent in Path(frame.filename).parents
        ]
        lines += [*traceback.format_list(own_frames), *traceback.format_exception_only(error.__cause__)]
    return "\n".join(line.rstrip() for line in lines)
