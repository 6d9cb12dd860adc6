"""The errors of SageMaker's runtime, in the form that boto3 reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass
class InvocationFailed(Exception):
    """An error response of the runtime. ``error_type`` is its name in boto3, such as ``ModelError``."""

    status: int
    error_type: str
    message: str
    details: dict[str, object] = field(default_factory=dict)

    def body(self) -> bytes:
        return json.dumps({"Message": self.message, **self.details}).encode()


def validation_error(message: str, status: int = 400) -> InvocationFailed:
    """Return the error for a request that the endpoint does not accept."""
    return InvocationFailed(status, "ValidationError", message)


def model_error(status: int, container_message: str, log_stream_arn: str) -> InvocationFailed:
    """Return the error for a container that answered with an error status, or not at all (status 0)."""
    fault = "client" if 400 <= status < 500 else "server"
    return InvocationFailed(
        424,
        "ModelError",
        f'Received {fault} error ({status}) from primary with message "{container_message}". See {log_stream_arn} for more.',
        {"OriginalStatusCode": status, "OriginalMessage": container_message, "LogStreamArn": log_stream_arn},
    )
