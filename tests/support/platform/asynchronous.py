"""Asynchronous invocations: the input from S3, the answer or the failure to S3."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tests.support.platform.archives import parts
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import Refused, of_model


@dataclass(frozen=True)
class Asked:
    """One invocation: its id, where its body lies, what the container is told, and its seconds."""

    id: str
    source: str
    headers: Mapping[str, str]
    seconds: float


class Worker:
    """Works off what was asked, a few of each endpoint at once; ``s3`` is boto3's client."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def take(self, endpoint: Endpoint, asked: Asked) -> tuple[str, str]:
        """Put it in line; where its answer will be, and where its failure."""
        places = endpoint.plan.asynchronous
        assert places is not None
        output = f"{places.output.rstrip('/')}/{asked.id}.out"
        failure = f"{places.failure.rstrip('/')}/{asked.id}-error.out"
        pool = self._pools.setdefault(endpoint.plan.endpoint, ThreadPoolExecutor(places.at_once, "async"))
        pool.submit(self._work, endpoint, asked, output, failure)
        return output, failure

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _work(self, endpoint: Endpoint, asked: Asked, output: str, failure: str) -> None:
        try:
            content_type, body = self._answer(endpoint, asked)
            self._put(output, body, content_type)
        except Refused as error:
            self._put(failure, error.message.encode(), "text/plain")

    def _answer(self, endpoint: Endpoint, asked: Asked) -> tuple[str, bytes]:
        bucket, key = parts(asked.source)
        try:
            body = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            raise Refused(
                400, "ValidationError", f"The input {asked.source} cannot be read: {error}"
            ) from None
        instance, answer = endpoint.post(body, asked.headers, "", asked.seconds)
        content = answer.content
        if answer.status_code >= 400:
            raise of_model(answer.status_code, content.decode(errors="replace"), instance.stream.arn)
        return answer.headers["Content-Type"], content

    def _put(self, url: str, body: bytes, content_type: str) -> None:
        bucket, key = parts(url)
        self._s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type)
