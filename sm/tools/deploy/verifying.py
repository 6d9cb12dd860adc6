"""Each client's sample, sent through the endpoint and compared with its golden answer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sm.errors import UnknownModel
from sm.plugins.loading import discover
from sm.plugins.name_conflicts import select_sources
from sm.run_state import CODE
from sm.tools.deploy import aws
from sm.tools.deploy.account import Account
from sm.tools.deploy.deployment_plan import Plan
from sm.tools.deploy.upload import Place
from sm.tools.selftest import Outcome, compare, samples

RUNTIME = "sagemaker-runtime"
#: Seconds for an answer on S3, and between two looks.
PATIENCE, PAUSE = 600.0, 1.0


class _Unknown(Exception):
    """The box does not serve the model: nothing to compare."""


class Verifier:
    """Asks an endpoint as its callers will."""

    def __init__(self, account: Account, plan: Plan) -> None:
        self._account, self._plan = account, plan

    def outcomes(self, clients: tuple[Path, ...], repository: Path | None) -> Iterator[Outcome]:
        """One for each client that has a sample. ``repository`` is the folder that was deployed, if any."""
        folders = (*clients, repository / CODE) if repository else clients
        archives = self._archives() if self._plan.mme else None
        for name, sample in samples(select_sources(discover(folders))):
            if archives is not None and name not in archives:
                yield Outcome(name, None)
                continue
            try:
                yield compare(name, sample, self._ask_later if self._plan.output else self._ask)
            except _Unknown:
                yield Outcome(name, None)

    def _archives(self) -> set[str]:
        """The models of a multi-model endpoint: another is refused by SageMaker, not by the box."""
        place = Place.read(self._plan.data)
        found = self._account.paginate(
            "s3",
            "list_objects_v2",
            "Contents",
            f"list {place}",
            Bucket=place.bucket,
            Prefix=place.key,
        )
        return {Path(each["Key"]).name.removesuffix(".tar.gz") for each in found}

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        target = {"TargetModel": f"{body['modelname']}.tar.gz"} if self._plan.mme else {}
        try:
            answer = self._account.client(RUNTIME).invoke_endpoint(
                EndpointName=self._plan.name,
                ContentType="application/json",
                Body=json.dumps(body).encode(),
                **target,
            )
            return _known(answer["Body"].read())
        except ClientError as error:
            if aws.code(error) == "ModelError":  # what the box itself says is inside
                return _known(str(error.response.get("OriginalMessage", aws.message(error))).encode())
            raise aws.explain(error, "invoke the endpoint") from None
        except BotoCoreError as error:
            raise aws.explain(error, "invoke the endpoint") from None

    def _ask_later(self, body: dict[str, Any]) -> dict[str, Any]:
        """By way of S3, as an asynchronous endpoint wants it."""
        output = Place.read(str(self._plan.output))
        key = f"{output.key.rstrip('/')}/trireme-check/{uuid.uuid4()}.json".lstrip("/")
        asked = Place(output.bucket, key)
        made = [asked]
        try:
            self._account.call(
                "s3",
                "put_object",
                f"put a sample to {asked}",
                Bucket=asked.bucket,
                Key=key,
                Body=json.dumps(body).encode(),
            )
            answer = self._account.call(
                RUNTIME,
                "invoke_endpoint_async",
                "invoke the endpoint",
                EndpointName=self._plan.name,
                ContentType="application/json",
                InputLocation=str(asked),
            )
            places = [
                Place.read(answer[name]) for name in ("OutputLocation", "FailureLocation") if answer.get(name)
            ]
            made += places
            return self._wait(places)
        finally:
            for place in made:
                self._account.remove(
                    "s3", "delete_object", f"remove {place}", Bucket=place.bucket, Key=place.key
                )

    def _wait(self, places: list[Place]) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for place in places:
                found = self._account.describe(
                    "s3", "get_object", f"read {place}", Bucket=place.bucket, Key=place.key
                )
                if found:
                    return _known(found["Body"].read())
            time.sleep(PAUSE)
        return {"error": f"no answer after {PATIENCE:.0f} s"}


def _known(text: bytes) -> dict[str, Any]:
    """An answer of the box, an error's too; :class:`_Unknown` where it says that it has no such model."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"error": f"no answer of a box: {text[:80]!r}"}
    if found.get("code") == UnknownModel.code:
        raise _Unknown
    return found
