"""Model archives on S3: a folder is packed and sent there, once for each content."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from sm.errors import StartError
from sm.tools.deploy import aws, resource_names
from sm.tools.deploy.account import Account
from sm.tools.package import archive_plan, archive_writer
from sm.tools.package.archive_plan import ArchivePlan
from sm.tools.package.exclusion import Exclusion
from sm.tools.package.package_command import inspect

#: Bytes of a part, and of the smallest archive that is sent in parts. 10,000 parts are the most.
PART = 32 << 20
FOLDER = "trireme"
#: Parts that a dead run left are paid for; another run that goes on now is younger than this.
ABANDONED = timedelta(days=1)


@dataclass(frozen=True)
class Place:
    """``s3://bucket/key``."""

    bucket: str
    key: str

    @classmethod
    def read(cls, url: str) -> Place:
        scheme, _, rest = url.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or not bucket:
            raise StartError(f"{url!r} is no place on S3: s3://BUCKET/KEY.")
        return cls(bucket, key)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Uploader:
    """Packs repositories into ``cache`` (archives are large, ``/tmp`` may be memory) and sends them."""

    def __init__(self, account: Account, cache: Path) -> None:
        self._account, self._cache = account, cache

    def send(self, repository: Path, name: str, bucket: str | None, mme: bool) -> str:
        """The URL of the repository's archive, or with ``mme`` of the folder with one for each model."""
        if not repository.is_dir():
            raise StartError(f"{repository} is no folder and no s3:// URL; --model-data wants one of them.")
        inspect(repository, self._account.progress)
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix="archives-", dir=self._cache)
        except OSError as error:
            raise StartError(f"{self._cache} cannot be written: {error}.") from None
        with folder as packed:
            all_of_it = Exclusion(repository)
            found = (
                archive_plan.apart(repository, all_of_it)
                if mme
                else [archive_plan.whole(repository, Path(packed), all_of_it)]
            )
            digests = {self._pack(each, Path(packed)): each.name for each in found}
            target = Place(bucket or self._default_bucket(), f"{FOLDER}/{name}/{_together(digests)}/")
            for each in found:
                self._put(Path(packed) / f"{each.name}.tar.gz", target)
        return str(target) if mme else f"{target}{found[0].name}.tar.gz"

    def _pack(self, shipment: ArchivePlan, folder: Path) -> str:
        return archive_writer.write(
            folder / f"{shipment.name}.tar.gz", shipment.entries, self._account.progress
        )

    def _default_bucket(self) -> str:
        """The one that SageMaker's own SDK uses, made if it is not there; never one of another account."""
        account, region = self._account, self._account.region
        bucket = default_bucket(account)
        if account.describe(
            "s3",
            "head_bucket",
            f"look at bucket {bucket}",
            Bucket=bucket,
            ExpectedBucketOwner=account.number,
        ):
            return bucket
        where: dict[str, Any] = {}
        if region != "us-east-1":  # whose name S3 does not take
            where["CreateBucketConfiguration"] = {"LocationConstraint": region}
        account.create("s3", "create_bucket", f"make bucket {bucket}", Bucket=bucket, **where)
        return bucket

    def _put(self, file: Path, target: Place) -> None:
        key, size, account = f"{target.key}{file.name}", file.stat().st_size, self._account
        place = f"s3://{target.bucket}/{key}"
        there = account.describe("s3", "head_object", f"look at {place}", Bucket=target.bucket, Key=key)
        if there and there["ContentLength"] == size:
            account.progress.say(f"{place} is there already")
        elif account.dry:
            account.show("s3", "cp", file.name, place)
        else:
            self._abort_abandoned(target.bucket, key)
            self._send(file, target.bucket, key)

    def _send(self, file: Path, bucket: str, key: str) -> None:
        sent, lock = [0], threading.Lock()

        def count(size: int) -> None:  # from the threads that send
            with lock:
                sent[0] += size

        config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)
        place, size = f"s3://{bucket}/{key}", file.stat().st_size
        try:
            with (
                self._account.progress.step(f"sending {place}", size, lambda: sent[0]),
                file.open("rb") as body,
            ):
                self._account.client("s3").upload_fileobj(body, bucket, key, Callback=count, Config=config)
        except (ClientError, BotoCoreError) as error:
            raise aws.explain(error, f"send the archive to {place}") from None

    def _abort_abandoned(self, bucket: str, key: str) -> None:
        """What is whole appears at once, so only parts can be left of a run that was killed."""
        doing, account = f"remove parts of s3://{bucket}/{key}", self._account
        before = datetime.now(timezone.utc) - ABANDONED
        try:
            found = account.paginate(
                "s3", "list_multipart_uploads", "Uploads", doing, Bucket=bucket, Prefix=key
            )
            for upload in [upload for upload in found if upload["Initiated"] < before]:
                which = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                account.remove("s3", "abort_multipart_upload", doing, **which)
        except aws.ServiceUnavailable:
            raise
        except StartError as error:  # who may send need not be allowed to clear up
            account.progress.say(str(error))


def default_bucket(account: Account) -> str:
    return f"sagemaker-{account.region}-{account.number}"


def _together(digests: dict[str, str]) -> str:
    """The digest of a single archive, or one for all with their names."""
    if len(digests) == 1:
        return next(iter(digests))
    return resource_names.hashed("models", digests)


def fingerprint(account: Account, url: str, mme: bool) -> str:
    """What tells whether the archive at ``url`` has changed; :class:`StartError` if there is none.

    Someone who may not look may still deploy: the role reads the archive, not we.
    """
    place = Place.read(url)
    if mme:
        return ""  # models come and go below a prefix, as is its purpose
    try:
        found = account.describe("s3", "head_object", f"look at {url}", Bucket=place.bucket, Key=place.key)
    except StartError as error:
        if isinstance(error, aws.ServiceUnavailable):
            raise
        account.progress.say(f"not checked: {error}")
        return ""
    if found is None:
        raise StartError(f"there is no {url}; look at its spelling, or pack one with 'sm package'.")
    return str(found["ETag"])
