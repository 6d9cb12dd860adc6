"""Invoke a SageMaker endpoint, or a box that speaks like one, with boto3's sagemaker-runtime."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EventStreamError
from urllib3.exceptions import HTTPError

from sm.errors import CommandError
from trireme_tools.deploy import aws
from trireme_tools.invoke.invoke_request import EVENT_STREAM, InvokeRequest
from trireme_tools.invoke.reply import NoReply, Reply, to_error
from trireme_tools.invoke.url import READ_TIMEOUT_S


class Endpoint:
    """The endpoint ``name``. Calls are not repeated, so that throttling is visible."""

    def __init__(self, name: str, session: boto3.Session, callers: int = 1) -> None:
        self.name = name
        with translate_errors(f"ask the endpoint {name}"):
            self._runtime = session.client(
                "sagemaker-runtime",
                config=Config(
                    read_timeout=READ_TIMEOUT_S,
                    retries={"total_max_attempts": 1},
                    max_pool_connections=callers,
                ),
            )

    def close(self) -> None:
        self._runtime.close()

    def ask(self, request: InvokeRequest) -> Reply:
        """Return the container's answer, whatever its status. :class:`NoReply` if AWS itself refuses."""
        began = time.perf_counter()
        with translate_errors(f"ask the endpoint {self.name}"):
            try:
                answer = self._runtime.invoke_endpoint(**self._arguments(request, request.accept))
                body = answer["Body"].read()
            except ClientError as error:
                return container_reply(error, time.perf_counter() - began)
        return Reply(200, media_type(answer["ContentType"]), body, time.perf_counter() - began)

    def stream(self, request: InvokeRequest) -> Iterator[bytes]:
        """Yield the answer's bytes as they arrive. Raises errors within the stream."""
        with translate_errors(f"ask the endpoint {self.name}"):
            try:
                answer = self._runtime.invoke_endpoint_with_response_stream(
                    **self._arguments(request, EVENT_STREAM)
                )
            except ClientError as error:
                raise to_error(container_reply(error, 0.0)) from None
            try:
                with closing(answer["Body"]) as events:
                    for event in events:
                        yield event["PayloadPart"]["Bytes"]
            except EventStreamError as error:
                raise CommandError(f"the stream broke: {aws.message(error)}") from None

    def _arguments(self, request: InvokeRequest, accept: str) -> dict[str, Any]:
        return {
            "EndpointName": self.name,
            "Body": request.body,
            "ContentType": request.content_type,
            "Accept": accept,
            **({"CustomAttributes": request.attributes} if request.attributes else {}),
            **({"TargetModel": request.target_model} if request.target_model else {}),
        }


def container_reply(error: ClientError, seconds: float) -> Reply:
    """Return the container's answer inside an error; other errors are raised again."""
    response: dict[str, Any] = dict(error.response)
    if aws.code(error) != "ModelError" or "OriginalStatusCode" not in response:
        raise error
    body = str(response.get("OriginalMessage", "")).encode()
    return Reply(int(response["OriginalStatusCode"]), "application/json", body, seconds)


def media_type(content_type: str) -> str:
    """Return the content type without parameters such as ``; charset=utf-8``."""
    return content_type.partition(";")[0].strip()


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Translate AWS's errors to :class:`NoReply`, with their code."""
    try:
        yield
    except ClientError as error:
        raise NoReply(str(aws.explain(error, doing)), aws.code(error) or "error") from None
    except BotoCoreError as error:
        raise NoReply(str(aws.explain(error, doing)), type(error).__name__) from None
    except HTTPError as error:
        raise NoReply(f"cannot {doing}: the connection broke ({error}).", type(error).__name__) from None
