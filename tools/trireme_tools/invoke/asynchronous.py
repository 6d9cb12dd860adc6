"""Invoke an asynchronous endpoint: put the request on S3 and wait for the answer there."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sm.errors import CommandError
from sm.router.s3 import S3Uri
from trireme_tools.deploy import aws
from trireme_tools.invoke.endpoint import media_type, translate_errors
from trireme_tools.invoke.invoke_request import InvokeRequest
from trireme_tools.invoke.reply import NoReply, Reply

#: Seconds between two polls, and of the whole wait: an endpoint gives a request an hour.
POLL_INTERVAL_S, ANSWER_TIMEOUT_S = 1.0, 3700.0


class AsyncEndpoint:
    """The asynchronous endpoint ``name``. Requests lie below its output path while they are worked on."""

    def __init__(self, name: str, session: boto3.Session) -> None:
        self.name = name
        self._doing = f"ask the endpoint {name}"
        with translate_errors(self._doing):
            self._sagemaker, self._runtime, self._s3 = (
                session.client(service) for service in ("sagemaker", "sagemaker-runtime", "s3")
            )

    def close(self) -> None:
        for client in (self._sagemaker, self._runtime, self._s3):
            client.close()

    def ask(self, request: InvokeRequest) -> Reply:
        """Return the answer; a failure is an answer with status 424."""
        began = time.perf_counter()
        with translate_errors(self._doing):
            place = self._request_place()
            self._s3.put_object(
                Bucket=place.bucket, Key=place.key, Body=request.body, ContentType=request.content_type
            )
            try:
                places = self._runtime.invoke_endpoint_async(**self._arguments(request, str(place)))
                return self._wait(places, began)
            finally:
                # Ignore a failed clean-up: the answer matters more.
                with suppress(ClientError, BotoCoreError):
                    self._s3.delete_object(Bucket=place.bucket, Key=place.key)

    def _request_place(self) -> S3Uri:
        endpoint = self._sagemaker.describe_endpoint(EndpointName=self.name)
        config = self._sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
        output = config.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
        if not output:
            raise CommandError(f"the endpoint {self.name} is not asynchronous: ask it without --async.")
        place = aws.s3_place(output)
        parts = (place.key.strip("/"), "requests", str(uuid.uuid4()))
        return S3Uri(place.bucket, "/".join(filter(None, parts)))

    def _arguments(self, request: InvokeRequest, place: str) -> dict[str, Any]:
        return {
            "EndpointName": self.name,
            "InputLocation": place,
            "ContentType": request.content_type,
            "Accept": request.accept,
            **({"CustomAttributes": request.attributes} if request.attributes else {}),
        }

    def _wait(self, places: dict[str, Any], began: float) -> Reply:
        statuses = {places["OutputLocation"]: 200}
        if failure := places.get("FailureLocation"):
            statuses[failure] = 424
        while time.perf_counter() - began < ANSWER_TIMEOUT_S:
            for url, status in statuses.items():
                if result := self._read(url):
                    return Reply(status, *result, time.perf_counter() - began)
            time.sleep(POLL_INTERVAL_S)
        raise NoReply(
            f"no answer at {places['OutputLocation']} after {ANSWER_TIMEOUT_S:.0f} s: see 'sm logs'."
        )

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
