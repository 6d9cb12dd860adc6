"""AWS itself: the session to speak to it, and what its errors mean for the one who asked."""

from __future__ import annotations

import re
from typing import Any

from sm.errors import StartError

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoRegionError,
        ProfileNotFound,
        UnknownRegionError,
    )
except ModuleNotFoundError:
    raise StartError("this command needs boto3: pip install 'trireme[deploy]'.") from None

#: Seconds until a host that is silent counts as away. boto3's own are 60, five times over.
CONNECT_TIMEOUT = 10
#: Characters of AWS's words that are repeated.
LONGEST = 400
SIGN_IN = "run 'aws configure' or 'aws sso login', or set AWS_PROFILE"
#: botocore's two families of errors for an answer that did not come.
UNREACHED = (HTTPClientError, ConnectionError)
#: Error codes by what there is to do; each service has its own words.
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestExpiredException"}
UNKNOWN_KEY = {
    "AuthFailure",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "InvalidSignatureException",
}
DENIED = {"403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "UnauthorizedOperation"}
THROTTLED = {
    "RequestLimitExceeded",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
}
#: The permission that an operation needs, where it is not the operation's own name.
PERMISSIONS = {"HeadObject": "GetObject", "HeadBucket": "ListBucket", "ListObjectsV2": "ListBucket"}


class ServiceUnavailable(StartError):
    """AWS did not answer, or asks to wait: the same call may well do later."""


def session(region: str | None = None, profile: str | None = None) -> boto3.Session:
    """A session whose Region is known. AWS_ENDPOINT_URL and the rest of boto3's variables hold.

    :class:`StartError` where there is no such profile, or no Region is set.
    """
    try:
        made = boto3.Session(region_name=region, profile_name=profile)
        if not made.region_name:
            raise NoRegionError
        made.get_partition_for_region(made.region_name)
    except BotoCoreError as error:
        raise explain(error, "open a session") from None
    made._session.set_default_client_config(Config(connect_timeout=CONNECT_TIMEOUT))
    return made


def explain(error: ClientError | BotoCoreError, doing: str) -> StartError:
    """One sentence: what could not be done (``doing``: "create the model"), why, and what to do."""
    if isinstance(error, ClientError):
        kind = ServiceUnavailable if code(error) in THROTTLED else StartError
        return kind(f"cannot {doing}: {_refusal(error)}")
    kind = ServiceUnavailable if isinstance(error, UNREACHED) else StartError
    return kind(f"cannot {doing}: {_trouble(error)}")


def code(error: ClientError) -> str:
    """The error's code, such as ``AccessDeniedException``."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message(error: ClientError) -> str:
    """AWS's own words, on one line; some list all that would do."""
    said = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
    said = f"{said[:LONGEST]} …" if len(said) > LONGEST else said
    return said.rstrip(".") or f"AWS says {code(error) or 'nothing more'}"


def _refusal(error: ClientError) -> str:
    found = code(error)
    if found in DENIED:
        return (
            f"these AWS credentials may not do {_action(error)}. Have it granted: 'sm iam' prints the policy."
        )
    if found in EXPIRED:
        return f"the AWS credentials have expired; {SIGN_IN}."
    if found in UNKNOWN_KEY:
        return f"AWS does not know these credentials; {SIGN_IN}. A Region that is not enabled says the same."
    if found in THROTTLED:
        return "AWS asks to slow down, after several attempts. Run the same command again in a minute."
    if found == "ResourceLimitExceeded":
        return (
            f"a quota of the account is used up ({message(error)}). "
            "Ask for more under Service Quotas, or use another --instance-type."
        )
    if found == "NoSuchBucket":
        return f"{message(error)}. Look at the bucket's spelling, or make it: aws s3 mb s3://BUCKET."
    if found in {
        "301",
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    }:
        return f"the bucket is in another Region ({message(error)}). Use a bucket of the endpoint's Region."
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500:
        return f"AWS itself failed ({message(error)}). Nothing is lost: run the same command again."
    return f"{message(error)} ({found})."


def _action(error: ClientError) -> str:
    """``sagemaker:CreateModel``, by AWS's own words or by the operation."""
    if said := re.search(r"perform:? `?([a-z0-9-]+:\w+)", message(error)):
        return said[1]
    operation = str(error.operation_name)
    return PERMISSIONS.get(operation, operation)


def _trouble(error: BotoCoreError) -> str:
    name = type(error).__name__
    if isinstance(error, NoRegionError):
        return "no Region is set; give --region, or run 'aws configure set region eu-west-1'."
    if isinstance(error, UnknownRegionError):
        return f"there is no Region like that ({error}); one is eu-west-1."
    if isinstance(error, ProfileNotFound):
        return f"{error}; 'aws configure list-profiles' shows those that there are."
    if "Credential" in name or "Token" in name or "SSO" in name:
        return f"no AWS credentials ({error}); {SIGN_IN}."
    if isinstance(error, UNREACHED):
        return (
            f"the network is away, or there is no such Region ({error}). See whether this machine "
            "reaches it, then run the same command again: what was done is not done twice."
        )
    return f"{error}."


def named(parts: dict[str, str]) -> list[dict[str, str]]:
    """Tags as AWS takes them."""
    return [{"Key": key, "Value": value} for key, value in parts.items()]


def by_name(tags: list[dict[str, Any]]) -> dict[str, str]:
    """Tags as AWS gives them, by their names."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags}
