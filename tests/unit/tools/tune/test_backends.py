"""Which of Triton's backends should serve a graph, by what the answers of each cost."""

from __future__ import annotations

import pytest

from trireme_tools.tune.backends import MIN_GAIN, ONNX_RUNTIME, PYTHON, Answers, choose

FAULTY = Answers(PYTHON, "no engine"), Answers(ONNX_RUNTIME, "another answer")


def answers(python_ms: float, onnx_runtime_ms: float) -> list[Answers]:
    pairs = (PYTHON, python_ms), (ONNX_RUNTIME, onnx_runtime_ms)
    return [Answers(backend, processor=ms / 1000) for backend, ms in pairs]


@pytest.mark.parametrize("present", [PYTHON, ONNX_RUNTIME])
def test_what_may_end_triton_has_to_be_much_cheaper(present: str) -> None:
    assert choose(answers(MIN_GAIN * 10, 10), present) == ONNX_RUNTIME
    assert choose(answers(MIN_GAIN * 10 - 1, 10), present) == PYTHON
    assert choose(answers(5, 10), present) == PYTHON


@pytest.mark.parametrize("present", [PYTHON, ONNX_RUNTIME])
def test_without_right_answers_of_the_python_model_everything_stays(present: str) -> None:
    assert choose([FAULTY[0], answers(100, 1)[1]], present) == present
    assert choose(FAULTY, present) == present


def test_a_backend_that_answers_wrongly_is_not_taken() -> None:
    assert choose([answers(100, 1)[0], FAULTY[1]], ONNX_RUNTIME) == PYTHON
