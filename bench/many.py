"""A box with many unused models beside those that are called: each is an ensemble with its own client.

An ensemble is Triton's cheapest model: the wheel's only other kind is a process of its own, or two.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from bench.contestant import Regime
from bench.contestants.trireme import Trireme, ask
from bench.large import send
from bench.measuring import WARM_CALLERS, drive
from sm.errors import CommandError
from sm.settings import HERE

MODELS = 200
#: The model to which each of them passes its picture, and the model that is measured.
TARGET_MODEL, MEASURED_MODEL = "resnet", "bert_base"
#: Turns, seconds of each, and how often a path of the control plane is asked.
TURNS, SECONDS, GETS = 7, 3.0, 30
CONTROL = ("/ping", "/models")


class Many(Trireme):
    """The box with :data:`MODELS` more models."""

    name = "trireme_many"
    about = f"this box with {MODELS} more models, each with a client"
    regimes: ClassVar[tuple[Regime, ...]] = ("instant",)

    def prepare(self) -> None:
        super().prepare()
        client = (HERE / "clients" / TARGET_MODEL / "client.py").read_text()
        for number in range(MODELS):
            name = f"more{number}"
            ensemble(self.folder / "repository", name)
            folder = self.folder / "clients" / name
            folder.mkdir(parents=True)
            (folder / "client.py").write_text(
                client.replace(f'model = "{TARGET_MODEL}"', f'model = "{name}"')
            )

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "TRIREME_CLIENTS": f"{HERE / 'clients'}:{self.folder / 'clients'}"}


def ensemble(repository: Path, name: str) -> None:
    """Write a model that passes its inputs to :data:`TARGET_MODEL` and returns the answer."""
    folder, target_folder = repository / name, repository / TARGET_MODEL
    (folder / "1").mkdir(parents=True)
    for file in target_folder.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    (folder / "config.pbtxt").unlink()
    target_config = text_format.Parse((target_folder / "config.pbtxt").read_text(), pb.ModelConfig())
    config = pb.ModelConfig(
        platform="ensemble",
        max_batch_size=target_config.max_batch_size,
        input=target_config.input,
        output=target_config.output,
    )
    step = config.ensemble_scheduling.step.add(model_name=TARGET_MODEL, model_version=-1)
    step.input_map.update({tensor.name: tensor.name for tensor in target_config.input})
    step.output_map.update({tensor.name: tensor.name for tensor in target_config.output})
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))


@dataclass(frozen=True)
class Turns:
    """Right answers a second in each turn, and the median of each path's milliseconds."""

    rates: Sequence[float]
    milliseconds: Sequence[float]


def compare_in_turns(few: tuple[Trireme, int], many: tuple[Many, int]) -> tuple[Turns, Turns]:
    """Compare two boxes that run side by side and are called in turns."""
    for box, root in (few, many):
        drive(box, root, MEASURED_MODEL, "json", WARM_CALLERS, SECONDS)
    check_all_answer(many[0])
    rates = [(rate(*few), rate(*many)) for _ in range(TURNS)]
    of_few, of_many = zip(*rates, strict=True)
    return Turns(of_few, control(few[0])), Turns(of_many, control(many[0]))


def ratio(few: Turns, many: Turns) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(more / less for less, more in zip(few.rates, many.rates, strict=True))


def check_all_answer(box: Many) -> None:
    """:class:`CommandError` if one of the models gives no right answer."""
    request = ask(TARGET_MODEL, "json")
    document = json.loads(request.body)
    for number in range(MODELS):
        body = json.dumps({**document, "modelname": f"more{number}"}).encode()
        send(box.port, replace(request, body=body))


def rate(box: Trireme, root: int) -> float:
    load, _ = drive(box, root, MEASURED_MODEL, "json", WARM_CALLERS, SECONDS)
    if load.wrong or load.lost:
        raise CommandError(f"{box.name}: {load.wrong} answers were wrong, {load.lost} were lost")
    return load.rate


def control(box: Trireme) -> Sequence[float]:
    return [statistics.median(_milliseconds(box.port, path) for _ in range(GETS)) for path in CONTROL]


def _milliseconds(port: int, path: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        answer.read()
    return 1000 * (time.perf_counter() - began)
