"""The dispatcher runs each record of a request through one client."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from sm.client import Client, ImagePayload, Parameters, Payload, TensorPayload, TextPayload
from sm.client.batches import Batches
from sm.client.payloads import Base64Bytes
from sm.errors import (
    BadInput,
    ClientFailed,
    DeadlinePassed,
    OutOfMemory,
    TriremeError,
    UnsupportedType,
    WrongPayload,
)
from sm.invocation import Invocation, current, running
from sm.router.classify import DispatchRequest, RawRecord
from sm.router.dispatch import run_record, stream
from sm.router.records import OrderedMap, run_records
from tests.support.hostile_pictures import encode


class EchoParameters(Parameters):
    times: int = 1
    share: float = 0.5


class EchoPayload(TextPayload):
    parameters: EchoParameters = EchoParameters()


class EchoClient(Client):
    payload = EchoPayload

    def inference(self, payload: EchoPayload) -> object:
        if payload.text == "raise":
            raise RuntimeError("secret detail")
        if payload.text == "wrong":
            raise WrongPayload("payload.text: is wrong", field="payload.text")
        if payload.text == "memory":
            raise MemoryError
        return payload.text * payload.parameters.times


class BatchEchoClient(EchoClient):
    """Answers the records of a list together."""

    def setup(self) -> None:
        self.together: list[int] = []
        self.batches = Batches(self)

    def inference_batch(self, payloads: Sequence[EchoPayload]) -> list[object]:
        self.together.append(len(payloads))
        return [self.inference(payload) for payload in payloads]


class SumClient(Client):
    """Takes an object with numbers; has no parameters."""

    class Numbers(Payload):
        numbers: list[int]

    payload = Numbers

    def inference(self, payload: Any) -> object:
        return sum(payload.numbers)


class ImageShapeClient(Client):
    payload = ImagePayload

    def inference(self, payload: ImagePayload) -> object:
        return payload.pixels.shape


class TensorSumClient(Client):
    payload = TensorPayload

    def inference(self, payload: TensorPayload) -> object:
        return payload.array.sum()


class AnyFile(Payload):
    main_field = "content"
    content_types = ("*/*",)

    content: Base64Bytes


PIXEL = {"image": encode(Image.new("RGB", (1, 1)), "PNG")}


class Dispatcher(NamedTuple):
    """Some clients, and the threads that run their records."""

    clients: Mapping[str, Client]
    runner: OrderedMap


class FileSizeClient(Client):
    payload = AnyFile

    def inference(self, payload: AnyFile) -> object:
        return len(payload.content)


@pytest.fixture(scope="module")
def dispatcher() -> Iterator[Dispatcher]:
    client_classes: dict[str, type[Client]] = {
        "echo": EchoClient,
        "batch": BatchEchoClient,
        "plain": SumClient,
        "look": ImageShapeClient,
    }
    client_classes |= {"tensor": TensorSumClient, "weigh": FileSizeClient}
    clients: dict[str, Client] = {}
    for name, client_class in client_classes.items():
        # These clients never call Triton.
        clients[name] = client_class(None, Path(), Path())  # type: ignore[arg-type]
        clients[name].name = name
        clients[name].setup()
    with ThreadPoolExecutor(4) as pool:
        yield Dispatcher(clients, OrderedMap(pool, 4))


def as_it_is(result: object) -> object:
    return result


def run(dispatcher: Dispatcher, model: str, *records: object, **fields: Any) -> list[object]:
    """Run one request with these records; return their results."""
    client = dispatcher.clients[model]
    request = DispatchRequest(model, records, len(records) > 1, client=client, **fields)
    invocation = current() or Invocation(math.inf)
    if request.many:
        return list(run_records(request, invocation, as_it_is, as_it_is, dispatcher.runner))
    try:
        return [run_record(request, invocation)]
    except TriremeError as error:
        return [error]


def only_error(results: list[object]) -> TriremeError:
    """Return the error that is the only result."""
    assert len(results) == 1
    assert isinstance(results[0], TriremeError)
    return results[0]


@pytest.mark.parametrize(
    ("model", "records", "field"),
    [
        ("echo", ("a", {"txt": "b"}, "c"), "payload[1].text"),
        ("echo", ("a", {"text": "wrong"}, "c"), "payload[1].text"),
        ("look", (PIXEL, {"image": "not base64!"}, PIXEL), "payload[1].image"),
    ],
)
def test_records_are_answered_in_order_and_only_a_bad_one_fails(
    dispatcher: Dispatcher, model: str, records: tuple[object, ...], field: str
) -> None:
    first, second, third = run(dispatcher, model, *records)
    assert not isinstance(first, TriremeError)
    assert not isinstance(third, TriremeError)
    assert isinstance(second, BadInput | WrongPayload)
    assert second.details["field"] == field


@pytest.mark.parametrize(
    ("content_type", "model", "expected"),
    [
        ("application/pdf", "weigh", 5),
        ("image/png", "weigh", 5),
        ("", "weigh", 5),
        ("image/png", "echo", None),
    ],
)
def test_a_raw_body_is_of_the_types_that_the_payload_takes(
    dispatcher: Dispatcher, content_type: str, model: str, expected: int | None
) -> None:
    (result,) = run(dispatcher, model, RawRecord(b"12345", content_type))
    assert result == expected if expected else isinstance(result, UnsupportedType)


@pytest.mark.parametrize(
    ("model", "record", "parameters", "field"),
    [
        ("echo", {}, {}, "payload.text"),
        ("echo", {"text": 1}, {}, "payload.text"),
        ("echo", {"text": None}, {}, "payload.text"),
        ("echo", {"text": "a", "more": 1}, {}, "payload.more"),
        ("echo", 7, {}, "payload"),
        ("echo", [[1]], {}, "payload"),
        ("tensor", [[1]], {}, "payload"),
        ("plain", [[1]], {}, "payload"),
        ("look", {"Image": "QQ=="}, {}, "payload.image"),
        ("look", {"image": None}, {}, "payload.image"),
        ("echo", {"text": "a", "parameters": {}}, {}, "payload.parameters"),
        ("echo", {"text": "a"}, {"times": "many"}, "parameters.times"),
        ("echo", {"text": "a"}, {"time": 1}, "parameters.time"),
        ("echo", {"text": "a"}, {"share": "NaN"}, "parameters.share"),
        ("echo", {"text": "a"}, {"share": "inf"}, "parameters.share"),
    ],
)
def test_the_error_for_a_wrong_field_names_it(
    dispatcher: Dispatcher, model: str, record: object, parameters: dict[str, Any], field: str
) -> None:
    error = only_error(run(dispatcher, model, record, parameters=parameters))
    assert (error.status, error.details["field"]) == (422, field)


def test_custom_attributes_set_known_parameters_and_others_are_ignored(dispatcher: Dispatcher) -> None:
    assert run(dispatcher, "echo", "a", attributes={"times": "3", "trace": "x"}) == ["aaa"]
    assert run(dispatcher, "plain", {"numbers": [1, 2]}, attributes={"trace": "x"}) == [3]


def test_a_client_with_batches_gets_the_records_of_a_list_together_and_only_a_bad_one_fails(
    dispatcher: Dispatcher,
) -> None:
    with running(Invocation(at=10**12)):
        assert run(dispatcher, "batch", *"abcd") == ["a", "b", "c", "d"]
        first, invalid, wrong, last = run(dispatcher, "batch", "a", {"txt": "b"}, {"text": "wrong"}, "c")
    client = dispatcher.clients["batch"]
    assert isinstance(client, BatchEchoClient)
    assert client.together[:2] == [4, 3]
    assert (first, last) == ("a", "c")
    for error, number in ((invalid, 1), (wrong, 2)):
        assert isinstance(error, WrongPayload)
        assert error.details["field"] == f"payload[{number}].text"


def test_a_list_whose_time_is_over_has_as_many_errors_as_records(dispatcher: Dispatcher) -> None:
    with running(Invocation(at=0.0)):
        results = run(dispatcher, "batch", *(["a"] * 70))
    assert [type(result) for result in results] == [DeadlinePassed] * 70


@pytest.mark.parametrize(
    "exit_error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr
)
def test_a_client_that_raises_an_exit_exception_fails_like_any_other(
    dispatcher: Dispatcher, exit_error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inference(_: EchoClient, payload: EchoPayload) -> object:
        if payload.text == "end":
            raise exit_error
        return payload.text

    monkeypatch.setattr(EchoClient, "inference", inference)
    assert isinstance(only_error(run(dispatcher, "echo", "end")), ClientFailed)
    first, second = run(dispatcher, "echo", "a", "end")
    assert first == "a"
    assert isinstance(second, ClientFailed)
    with pytest.raises(ClientFailed, match=type(exit_error).__name__):
        request = DispatchRequest("echo", ["end"], client=dispatcher.clients["echo"])
        list(stream(request, Invocation(math.inf), lambda: None))


def test_a_client_out_of_memory_is_a_507(dispatcher: Dispatcher) -> None:
    assert isinstance(only_error(run(dispatcher, "echo", "memory")), OutOfMemory)
