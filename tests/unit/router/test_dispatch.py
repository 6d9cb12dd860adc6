"""The dispatcher runs each record of a request through one client."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sm.client import Client, ImagePayload, Parameters, Payload, TensorPayload, TextPayload
from sm.client.batches import Batches
from sm.client.payloads import Base64Bytes
from sm.errors import BadInput, ClientFailed, DeadlinePassed, TriremeError, UnsupportedType, WrongPayload
from sm.invocation import Invocation, current, running
from sm.router.dispatch import run_record, stream
from sm.router.records import OrderedMap, run_records
from sm.router.request_types import DispatchRequest, RawRecord
from tests.support.client_sources import EmptyTriton
from tests.support.hostile_pictures import encode


class EchoParameters(Parameters):
    times: int = 1
    share: float = 0.5


class EchoPayload(TextPayload):
    parameters: EchoParameters = EchoParameters()


class EchoClient(Client):
    payload = EchoPayload

    def inference(self, payload: EchoPayload) -> object:
        if payload.text == "wrong":
            raise WrongPayload("payload.text: is wrong", field="payload.text")
        if payload.text in ERRORS:
            raise ERRORS[payload.text]
        return payload.text * payload.parameters.times


ERRORS: dict[str, BaseException] = {
    "memory": MemoryError(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "cancel": asyncio.CancelledError(),
}


class BatchEchoClient(EchoClient):
    """Answers the records of a list together."""

    def setup(self) -> None:
        self.together: list[int] = []
        self._marks.batches = Batches(self)

    def inference_batch(self, payloads: Sequence[EchoPayload]) -> list[object]:
        self.together.append(len(payloads))
        return [self.inference(payload) for payload in payloads]


class UnpreparedClient(BatchEchoClient):
    """Returns no length."""

    def prepare(self, payload: EchoPayload) -> int:
        return {"none": None, "nan": math.nan}.get(payload.text, 7.5)  # type: ignore[return-value]


class Numbers(Payload):
    numbers: list[int]


class AnyFile(Payload):
    main_field = "content"
    content_types = ("*/*",)

    content: Base64Bytes


def simple(payload: type[Payload], answer: Callable[[Any], object]) -> type[Client]:
    return type("Simple", (Client,), {"payload": payload, "inference": lambda _, payload: answer(payload)})


KINDS: dict[str, type[Client]] = {
    "echo": EchoClient,
    "batch": BatchEchoClient,
    "unprepared": UnpreparedClient,
    "plain": simple(Numbers, lambda payload: sum(payload.numbers)),
    "look": simple(ImagePayload, lambda payload: payload.pixels.shape),
    "tensor": simple(TensorPayload, lambda payload: payload.array.sum()),
    "weigh": simple(AnyFile, lambda payload: len(payload.content)),
}
CLIENTS: dict[str, Any] = {name: kind(EmptyTriton(), Path(), Path()) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def threads() -> Iterator[OrderedMap]:
    for name, client in CLIENTS.items():
        client.name = name
        client.setup()
    with ThreadPoolExecutor(4) as pool:
        yield OrderedMap(pool, 4)


def run(threads: OrderedMap, model: str, *records: object, **fields: Any) -> list[Any]:
    """Run one request with these records; return their results."""
    request = DispatchRequest(model, records, len(records) > 1, client=CLIENTS[model], **fields)
    invocation = current() or Invocation(math.inf)
    if request.many:
        return list(run_records(request, invocation, lambda result: result, lambda error: error, threads))
    try:
        return [run_record(request, invocation)]
    except TriremeError as error:
        return [error]


PIXEL = {"image": encode(Image.new("RGB", (1, 1)), "PNG")}


@pytest.mark.parametrize(
    ("model", "records", "field"),
    [
        ("echo", ("a", {"txt": "b"}, "c"), "payload[1].text"),
        ("echo", ("a", {"text": "wrong"}, "c"), "payload[1].text"),
        ("batch", ("a", {"text": "wrong"}, "c"), "payload[1].text"),
        ("look", (PIXEL, {"image": "not base64!"}, PIXEL), "payload[1].image"),
    ],
)
def test_records_are_answered_in_order_and_only_a_bad_one_fails(
    threads: OrderedMap, model: str, records: tuple[object, ...], field: str
) -> None:
    first, second, third = run(threads, model, *records)
    assert [first, third] == ([(1, 1, 3)] * 2 if model == "look" else ["a", "c"])
    assert isinstance(second, BadInput | WrongPayload)
    assert second.details["field"] == field


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
    threads: OrderedMap, model: str, record: object, parameters: dict[str, Any], field: str
) -> None:
    (error,) = run(threads, model, record, parameters=parameters)
    assert (error.status, error.details["field"]) == (422, field)


def test_custom_attributes_set_known_parameters_and_others_are_ignored(threads: OrderedMap) -> None:
    assert run(threads, "echo", "a", attributes={"times": "3", "trace": "x"}) == ["aaa"]
    assert run(threads, "plain", {"numbers": [1, 2]}, attributes={"trace": "x"}) == [3]


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
    threads: OrderedMap, content_type: str, model: str, expected: int | None
) -> None:
    (result,) = run(threads, model, RawRecord(b"12345", content_type))
    assert result == expected if expected else isinstance(result, UnsupportedType)


def test_a_client_with_batches_gets_the_good_records_of_a_list_together(threads: OrderedMap) -> None:
    CLIENTS["batch"].together.clear()
    with running(Invocation(at=10**12)):
        results = run(threads, "batch", "a", {"txt": "b"}, "c", "d")
    assert [results[0], *results[2:]] == ["a", "c", "d"]
    assert isinstance(results[1], WrongPayload)
    assert CLIENTS["batch"].together == [3]
    with running(Invocation(at=0.0)):
        late = run(threads, "batch", *(["a"] * 70))
    assert [type(result) for result in late] == [DeadlinePassed] * 70


@pytest.mark.parametrize("text", ["none", "nan"])
def test_a_record_without_a_length_fails_alone(threads: OrderedMap, text: str) -> None:
    with running(Invocation(at=10**12)):
        for texts in ((text,), (text, text), ("a", text)):
            failed = [result for result in run(threads, "unprepared", *texts) if result != "a"]
            assert [type(result) for result in failed] == [ClientFailed] * texts.count(text)
        assert run(threads, "unprepared", "a") == ["a"]
        assert run(threads, "unprepared", "b", "c") == ["b", "c"]


@pytest.mark.parametrize("text", ["exit", "interrupt", "cancel"])
def test_a_client_that_raises_an_exit_exception_fails_like_any_other(threads: OrderedMap, text: str) -> None:
    (alone,) = run(threads, "echo", text)
    first, second = run(threads, "echo", "a", text)
    assert first == "a"
    assert isinstance(alone, ClientFailed)
    assert isinstance(second, ClientFailed)
    streamed = DispatchRequest("echo", [text], client=CLIENTS["echo"])
    with pytest.raises(ClientFailed):
        list(stream(streamed, Invocation(math.inf), lambda: None))


def test_a_list_of_records_is_not_streamed() -> None:
    streamed = DispatchRequest("echo", ["a"], True, client=CLIENTS["echo"])
    with pytest.raises(WrongPayload) as caught:
        list(stream(streamed, Invocation(math.inf), lambda: None))
    assert caught.value.details["field"] == "payload"


def test_a_client_out_of_memory_is_a_507(threads: OrderedMap) -> None:
    (error,) = run(threads, "echo", "memory")
    assert error.status == 507
