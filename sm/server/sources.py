"""Fetch a model repository into the cache before the start: from S3, HTTPS or an archive.

What is in the cache is complete: a file or folder gets its name when all of it is there. Names are digests of
where something is from and which version it is, so a second start fetches only what has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import logging
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sm.errors import StartError

Report = Callable[[str], None]

#: Seconds. With ATTEMPTS, a host that does not answer is reported within 30 s.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 5, 10, 2
CHUNK_BYTES = 2**20
#: Files and folders of one archive, as in multi-model mode.
MAX_ENTRIES = 100_000
ARCHIVE = ".tar.gz"
REMOTE = ("s3://", "https://")


def is_source(text: str) -> bool:
    """True if ``text`` must be fetched or unpacked: anything but a folder."""
    return text.startswith(REMOTE) or text.endswith(ARCHIVE)


class Sources:
    """Model repositories below ``root``, which several boxes may share."""

    def __init__(self, root: Path, report: Report) -> None:
        self._root, self._report = root, report
        self._objects, self._folders, self._scratch = (
            root / name for name in ("objects", "folders", "scratch")
        )

    def fetch(self, source: str) -> Path:
        """Return the folder with the content of ``source``.

        Raises:
            StartError: It cannot be fetched or read. The cache then holds only what a next start can use.
        """
        try:
            with self._locked():
                if source.startswith("s3://"):
                    return self._fetch_s3(source)
                if source.startswith("https://"):
                    return self._unpack(self._download_https(source), source)
                return self._unpack(Path(source), source)
        except OSError as error:
            raise StartError(f"{source} cannot be fetched: {error}.") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Admit one process at a time. What it finds in scratch is of a dead one."""
        for folder in (self._objects, self._folders):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir()
            try:
                yield
            finally:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _fetch_s3(self, source: str) -> Path:
        try:
            from boto3 import client
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
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
            s3 = client("s3", config=config)
            if key.endswith(ARCHIVE):
                head = s3.head_object(Bucket=bucket, Key=key)
                entry = {"Key": key, "ETag": head["ETag"], "Size": head["ContentLength"]}
                return self._unpack(self._download_s3(s3, bucket, [entry])[key], source)
            return self._fetch_prefix(s3, bucket, f"{key.rstrip('/')}/" if key else "", source)
        except (BotoCoreError, ClientError) as error:
            raise StartError(f"{source} cannot be fetched: {error}.") from None

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
        """Download the objects that the cache lacks. boto3 gets the parts of a large one in parallel."""
        files = {
            entry["Key"]: self._objects / _digest(bucket, entry["Key"], entry["ETag"]) for entry in entries
        }
        missing = [entry for entry in entries if not files[entry["Key"]].is_file()]
        left, started, done = sum(entry["Size"] for entry in missing), time.monotonic(), 0
        self._check_room(left)
        for entry in missing:
            part = self._scratch / "object"
            s3.download_file(bucket, entry["Key"], str(part))
            if part.stat().st_size != entry["Size"]:
                raise StartError(f"s3://{bucket}/{entry['Key']} has changed while it was fetched.")
            part.rename(files[entry["Key"]])
            done, left = done + entry["Size"], left - entry["Size"]
            self._report_progress(done, left, started)
        return files

    def _download_https(self, source: str) -> Path:
        url, _, wanted = source.partition("#sha256=")
        if wanted and not re.fullmatch(r"[0-9a-f]{64}", wanted):
            raise StartError(f"{source} must end with #sha256= and 64 hexadecimal digits, or without it.")
        if wanted and (known := self._objects / wanted).is_file():
            return known
        try:
            return self._get(url, wanted)
        except (urllib.error.URLError, http.client.HTTPException) as error:
            raise StartError(f"{url} cannot be fetched: {error}.") from None

    def _get(self, url: str, wanted: str) -> Path:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310 - https
            if not answer.url.startswith("https://"):
                raise StartError(f"{url} leads to an address without TLS.")
            version = answer.headers["ETag"] or answer.headers["Last-Modified"] or ""
            size = int(answer.headers["Content-Length"] or 0)
            file = self._objects / (wanted or _digest(url, version))
            if version and file.is_file():
                return file
            self._check_room(size)
            part, started, done = self._scratch / "object", time.monotonic(), 0
            with part.open("wb") as output:
                while chunk := answer.read(CHUNK_BYTES):
                    output.write(chunk)
                    done += len(chunk)
            if size and done != size:
                raise StartError(f"{url} ended after {done:,} of {size:,} bytes.")
        if wanted and _digest_of_file(part) != wanted:
            raise StartError(f"{url} has another SHA-256 than {wanted}.")
        self._report_progress(done, 0, started)
        return part.rename(file)

    def _unpack(self, archive: Path, source: str) -> Path:
        """Unpack an archive of regular files and folders."""
        target = self._folders / _digest("archive", _digest_of_file(archive))
        if target.is_dir():
            return target
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

    def _report_progress(self, done: int, left: int, started: float) -> None:
        rate = done / max(time.monotonic() - started, 1e-3) / 1e6
        self._report(f"fetched {done / 1e6:,.1f} MB at {rate:,.1f} MB/s, {left / 1e6:,.1f} MB left")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
