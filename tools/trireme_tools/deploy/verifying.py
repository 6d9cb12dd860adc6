"""Send each client's sample through the endpoint and compare the answer with its golden one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sm.commands.selftest import Outcome, compare_sample, samples
from sm.errors import UnknownModel
from sm.plugins.discovery import select_sources
from sm.plugins.sources import discover, discover_in_models
from sm.repository.models import CODE
from trireme_tools import aws
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.deployment_plan import DeploymentPlan
from trireme_tools.invoke.endpoint import AsyncEndpoint, Endpoint
from trireme_tools.invoke.messages import InvokeRequest

#: Seconds to wait for an answer on S3.
ANSWER_TIMEOUT_S = 600.0
#: Attempts of a call: the endpoint has just been created.
ATTEMPTS = 5


class _NotServed(Exception):
    """The box does not serve the model, so there is nothing to compare."""


class Verifier:
    """Sends requests to an endpoint as its callers do."""

    def __init__(
        self, account: Account, plan: DeploymentPlan, endpoint: str, component: str | None = None
    ) -> None:
        self._account, self._plan, self._endpoint, self._component = account, plan, endpoint, component

    def outcomes(self, clients: tuple[Path, ...], repository: Path | None) -> Iterator[Outcome]:
        """Yield the outcome of each client that has a sample. ``repository`` is the deployed folder,
        if any.
        """
        folders = (*clients, repository / CODE) if repository else clients
        archives = self._archives() if self._plan.mme else None
        sources = list(discover(folders))
        if repository:
            sources += discover_in_models(repository, sources)
        with closing(self._target()) as target:
            for name, sample in samples(select_sources(sources)):
                if archives is not None and name not in archives:
                    yield Outcome(name, None)
                    continue
                try:
                    yield compare_sample(name, sample, partial(self._ask, target))
                except _NotServed:
                    yield Outcome(name, None)

    def _target(self) -> Endpoint | AsyncEndpoint:
        name, session = self._endpoint, self._account.session
        if self._plan.output:
            return AsyncEndpoint(name, session, ANSWER_TIMEOUT_S, keeps_answers=False)
        return Endpoint(name, session, attempts=ATTEMPTS)

    def _archives(self) -> set[str]:
        """Return the models of a multi-model endpoint: SageMaker itself refuses others."""
        place = aws.s3_place(self._plan.data.url)
        objects = self._account.paginate(
            "s3",
            "list_objects_v2",
            "Contents",
            f"list {place}",
            Bucket=place.bucket,
            Prefix=place.key,
        )
        return {Path(entry["Key"]).name.removesuffix(".tar.gz") for entry in objects}

    def _ask(self, target: Endpoint | AsyncEndpoint, body: dict[str, Any]) -> dict[str, Any]:
        archive = f"{body['modelname']}.tar.gz" if self._plan.mme else None
        request = InvokeRequest(
            json.dumps(body).encode(), "application/json", target_model=archive, component=self._component
        )
        return _read_answer(target.ask(request).body)


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
