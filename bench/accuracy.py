"""Answers from pictures decoded in full and decoded smaller: ``python -m bench.accuracy``, about 2 minutes.

Runs the ``resnet`` and ``yolov5`` clients twice on each picture, with the demo's graphs in this process, and
says how far the answers are apart. Writes ``bench/reports/accuracy.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.accuracy_pictures import PACKAGES, Picture, pictures
from bench.repositories import demo
from sm.client.base import TensorClient
from sm.client.images import decode
from sm.commands.build.graph_runner import session
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.samples import InProcess
from sm.errors import CommandError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.settings import HERE

REPORT = Path(__file__).with_name("reports") / "accuracy.md"
#: The allowed difference of a probability, and of a box's edge as a share of the input's side.
MAX_SCORE_DIFFERENCE, MAX_BOX_DIFFERENCE = 0.02, 0.01
#: The score from which an object counts; its counterpart may have less.
CERTAIN_SCORE, PRESENT_SCORE = 0.5, 0.25


@dataclass(frozen=True)
class Difference:
    """The difference of two answers. ``same``: both have the same likeliest class, or the object."""

    model: str
    picture: Picture
    scaled: bool
    same: bool
    score: float
    box: float = 0.0
    #: How sure the answer to the whole picture is, and how far its second class is behind.
    certain: float = 1.0
    lead: float = 1.0

    @property
    def allowed(self) -> bool:
        return self.same and self.score <= MAX_SCORE_DIFFERENCE and self.box <= MAX_BOX_DIFFERENCE


def client(model: str) -> TensorClient:
    """Load a client as a worker does, but run its graph in this process."""
    graph = demo() / model / "1" / "model.onnx"
    if not graph.is_file():
        raise CommandError(f"{graph} is not there; make it with: sm prepare")
    source = ClientSource(model, HERE / "clients" / model / "client.py")
    triton = InProcess(Graph.read(graph), session(graph))
    loaded = load(source, triton, demo())
    check(loaded, source, triton)
    assert isinstance(loaded, TensorClient)
    return loaded


def compare(classifier: Any, detector: Any, picture: Picture) -> Iterator[Difference]:
    """Compare the classifier's answers, and each object that is certain in the picture decoded in full."""
    kind = classifier.payload
    payload, full_payload = kind(image=picture.content), decoding_in_full(kind)(image=picture.content)
    scaled = payload.pixels_at_least(*classifier.decode_size).shape != full_payload.pixels.shape
    scaled_probabilities, full_probabilities = (
        probabilities(classifier, payload),
        probabilities(classifier, full_payload),
    )
    best = int(full_probabilities.argmax())
    second = float(np.sort(full_probabilities)[-2])
    yield Difference(
        "resnet",
        picture,
        scaled,
        int(scaled_probabilities.argmax()) == best,
        abs(float(scaled_probabilities[best] - full_probabilities[best])),
        certain=float(full_probabilities[best]),
        lead=float(full_probabilities[best]) - second,
    )
    kind = detector.payload
    options = {"format": "detections", "confidence": PRESENT_SCORE}
    payload = kind(image=picture.content, parameters=options)
    full_payload = decoding_in_full(kind)(image=picture.content, parameters=options)
    place = detector.letterbox.fit(*payload.size)
    scaled = payload.pixels_at_least(place.width, place.height).shape != full_payload.pixels.shape
    objects, side = detector.inference(payload), max(payload.size)
    for known in detector.inference(full_payload):
        if known["score"] >= CERTAIN_SCORE:
            yield Difference(
                "yolov5", picture, scaled, *nearest(known, objects, side), certain=known["score"]
            )


def nearest(known: dict[str, Any], objects: Iterable[dict[str, Any]], side: int) -> tuple[bool, float, float]:
    """Return whether there is an object of the class, and the distance of the nearest."""
    others = [
        (
            max(abs(candidate["box"][edge] - known["box"][edge]) for edge in known["box"]) / side,
            candidate["score"],
        )
        for candidate in objects
        if candidate["label"] == known["label"]
    ]
    if not others:
        return False, 1.0, 1.0
    box, score = min(others)
    return True, abs(score - known["score"]), box


def probabilities(classifier: Any, payload: Any) -> NDArray[np.float32]:
    inputs = {name: tensor[None] for name, tensor in classifier.preprocess(payload).items()}
    logits = classifier.triton.infer(classifier.model, inputs, outputs=[classifier.output])
    powers = np.exp(logits[classifier.output][0] - logits[classifier.output].max())
    shares: NDArray[np.float32] = powers / powers.sum()
    return shares


def decoding_in_full(kind: Any) -> Any:
    """Return the payload class with scaled decoding switched off."""

    class Whole(kind):  # type: ignore[misc]
        def pixels_at_least(self, width: int, height: int) -> NDArray[np.uint8]:  # noqa: ARG002
            return decode(self.image)

    return Whole


def report(differences: Sequence[Difference]) -> Iterator[str]:
    for model in ("resnet", "yolov5"):
        of_model = [difference for difference in differences if difference.model == model]
        scaled = [difference for difference in of_model if difference.scaled]
        pictures_of, smaller = (
            {difference.picture.name for difference in part} for part in (of_model, scaled)
        )
        yield (
            f"\n{model}: {len(pictures_of)} pictures, {len(smaller)} of them decoded smaller. "
            "The others are the same pixels.\n"
        )
        yield (
            "| of those decoded smaller | answers | same class or object | score: mean, worst "
            "| within 0.02 | box: mean, worst | within 1 % |\n|---|---|---|---|---|---|---|"
        )
        parts = {
            "all": scaled,
            "sure: 0.5 or more": [difference for difference in scaled if difference.certain >= CERTAIN_SCORE],
            "enlarged": [difference for difference in scaled if difference.picture.enlarged],
        }
        for name, part in parts.items():
            if part:
                yield row(name, part)
    failed = [difference for difference in differences if not difference.allowed]
    yield f"\nOutside of what is allowed: {len(failed)}.\n"
    for difference in sorted(failed, key=lambda difference: -difference.score):
        yield (
            f"- {difference.model}, {difference.picture.name}, {difference.picture.megapixels:.1f} MP: "
            f"{'same' if difference.same else 'another'}, score {difference.score:.3f}, "
            f"box {difference.box:.3f} (was {difference.certain:.2f}, "
            f"{difference.lead:.2f} before the second)"
        )


def row(name: str, part: Sequence[Difference]) -> str:
    scores, boxes = [difference.score for difference in part], [difference.box for difference in part]
    equal = sum(difference.same for difference in part)
    return (
        f"| {name} | {len(part)} | {equal} | {fmean(scores):.4f}, {max(scores):.4f} "
        f"| {sum(score <= MAX_SCORE_DIFFERENCE for score in scores)} | {fmean(boxes):.4f}, {max(boxes):.4f} "
        f"| {sum(box <= MAX_BOX_DIFFERENCE for box in boxes)} |"
    )


def main() -> int:
    """Return 0, or 1 after a sentence that says which model or package is missing."""
    try:
        classifier, detector = client("resnet"), client("yolov5")
        found = [one for picture in pictures() for one in compare(classifier, detector, picture)]
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    head = "# Decoded smaller against decoded in full\n\n`python -m bench.accuracy` writes this page.\n"
    sources = "\n".join(f"- {one.name} {one.version} ({one.kind}): {one.licence}" for one in PACKAGES)
    text = "\n".join(report(found))
    REPORT.write_text(f"{head}{text}\n\nThe pictures:\n\n{sources}\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
