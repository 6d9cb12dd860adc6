"""Records that wait for a client with batch methods are answered together, each with its own fate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from sm.client import Client, ModelMetadata, TensorClient, TensorMetadata, TextPayload
from sm.client.batches import AT_ONCE, Batches
from sm.client.payloads import RequestContext
from sm.errors import BadInput, CallerGone, ClientFailed, DeadlinePassed, ModelCrashed, NotReady
from sm.invocation import Invocation, Suspicion, Ticket, current, running
from sm.metrics import stage
from tests.support.boxes import wait_until
from tests.support.client_sources import EmptyTriton

SECONDS = 10.0
SUSPICION = Suspicion("m", 1, 0)


class Shouter(Client):
    """Answers in upper case. A record ``hold`` occupies its turn until the test lets it go."""

    payload = TextPayload
    max_batch = 8

    def setup(self) -> None:
        self.released = threading.Event()
        self.alone: list[str] = []
        self.together: list[list[str]] = []
        self.invocations: list[Any] = []
        self.suspicions: list[Suspicion | None] = []

    def has_batches(self, number: int) -> bool:
        return len(self.together) == number

    def inference(self, payload: TextPayload) -> object:
        self.alone.append(payload.text)
        if invocation := current():
            self.suspicions.append(invocation.suspicion)
        if payload.text.startswith("hold"):
            assert self.released.wait(SECONDS)
        if payload.text == "bad":
            raise BadInput("payload.text: is bad")
        if payload.text == "deadly":
            raise ModelCrashed("its process died again")
        return payload.text.upper()

    def inference_batch(self, payloads: Sequence[TextPayload]) -> Sequence[object]:
        self.together.append(texts := [payload.text for payload in payloads])
        self.invocations.append(current())
        if "bad" in texts:
            raise BadInput("a text is bad")
        if "deadly" in texts:
            self.invocations[-1].suspicion = SUSPICION  # as a call of the model does
            raise ModelCrashed("its process died")
        if any(text.startswith("hold") for text in texts):
            assert self.released.wait(SECONDS)
        if "gone" in texts:
            raise NotReady("Triton is starting again")
        if "few" in texts:
            return texts[1:]
        return [text.upper() for text in texts]


class Callers:
    """Callers of one client, each in a thread of its own, with a deadline of its own."""

    def __init__(self, client: Shouter, pool: ThreadPoolExecutor) -> None:
        client.setup()
        self.client, self.batches, self._pool = client, Batches(client), pool
        self.held: Future[list[object]] | None = None

    def call(
        self, *texts: str, invocation: Invocation | None = None, version: str = ""
    ) -> Future[list[object]]:
        """Send records of one request; return what their caller gets."""
        payloads = [TextPayload(text=text) for text in texts]
        for payload in payloads:
            payload.attach_request(RequestContext(version=version))

        def answer() -> list[object]:
            own = invocation or Invocation(time.monotonic() + SECONDS)
            with running(own):
                return self.batches.answer(payloads, own)

        return self._pool.submit(answer)

    def occupy(self) -> None:
        """Occupy the client, so that further records wait."""
        self.held = self.call("hold")
        wait_until(lambda: self.client.alone == ["hold"])

    def wait(self, *texts: str, **fields: Any) -> Future[list[object]]:
        """Send a request whose records wait."""
        before = self.batches._count
        future = self.call(*texts, **fields)
        wait_until(lambda: self.batches._count == before + len(texts))
        return future

    def release(self) -> None:
        """End what occupies it."""
        self.client.released.set()
        assert self.held is not None
        assert self.held.result(SECONDS) == ["HOLD"]


@contextmanager
def callers_of(client_class: type[Shouter], **options: float) -> Iterator[Callers]:
    with ThreadPoolExecutor(32) as pool:
        own = type("Own", (client_class,), options)
        callers = Callers(own(EmptyTriton(), Path(), Path()), pool)
        yield callers
        callers.client.released.set()


@pytest.fixture
def callers() -> Iterator[Callers]:
    with callers_of(Shouter) as callers:
        yield callers


def test_records_of_several_callers_that_wait_are_answered_together(callers: Callers) -> None:
    callers.occupy()
    waiting = [callers.wait(text) for text in "abc"]
    callers.release()
    assert [future.result(SECONDS) for future in waiting] == [["A"], ["B"], ["C"]]
    assert callers.client.together == [["a", "b", "c"]]


def test_no_batch_is_larger_than_the_client_says(callers: Callers) -> None:
    texts = [f"t{number}" for number in range(20)]
    assert callers.call(*texts).result(SECONDS) == [text.upper() for text in texts]
    assert max(map(len, callers.client.together)) <= Shouter.max_batch


def test_a_long_list_leaves_room_for_other_callers_in_the_next_batch(callers: Callers) -> None:
    """That batch has as many records of the list as of others at most, who would wait for all of it."""
    callers.occupy()
    for number in range(1, AT_ONCE):
        callers.call("hold", *"1234567")
        wait_until(partial(callers.client.has_batches, number))
    long_list = callers.wait(*(f"t{number}" for number in range(20)))
    others = [callers.wait(text) for text in "ab"]
    callers.release()
    for future in (long_list, *others):
        future.result(SECONDS)
    assert callers.client.together[AT_ONCE - 1] == ["t0", "a", "b", "t1", "t2", "t3"]


def test_a_full_batch_does_not_wait_for_the_one_before(callers: Callers) -> None:
    callers.occupy()
    assert callers.call(*"abcdefgh").result(SECONDS) == [*"ABCDEFGH"]


def test_a_bad_record_fails_alone(callers: Callers) -> None:
    answers = callers.call("a", "bad", "c", "d").result(SECONDS)
    assert isinstance(answers[1], BadInput)
    assert [answers[0], *answers[2:]] == ["A", "C", "D"]
    # Halves are tried, so most others still have company.
    assert callers.client.together == [["a", "bad", "c", "d"], ["a", "bad"], ["c", "d"]]


def test_after_a_crash_each_record_is_sent_alone_as_a_suspect(callers: Callers) -> None:
    answers = callers.call("a", "deadly", "c", "d").result(SECONDS)
    assert isinstance(answers[1], ModelCrashed)
    assert [answers[0], *answers[2:]] == ["A", "C", "D"]
    assert [invocation.is_batch for invocation in callers.client.invocations] == [True]
    assert callers.client.alone == ["a", "deadly", "c", "d"]
    assert callers.client.suspicions == [SUSPICION] * 4


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda: Invocation(time.monotonic() + 0.05), DeadlinePassed),
        (lambda: Invocation(time.monotonic() + SECONDS, lambda: True), CallerGone),
    ],
)
def test_a_caller_whose_time_is_over_or_who_left_leaves_the_batch_and_the_others_stay(
    callers: Callers, end: Callable[[], Invocation], error: type[Exception]
) -> None:
    callers.occupy()
    leaving, staying = callers.wait("a", invocation=end()), [callers.wait(text) for text in "bc"]
    with pytest.raises(error):
        leaving.result(SECONDS)
    callers.release()
    assert [future.result(SECONDS) for future in staying] == [["B"], ["C"]]
    assert callers.client.together == [["b", "c"]]


@pytest.mark.parametrize(
    ("max_wait_ms", "version", "texts", "together"),
    [(0.0, "", "a", []), (1.0, "", "a", []), (0.0, "2", "ab", []), (0.0, "", "ab", [["a", "b"]])],
    ids=["alone", "waited in vain", "names a version", "a list"],
)
def test_a_record_runs_alone_unless_it_has_company(
    max_wait_ms: float, version: str, texts: str, together: list[list[str]]
) -> None:
    with callers_of(Shouter, max_wait_ms=max_wait_ms) as callers:
        assert callers.call(*texts, version=version).result(SECONDS) == [*texts.upper()]
        assert (callers.client.alone, callers.client.together) == ([] if together else [*texts], together)


def test_a_record_waits_for_company_as_long_as_the_client_says() -> None:
    with callers_of(Shouter, max_wait_ms=1e3 * SECONDS, max_batch=2) as callers:
        first, second = callers.wait("a"), callers.call("b")
        assert [first.result(SECONDS / 2), second.result(SECONDS / 2)] == [["A"], ["B"]]
        assert callers.client.together == [["a", "b"]]


@pytest.mark.parametrize(
    ("texts", "error", "options"),
    [
        (("a", "gone", "c"), NotReady, {}),  # Triton's failure is that of all, and none is tried again
        (("few", "b", "c"), ClientFailed, {}),
        (("a", "bad"), BadInput, {"repeatable": False}),  # a model with state
    ],
)
def test_a_failure_of_the_call_is_that_of_all_its_records(
    texts: tuple[str, ...], error: type[Exception], options: dict[str, bool]
) -> None:
    with callers_of(Shouter, **options) as callers:
        answers = callers.call(*texts).result(SECONDS)
        assert [isinstance(answer, error) for answer in answers] == [True] * len(texts)
        assert (len(callers.client.together), callers.client.alone) == (1, [])


def test_a_batch_may_take_as_long_as_the_last_of_its_records_and_goes_on_while_one_caller_is_there(
    callers: Callers,
) -> None:
    hangs_up, late = threading.Event(), Invocation(time.monotonic() + 5 * SECONDS)
    callers.occupy()
    first = callers.wait("a", invocation=Invocation(time.monotonic() + SECONDS, hangs_up.is_set))
    second = callers.wait("b", invocation=late)
    callers.release()
    first.result(SECONDS)
    second.result(SECONDS)
    (invocation,) = callers.client.invocations
    assert invocation.at == late.at
    hangs_up.set()
    assert not invocation.is_disconnected()


def test_each_request_has_its_batch_with_its_calls_and_stages_and_one_of_them_the_spans() -> None:
    ticket = Ticket((("model", 1),), 0.0)

    class Calling(Shouter):
        def inference_batch(self, payloads: Sequence[TextPayload]) -> Sequence[object]:
            invocation = current()
            assert invocation is not None
            invocation.tickets.add(ticket)
            with stage("calling", "infer"):
                return super().inference_batch(payloads)

    heard = [MagicMock(headers={}) for _ in "ab"]
    for each in heard:
        each.span.return_value.__enter__.return_value = each
    invocations = [Invocation(time.monotonic() + SECONDS, listener=each) for each in heard]
    with callers_of(Calling) as callers:
        callers.occupy()
        futures = [
            callers.wait(text, invocation=invocation)
            for text, invocation in zip("ab", invocations, strict=True)
        ]
        callers.release()
        for future, invocation in zip(futures, invocations, strict=True):
            future.result(SECONDS)
            assert invocation.tickets == {ticket}
            assert min(invocation.stages["infer"], invocation.stages["gather"]) > 0
    assert [each.describe.call_args.args for each in heard] == [({"trireme.batch.size": 2},)] * 2
    spans = [[call.args[0] for call in each.span.call_args_list] for each in heard]
    assert spans == [["batch", "infer"], ["batch"]]


@pytest.mark.parametrize(
    ("max_batch_size", "shape", "together"),
    [(8, (4,), True), (0, (-1, 4), True), (0, (1, 4), False), (0, (4,), False)],
)
def test_a_model_that_takes_one_record_at_a_time_gets_no_batches(
    max_batch_size: int, shape: tuple[int, ...], together: bool
) -> None:
    class Serving(EmptyTriton):
        def metadata(self, model: str, version: str = "") -> ModelMetadata:
            tensors = {"x": TensorMetadata("x", "FP32", shape)}
            return ModelMetadata(model, (version,), max_batch_size, tensors, tensors)

    class Stacking(TensorClient):
        model, payload = "stacks", TextPayload
        preprocess = postprocess = preprocess_batch = TensorClient.inference  # type: ignore[assignment]

    assert Stacking(Serving(), Path(), Path()).takes_batches() is together


class Lengths(Shouter):
    """A record is as long as its text says."""

    def prepare(self, payload: TextPayload) -> int:
        return int(payload.text.split()[-1]) if payload.text[-1].isdigit() else 0


def prepared(client: Shouter, text: str) -> TextPayload:
    payload = TextPayload(text=text)
    payload.__dict__["_length"] = client.prepare(payload)
    return payload


def test_long_records_make_small_batches_and_short_ones_do_not_wait_for_them() -> None:
    client = Lengths(None, Path(), Path())  # type: ignore[arg-type]
    client.name = "lengths"
    client.setup()
    batches = Batches(client)
    attack, neighbour = (Invocation(time.monotonic() + SECONDS) for _ in range(2))
    long = [prepared(client, f"{number} of 2000") for number in range(6)]
    held = [prepared(client, "hold 2000"), prepared(client, "hold 2000")]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.submit(batches.answer, [*held, *long], attack)
        wait_until(lambda: bool(client.together))
        assert batches.answer([prepared(client, "short 9")], neighbour) == ["SHORT 9"]
        client.released.set()
        assert len(answers.result()) == 8
    assert max(map(len, client.together)) == 2


def test_a_turn_begun_for_a_short_record_is_that_ones_and_leaves_long_ones_to_their_own() -> None:
    """Else each request of a neighbour adds a thread to a list that keeps the interpreter already."""
    client = Lengths(None, Path(), Path())  # type: ignore[arg-type]
    client.name = "lengths"
    client.setup()
    batches = Batches(client)
    attack = [prepared(client, text) for text in ("hold 5000", "a 5000", "b 5000")]
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(batches.answer, attack, Invocation(time.monotonic() + SECONDS))
        wait_until(lambda: client.alone == ["hold 5000"])
        for text in ("x 9", "y 9"):
            neighbour = Invocation(time.monotonic() + SECONDS)
            assert batches.answer([prepared(client, text)], neighbour) == [text.upper()]
        wait_until(lambda: batches._running == 1)
        assert client.alone == ["hold 5000", "x 9", "y 9"]
        client.released.set()
        assert answers.result() == ["HOLD 5000", "A 5000", "B 5000"]
