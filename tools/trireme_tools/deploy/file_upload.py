"""Upload a repository's files to S3 below a prefix of their content, those that no earlier version has."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.manager import TransferManager
from s3transfer.subscribers import BaseSubscriber

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.model_data import ModelData
from trireme_tools.package.contents import ArchiveEntry

#: Bytes of a part, and of the smallest file that is uploaded in parts. S3 allows 10,000 parts.
PART_BYTES = 32 << 20
#: Parts that a dead run left cost money. A run that is still active is younger than this.
MAX_UPLOAD_AGE = timedelta(days=1)
#: S3's metadata with a file's digest.
DIGEST = "sha256"
#: Keeps an empty folder, such as an ensemble's version: S3 has no folders.
PLACEHOLDER = ".keep"


def transfer_config() -> TransferConfig:
    return TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)


def abort_abandoned(account: Account, bucket: str, prefix: str) -> None:
    """Remove a killed run's parts. A complete object appears at once, so nothing else can be left."""
    doing = f"remove parts of s3://{bucket}/{prefix}"
    latest = datetime.now(timezone.utc) - MAX_UPLOAD_AGE
    with account.optional():  # who may send need not be allowed to clear up
        uploads = account.paginate(
            "s3", "list_multipart_uploads", "Uploads", doing, Bucket=bucket, Prefix=prefix
        )
        for upload in [upload for upload in uploads if upload["Initiated"] < latest]:
            upload_id = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            account.remove("s3", "abort_multipart_upload", doing, **upload_id)


class FileUploader:
    """Sends ``entries``, the files and folders of ``repository``, with several connections at once.

    A version is the files' names and digests, and its prefix is their digest. So what lies there with the
    right size is right, as an object appears on S3 only when it is complete. ``check`` is called before
    anything is sent, if something must be.
    """

    def __init__(
        self,
        account: Account,
        repository: Path,
        entries: Sequence[ArchiveEntry],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._account, self._repository, self._check = account, repository, check
        folders = {entry.name for entry in entries if entry.is_folder}
        filled = {entry.name.rpartition("/")[0] for entry in entries}
        empty = [ArchiveEntry(f"{name}/{PLACEHOLDER}", repository, b"") for name in sorted(folders - filled)]
        self._files = {entry.name: entry for entry in (*entries, *empty) if not entry.is_folder}

    def send(self, bucket: str, prefix: str) -> ModelData:
        """Upload the version below ``prefix``, where its deployment's other versions are, too."""
        size = sum(entry.size for entry in self._files.values())
        progress, stamps = self._account.progress, self._stamps()
        with progress.step(f"reading {self._repository}", size), ThreadPoolExecutor() as pool:
            digests = dict(zip(self._files, pool.map(_digest, self._files.values()), strict=True))
        files = [entry for entry in self._files.values() if entry.data is None]
        if programs := [entry.name for entry in files if entry.executable]:
            progress.say(f"S3 keeps no permission to execute ({', '.join(programs[:3])}): --archive does")
        version = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
        place = f"s3://{bucket}/{prefix}{version}/"
        sizes = self._existing(bucket, prefix)
        keys = {name: f"{prefix}{version}/{name}" for name in self._files}
        missing = [name for name, key in keys.items() if sizes.get(key) != self._files[name].size]
        if not missing:
            progress.say(f"{place} already exists")
        elif self._account.dry:
            self._account.show("s3", "cp", "--recursive", str(self._repository), place)
        else:
            if self._check:
                self._check()
            abort_abandoned(self._account, bucket, prefix)
            self._transfer(bucket, {name: keys[name] for name in missing}, digests, sizes)
            if changed := [name for name, stamp in self._stamps().items() if stamp != stamps[name]]:
                for name in changed:
                    self._account.remove(
                        "s3", "delete_object", f"remove {name}", Bucket=bucket, Key=keys[name]
                    )
                raise CommandError(f"{changed[0]} has changed while it was sent: run the same command again.")
        return ModelData(place, size=size)

    def _stamps(self) -> dict[str, tuple[int, int]]:
        stats = {name: entry.source.stat() for name, entry in self._files.items() if entry.data is None}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    def _existing(self, bucket: str, prefix: str) -> dict[str, int]:
        """Return the sizes of the objects of all versions, by their keys."""
        rows = self._account.paginate(
            "s3", "list_objects_v2", "Contents", f"list s3://{bucket}/{prefix}", Bucket=bucket, Prefix=prefix
        )
        return {str(row["Key"]): int(row["Size"]) for row in rows}

    def _transfer(
        self, bucket: str, keys: dict[str, str], digests: dict[str, str], sizes: dict[str, int]
    ) -> None:
        """Send the files that S3 does not have, and copy the others there from their earlier version."""
        copies = self._copies(bucket, {digests[name]: self._files[name].size for name in keys}, sizes)
        to_send = {name: key for name, key in keys.items() if digests[name] not in copies}
        size = sum(self._files[name].size for name in to_send)
        sent = _Count()
        what = f"sending {len(to_send)} of {len(self._files)} files to s3://{bucket}"
        try:
            with (
                self._account.progress.step(what, size, lambda: sent.size),
                TransferManager(self._account.client("s3"), transfer_config()) as manager,
            ):
                futures = []
                for name, key in keys.items():
                    more: dict[str, Any] = {"Metadata": {DIGEST: digests[name]}}
                    entry = self._files[name]
                    if earlier := copies.get(digests[name]):
                        origin = {"Bucket": bucket, "Key": earlier}
                        more["MetadataDirective"] = "REPLACE"
                        futures.append(manager.copy(origin, bucket, key, more))
                    else:
                        body = str(entry.source) if entry.data is None else io.BytesIO(entry.data)
                        futures.append(manager.upload(body, bucket, key, more, [sent]))
                for future in futures:
                    future.result()
        except (ClientError, BotoCoreError) as error:
            raise aws.explain(error, f"send {self._repository} to s3://{bucket}") from None

    def _copies(self, bucket: str, wanted: dict[str, int], sizes: dict[str, int]) -> dict[str, str]:
        """Return the keys of objects with one of the ``wanted`` digests, which have these sizes."""

        def digest_of(key: str) -> str:
            described = self._account.describe("s3", "head_object", f"look at {key}", Bucket=bucket, Key=key)
            return str((described or {}).get("Metadata", {}).get(DIGEST))

        candidates = [key for key, size in sizes.items() if size in wanted.values()]
        self._account.client("s3")  # made once, before the threads ask for it
        with ThreadPoolExecutor() as pool:
            by_digest = dict(zip(pool.map(digest_of, candidates), candidates, strict=True))
        return {digest: key for digest, key in by_digest.items() if digest in wanted}


class _Count(BaseSubscriber):  # type: ignore[misc]
    """Counts the bytes of all files; it is called from several threads."""

    def __init__(self) -> None:
        self._lock, self.size = threading.Lock(), 0

    def on_progress(self, bytes_transferred: int, **_: object) -> None:
        with self._lock:
            self.size += bytes_transferred


def _digest(entry: ArchiveEntry) -> str:
    if entry.data is not None:
        return hashlib.sha256(entry.data).hexdigest()
    with entry.source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
