"""Pictures that the gateway's tests send."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def picture(colour: str, kind: str = "png") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (20, 16), colour).save(content, kind)
    return content.getvalue()


RED, BLUE = picture("red"), picture("blue")


def api_gateway_event(method: str, path: str) -> dict[str, Any]:
    """The event with which API Gateway calls the Lambda function."""
    return {
        "requestContext": {"httpMethod": method, "resourcePath": path},
        "headers": {},
        "pathParameters": {},
        "stageVariables": {},
        "multiValueQueryStringParameters": None,
        "body": None,
    }
