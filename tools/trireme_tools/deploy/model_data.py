"""The models of a deployment on S3, and how SageMaker is told where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.deploy import resources

if TYPE_CHECKING:  # templates need no AWS, and so no boto3
    from trireme_tools.deploy.account import Account

#: The two members of a container that say where its models are; it has at most one of them.
ARCHIVE, SOURCE = "ModelDataUrl", "ModelDataSource"
#: Seconds that a start may take without models, and for each gigabyte: 17 MB/s.
START_S, START_S_PER_GB = 600, 60
#: SageMaker's largest value, in seconds.
MAX_START_S = 3600


@dataclass(frozen=True)
class ModelData:
    """Models at ``url``: an archive, or a prefix that ends in a slash and has their files or archives below.

    Attributes:
        fingerprint: What tells two contents at one URL apart; empty if the URL does.
        size: Bytes; 0 if it is not known.
    """

    url: str = ""
    fingerprint: str = ""
    size: int = 0


def members(url: str, mme: bool = False) -> dict[str, Any]:
    """Return the members of a container for the models at ``url``; none without one."""
    if not url:
        return {}
    if mme or not url.endswith("/"):
        return {ARCHIVE: url}
    return {SOURCE: {"S3DataSource": {"S3Uri": url, "S3DataType": "S3Prefix", "CompressionType": "None"}}}


def url_of(container: Mapping[str, Any]) -> str:
    """Return the URL of a container's models; empty if its image has them."""
    source = container.get(SOURCE, {}).get("S3DataSource", {})
    return str(container.get(ARCHIVE) or source.get("S3Uri", ""))


def replace(container: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the container with the models at ``url`` instead of its own."""
    others = {key: value for key, value in container.items() if key not in (ARCHIVE, SOURCE)}
    return {**others, **members(url)}


def start_timeout(size: int) -> int | None:
    """Return the seconds that models of ``size`` bytes may need to start; None if the size is not known."""
    return min(MAX_START_S, START_S + START_S_PER_GB * math.ceil(size / 1e9)) if size else None


def find(account: Account, url: str, mme: bool) -> ModelData:
    """Look at the models on S3. Raises :class:`CommandError` if there are none.

    Without the permission to look, deploying goes on: the role reads them.
    """
    place = aws.s3_place(url)
    if mme:
        return ModelData(url)  # models come and go below a prefix, as is its purpose
    described: dict[str, Any] | None = {}
    with account.optional():
        if url.endswith("/"):
            described = _describe_files(account, place.bucket, place.key)
        else:
            described = account.describe(
                "s3", "head_object", f"look at {url}", Bucket=place.bucket, Key=place.key
            )
    if described is None:
        raise CommandError(
            f"there is no {url}; check its spelling, or pack one with 'sm package'. "
            "The URL of a folder's files ends in a slash."
        )
    if folder := described.get("Folder"):
        raise CommandError(
            f"SageMaker starts no endpoint with the object s3://{place.bucket}/{folder}, which S3's console "
            "makes for a folder: delete it."
        )
    return ModelData(url, str(described.get("ETag", "")), int(described.get("ContentLength", 0)))


def _describe_files(account: Account, bucket: str, prefix: str) -> dict[str, Any] | None:
    """Describe all files below a prefix as if they were one object; None if there are none."""
    rows = account.paginate(
        "s3", "list_objects_v2", "Contents", f"list s3://{bucket}/{prefix}", Bucket=bucket, Prefix=prefix
    )
    files = {str(row["Key"]): row for row in rows}
    etags = {key.removeprefix(prefix): row["ETag"] for key, row in files.items()}
    size = sum(row["Size"] for row in files.values())
    folder = next((key for key in files if key.endswith("/")), "")
    described = {"ETag": resources.add_hash("files", etags), "ContentLength": size, "Folder": folder}
    return described if files else None
