"""Explain why an endpoint did not start, from SageMaker's own reasons."""

from __future__ import annotations

import re

from sm.errors import CommandError

#: Advice by a part of the reason; the first match is used.
ADVICE = {
    r"\bping\b": (
        "The container started but /ping never said 200. The log above says what was missing; "
        "if models only load slowly, give --startup-timeout 3600."
    ),
    r"CapacityError|InsufficientInstanceCapacity|Unable to provision|requested ML compute": (
        "AWS has no such instance free now. Try again later, another --instance-type, or another Region."
    ),
    r"extract|unpack|tar file": "The archive is not a .tar.gz that SageMaker accepts: use 'sm package'.",
    r"model data|model artifact|s3:": (
        "The role cannot read the archive: 'sm iam NAME' prints the policy and the trust policy that it "
        "needs. See that the archive is there, too, and in this Region."
    ),
    r"AssumeRole|trust": (
        "SageMaker may not assume the role. Its trust policy must name sagemaker.amazonaws.com: "
        "'sm iam NAME' prints it."
    ),
    r"image|repository|ecr:": (
        "The image cannot be pulled. It must be in this Region's ECR (./build_and_push.sh --region REGION), "
        "and the role must be allowed to pull it ('sm iam NAME')."
    ),
    r"memory|OOM": "The instance is too small for the models. Use another --instance-type.",
    r"alarm": "An alarm went off on the new version, and the old one serves again. See 'sm logs NAME'.",
}
DEFAULT_ADVICE = "See 'sm logs NAME', and the endpoint's page in the SageMaker console."


class EndpointFailed(CommandError):
    """The endpoint does not serve what it should."""


def advice_for(reason: str) -> str:
    for part, sentence in ADVICE.items():
        if re.search(part, reason, re.IGNORECASE):
            return sentence
    return DEFAULT_ADVICE


def make_failure(name: str, what: str, reason: str, lines: list[str]) -> EndpointFailed:
    """Return the error. ``what`` is, for example, "could not be created"; ``lines`` are the
    containers' last.
    """
    log_text = "".join(f"  | {line}\n" for line in lines)
    logs = f"the last lines of its log:\n{log_text}" if lines else "its container has said nothing.\n"
    cause = reason.rstrip(".") or "SageMaker gives no reason"
    return EndpointFailed(
        f"endpoint {name!r} {what}: {cause}.\n{logs}{advice_for(reason).replace('NAME', name)}"
    )
