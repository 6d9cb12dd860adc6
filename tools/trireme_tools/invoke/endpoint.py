"""Invoke a SageMaker endpoint, also an asynchronous one, or a box that speaks like one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EventStreamError
from urllib3.exceptions import HTTPError

from sm.errors import CommandError
from sm.http.s3 import S3Uri
from trireme_tools import aws
from trireme_tools.invoke.messages import EVENT_STREAM, InvokeReply, InvokeRequest, NoReply, to_error
from trireme_tools.invoke.url import READ_TIMEOUT_S


class Endpoint:
    """The endpoint ``name``. With one of ``attempts`` throttling is visible."""

    def __init__(self, name: str, session: boto3.Session, callers: int = 1, attempts: int = 1) -> None:
        self.name = name
        with translate_errors(f"ask the endpoint {name}"):
            self._runtime = session.client(
                "sagemaker-runtime",
                config=Config(
                    read_timeout=READ_TIMEOUT_S,
                    retries={"total_max_attempts": attempts},
                    max_pool_connections=callers,
                ),
            )

    def close(self) -> None:
        self._runtime.close()

    def ask(self, request: InvokeRequest) -> InvokeReply:
        """Return the container's answer, whatever its status. :class:`NoReply` if AWS itself refuses."""
        began = time.perf_counter()
        with translate_errors(f"ask the endpoint {self.name}"):
            try:
                answer = self._runtime.invoke_endpoint(**self._arguments(request))
                body = answer["Body"].read()
            except ClientError as error:
                return container_reply(error, time.perf_counter() - began)
        return InvokeReply(200, media_type(answer["ContentType"]), body, time.perf_counter() - began)

    def stream(self, request: InvokeRequest) -> Iterator[bytes]:
        """Yield the answer's bytes as they arrive. Raises errors within the stream."""
        with translate_errors(f"ask the endpoint {self.name}"):
            try:
                answer = self._runtime.invoke_endpoint_with_response_stream(
                    **self._arguments(replace(request, accept=EVENT_STREAM))
                )
            except ClientError as error:
                raise to_error(container_reply(error, 0.0)) from None
            try:
                with closing(answer["Body"]) as events:
                    for event in events:
                        yield event["PayloadPart"]["Bytes"]
            except EventStreamError as error:
                raise CommandError(f"the stream broke: {aws.message(error)}") from None

    def _arguments(self, request: InvokeRequest) -> dict[str, Any]:
        target = {"TargetModel": request.target_model, "InferenceComponentName": request.component}
        given = {name: value for name, value in target.items() if value}
        return {**arguments(self.name, request), "Body": request.body, **given}


def arguments(name: str, request: InvokeRequest) -> dict[str, Any]:
    """Return the arguments of both ways to invoke the endpoint ``name``."""
    return {
        "EndpointName": name,
        "ContentType": request.content_type,
        "Accept": request.accept,
        **({"CustomAttributes": request.attributes} if request.attributes else {}),
    }


def container_reply(error: ClientError, seconds: float) -> InvokeReply:
    """Return the container's answer inside an error; other errors are raised again."""
    response: dict[str, Any] = dict(error.response)
    if aws.code(error) != "ModelError" or "OriginalStatusCode" not in response:
        raise error
    body = str(response.get("OriginalMessage", "")).encode()
    return InvokeReply(int(response["OriginalStatusCode"]), "application/json", body, seconds)


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


#: Bytes that InvokeEndpointAsync takes in the call itself.
MAX_INLINE_BYTES = 128_000
#: Seconds between two polls, and of the whole wait: an endpoint gives a request an hour.
POLL_INTERVAL_S, ANSWER_TIMEOUT_S = 1.0, 3700.0


class AsyncEndpoint:
    """The asynchronous endpoint ``name``. Large requests lie below its output path meanwhile."""

    def __init__(
        self,
        name: str,
        session: boto3.Session,
        timeout_s: float = ANSWER_TIMEOUT_S,
        keeps_answers: bool = True,
    ) -> None:
        self.name, self._timeout_s, self._keeps_answers = name, timeout_s, keeps_answers
        self._doing = f"ask the endpoint {name}"
        with translate_errors(self._doing):
            self._sagemaker, self._runtime, self._s3 = (
                session.client(service) for service in ("sagemaker", "sagemaker-runtime", "s3")
            )

    def close(self) -> None:
        for client in (self._sagemaker, self._runtime, self._s3):
            client.close()

    def ask(self, request: InvokeRequest) -> InvokeReply:
        """Return the answer; a failure is an answer with status 424."""
        began = time.perf_counter()
        temporary: list[S3Uri] = []
        with translate_errors(self._doing):
            try:
                answer = self._runtime.invoke_endpoint_async(
                    **arguments(self.name, request), **self._input(request, temporary)
                )
                statuses = {answer["OutputLocation"]: 200}
                if failure := answer.get("FailureLocation"):
                    statuses[failure] = 424
                if not self._keeps_answers:
                    temporary += map(aws.s3_place, statuses)
                return self._wait(statuses, began)
            finally:
                # Ignore a failed clean-up: the answer matters more.
                for place in temporary:
                    with suppress(ClientError, BotoCoreError):
                        self._s3.delete_object(Bucket=place.bucket, Key=place.key)

    def _input(self, request: InvokeRequest, temporary: list[S3Uri]) -> dict[str, Any]:
        """Return the request in the call itself if it takes it, else where it lies on S3."""
        call = self._runtime.meta.service_model.operation_model("InvokeEndpointAsync").input_shape
        # botocore has the field since June 2026.
        if 0 < len(request.body) <= MAX_INLINE_BYTES and "Body" in call.members:
            return {"Body": request.body}
        place = self._request_place()
        temporary.append(place)
        self._s3.put_object(
            Bucket=place.bucket, Key=place.key, Body=request.body, ContentType=request.content_type
        )
        return {"InputLocation": str(place)}

    def _request_place(self) -> S3Uri:
        endpoint = self._sagemaker.describe_endpoint(EndpointName=self.name)
        config = self._sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
        output = config.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
        if not output:
            raise CommandError(f"the endpoint {self.name} is not asynchronous: ask it without --async.")
        place = aws.s3_place(output)
        parts = (place.key.strip("/"), "requests", str(uuid.uuid4()))
        return S3Uri(place.bucket, "/".join(filter(None, parts)))

    def _wait(self, statuses: dict[str, int], began: float) -> InvokeReply:
        """Return the answer at one of the addresses, with its status."""
        while time.perf_counter() - began < self._timeout_s:
            for url, status in statuses.items():
                if result := self._read(url):
                    return InvokeReply(status, *result, time.perf_counter() - began)
            time.sleep(POLL_INTERVAL_S)
        raise NoReply(f"no answer at {next(iter(statuses))} after {self._timeout_s:.0f} s: see 'sm logs'.")

    def _read(self, url: str) -> tuple[str, bytes] | None:
        """Return the object's type and bytes; None if it does not exist."""
        place = aws.s3_place(url)
        try:
            response = self._s3.get_object(Bucket=place.bucket, Key=place.key)
        except ClientError as error:
            # Without the permission to list the bucket, S3 does not tell whether a key exists.
            if aws.code(error) in {"NoSuchKey", "404", "AccessDenied"}:
                return None
            raise
        return media_type(response["ContentType"]), response["Body"].read()
