"""What int8 costs is measured by a team's labels, or by the answers that fp32 is sure of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.errors import CommandError
from trireme_extensions.convert import build_arguments
from trireme_tools.build import int8, right_answers
from trireme_tools.build.golden_answers import Golden
from trireme_tools.build.measure import Input, Measure

BOX = [0, 0, 100, 100, 0.9, 1]
NEAR = [0, 0, 100, 95, 0.4, 1]
FAR = [0, 0, 100, 80, 0.9, 1]


def scores(*values: float) -> dict[str, Any]:
    return {"y": np.array([values], np.float32)}


def boxes(*rows: list[float]) -> dict[str, Any]:
    return {"y": np.array([[*rows, [0] * 6]], np.float32)}


def words(word: int, share: float) -> dict[str, Any]:
    return {"y": np.array([[[word, 1]]]), "shares": np.log(np.array([[[share, 0.01]]], np.float32))}


@pytest.mark.parametrize(
    ("kind", "expected", "actual", "judged"),
    [
        # Probabilities as they are, logits by softmax; an answer that fp32 is not sure of does not count.
        ("labels", scores(0.7, 0.3), scores(0.6, 0.4), [1.0]),
        ("labels", scores(0.7, 0.3), scores(0.4, 0.6), [0.0]),
        ("labels", scores(0.4, 0.3, 0.3), scores(0.3, 0.4, 0.3), []),
        ("labels", scores(9, 2, 1), scores(2, 9, 1), [0.0]),
        # Every sure box of either side needs one of its class in nearly its place, however sure.
        ("boxes", boxes(BOX), boxes(NEAR), [1.0]),
        ("boxes", boxes(BOX), boxes(FAR), [0.0, 0.0]),
        ("boxes", boxes(BOX), boxes([*BOX[:5], 2]), [0.0, 0.0]),
        ("boxes", boxes(), boxes(BOX), [0.0]),
        ("boxes", boxes(NEAR), boxes(), []),
        ("words", words(7, 0.8), words(7, 0.6), [1.0]),
        ("words", words(7, 0.8), words(8, 0.6), [0.0]),
        ("words", words(7, 0.4), words(8, 0.6), []),
    ],
)
def test_agreement_is_over_the_answers_that_fp32_is_sure_of(
    kind: str, expected: Any, actual: Any, judged: list[float]
) -> None:
    measure = Measure({"y": kind}, "shares", has_labels=False)
    assert measure.judge(Input({}, expected), actual) == judged


def test_with_labels_it_is_accuracy_and_without_kinds_the_cosine() -> None:
    right = Measure({"y": "labels"}, "", has_labels=True)
    assert right.judge(Input({}, scores(9, 0), label=1), scores(0, 1)) == [1.0]
    assert right.judge(Input({}, scores(9, 0), label=1), scores(9, 0)) == [0.0]
    cosine = Measure({}, "", has_labels=False)
    assert cosine.of([(Input({}, scores(1, 0)), scores(1, 1))]) == pytest.approx(2**-0.5)


def test_labels_are_read_by_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    assert right_answers.read_labels(tmp_path) == {}
    (tmp_path / right_answers.LABELS).write_text("a.png,3\nb.png, 0\n")
    assert right_answers.read_labels(tmp_path) == {"a.png": 3, "b.png": 0}


@pytest.mark.parametrize("text", ["a.png,cat\n", "none.png,1\n", "a.png\n", "a.png,-1\n"])
def test_a_line_of_labels_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / right_answers.LABELS).write_text(text)
    with pytest.raises(CommandError, match="line 1"):
        right_answers.read_labels(tmp_path)


@pytest.mark.parametrize(
    ("answers", "kinds", "line", "said"),
    [
        ([boxes(BOX)], {"y": "boxes"}, "a.npy,0", "not scores of labels"),
        ([scores(0.5, 0.5)], {}, "a.npy,0", "not scores of labels"),
        ([scores(0.5, 0.5)], {"y": "labels"}, "a.npy,2", "has 2, from 0 on"),
        ([{"y": np.zeros((3, 2), np.float32)}], {"y": "labels"}, "a.npy,1", "several records"),
        ([scores(0.5, 0.5)] * 2, {"y": "labels"}, "a.npy,1", "several records"),
        ([scores(0.5, 0.5)], {"y": "labels"}, "b.npy,1", "no label for a.npy"),
    ],
)
def test_labels_that_do_not_fit_the_answers_are_refused(
    tmp_path: Path, answers: list[Any], kinds: dict[str, str], line: str, said: str
) -> None:
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / right_answers.LABELS).write_text(f"{line}\n")
    named: list[tuple[str, Any]] = [("a.npy", {}) for _ in answers]
    with pytest.raises(CommandError, match=said):
        right_answers.read_inputs(
            tmp_path, named, Golden([{}] * len(answers), answers, kinds), tmp_path / "labels.txt"
        )


def test_every_third_input_is_held_out_if_there_are_enough() -> None:
    assert [place for place in range(9) if int8.is_held_out(place, 9)] == [2, 5, 8]
    assert not any(int8.is_held_out(place, 5) for place in range(5))


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.02", 0.02), ("0", 0.0)])
def test_a_drop_is_a_share(text: str, value: float) -> None:
    assert build_arguments.share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["100%", "-1%", "much"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        build_arguments.share(text)
