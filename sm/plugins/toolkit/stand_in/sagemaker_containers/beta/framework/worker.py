"""The response that a script may return."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sagemaker_inference import content_types
from werkzeug import wrappers


class Response(wrappers.Response):
    """A body with its content type; read by :mod:`sm.plugins.toolkit.script_functions`."""

    def __init__(
        self,
        response: Any = None,
        accept: str | None = None,
        status: int = HTTPStatus.OK,
        mimetype: str = content_types.JSON,
    ) -> None:
        super().__init__(response=response, status=status, mimetype=accept or mimetype)
