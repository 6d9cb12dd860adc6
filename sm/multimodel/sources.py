"""Where models come from: S3, HTTPS or an archive, fetched into the cache.

What is in the cache is complete: a file or folder gets its name when all of it is there. Names are digests of
where something is from and which version it is, so a second start fetches only what has changed.

``python -m sm.multimodel.sources SOURCE CACHE`` prints its progress, and at the end the repository as JSON;
``… --list SOURCE`` the names of the folders below a prefix in S3.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sm.errors import StartError

Report = Callable[[str], None]

#: Seconds. With ATTEMPTS, a host that does not answer, or stops to, is reported within 30 s.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 5, 8, 2
#: Seconds between two reports of a fetch's progress.
REPORT_INTERVAL_S = 1.0
CHUNK_BYTES = 2**20
#: Files and folders of one archive, as in multi-model mode.
MAX_ENTRIES = 100_000
ARCHIVE = ".tar.gz"
REMOTE = ("s3://", "https://")


def is_source(text: str) -> bool:
    """True if ``text`` must be fetched, unpacked or joined: anything but one folder."""
    return "://" in text or text.endswith(ARCHIVE) or ("," in text and not Path(text).is_dir())


def is_prefix(source: str) -> bool:
    """True if ``source`` is a prefix in S3, whose folders can be listed and fetched one by one."""
    return source.startswith("s3://") and not source.endswith(ARCHIVE) and "," not in source


def shown(source: str) -> str:
    """Return a source without what may be secret: the user of a URL, and the signature in its query."""
    return re.sub(r"(?<=://)[^/@,]*@|\?[^#,]*", "", source)


class Progress:
    """Counts the bytes that have come, for all threads of a transfer."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._total = report, total
        self._started, self._lock, self._due, self.done = time.monotonic(), threading.Lock(), 0.0, 0

    def add(self, count: int) -> None:
        """Count bytes, and report the sum from time to time."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if now >= self._due:
                self._due = now + REPORT_INTERVAL_S
                rate = self.done / max(now - self._started, 1e-3)
                left = max(self._total - self.done, 0)
                self._report(
                    f"fetched {self.done / 1e6:,.1f} MB at {rate / 1e6:,.1f} MB/s, {left / 1e6:,.1f} MB left"
                )


class ListedObject:
    """Tells boto3's transfer what the list says of an object, so that it fetches this version or none."""

    def __init__(self, entry: dict[str, Any], progress: Progress) -> None:
        self._entry, self._progress = entry, progress

    def on_queued(self, future: Any, **_: Any) -> None:
        future.meta.provide_transfer_size(self._entry["Size"])
        future.meta.provide_object_etag(self._entry["ETag"])

    def on_progress(self, bytes_transferred: int, **_: Any) -> None:
        self._progress.add(bytes_transferred)


class Sources:
    """Model repositories below ``root``, which several boxes may share."""

    def __init__(self, root: Path, report: Report) -> None:
        self._root, self._report = root, report
        self._objects, self._folders, self._scratch = (
            root / name for name in ("objects", "folders", "scratch")
        )
        #: Bytes that came over the network.
        self.fetched_bytes = 0

    def fetch(self, source: str) -> Path:
        """Return the folder with the content of ``source``; commas join several.

        Raises:
            StartError: It cannot be fetched or read. The cache then holds only what a next start can use.
        """
        try:
            with self._locked():
                folders = [self._fetch_one(part.strip()) for part in source.split(",")]
                return folders[0] if len(folders) == 1 else self._join(folders)
        except OSError as error:
            raise StartError(f"{shown(source)} cannot be fetched: {error}.") from None

    def remove_leftovers(self) -> None:
        """Remove what a killed fetch has left, unless another box fetches now: it has done so."""
        with contextlib.suppress(OSError), self._locked(wait=False):
            pass

    def _fetch_one(self, source: str) -> Path:
        if source.startswith("s3://"):
            return self._fetch_s3(source)
        if source.startswith("https://"):
            return self._unpack(self._download_https(source), source)
        if "://" in source:
            raise StartError(f"{shown(source)} does not start with {', '.join(REMOTE)}.")
        return self._unpack(Path(source), source) if source.endswith(ARCHIVE) else Path(source).absolute()

    def _join(self, folders: list[Path]) -> Path:
        """Return a folder with links to all that is in the folders."""
        places: dict[str, Path] = {}
        for path in (path for folder in folders for path in sorted(folder.iterdir())):
            if path.name in places:
                raise StartError(f"{path} and {places[path.name]} are two models of one name.")
            if not path.name.startswith("."):
                places[path.name] = path
        target = self._folders / _digest(*map(str, places.values()))
        if not target.is_dir():
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            for name, path in places.items():
                (folder / name).symlink_to(path)
            folder.rename(target)
        return target

    @contextlib.contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        """Admit one process at a time. What it finds half-fetched is of a dead one."""
        for folder in (self._objects, self._folders):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                self._report(f"waiting for another process that fetches into {self._root}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove_halves()
            self._scratch.mkdir()
            try:
                yield
            finally:
                self._remove_halves()

    def _remove_halves(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        # boto3 gives a name with a dot to what it has not fetched completely.
        for part in self._objects.glob("*.*"):
            part.unlink()

    def _fetch_s3(self, source: str) -> Path:
        with opened_s3(source) as (s3, bucket, key):
            if key.endswith(ARCHIVE):
                head = s3.head_object(Bucket=bucket, Key=key)
                entry = {"Key": key, "ETag": head["ETag"], "Size": head["ContentLength"]}
                return self._unpack(self._download_s3(s3, bucket, [entry])[key], source)
            return self._fetch_prefix(s3, bucket, prefix_of(key), source)

    def _fetch_prefix(self, s3: Any, bucket: str, prefix: str, source: str) -> Path:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        entries = [entry for page in pages for entry in page.get("Contents", ())]
        entries = [entry for entry in entries if not entry["Key"].endswith("/")]
        if not entries:
            raise StartError(f"There is no object below {source}.")
        names = {entry["Key"]: entry["Key"].removeprefix(prefix) for entry in entries}
        for name in names.values():
            if any(part in ("", ".", "..") for part in name.split("/")):
                raise StartError(f"{source} has an object {name!r}, which is not the path of a file.")
        target = self._folders / _digest(source, *(f"{entry['Key']} {entry['ETag']}" for entry in entries))
        if target.is_dir():
            return target
        files = self._download_s3(s3, bucket, entries)
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        for key, file in files.items():
            place = folder / names[key]
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
        return folder.rename(target)

    def _download_s3(self, s3: Any, bucket: str, entries: list[dict[str, Any]]) -> dict[str, Path]:
        """Download the objects that the cache lacks, several and the parts of large ones in parallel."""
        from boto3.s3.transfer import TransferConfig, create_transfer_manager

        files = {
            entry["Key"]: self._objects / _digest(bucket, entry["Key"], entry["ETag"]) for entry in entries
        }
        missing = [entry for entry in entries if not files[entry["Key"]].is_file()]
        total = sum(entry["Size"] for entry in missing)
        self._check_room(total)
        progress = Progress(self._report, total)
        # boto3 asks for the listed version only where it fetches ranges; from 1 byte on it always does.
        config = TransferConfig(
            multipart_threshold=1, num_download_attempts=ATTEMPTS, preferred_transfer_client="classic"
        )
        with create_transfer_manager(s3, config) as manager:
            downloads = [
                manager.download(
                    bucket,
                    entry["Key"],
                    str(files[entry["Key"]]),
                    subscribers=[ListedObject(entry, progress)],
                )
                for entry in missing
            ]
            for download in downloads:
                download.result()
        self.fetched_bytes += total
        return files

    def _download_https(self, source: str) -> Path:
        url, _, wanted = source.partition("#sha256=")
        if wanted and not re.fullmatch(r"[0-9a-f]{64}", wanted):
            raise StartError(
                f"{shown(source)} must end with #sha256= and 64 hexadecimal digits, or without it."
            )
        if wanted and (known := self._objects / wanted).is_file():
            return known
        try:
            return self._get(url, wanted)
        except (urllib.error.URLError, http.client.HTTPException) as error:
            raise StartError(f"{shown(url)} cannot be fetched: {error}.") from None

    def _get(self, url: str, wanted: str) -> Path:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310 - https
            if not answer.url.startswith("https://"):
                raise StartError(f"{shown(url)} leads to an address without TLS.")
            version = answer.headers["ETag"] or answer.headers["Last-Modified"] or ""
            size = int(answer.headers["Content-Length"] or 0)
            file = self._objects / (wanted or _digest(url, version))
            if version and file.is_file():
                return file
            self._check_room(size)
            part, progress = self._scratch / "object", Progress(self._report, size)
            with part.open("wb") as output:
                # read1 returns what has come, so that the progress of a slow host is seen.
                while chunk := answer.read1(CHUNK_BYTES):
                    output.write(chunk)
                    progress.add(len(chunk))
            self.fetched_bytes += progress.done
            if size and progress.done != size:
                raise StartError(f"{shown(url)} ended after {progress.done:,} of {size:,} bytes.")
        if wanted and _digest_of_file(part) != wanted:
            raise StartError(f"{shown(url)} has another SHA-256 than {wanted}.")
        return part.rename(file)

    def _unpack(self, archive: Path, source: str) -> Path:
        """Unpack an archive of regular files and folders."""
        source = shown(source)
        target = self._folders / _digest("archive", _digest_of_file(archive))
        if target.is_dir():
            return target
        self._report(f"unpacking {source}")
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            with tarfile.open(archive, "r|gz") as tar:
                for count, member in enumerate(tar):
                    if count >= MAX_ENTRIES:
                        raise StartError(f"{source} has more than {MAX_ENTRIES:,} files and folders.")
                    if not (member.isreg() or member.isdir()):
                        raise StartError(f"{source}: {member.name!r} is not a regular file or folder.")
                    self._check_room(member.size)
                    tar.extract(member, folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise StartError(f"{source} cannot be unpacked: {error}.") from None
        return folder.rename(target)

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self._root).free
        if size > free:
            raise StartError(
                f"{size / 1e6:,.0f} MB are to be fetched into {self._root}, which has {free / 1e6:,.0f} MB."
            )


@contextlib.contextmanager
def opened_s3(source: str) -> Iterator[tuple[Any, str, str]]:
    """Yield a client of S3, the bucket and the key; its errors become a :class:`StartError`."""
    try:
        from boto3 import client
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError
    except ImportError:
        raise StartError(
            f"{source} needs boto3, which is not installed: pip install 'trireme-serving[s3]'."
        ) from None
    for name in ("boto3", "botocore", "urllib3"):  # they log signatures at lower levels
        logging.getLogger(name).setLevel(logging.ERROR)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )
    bucket, _, key = source.removeprefix("s3://").partition("/")
    try:
        yield client("s3", config=config), bucket, key
    except (BotoCoreError, ClientError, RetriesExceededError, S3DownloadFailedError) as error:
        raise StartError(f"{source} cannot be fetched: {error}.") from None


def prefix_of(key: str) -> str:
    """Return the prefix of the objects in a folder."""
    return f"{key.rstrip('/')}/" if key else ""


def list_folders(source: str) -> list[str]:
    """Return the names of the folders below a prefix in S3."""
    with opened_s3(source) as (s3, bucket, key):
        prefix = prefix_of(key)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        return sorted(name.removeprefix(prefix).rstrip("/") for name in found)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Fetch a source for the supervisor, which reads the lines and knows the last by the exit code."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    source, root = arguments
    sources = Sources(Path(root), say)
    try:
        if source == "--list":
            say(json.dumps(list_folders(root)))
            return 0
        repository = sources.fetch(source)
    except StartError as error:
        say(str(error))
        return 1
    say(json.dumps({"repository": str(repository), "bytes": sources.fetched_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
