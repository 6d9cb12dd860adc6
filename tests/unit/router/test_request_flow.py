"""The steps of an invocation, in their order: what each does to the request, its slot and its answer."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from sm.client import Client, TextPayload
from sm.client.decode_budget import DECODED
from sm.client.sessions import Sessions
from sm.errors import BadInput, DeadlinePassed, Interrupted, Overloaded, TooLarge, UnknownModel, WrongPayload
from sm.http.messages import EVENTS, JSON, JSON_LINES, LARGE_BODY_BYTES, Answer
from sm.invocation import UNKNOWN, current
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SharedGeneration, now
from sm.models.table import models_of
from sm.router.admission import FairGate
from sm.router.classify import RequestClassifier
from sm.router.once import OnceNotes
from sm.router.records import OrderedMap
from sm.router.request_flow import RequestFlow
from sm.router.request_types import SESSION_HEADER, Message, TritonRequest
from sm.router.running_invocation import RunningInvocation
from sm.router.triton_requests import TritonForwarder
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream


class Upper(Client):
    """Makes a text upper case; the model ``m`` that it calls stalls in the first ``stalls`` runs."""

    payload = TextPayload
    guard: AnswerGuard
    stalls = runs = 0

    def inference(self, payload: TextPayload) -> object:
        self.runs += 1
        invocation = current()
        assert invocation is not None
        invocation.tickets.add(self.guard.admit("m"))
        if self.runs <= self.stalls:
            shared = self.guard.shared
            shared.take_out("m", now())
            shared.admit("m", shared.out_since("m"))
        return payload.text.upper()


class OnlyOnce(Upper):
    repeatable = False


class InParts(Upper):
    def stream(self, payload: TextPayload) -> Iterator[object]:
        yield from payload.text


class Steps:
    """A flow with these clients; ``answer`` sends a request through it."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        guard = AnswerGuard(SharedGeneration.create(folder / "generation"), lambda model: (model,))
        Upper.guard = guard
        self.clients: dict[str, Upper] = {}
        for kind in (Upper, OnlyOnce, InParts):
            client = kind(None, folder, folder)  # type: ignore[arg-type]
            client.name = kind.__name__.lower()
            self.clients[client.name] = client
        models, calls = models_of(self.clients), Calls(guard, seconds=5.0, folder=folder)
        self.gate, self.once = FairGate(1, 2), folder / "once"
        self.flow = RequestFlow(
            models,
            RequestClassifier(models, "upper", max_records=100),
            TritonForwarder(Upstream(1, 1.0, calls), models),
            calls,
            OrderedMap(pool, 2),
            self.gate,
            extra_stream_seconds=1000.0,
            once=OnceNotes(self.once),
        )
        self.invocation: RunningInvocation

    def answer(
        self, body: bytes, headers: Mapping[str, str] | None = None, seconds: float = 10.0
    ) -> tuple[list[object], Mapping[str, str]]:
        """Return the result or code of each line of the answer, and its headers; it leaves :attr:`invocation`."""
        at = time.monotonic() + seconds
        self.invocation = RunningInvocation(at, request_id="id")
        self.invocation.arrival = "1"
        message = Message(body, headers or {}, {}, "id")
        answer = self.flow.answer(self.invocation, lambda: message)
        lines = answer.read().removeprefix(b"data: ").splitlines()
        answers = [orjson.loads(line) for line in lines if line.startswith(b"{")]
        return [each.get("result", each.get("code")) for each in answers], answer.headers


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    with ThreadPoolExecutor(2) as pool:
        yield Steps(tmp_path, pool)


def request_of(model: str, payload: object = "text") -> bytes:
    return orjson.dumps({"modelname": model, "payload": payload})


#: Answered line by line, each with its result or its error in its place.
LINES = b"""
{"payload":"a"}
{"text":"b"}
{"modelname":"upper","payload":["c","d"]}
{"modelname":"nobody","payload":{}}
{"wrong":1}
not JSON
"""


@pytest.mark.parametrize(
    ("body", "content_type", "results", "records"),
    [
        (request_of("upper"), JSON, ["TEXT"], None),
        (request_of("upper", ["a", "b"]), JSON, [["A", "B"]], 2),
        (LINES, JSON_LINES, ["A", "B", ["C", "D"], "unknown_model", "wrong_payload", "bad_input"], 6),
    ],
    ids=["one", "list", "lines"],
)
def test_a_request_is_answered_and_counted_by_its_form(
    steps: Steps, body: bytes, content_type: str, results: list[object], records: int | None
) -> None:
    assert steps.answer(body, {"content-type": content_type})[0] == results
    assert (steps.invocation.model, steps.invocation.records) == ("upper", records)
    assert steps.invocation.bytes_in == len(body)


def test_all_who_hear_get_each_answered_request_with_its_client_and_no_failed_one(steps: Steps) -> None:
    heard: list[Any] = []
    steps.flow = replace(
        steps.flow, hearing=(lambda *told: heard.append(told), lambda *_: heard.append("too"))
    )
    steps.answer(request_of("upper"))
    steps.answer(LINES, {"content-type": JSON_LINES})
    with suppress(UnknownModel):
        steps.answer(request_of("nobody"))
    (model, message, answer, client), one, (*_, no_client), two = heard
    assert (model, message.body, answer.status) == ("upper", request_of("upper"), 200)
    assert (client, no_client, one, two) == (steps.clients["upper"], None, "too", "too")


def test_only_a_streamed_request_has_more_time(steps: Steps) -> None:
    steps.answer(request_of("inparts"))
    assert steps.invocation.remaining() < 100
    steps.answer(request_of("inparts"), {"accept": EVENTS})
    assert steps.invocation.remaining() > 100
    assert steps.invocation.parts


@pytest.mark.parametrize("body", [request_of("nobody"), b'{"inputs":[{"name":"x"}],"modelname":"nobody"}'])
def test_a_name_that_no_model_has_is_no_label_and_takes_no_slot(steps: Steps, body: bytes) -> None:
    with pytest.raises(UnknownModel):
        steps.answer(body)
    assert steps.invocation.model == UNKNOWN


@pytest.mark.parametrize(("payload", "result"), [("a", "A"), (["a", "b"], ["A", "B"])], ids=["one", "list"])
def test_a_result_of_doubtful_answers_is_made_again(steps: Steps, payload: object, result: object) -> None:
    steps.clients["upper"].stalls = 1
    results, headers = steps.answer(request_of("upper", payload))
    assert results == [result]
    assert headers["X-Trireme-Repeated"] == "1"


@pytest.mark.parametrize("form", [JSON, EVENTS])
def test_a_result_that_may_not_be_made_twice_is_not_delivered_when_in_doubt(steps: Steps, form: str) -> None:
    client = steps.clients["onlyonce"]
    client.stalls = 1
    with pytest.raises(Interrupted):
        steps.answer(request_of("onlyonce"), {"accept": form})
    assert client.runs == 1


def test_only_what_may_run_once_has_a_note_that_it_runs(steps: Steps) -> None:
    steps.answer(request_of("upper"))
    assert not steps.once.exists()
    steps.answer(request_of("onlyonce"))
    assert steps.once.exists()
    assert not list(steps.once.iterdir())


@pytest.mark.parametrize(("model", "repeatable"), [("upper", True), ("onlyonce", False)])
def test_tensors_for_the_model_of_a_client_that_may_run_once_are_sent_once(
    steps: Steps, model: str, repeatable: bool
) -> None:
    def run(request: TritonRequest, invocation: RunningInvocation) -> tuple[str, Answer]:
        return request.model, Answer(orjson.dumps({"result": invocation.repeatable}))

    steps.flow = replace(steps.flow, triton=cast(TritonForwarder, SimpleNamespace(run=run)))
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    named = {"x-amzn-sagemaker-custom-attributes": f"modelname={model}"}
    assert steps.answer(orjson.dumps({"inputs": [tensor]}), named)[0] == [repeatable]
    assert steps.once.exists() is not repeatable


def test_a_large_body_waits_for_memory_and_a_small_one_does_not(steps: Steps) -> None:
    large = request_of("upper", ["a"] * LARGE_BODY_BYTES)
    with DECODED.reserve(DECODED.limit, "other"):
        with pytest.raises((DeadlinePassed, Overloaded)):
            steps.answer(large, seconds=0.1)
        assert steps.answer(request_of("upper"))[0] == ["TEXT"]
    with pytest.raises(TooLarge):
        steps.answer(large)


def test_while_others_wait_a_body_is_parsed_after_its_request_is_admitted(steps: Steps) -> None:
    damaged = b'{"modelname":"upper","payload":'
    with pytest.raises(BadInput):
        steps.answer(damaged)
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(steps.gate.enter, "upper") for _ in range(2)]
        while not steps.gate.waiting:
            time.sleep(0.001)
        with pytest.raises(DeadlinePassed):
            steps.answer(damaged, seconds=0.1)
        for other in others:
            steps.gate.leave("upper")
            other.result()


def test_one_caller_cannot_open_all_sessions(steps: Steps, tmp_path: Path) -> None:
    sessions = Sessions((tmp_path / "sessions",), 100, 10)
    classifier = replace(steps.flow.classifier, sessions=sessions)
    flow = replace(steps.flow, classifier=classifier, sessions=sessions)
    message = Message(b'{"requestType":"NEW_SESSION"}', {SESSION_HEADER: "NEW_SESSION"}, {}, "id")

    def open_from(address: str) -> None:
        invocation = RunningInvocation(math.inf, request_id="id", address=address)
        flow.answer(invocation, lambda: message)

    for _ in range(9):
        open_from("192.0.2.1")
    with pytest.raises(Overloaded):
        open_from("192.0.2.1")
    open_from("192.0.2.2")
    assert sessions._connection is not None
    sessions._connection.close()


WRONG = {"wrong": 1}


def take_many(steps: Steps) -> None:
    steps.flow = replace(steps.flow, classifier=replace(steps.flow.classifier, max_records=10_000))


@pytest.mark.parametrize(
    ("payload", "first"),
    [
        ([WRONG] * 999, WrongPayload),
        ([3] * 999, WrongPayload),
        ([{"text": 1}] * 999, WrongPayload),
        ([*[WRONG, 3, {"text": 1}] * 20, {"text": "a"}], None),
        ([*[WRONG] * 80, "a"], None),
    ],
)
def test_a_list_of_wrong_records_is_refused_and_one_with_a_right_record_is_not(
    steps: Steps, payload: list[object], first: type[Exception] | None
) -> None:
    if first is not None:
        # More than the limit of records of the flow of these tests.
        steps.flow = replace(steps.flow, classifier=replace(steps.flow.classifier, max_records=None))
        with pytest.raises(first):
            steps.answer(request_of("upper", payload))
        assert steps.clients["upper"].runs == 0
    else:
        assert steps.answer(request_of("upper", payload))[0][0][-1] == "A"  # type: ignore[index]


@pytest.mark.parametrize("in_lines", [False, True], ids=["list", "lines"])
@pytest.mark.parametrize("right", [0, 1, 300])
def test_behind_too_many_wrong_records_none_is_run_and_each_still_has_its_answer(
    steps: Steps, right: int, in_lines: bool
) -> None:
    """As many may be wrong as are right, and 250 more; what has its result keeps it."""
    take_many(steps)
    payloads: list[object] = [*["a"] * right, *[WRONG] * 2_000, "b"]
    if in_lines:
        body = b"\n".join(orjson.dumps({"payload": each}) for each in payloads)
    else:
        body = request_of("upper", payloads)
    before = steps.clients["upper"].runs
    if not right:
        with pytest.raises(WrongPayload) as raised:
            steps.answer(body, {"content-type": JSON_LINES if in_lines else JSON})
        assert raised.value.details["field"] == ("payload.text" if in_lines else "payload[0].text")
        assert steps.clients["upper"].runs == before
        return
    answers, _ = steps.answer(body, {"content-type": JSON_LINES if in_lines else JSON})
    found = answers if in_lines else cast(list[Any], answers[0])
    codes = [each["code"] if isinstance(each, dict) else each for each in found]
    wrong = right + 251
    assert codes == ["A"] * right + ["wrong_payload"] * wrong + ["not_run"] * (2_001 - wrong)
    assert steps.clients["upper"].runs == before + right


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (request_of("upper", [WRONG] * 9), JSON),
        (b"3\n" * 9, JSON_LINES),
        (orjson.dumps({"inputs": [WRONG] * 9, "modelname": "upper"}), JSON),
    ],
    ids=["list", "lines", "Hugging Face's list"],
)
def test_a_refused_list_is_not_kept_until_the_garbage_collector_comes(
    steps: Steps, body: bytes, kind: str
) -> None:
    """A local variable with an exception whose traceback has its frame would keep the whole request."""

    def is_kept() -> bool:
        found = (each for each in gc.get_objects() if isinstance(each, RunningInvocation))
        return any(id(each) == invocation for each in found)

    gc.collect()
    gc.disable()
    try:
        with suppress(WrongPayload):
            steps.answer(body, {"content-type": kind})
            pytest.fail("it is refused")
        invocation = id(steps.invocation)
        del steps.invocation
        until = time.monotonic() + 5.0
        while is_kept() and time.monotonic() < until:  # a thread may still end its item
            time.sleep(0.01)
        assert not is_kept()
    finally:
        gc.enable()


def test_the_wrong_records_of_lines_lists_count_together(steps: Steps) -> None:
    take_many(steps)
    line = orjson.dumps({"payload": [WRONG] * 100})
    body = b"\n".join([request_of("upper"), *[line] * 50])
    assert steps.answer(body, {"content-type": JSON_LINES})[0] == [
        "TEXT",
        *["wrong_payload"] * 3,
        *["not_run"] * 47,
    ]


def test_the_right_records_of_lines_lists_count_too(steps: Steps) -> None:
    """250 wrong ones more than right ones: the line behind them is run. Behind 251 it is not."""
    take_many(steps)
    wrong = orjson.dumps({"payload": [*[WRONG] * 100, "a"]})
    for right, last in ((47, "B"), (46, "not_run")):
        lines = [request_of("upper", ["a"] * right), *[wrong] * 3, b'"b"']
        answers, _ = steps.answer(b"\n".join(lines), {"content-type": JSON_LINES})
        assert (len(answers), answers[-1]) == (5, last), right


def test_a_request_that_runs_again_counts_its_records_anew(steps: Steps) -> None:
    steps.clients["upper"].stalls = 1
    answers, headers = steps.answer(b'"a"\n' * 60, {"content-type": JSON_LINES})
    assert headers["X-Trireme-Repeated"] == "1"
    assert answers == ["A"] * 60


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError(), "client_failed"), (Overloaded("full"), "overloaded")]
)
def test_a_model_that_fails_is_no_wrong_record(steps: Steps, error: Exception, code: str) -> None:
    """The caller has not caused it, and what is not run would look like its mistake."""

    def fail(payload: TextPayload) -> object:
        if payload.text == "a":
            return "A"
        raise error

    take_many(steps)
    steps.clients["upper"].inference = fail  # type: ignore[method-assign]
    answers, _ = steps.answer(request_of("upper", ["a", *"b" * 300]))
    codes = [each["code"] for each in cast(list[Any], answers[0])[1:]]
    assert codes == [code] * 300
