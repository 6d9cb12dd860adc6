"""Asynchronous invocations: read the input from S3, write the response or the failure to S3."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tests.support.platform.archives import split_s3_url
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import InvocationFailed, model_error


@dataclass(frozen=True)
class AsyncInvocation:
    """One asynchronous invocation: its input in S3, and the headers and time limit for the container."""

    id: str
    input_url: str
    headers: Mapping[str, str]
    timeout_s: float


class AsyncWorker:
    """Runs invocations in a thread pool for each endpoint. ``s3`` is boto3's client."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def submit(self, endpoint: Endpoint, invocation: AsyncInvocation) -> tuple[str, str]:
        """Queue an invocation, and return the S3 URLs of its response and of its failure."""
        config = endpoint.plan.async_config
        assert config is not None
        output_url = f"{config.output_url.rstrip('/')}/{invocation.id}.out"
        failure_url = f"{config.failure_url.rstrip('/')}/{invocation.id}-error.out"
        pool = self._pools.setdefault(
            endpoint.plan.endpoint_name, ThreadPoolExecutor(config.max_concurrent, "async")
        )
        pool.submit(self._process, endpoint, invocation, output_url, failure_url)
        return output_url, failure_url

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _process(
        self, endpoint: Endpoint, invocation: AsyncInvocation, output_url: str, failure_url: str
    ) -> None:
        try:
            content_type, body = self._invoke(endpoint, invocation)
            self._upload(output_url, body, content_type)
        except InvocationFailed as error:
            self._upload(failure_url, error.message.encode(), "text/plain")

    def _invoke(self, endpoint: Endpoint, invocation: AsyncInvocation) -> tuple[str, bytes]:
        bucket, key = split_s3_url(invocation.input_url)
        try:
            body = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            raise InvocationFailed(
                400, "ValidationError", f"The input {invocation.input_url} cannot be read: {error}"
            ) from None
        instance, response = endpoint.invoke(body, invocation.headers, "", invocation.timeout_s)
        content = response.content
        if response.status_code >= 400:
            raise model_error(response.status_code, content.decode(errors="replace"), instance.log_stream.arn)
        return response.headers["Content-Type"], content

    def _upload(self, url: str, body: bytes, content_type: str) -> None:
        bucket, key = split_s3_url(url)
        self._s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type)
