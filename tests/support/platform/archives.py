"""Download model archives from S3 and unpack them into read-only folders."""

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


class ArchiveUnavailable(Exception):
    """The archive does not exist or is not an archive. The message is SageMaker's own."""


class ArchiveStore:
    """Downloads and unpacks archives.

    Args:
        s3: boto3's client.
        shared_folder: The parent of the archives that all instances share.
    """

    def __init__(self, s3: Any, shared_folder: Path) -> None:
        self._s3, self._shared_folder, self._lock = s3, shared_folder, threading.Lock()

    def unpack_current(self, url: str) -> Path:
        """Unpack the archive that ``url`` holds now, once for all instances, and return its model folder.

        Raises:
            ArchiveUnavailable: There is no archive at ``url``.
        """
        bucket, key = split_s3_url(url)
        try:
            etag = self._s3.head_object(Bucket=bucket, Key=key)["ETag"].strip('"')
        except (ClientError, BotoCoreError) as error:
            raise archive_unavailable(url, error) from None
        with self._lock:
            return self.unpack_into(url, self._shared_folder / etag)

    def unpack_into(self, url: str, parent: Path) -> Path:
        """Unpack the archive to ``parent/<hash of the url>/model``, completely or not at all, and return that folder.

        Raises:
            ArchiveUnavailable: There is no archive at ``url``.
        """
        folder = self.archive_folder(url, parent)
        if not folder.exists():
            parent.mkdir(parents=True, exist_ok=True)
            staging_folder = Path(tempfile.mkdtemp(dir=parent, prefix=".staged-"))
            try:
                self._download(url, staging_folder)
                staging_folder.chmod(0o755)
                staging_folder.rename(folder)
            finally:
                shutil.rmtree(staging_folder, ignore_errors=True)
        return folder / "model"

    def archive_folder(self, url: str, parent: Path) -> Path:
        """Return the folder of an archive, whether it exists or not."""
        return parent / hashlib.sha256(url.encode()).hexdigest()[:32]

    def _download(self, url: str, staging_folder: Path) -> None:
        bucket, key = split_s3_url(url)
        packed_file = staging_folder / "model.tar.gz"
        try:
            self._s3.download_file(bucket, key, str(packed_file))
            (staging_folder / "model").mkdir()
            with tarfile.open(packed_file) as archive:
                archive.extractall(staging_folder / "model", filter="data")
        except (ClientError, BotoCoreError, tarfile.TarError) as error:
            raise archive_unavailable(url, error) from None
        packed_file.unlink()
        for path in (staging_folder / "model", *(staging_folder / "model").rglob("*")):
            path.chmod(0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)


def archive_unavailable(url: str, error: Exception) -> ArchiveUnavailable:
    return ArchiveUnavailable(
        f'Failed to download model data for container "primary" from URL: "{url}". Please ensure that '
        "there is an object located at the URL and that the role passed to CreateModel has permissions "
        f"to download the object. ({error})"
    )


def split_s3_url(url: str) -> tuple[str, str]:
    """Return bucket and key of ``s3://bucket/key``."""
    url_parts = urlsplit(url)
    return url_parts.netloc, url_parts.path.lstrip("/")
