"""What SageMaker's runtime says when an invocation cannot be answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass
class Refused(Exception):
    """An error of the runtime itself: ``kind`` is the name that boto3 knows it by."""

    status: int
    kind: str
    message: str
    more: dict[str, object] = field(default_factory=dict)

    def body(self) -> bytes:
        return json.dumps({"Message": self.message, **self.more}).encode()


def invalid(message: str, status: int = 400) -> Refused:
    """The request is not one that this endpoint takes."""
    return Refused(status, "ValidationError", message)


def of_model(status: int, original: str, logs: str) -> Refused:
    """The container's own error, or that it gave no answer (0)."""
    side = "client" if 400 <= status < 500 else "server"
    return Refused(
        424,
        "ModelError",
        f'Received {side} error ({status}) from primary with message "{original}". See {logs} for more.',
        {"OriginalStatusCode": status, "OriginalMessage": original, "LogStreamArn": logs},
    )
