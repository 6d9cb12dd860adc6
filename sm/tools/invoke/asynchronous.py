"""Asking an asynchronous endpoint: the request goes into S3, the answer is waited for there."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sm.errors import StartError
from sm.tools.deploy import aws
from sm.tools.invoke.endpoint import answering, kind
from sm.tools.invoke.question import Question
from sm.tools.invoke.reply import NoReply, Reply

#: Seconds between two looks, and until nobody will answer any more: an endpoint gives a request an hour.
EVERY, PATIENCE = 1.0, 3700.0


class AsyncEndpoint:
    """The asynchronous endpoint ``name``. Requests lie below its own output path while they are worked on."""

    def __init__(self, name: str, session: boto3.Session) -> None:
        self.name = name
        self._doing = f"ask the endpoint {name}"
        with answering(self._doing):
            self._sagemaker, self._runtime, self._s3 = (
                session.client(service) for service in ("sagemaker", "sagemaker-runtime", "s3")
            )

    def close(self) -> None:
        for client in (self._sagemaker, self._runtime, self._s3):
            client.close()

    def ask(self, question: Question) -> Reply:
        """The answer, or the reason for none as an answer of status 424."""
        began = time.perf_counter()
        with answering(self._doing):
            bucket, key = self._request_place()
            self._s3.put_object(Bucket=bucket, Key=key, Body=question.body, ContentType=question.content_type)
            try:
                places = self._runtime.invoke_endpoint_async(**self._words(question, f"s3://{bucket}/{key}"))
                return self._wait(places, began)
            finally:
                # An answer is worth more than a tidy bucket.
                with suppress(ClientError, BotoCoreError):
                    self._s3.delete_object(Bucket=bucket, Key=key)

    def _request_place(self) -> tuple[str, str]:
        endpoint = self._sagemaker.describe_endpoint(EndpointName=self.name)
        found = self._sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
        output = found.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
        if not output:
            raise StartError(f"the endpoint {self.name} is not asynchronous: ask it without --async.")
        bucket, path = split(output)
        return bucket, "/".join(part for part in (path.strip("/"), "requests", str(uuid.uuid4())) if part)

    def _words(self, question: Question, place: str) -> dict[str, Any]:
        return {
            "EndpointName": self.name,
            "InputLocation": place,
            "ContentType": question.content_type,
            "Accept": question.accept,
            **({"CustomAttributes": question.attributes} if question.attributes else {}),
        }

    def _wait(self, places: dict[str, Any], began: float) -> Reply:
        status = {places["OutputLocation"]: 200}
        if failure := places.get("FailureLocation"):
            status[failure] = 424
        while time.perf_counter() - began < PATIENCE:
            for place, meaning in status.items():
                if found := self._read(place):
                    return Reply(meaning, *found, time.perf_counter() - began)
            time.sleep(EVERY)
        raise NoReply(f"no answer at {places['OutputLocation']} after {PATIENCE:.0f} s: see 'sm logs'.")

    def _read(self, place: str) -> tuple[str, bytes] | None:
        """The object's type and bytes, None while there is none."""
        bucket, key = split(place)
        try:
            found = self._s3.get_object(Bucket=bucket, Key=key)
        except ClientError as error:
            # Who may not list the bucket is not told whether a key is there.
            if aws.code(error) in {"NoSuchKey", "404", "AccessDenied"}:
                return None
            raise
        return kind(found["ContentType"]), found["Body"].read()


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of ``s3://bucket/key``."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key
