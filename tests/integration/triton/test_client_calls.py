"""Calls of Triton in a client's code: several rows, and the time that they take."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sm.client import Client, Payload, TensorClient, Tensors
from sm.errors import ClientFailed
from sm.invocation import Invocation
from sm.metrics import DURATIONS
from sm.models.found_clients import models_of
from sm.plugins.checks import check
from sm.plugins.loading import ClientSource
from sm.router.classify import DispatchRequest
from sm.router.dispatch import run_record
from sm.triton.transport import Transport
from tests.support.tritons import CreateRouter, TritonProcess

#: Of the model ``echo``.
MAX_ROWS = 8


class Rows(Payload):
    """Numbers that a client sends to the model as so many rows."""

    rows: int
    split: bool = False


class Pipeline(Client):
    payload, models = Rows, ("echo", "words")

    def inference(self, payload: Rows) -> object:
        numbers = np.arange(2.0 * payload.rows, dtype=np.float32).reshape(-1, 2)
        echo = self.triton.infer("echo", {"x": numbers}, split=payload.split)["y"]
        assert np.array_equal(echo, numbers)
        self.triton.infer("words", {"x": np.array([b"one"], object)}, split=True)
        return len(echo)


@pytest.fixture
def pipeline(transport: Transport) -> Client:
    client = Pipeline(transport, Path(), Path())
    client.name = "pipeline"
    return client


def run(client: Client, **payload: object) -> object:
    request = DispatchRequest(client.name, [payload], client=client)
    return run_record(request, Invocation(math.inf))


@pytest.mark.parametrize("rows", [1, MAX_ROWS, MAX_ROWS + 1, 3 * MAX_ROWS, 50])
def test_rows_are_split_along_the_batch_and_their_outputs_joined(pipeline: Client, rows: int) -> None:
    assert run(pipeline, rows=rows, split=True) == rows


def test_more_rows_than_the_model_takes_are_the_clients_fault(
    pipeline: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(ClientFailed):
        run(pipeline, rows=MAX_ROWS + 1)
    assert "it gives 'echo' 9 rows at once, which takes 8" in caplog.text


def test_inputs_with_different_numbers_of_rows_are_not_split(transport: Transport) -> None:
    class Uneven(Pipeline):
        def inference(self, payload: Rows) -> object:
            seconds, sizes = np.zeros((3, 1), np.float32), np.ones((2, 1), np.int64)
            return self.triton.infer("slow", {"seconds": seconds, "size": sizes}, split=True)

    client = Uneven(transport, Path(), Path())
    client.name = "uneven"
    with pytest.raises(ClientFailed):
        run(client, rows=1)


def test_a_pipelines_calls_are_stages_by_model(
    triton: TritonProcess, create_router: CreateRouter, pipeline: Client, caplog: pytest.LogCaptureFixture
) -> None:
    http = create_router(
        triton.settings, triton.box, models_of({"pipeline": pipeline}, models=("echo", "words"))
    ).test_client()
    with caplog.at_level(logging.INFO, "sm.router.running_invocation"):
        response = http.post(
            "/invocations",
            json={"modelname": "pipeline", "payload": {"rows": 2}},
            headers={"X-Trireme-Timing": "1"},
        )
    assert response.status_code == 200, response.text
    entries = [entry.partition(";")[0] for entry in response.headers["Server-Timing"].split(", ")]
    assert entries[-3:] == ["infer-echo", "infer-words", "total"]
    (line,) = [record for record in caplog.records if record.message == "invocation"]
    stages = line.__dict__["stages_ms"]
    assert stages["infer echo"] > 0 < stages["infer words"]
    assert {"infer echo", "infer words"} <= {
        sample.labels["stage"]
        for family in DURATIONS.collect()
        for sample in family.samples
        if sample.labels["model"] == "pipeline"
    }


@pytest.mark.parametrize(("returned", "word"), [(None, "nothing"), ([1.0], "a list")])
def test_a_preprocess_that_returns_no_tensors_is_named(
    transport: Transport, returned: object, word: str
) -> None:
    class Forgetful(TensorClient):
        payload, model = Rows, "echo"

        def preprocess(self, payload: Rows) -> Tensors:
            return returned  # type: ignore[return-value]

        def postprocess(self, outputs: Tensors, payload: Rows) -> object:
            return outputs

    client = Forgetful(transport, Path(), Path())
    client.name = "forgetful"
    with pytest.raises(ClientFailed, match=f"preprocess returned {word}"):
        run(client, rows=1)


class Doubling(TensorClient):
    """Counts the records of each call of its methods for batches."""

    payload, model = Rows, "echo"
    max_batch = 2 * MAX_ROWS

    def setup(self) -> None:
        self.sizes: list[int] = []

    def preprocess(self, payload: Rows) -> Tensors:
        return {"x": np.full(2, payload.rows, np.float32)}

    def preprocess_batch(self, payloads: Sequence[Rows]) -> Tensors:
        self.sizes.append(len(payloads))
        return super().preprocess_batch(payloads)

    def postprocess(self, outputs: Tensors, payload: Rows) -> object:
        return outputs["y"].sum()


def test_the_records_of_a_list_reach_triton_as_rows_of_one_call(
    triton: TritonProcess, create_router: CreateRouter, transport: Transport
) -> None:
    client = Doubling(transport, Path(), Path())
    client.name = "doubling"
    check(client, ClientSource("doubling", Path("doubling.py")), transport)
    http = create_router(triton.settings, triton.box, models_of({"doubling": client})).test_client()
    count = 2 * MAX_ROWS
    response = http.post(
        "/invocations", json={"modelname": "doubling", "payload": [{"rows": row} for row in range(count)]}
    )
    assert response.json is not None
    assert response.json["result"] == [2.0 * row for row in range(count)]
    assert client.sizes == [count]
