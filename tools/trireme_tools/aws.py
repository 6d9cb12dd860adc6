"""The session with AWS, and the translation of its errors for the user."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError
from sm.http.s3 import S3Uri
from trireme_tools import documents

if TYPE_CHECKING:  # templates need no AWS, and so no boto3
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

#: Seconds until a silent host counts as away. boto3's default is 60, five times.
CONNECT_TIMEOUT_S = 10
#: Characters of AWS's message that are repeated.
MAX_MESSAGE_LENGTH = 400
SIGN_IN = "run 'aws configure' or 'aws sso login', or set AWS_PROFILE"
#: The sentences about each error code: see the file.
ERRORS = {code: row for row in documents.read(__file__, "aws_errors.yaml") for code in row["codes"]}
#: The permission of an operation, if it is not the operation's name.
PERMISSIONS = {"HeadObject": "GetObject", "HeadBucket": "ListBucket", "ListObjectsV2": "ListBucket"}


class ServiceUnavailable(CommandError):
    """AWS did not answer, or asks to wait: the same call may succeed later."""


def session(region: str | None = None, profile: str | None = None) -> boto3.Session:
    """Open a session whose Region is known. AWS_ENDPOINT_URL and boto3's other variables apply.

    Raises :class:`CommandError` for an unknown profile, and if no Region is set.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, NoRegionError

    region = region or os.environ.get("AWS_REGION")  # which boto3 does not read
    try:
        created = boto3.Session(region_name=region, profile_name=profile)
        if not created.region_name:
            raise NoRegionError
        created.get_partition_for_region(created.region_name)
    except BotoCoreError as error:
        raise explain(error, "open a session") from None
    created._session.set_default_client_config(Config(connect_timeout=CONNECT_TIMEOUT_S))
    return created


def s3_place(url: str) -> S3Uri:
    """Parse bucket and key of an S3 URL. Raises :class:`CommandError`."""
    try:
        return S3Uri.parse(url)
    except ValueError as error:
        raise CommandError(f"{error}. 'sm package' makes an archive.") from None


def explain(error: ClientError | BotoCoreError, doing: str) -> CommandError:
    """Explain an error in one sentence: what failed (``doing``: "create the model"), why, and what to do."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        kind = ServiceUnavailable if ERRORS.get(code(error), {}).get("passes") else CommandError
        return kind(f"cannot {doing}: {_explain_refusal(error)}")
    kind = ServiceUnavailable if _is_unreached(error) else CommandError
    return kind(f"cannot {doing}: {_explain_no_answer(error)}")


def _is_unreached(error: BotoCoreError) -> bool:
    """True for botocore's two families of errors for a missing answer."""
    from botocore.exceptions import ConnectionError, HTTPClientError

    return isinstance(error, HTTPClientError | ConnectionError)


def code(error: ClientError) -> str:
    """Return the error's code, such as ``AccessDeniedException``."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message(error: ClientError) -> str:
    """Return AWS's message on one line; some list all valid values."""
    text = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
    text = f"{text[:MAX_MESSAGE_LENGTH]} …" if len(text) > MAX_MESSAGE_LENGTH else text
    return text.rstrip(".") or f"AWS says {code(error) or 'nothing more'}"


def _explain_refusal(error: ClientError) -> str:
    if row := ERRORS.get(code(error)):
        values = {"action": _action(error), "message": message(error), "sign_in": SIGN_IN}
        return str(documents.fill(row["says"], values))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500:
        return f"AWS itself failed ({message(error)}). Nothing is lost: run the same command again."
    return f"{message(error)} ({code(error)})."


def _action(error: ClientError) -> str:
    """Return ``sagemaker:CreateModel``, from AWS's message or from the operation."""
    if match := re.search(r"perform:? `?([a-z0-9-]+:\w+)", message(error)):
        return match[1]
    operation = str(error.operation_name)
    return PERMISSIONS.get(operation, operation)


def _explain_no_answer(error: BotoCoreError) -> str:
    from botocore.exceptions import NoRegionError, ProfileNotFound, UnknownRegionError

    name = type(error).__name__
    if isinstance(error, NoRegionError):
        return "no Region is set; give --region, or run 'aws configure set region eu-west-1'."
    if isinstance(error, UnknownRegionError):
        return f"there is no Region like that ({error}); one is eu-west-1."
    if isinstance(error, ProfileNotFound):
        return f"{error}; 'aws configure list-profiles' shows those that there are."
    if "Credential" in name or "Token" in name or "SSO" in name:
        return f"no AWS credentials ({error}); {SIGN_IN}."
    if _is_unreached(error):
        return (
            f"the network is away, or there is no such Region ({error}). See whether this machine "
            "reaches it, then run the same command again: what was done is not done twice."
        )
    return f"{error}."


def to_tags(parts: dict[str, str]) -> list[dict[str, str]]:
    """Return tags in AWS's form."""
    return [{"Key": key, "Value": value} for key, value in parts.items()]


def tags_by_name(tags: list[dict[str, Any]]) -> dict[str, str]:
    """Return AWS's tags by name."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags}
