"""Upload a folder's models to S3, once for each content: their files, or archives of them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sm.commands import client_loading
from sm.errors import CommandError
from sm.http.s3 import S3Uri
from trireme_tools import aws
from trireme_tools.deploy import resources
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.file_upload import FileUploader, abort_abandoned, transfer_config
from trireme_tools.deploy.model_data import ModelData
from trireme_tools.package import archive_plan, archive_writer
from trireme_tools.package.archive_plan import ArchivePlan
from trireme_tools.package.contents import ExcludedFiles
from trireme_tools.package.package_command import inspect


class Uploader:
    """Uploads repositories. Archives are packed in ``cache``: they are large, and ``/tmp`` may be memory.

    ``check`` is called before anything is sent, if something must be; an error ends the upload.
    """

    def __init__(self, account: Account, cache: Path, check: Callable[[], None] | None = None) -> None:
        self._account, self._cache, self._check = account, cache, check

    def send(
        self, repository: Path, name: str, bucket: str | None, archive: bool, mme: bool = False
    ) -> ModelData:
        """Upload the repository's files, ``archive`` one archive, or ``mme`` one for each model."""
        if not repository.is_dir():
            raise CommandError(f"{repository} is neither a folder nor an s3:// URL: correct --model-data.")
        client_problems = client_loading.find_problems(repository, mme=mme)
        inspect(repository, self._account.progress, client_problems=client_problems)
        if not (archive or mme):
            entries = archive_plan.plan_one(repository, repository, ExcludedFiles(repository)).entries
            return FileUploader(self._account, repository, entries, self._check).send(
                bucket or provide_default_bucket(self._account), f"{resources.KEY_PREFIX}/{name}/"
            )
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix="archives-", dir=self._cache)
        except OSError as error:
            raise CommandError(f"{self._cache} cannot be written: {error}.") from None
        with folder as packed:
            no_exclusion = ExcludedFiles(repository)
            plans = (
                archive_plan.plan_each(repository, no_exclusion)
                if mme
                else [archive_plan.plan_one(repository, Path(packed), no_exclusion)]
            )
            digests = {self._pack(plan, Path(packed)): plan.name for plan in plans}
            target = S3Uri(
                bucket or provide_default_bucket(self._account),
                f"{resources.KEY_PREFIX}/{name}/{_combined_digest(digests)}/",
            )
            files = [Path(packed) / f"{plan.name}.tar.gz" for plan in plans]
            for file in files:
                self._put(file, target)
            url = str(target) if mme else f"{target}{files[0].name}"
            return ModelData(url, size=0 if mme else sum(sum(plan.sizes().values()) for plan in plans))

    def _pack(self, plan: ArchivePlan, folder: Path) -> str:
        return archive_writer.write(folder / f"{plan.name}.tar.gz", plan.entries, self._account.progress)

    def _put(self, file: Path, target: S3Uri) -> None:
        key, size, account = f"{target.key}{file.name}", file.stat().st_size, self._account
        place = f"s3://{target.bucket}/{key}"
        existing = account.describe("s3", "head_object", f"look at {place}", Bucket=target.bucket, Key=key)
        if existing and existing["ContentLength"] == size:
            account.progress.say(f"{place} already exists")
        elif account.dry:
            account.show("s3", "cp", file.name, place)
        else:
            if self._check:
                self._check()
            abort_abandoned(account, target.bucket, key)
            self._send(file, target.bucket, key)

    def _send(self, file: Path, bucket: str, key: str) -> None:
        sent, lock = [0], threading.Lock()

        def count(size: int) -> None:  # from the threads that send
            with lock:
                sent[0] += size

        place, size = f"s3://{bucket}/{key}", file.stat().st_size
        try:
            with (
                self._account.progress.step(f"sending {place}", size, lambda: sent[0]),
                file.open("rb") as body,
            ):
                self._account.client("s3").upload_fileobj(
                    body, bucket, key, Callback=count, Config=transfer_config()
                )
        except (ClientError, BotoCoreError) as error:
            raise aws.explain(error, f"send the archive to {place}") from None


def default_bucket(account: Account) -> str:
    return f"sagemaker-{account.region}-{account.number}"


def provide_default_bucket(account: Account) -> str:
    """Return the bucket that SageMaker's SDK uses, created if needed; never one of another account."""
    bucket, owner = default_bucket(account), account.number
    doing = f"look at bucket {bucket}"
    if account.describe("s3", "head_bucket", doing, Bucket=bucket, ExpectedBucketOwner=owner):
        return bucket
    location: dict[str, Any] = {}
    if account.region != "us-east-1":  # whose name S3 does not take
        location["CreateBucketConfiguration"] = {"LocationConstraint": account.region}
    account.create("s3", "create_bucket", f"make bucket {bucket}", Bucket=bucket, **location)
    return bucket


def _combined_digest(digests: dict[str, str]) -> str:
    """Return the digest of a single archive, or a digest of all with their names."""
    if len(digests) == 1:
        return next(iter(digests))
    return resources.add_hash("models", digests)
