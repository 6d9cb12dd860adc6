"""Run a graph in this process, with ONNX Runtime on the CPU."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, Protocol, cast

import onnx
import onnxruntime
from numpy.typing import NDArray

from sm.commands.build.random_inputs import Feed
from sm.errors import CommandError

#: ONNX Runtime logs nothing but fatal errors: the others are raised, and may be expected.
FATAL = 4
#: For loading a graph, and for one run of it.
TIME_LIMIT_S = 300.0
#: ONNX Runtime's message for an opset that it does not know.
NEW_OPSET = re.compile(r"Opset (\d+) is under development")
#: Every ONNX Runtime that this project supports reads this version of ONNX's file format.
OLDEST_TRIED_IR_VERSION = 8


class Runner(Protocol):
    """Runs inputs: an ONNX Runtime session, or the PyTorch module that a graph was exported from."""

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """Return the outputs, sorted by name."""


class Session:
    """An ONNX Runtime session. Loading and running have a time limit, and end at Ctrl-C.

    ONNX Runtime blocks the thread that calls it and hears no signal, so that is not the main thread.
    """

    def __init__(self, path: Path, options: Any) -> None:
        self._path = path
        providers = ["CPUExecutionProvider"]
        self._session = _wait(
            lambda: onnxruntime.InferenceSession(str(path), options, providers=providers),
            f"{path} was not loaded",
        )

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """Return the outputs, sorted by name. Raises :class:`CommandError` after :data:`TIME_LIMIT_S`."""
        options = onnxruntime.RunOptions()
        try:
            return cast(
                list[NDArray[Any]],
                _wait(
                    lambda: self._session.run(output_names, input_feed, options),
                    f"{self._path} gave no answer",
                ),
            )
        finally:
            options.terminate = True  # ends what still runs, such as a loop without end


def _wait(work: Callable[[], Any], failure: str) -> Any:
    """Do ``work`` in a thread and wait for its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(TIME_LIMIT_S)
    except FutureTimeoutError:
        raise CommandError(f"{failure} within {TIME_LIMIT_S:g} s.") from None


def session(path: Path, *, optimized: bool = True) -> Runner:
    """Open a session on the CPU, with all of ONNX Runtime's optimizations or with none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return Session(path, options)
    except CommandError:
        raise
    except Exception as error:
        raise CommandError(f"{path} cannot be run: {_explain(error)}.") from error


def _explain(error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if unknown := NEW_OPSET.search(reason):
        known = onnxruntime.__version__
        return f"ONNX Runtime {known} does not know opset {unknown[1]}: export it with an older one"
    return reason


@functools.cache
def newest_ir_version() -> int:
    """Return the newest version of ONNX's file format that ONNX Runtime reads, which only a trial shows."""
    value = (onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "trial",
        [onnx.helper.make_tensor_value_info("x", *value)],
        [onnx.helper.make_tensor_value_info("y", *value)],
    )
    opsets = [onnx.helper.make_opsetid("", 13)]
    for version in range(onnx.IR_VERSION, OLDEST_TRIED_IR_VERSION, -1):
        model = onnx.helper.make_model(graph, ir_version=version, opset_imports=opsets)
        with contextlib.suppress(Exception):  # onnxruntime's classes have no common parent
            onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            return version
    return OLDEST_TRIED_IR_VERSION
