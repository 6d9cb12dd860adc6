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
from sm.errors import StartError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.settings import HERE
from sm.tools.build.graph_runner import session
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.samples import InProcess

REPORT = Path(__file__).with_name("reports") / "accuracy.md"
#: What is allowed between the two: of a probability, and of a box's edge as a share of the input's side.
SCORE, BOX = 0.02, 0.01
#: The score from which an object counts; its counterpart may have less.
CERTAIN, PRESENT = 0.5, 0.25


@dataclass(frozen=True)
class Difference:
    """Between two answers. ``same``: the likeliest class is one and the same; the object is found in both."""

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
        return self.same and self.score <= SCORE and self.box <= BOX


def client(model: str) -> TensorClient:
    """The client as a worker has it, but that the graph runs in this process."""
    graph = demo() / model / "1" / "model.onnx"
    if not graph.is_file():
        raise StartError(f"{graph} is not there; make it with: sm prepare")
    source = ClientSource(model, HERE / "clients" / model / "client.py")
    triton = InProcess(Graph.read(graph), session(graph))
    made = load(source, triton, demo())
    check(made, source, triton)
    assert isinstance(made, TensorClient)
    return made


def compare(classifier: Any, detector: Any, picture: Picture) -> Iterator[Difference]:
    """The classifier's answer, and each object that is certain in the whole picture."""
    kind = classifier.payload
    payload, whole = kind(image=picture.content), decoding_in_full(kind)(image=picture.content)
    scaled = payload.pixels_at_least(*classifier.decode_size).shape != whole.pixels.shape
    ours, theirs = probabilities(classifier, payload), probabilities(classifier, whole)
    best = int(theirs.argmax())
    second = float(np.sort(theirs)[-2])
    yield Difference(
        "resnet",
        picture,
        scaled,
        int(ours.argmax()) == best,
        abs(float(ours[best] - theirs[best])),
        certain=float(theirs[best]),
        lead=float(theirs[best]) - second,
    )
    kind = detector.payload
    options = {"format": "detections", "confidence": PRESENT}
    payload = kind(image=picture.content, parameters=options)
    whole = decoding_in_full(kind)(image=picture.content, parameters=options)
    place = detector.letterbox.fit(*payload.size)
    scaled = payload.pixels_at_least(place.width, place.height).shape != whole.pixels.shape
    found, side = detector.inference(payload), max(payload.size)
    for known in detector.inference(whole):
        if known["score"] >= CERTAIN:
            yield Difference("yolov5", picture, scaled, *nearest(known, found, side), certain=known["score"])


def nearest(known: dict[str, Any], found: Iterable[dict[str, Any]], side: int) -> tuple[bool, float, float]:
    """Return whether there is an object of the class, and the distance of the nearest."""
    others = [
        (max(abs(each["box"][edge] - known["box"][edge]) for edge in known["box"]) / side, each["score"])
        for each in found
        if each["label"] == known["label"]
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


def report(found: Sequence[Difference]) -> Iterator[str]:
    for model in ("resnet", "yolov5"):
        every = [one for one in found if one.model == model]
        scaled = [one for one in every if one.scaled]
        pictures_of, smaller = ({one.picture.name for one in part} for part in (every, scaled))
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
            "sure: 0.5 or more": [one for one in scaled if one.certain >= CERTAIN],
            "enlarged": [one for one in scaled if one.picture.enlarged],
        }
        for name, part in parts.items():
            if part:
                yield row(name, part)
    failed = [one for one in found if not one.allowed]
    yield f"\nOutside of what is allowed: {len(failed)}.\n"
    for one in sorted(failed, key=lambda one: -one.score):
        yield (
            f"- {one.model}, {one.picture.name}, {one.picture.megapixels:.1f} MP: "
            f"{'same' if one.same else 'another'}, score {one.score:.3f}, box {one.box:.3f} "
            f"(was {one.certain:.2f}, {one.lead:.2f} before the second)"
        )


def row(name: str, part: Sequence[Difference]) -> str:
    scores, boxes = [one.score for one in part], [one.box for one in part]
    return (
        f"| {name} | {len(part)} | {sum(one.same for one in part)} | {fmean(scores):.4f}, {max(scores):.4f} "
        f"| {sum(score <= SCORE for score in scores)} | {fmean(boxes):.4f}, {max(boxes):.4f} "
        f"| {sum(box <= BOX for box in boxes)} |"
    )


def main() -> int:
    """Return 0, or 1 after a sentence that says which model or package is missing."""
    try:
        classifier, detector = client("resnet"), client("yolov5")
        found = [one for picture in pictures() for one in compare(classifier, detector, picture)]
    except StartError as error:
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
