"""Model archives: from S3 to a folder that nobody may write to."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError


class NoArchive(Exception):
    """The archive is not there, or is none; says so as the platform does."""


class Archives:
    """Fetches and unpacks archives; ``s3`` is boto3's client, ``shared`` where instances find theirs."""

    def __init__(self, s3: Any, shared: Path) -> None:
        self._s3, self._shared, self._lock = s3, shared, threading.Lock()

    def current(self, url: str) -> Path:
        """The folder of what lies there now, the same for every instance. :class:`NoArchive`."""
        bucket, key = parts(url)
        try:
            tag = self._s3.head_object(Bucket=bucket, Key=key)["ETag"].strip('"')
        except (ClientError, BotoCoreError) as error:
            raise no_archive(url, error) from None
        with self._lock:
            return self.unpack(url, self._shared / tag)

    def unpack(self, url: str, home: Path) -> Path:
        """``home/<hash>/model``, whole or not at all: the hash is the url's. :class:`NoArchive`."""
        folder = self.place(url, home)
        if not folder.exists():
            home.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(dir=home, prefix=".staged-"))
            try:
                self._fetch(url, staged)
                staged.chmod(0o755)
                staged.rename(folder)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        return folder / "model"

    def place(self, url: str, home: Path) -> Path:
        """Where an archive's folder is, or would be."""
        return home / hashlib.sha256(url.encode()).hexdigest()[:32]

    def _fetch(self, url: str, staged: Path) -> None:
        bucket, key = parts(url)
        packed = staged / "model.tar.gz"
        try:
            self._s3.download_file(bucket, key, str(packed))
            (staged / "model").mkdir()
            with tarfile.open(packed) as archive:
                archive.extractall(staged / "model", filter="data")
        except (ClientError, BotoCoreError, tarfile.TarError) as error:
            raise no_archive(url, error) from None
        packed.unlink()
        for path in (staged / "model", *(staged / "model").rglob("*")):
            path.chmod(0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)


def no_archive(url: str, error: Exception) -> NoArchive:
    return NoArchive(
        f'Failed to download model data for container "primary" from URL: "{url}". Please ensure that '
        "there is an object located at the URL and that the role passed to CreateModel has permissions "
        f"to download the object. ({error})"
    )


def parts(url: str) -> tuple[str, str]:
    """Bucket and key of ``s3://bucket/key``."""
    split = urlsplit(url)
    return split.netloc, split.path.lstrip("/")
