"""Send each client's sample through the endpoint and compare the answer with its golden one."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sm.commands.selftest import Outcome, compare_sample, samples
from sm.errors import UnknownModel
from sm.plugins.loading import discover, discover_tasks
from sm.plugins.registry import select_sources
from sm.router.s3 import S3Uri
from sm.run_state import CODE
from trireme_tools.deploy import aws
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.deployment_plan import Plan

RUNTIME = "sagemaker-runtime"
#: Seconds to wait for an answer on S3, and between two polls.
ANSWER_TIMEOUT_S, POLL_INTERVAL_S = 600.0, 1.0


class _NotServed(Exception):
    """The box does not serve the model, so there is nothing to compare."""


class Verifier:
    """Sends requests to an endpoint as its callers do."""

    def __init__(self, account: Account, plan: Plan) -> None:
        self._account, self._plan = account, plan

    def outcomes(self, clients: tuple[Path, ...], repository: Path | None) -> Iterator[Outcome]:
        """Yield the outcome of each client that has a sample. ``repository`` is the deployed folder,
        if any.
        """
        folders = (*clients, repository / CODE) if repository else clients
        archives = self._archives() if self._plan.mme else None
        sources = list(discover(folders))
        if repository:
            sources += discover_tasks(repository, sources)
        for name, sample in samples(select_sources(sources)):
            if archives is not None and name not in archives:
                yield Outcome(name, None)
                continue
            try:
                yield compare_sample(name, sample, self._ask_later if self._plan.output else self._ask)
            except _NotServed:
                yield Outcome(name, None)

    def _archives(self) -> set[str]:
        """Return the models of a multi-model endpoint: SageMaker itself refuses others."""
        place = aws.s3_place(self._plan.data)
        objects = self._account.paginate(
            "s3",
            "list_objects_v2",
            "Contents",
            f"list {place}",
            Bucket=place.bucket,
            Prefix=place.key,
        )
        return {Path(entry["Key"]).name.removesuffix(".tar.gz") for entry in objects}

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        target = {"TargetModel": f"{body['modelname']}.tar.gz"} if self._plan.mme else {}
        try:
            answer = self._account.client(RUNTIME).invoke_endpoint(
                EndpointName=self._plan.name,
                ContentType="application/json",
                Body=json.dumps(body).encode(),
                **target,
            )
            return _read_answer(answer["Body"].read())
        except ClientError as error:
            if aws.code(error) == "ModelError":  # what the box itself says is inside
                return _read_answer(str(error.response.get("OriginalMessage", aws.message(error))).encode())
            raise aws.explain(error, "invoke the endpoint") from None
        except BotoCoreError as error:
            raise aws.explain(error, "invoke the endpoint") from None

    def _ask_later(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send through S3, as an asynchronous endpoint needs."""
        output = aws.s3_place(str(self._plan.output))
        key = f"{output.key.rstrip('/')}/trireme-check/{uuid.uuid4()}.json".lstrip("/")
        request_place = S3Uri(output.bucket, key)
        created = [request_place]
        try:
            self._account.call(
                "s3",
                "put_object",
                f"put a sample to {request_place}",
                Bucket=request_place.bucket,
                Key=key,
                Body=json.dumps(body).encode(),
            )
            answer = self._account.call(
                RUNTIME,
                "invoke_endpoint_async",
                "invoke the endpoint",
                EndpointName=self._plan.name,
                ContentType="application/json",
                InputLocation=str(request_place),
            )
            places = [
                aws.s3_place(answer[name])
                for name in ("OutputLocation", "FailureLocation")
                if answer.get(name)
            ]
            created += places
            return self._wait(places)
        finally:
            for place in created:
                self._account.remove(
                    "s3", "delete_object", f"remove {place}", Bucket=place.bucket, Key=place.key
                )

    def _wait(self, places: list[S3Uri]) -> dict[str, Any]:
        until = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < until:
            for place in places:
                response = self._account.describe(
                    "s3", "get_object", f"read {place}", Bucket=place.bucket, Key=place.key
                )
                if response:
                    return _read_answer(response["Body"].read())
            time.sleep(POLL_INTERVAL_S)
        return {"error": f"no answer after {ANSWER_TIMEOUT_S:.0f} s"}


def _read_answer(text: bytes) -> dict[str, Any]:
    """Return the box's answer or error. Raises :class:`_NotServed` if it has no such model."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return {"error": f"no answer of a box: {text[:80]!r}"}
    if document.get("code") == UnknownModel.code:
        raise _NotServed
    return document
