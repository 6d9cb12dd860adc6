"""Calls of Triton in a client's code: several rows, and the time that they take."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sm.client import Client, Payload, TensorClient, TensorPayload, Tensors
from sm.errors import ClientFailed, WrongTensor
from sm.invocation import Invocation
from sm.models.table import models_of
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest
from sm.triton.transport import Transport
from tests.support.tritons import CreateRouter, TritonProcess

Given = Callable[[NDArray[Any]], Tensors]
#: Of the model ``echo``.
MAX_ROWS = 8


class Rows(Payload):
    """Numbers that a client sends to the model as so many rows."""

    rows: int
    split: bool = False
    #: Rows of a second input.
    uneven: int = 0


class Pipeline(Client):
    payload, models = Rows, ("echo", "words", "slow")

    def inference(self, payload: Rows) -> object:
        if payload.uneven:
            seconds, sizes = np.zeros((payload.rows, 1), np.float32), np.ones((payload.uneven, 1), np.int64)
            self.triton.infer("slow", {"seconds": seconds, "size": sizes}, split=True)
        numbers = np.arange(2.0 * payload.rows, dtype=np.float32).reshape(-1, 2)
        echo = self.triton.infer("echo", {"x": numbers}, split=payload.split)["y"]
        assert np.array_equal(echo, numbers)
        self.triton.infer("words", {"x": np.array([b"one"], object)}, split=True)
        return len(echo)


class Giving(TensorClient):
    """Gives the model what ``given`` makes of the caller's tensor."""

    payload, model = TensorPayload, "echo"

    def __init__(self, transport: Transport, given: Given, asked: str = "y") -> None:
        super().__init__(transport, Path(), Path())
        self.name, self.given, self.asked = "giving", given, asked

    def preprocess(self, payload: TensorPayload) -> Tensors:
        return self.given(payload.array)

    def wanted(self, payload: TensorPayload) -> Sequence[str]:
        return (self.asked,)

    def postprocess(self, outputs: Tensors, payload: TensorPayload) -> object:
        return outputs["y"].tolist()


def pipeline(transport: Transport) -> Client:
    client = Pipeline(transport, Path(), Path())
    client.name = "pipeline"
    return client


def run(client: Client, **payload: object) -> object:
    request = DispatchRequest(client.name, [payload], client=client)
    return run_record(request, Invocation(math.inf))


@pytest.mark.parametrize("rows", [1, MAX_ROWS, MAX_ROWS + 1, 50])
def test_rows_are_split_along_the_batch_and_their_outputs_joined(transport: Transport, rows: int) -> None:
    assert run(pipeline(transport), rows=rows, split=True) == rows


@pytest.mark.parametrize(
    "payload",
    [{"rows": MAX_ROWS + 1}, {"rows": 3, "uneven": 2}],
    ids=["more rows than the model takes", "inputs of different numbers of rows"],
)
def test_inputs_that_no_call_can_have_are_the_clients_fault(
    transport: Transport, payload: dict[str, object]
) -> None:
    with pytest.raises(ClientFailed):
        run(pipeline(transport), **payload)


FLOATS = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (lambda x: {"wrong": x}, "y"),
        (lambda x: {"x": x, "more": x}, "y"),
        (lambda _: {}, "y"),
        (lambda _: None, "y"),
        (lambda x: {"x": x.astype(np.float64)}, "y"),
        (lambda x: {"x": x.astype(complex)}, "y"),
        (lambda x: {"x": x}, "wrong"),
    ],
    ids=["name", "one too many", "none", "no tensors", "wrong cast", "no datatype", "output"],
)
def test_a_wrong_tensor_of_a_client_is_the_clients_fault(
    transport: Transport, given: Given, asked: str
) -> None:
    with pytest.raises(ClientFailed):
        run(Giving(transport, given, asked), tensor=FLOATS)


def test_a_wrong_tensor_of_a_caller_is_the_callers_fault(transport: Transport) -> None:
    plain, cast = (
        Giving(transport, given) for given in (lambda x: {"x": x}, lambda x: {"x": x.astype(np.float32)})
    )
    assert run(plain, tensor=FLOATS) == [0, 0, 0]
    for client, tensor in (
        (plain, np.zeros(3, np.int64)),
        (plain, FLOATS[:, None]),
        (cast, FLOATS[:, None]),
        (cast, [[[1]]]),
    ):
        with pytest.raises(WrongTensor):
            run(client, tensor=tensor)


def test_a_pipelines_calls_are_stages_by_model(
    triton: TritonProcess,
    create_router: CreateRouter,
    transport: Transport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {"modelname": "pipeline", "payload": {"rows": 2}}
    models = models_of({"pipeline": pipeline(transport)}, models=("echo", "words"))
    http = create_router(triton.settings, triton.box, models).test_client()
    with caplog.at_level(logging.INFO, "sm.router.running_invocation"):
        response = http.post("/invocations", json=body, headers={"X-Trireme-Timing": "1"})
    assert response.status_code == 200, response.text
    entries = [entry.partition(";")[0] for entry in response.headers["Server-Timing"].split(", ")]
    assert entries[-3:] == ["infer-echo", "infer-words", "total"]
    (line,) = [record for record in caplog.records if record.message == "invocation"]
    assert {"infer echo", "infer words"} <= line.__dict__["stages_ms"].keys()
