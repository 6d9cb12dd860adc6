"""Pack a folder as a model archive and upload it to S3, once for each content."""

from __future__ import annotations

import tempfile
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from sm.commands import client_loading
from sm.errors import CommandError
from sm.http.s3 import S3Uri
from trireme_tools import aws
from trireme_tools.deploy import resources
from trireme_tools.deploy.account import Account
from trireme_tools.package import archive_plan, archive_writer
from trireme_tools.package.archive_plan import ArchivePlan
from trireme_tools.package.contents import Exclusion
from trireme_tools.package.package_command import inspect

#: Bytes of a part, and of the smallest archive that is uploaded in parts. S3 allows 10,000 parts.
PART_BYTES = 32 << 20
#: Parts that a dead run left cost money. A run that is still active is younger than this.
MAX_UPLOAD_AGE = timedelta(days=1)


class Uploader:
    """Packs repositories in ``cache`` (archives are large, and ``/tmp`` may be memory) and uploads them."""

    def __init__(self, account: Account, cache: Path) -> None:
        self._account, self._cache = account, cache

    def send(self, repository: Path, name: str, bucket: str | None, mme: bool) -> str:
        """Return the URL of the repository's archive or, with ``mme``, of the folder with one for each
        model.
        """
        if not repository.is_dir():
            raise CommandError(f"{repository} is neither a folder nor an s3:// URL: correct --model-data.")
        client_problems = client_loading.find_problems(repository, mme=mme)
        inspect(repository, self._account.progress, client_problems=client_problems)
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix="archives-", dir=self._cache)
        except OSError as error:
            raise CommandError(f"{self._cache} cannot be written: {error}.") from None
        with folder as packed:
            no_exclusion = Exclusion(repository)
            plans = (
                archive_plan.plan_each(repository, no_exclusion)
                if mme
                else [archive_plan.plan_one(repository, Path(packed), no_exclusion)]
            )
            digests = {self._pack(plan, Path(packed)): plan.name for plan in plans}
            target = S3Uri(
                bucket or self._default_bucket(),
                f"{resources.KEY_PREFIX}/{name}/{_combined_digest(digests)}/",
            )
            for plan in plans:
                self._put(Path(packed) / f"{plan.name}.tar.gz", target)
        return str(target) if mme else f"{target}{plans[0].name}.tar.gz"

    def _pack(self, plan: ArchivePlan, folder: Path) -> str:
        return archive_writer.write(folder / f"{plan.name}.tar.gz", plan.entries, self._account.progress)

    def _default_bucket(self) -> str:
        """Return the bucket that SageMaker's SDK uses, created if needed; never one of another account."""
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
        location: dict[str, Any] = {}
        if region != "us-east-1":  # whose name S3 does not take
            location["CreateBucketConfiguration"] = {"LocationConstraint": region}
        account.create("s3", "create_bucket", f"make bucket {bucket}", Bucket=bucket, **location)
        return bucket

    def _put(self, file: Path, target: S3Uri) -> None:
        key, size, account = f"{target.key}{file.name}", file.stat().st_size, self._account
        place = f"s3://{target.bucket}/{key}"
        existing = account.describe("s3", "head_object", f"look at {place}", Bucket=target.bucket, Key=key)
        if existing and existing["ContentLength"] == size:
            account.progress.say(f"{place} already exists")
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

        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
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
        """Remove a killed run's parts. A complete object appears at once, so nothing else can be left."""
        doing, account = f"remove parts of s3://{bucket}/{key}", self._account
        latest = datetime.now(timezone.utc) - MAX_UPLOAD_AGE
        with account.optional():  # who may send need not be allowed to clear up
            uploads = account.paginate(
                "s3", "list_multipart_uploads", "Uploads", doing, Bucket=bucket, Prefix=key
            )
            for upload in [upload for upload in uploads if upload["Initiated"] < latest]:
                upload_id = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                account.remove("s3", "abort_multipart_upload", doing, **upload_id)


def default_bucket(account: Account) -> str:
    return f"sagemaker-{account.region}-{account.number}"


def _combined_digest(digests: dict[str, str]) -> str:
    """Return the digest of a single archive, or a digest of all with their names."""
    if len(digests) == 1:
        return next(iter(digests))
    return resources.add_hash("models", digests)


def fingerprint(account: Account, url: str, mme: bool) -> str:
    """Return a text that changes with the archive at ``url``. Raises :class:`CommandError` if there is none.

    Without the permission to look, deploying goes on: the role reads the archive.
    """
    place = aws.s3_place(url)
    if mme:
        return ""  # models come and go below a prefix, as is its purpose
    description: dict[str, Any] | None = {}
    with account.optional():
        description = account.describe(
            "s3", "head_object", f"look at {url}", Bucket=place.bucket, Key=place.key
        )
    if description is None:
        raise CommandError(f"there is no {url}; check its spelling, or pack one with 'sm package'.")
    return str(description.get("ETag", ""))
