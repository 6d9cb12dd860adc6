"""This box, as ``serve`` starts it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode

from bench import repositories
from bench.contestant import REGIMES, Contestant, Regime, Request
from bench.samples import sample
from sm.errors import CommandError
from sm.settings import HERE

#: Invocations that may wait: with the default, 128 callers at once would be told to come again (429).
QUEUE = 128
PARAMETERS = {"yolov5": {"format": "detections"}}


class Trireme(Contestant):
    """Real models: the demo's repository, as ``make serve`` has it."""

    name = "trireme"
    about = f"this box with its defaults, but TRIREME_QUEUE={QUEUE}"
    regimes: ClassVar[tuple[Regime, ...]] = REGIMES

    def prepare(self) -> None:
        if self.regime == "instant":
            repositories.box_instant(self.folder / "repository", self.files)

    def command(self) -> Sequence[str]:
        return (sys.executable, str(HERE / "serve"))

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            "TRIREME_MODEL_REPOSITORY": str(self.repository()),
            "TRIREME_QUEUE": str(QUEUE),
        }

    def repository(self) -> object:
        if self.regime == "instant":
            return self.folder / "repository"
        return repositories.demo()

    def request(self, model: str, form: str) -> Request | None:
        return ask(model, form)


class Fp32(Trireme):
    """The box with the arithmetic that the peers have."""

    name = "trireme_fp32"
    about = "this box with TRIREME_PRECISION=fp32, otherwise as trireme"
    regimes = ("real",)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "TRIREME_PRECISION": "fp32"}


class Same(Trireme):
    """The box with the files and settings of ONNX Runtime that the others have."""

    name = "trireme_same"
    about = "this box with the others' graphs and settings of ONNX Runtime: a process per core, 1 thread each"
    regimes = ("real",)

    def prepare(self) -> None:
        repositories.plain(self.folder / "repository", self.files)

    def repository(self) -> object:
        return self.folder / "repository"


class Before(Trireme):
    """The box of an earlier commit, to see what changed since: a checkout of it with its ``.venv``."""

    name = "trireme_before"
    about = "this box at the checkout that BENCH_BEFORE names, otherwise as trireme"
    regimes = ("instant",)

    def prepare(self) -> None:
        if not (self.checkout / ".venv" / "bin" / "python").exists():
            raise CommandError("BENCH_BEFORE must name a checkout of an earlier commit with its .venv.")
        super().prepare()

    def command(self) -> Sequence[str]:
        return (str(self.checkout / ".venv" / "bin" / "python"), str(self.checkout / "serve"))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self.checkout)}

    @property
    def checkout(self) -> Path:
        return Path(os.environ.get("BENCH_BEFORE", "/nowhere")).absolute()


class One(Trireme):
    """The box with a single worker, to see what the second adds."""

    name = "trireme_one"
    about = "this box with one worker of the router, SAGEMAKER_MODEL_SERVER_WORKERS=1"
    regimes = ("instant",)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SAGEMAKER_MODEL_SERVER_WORKERS": "1"}


def ask(name: str, form: str) -> Request:
    """Return a dispatch request in JSON, or a raw body, with ``sample(name)``."""
    given = sample(name)
    parameters = PARAMETERS.get(given.model, {})
    if form == "raw":
        query = urlencode({"modelname": given.model, **parameters})
        headers = {"Content-Type": given.content_type}
        return Request(f"/invocations?{query}", headers, given.content, given.expected)
    document = {"modelname": given.model, "payload": given.payload, "parameters": parameters}
    body = json.dumps(document).encode()
    return Request("/invocations", {"Content-Type": "application/json"}, body, given.expected)
