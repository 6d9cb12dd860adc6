"""Streams through the whole box: nginx, gunicorn, a client or a decoupled model of a real Triton."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import EventStreamError
from urllib3.exceptions import ProtocolError

from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.streaming_box import Start, runtime


def ask(box: RunningBox, model: str, **payload: object) -> requests.Response:
    """The answer as a stream of events, its body not read yet."""
    return requests.post(
        f"{box.url}/invocations",
        json={"modelname": model, "payload": payload},
        headers={"Accept": "text/event-stream"},
        stream=True,
        timeout=30,
    )


def data(response: requests.Response) -> list[Any]:
    """The data of every event; each is a line and an empty one."""
    lines = response.text.split("\n")
    assert lines[1::2] == [""] * (len(lines) // 2)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1:2]]


def data_of_all(response: requests.Response) -> list[Any]:
    """The data of every event, a final error's too."""
    return [
        json.loads(line.removeprefix("data: "))
        for line in response.text.split("\n")
        if line.startswith("data: ")
    ]


def invoke(box: RunningBox, model: str, payload: object, **options: str) -> Any:
    body = json.dumps({"modelname": model, "payload": payload})
    return runtime(box).invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType="application/json", Body=body, **options
    )


def parts(answer: Any) -> list[bytes]:
    return [event["PayloadPart"]["Bytes"] for event in answer["Body"]]


def test_the_parts_of_a_client_are_events_of_the_contracts_type(box: RunningBox) -> None:
    response = ask(box, "words", text="a small cat")
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Content-Length" not in response.headers
    assert data(response) == [{"modelname": "words", "result": word} for word in ("a", "small", "cat")]


def test_a_decoupled_models_answers_are_parts(box: RunningBox) -> None:
    assert data(ask(box, "numbers", count=4)) == [{"number": number} for number in range(4)]


@pytest.mark.parametrize("nginx", ["on", "off"])
def test_a_part_leaves_when_it_exists(start: Start, nginx: str) -> None:
    with start(TRIREME_NGINX=nginx, SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        response = ask(box, "words", text="one two three", seconds=1.0)
        times = [time.monotonic() for line in response.iter_lines(chunk_size=1) if line]
    assert len(times) == 3
    assert min(times[1] - times[0], times[2] - times[1]) > 0.5


def test_who_wants_no_stream_gets_the_list_of_the_parts(box: RunningBox) -> None:
    assert box.invoke("words", {"text": "a b"}).json() == {"modelname": "words", "result": ["a", "b"]}


def test_a_client_that_does_not_stream_is_one_event(box: RunningBox) -> None:
    assert data(ask(box, "slow", seconds=0)) == [{"modelname": "slow", "result": 0.0}]


def test_a_stream_answers_one_record(box: RunningBox) -> None:
    body = {"modelname": "words", "payload": [{"text": "a"}]}
    response = requests.post(
        f"{box.url}/invocations", json=body, headers={"Accept": "text/event-stream"}, timeout=30
    )
    assert (response.status_code, response.json()["field"]) == (422, "payload")


def test_boto3_reads_the_parts(box: RunningBox) -> None:
    answer = invoke(box, "words", {"text": "a small cat"})
    assert parts(answer) == [b"a", b"small", b"cat"]
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert answer["ContentType"] == "application/octet-stream"


def test_boto3_reads_events_where_it_accepts_them(box: RunningBox) -> None:
    answer = invoke(box, "numbers", {"count": 2}, Accept="text/event-stream")
    assert parts(answer) == [b'data: {"number":0}\n\n', b'data: {"number":1}\n\n']
    assert answer["ContentType"] == "text/event-stream; charset=utf-8"


def test_boto3_gets_the_one_answer_of_a_client_that_does_not_stream(box: RunningBox) -> None:
    answer = invoke(box, "slow", [{"seconds": 0}])
    assert parts(answer) == [b'{"modelname":"slow","result":[0.0]}']
    assert answer["ContentType"] == "application/json"


def test_an_error_before_the_first_part_is_an_ordinary_one(box: RunningBox) -> None:
    response = ask(box, "words", text="bad luck")
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert response.headers["Content-Type"] == "application/json"
    api = runtime(box)
    with pytest.raises(api.exceptions.ModelError) as excinfo:
        invoke(box, "words", {"text": "bad luck"})
    assert excinfo.value.response["OriginalStatusCode"] == 400


@pytest.mark.parametrize(
    ("word", "code", "sentence"), [("bad", "bad_input", "a bad word"), ("zero", "client_failed", "words")]
)
def test_an_error_after_it_is_the_last_event(box: RunningBox, word: str, code: str, sentence: str) -> None:
    response = ask(box, "words", text=f"one {word} three")
    assert response.text.split("\n")[2] == "event: error"
    first, last = data_of_all(response)
    assert (first["result"], last["code"]) == ("one", code)
    assert sentence in last["error"]


def test_boto3_raises_an_error_that_comes_after_the_first_part(box: RunningBox) -> None:
    answer = invoke(box, "words", {"text": "one bad three"})
    seen = []
    with closing(answer["Body"]) as body, pytest.raises(EventStreamError) as excinfo:
        for event in body:
            seen.append(event["PayloadPart"]["Bytes"])
    assert seen == [b"one"]
    assert excinfo.value.response["Error"] == {"Code": "ModelStreamError", "Message": "a bad word"}


def test_a_model_that_fails_in_the_midst_ends_its_stream_with_the_reason(box: RunningBox) -> None:
    *numbers, last = data_of_all(ask(box, "numbers", count=20))
    assert numbers == [{"number": number} for number in range(13)]
    assert last["code"] == "model_failed"
    assert "no such luck" in last["error"]


def test_a_caller_that_leaves_cancels_the_work_in_triton(box: RunningBox, repository: Path) -> None:
    left = box.metric("trireme_invocations_total", model="numbers", status="499")
    note = repository.parent / "notes" / "cancelled"
    note.unlink(missing_ok=True)
    response = ask(box, "numbers", count=1000, seconds=0.2)
    assert next(response.iter_lines(chunk_size=1)) == b'data: {"number":0}'
    response.close()
    wait_until(note.exists, description="is_cancelled in the model")
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="numbers", status="499") == left + 1,
        description="a 499",
    )
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="an idle worker")


def test_a_caller_that_leaves_ends_a_clients_own_work(box: RunningBox) -> None:
    left = box.metric("trireme_invocations_total", model="words", status="499")
    response = ask(box, "words", text="word " * 1000, seconds=0.1)
    next(response.iter_lines(chunk_size=1))
    response.close()
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="words", status="499") == left + 1,
        description="a 499",
    )


def test_tritons_own_stream_leaves_as_it_is_made_and_ends_with_its_caller(
    box: RunningBox, repository: Path
) -> None:
    note = repository.parent / "notes" / "cancelled"
    note.unlink(missing_ok=True)
    # It would take much longer than the answer is waited for.
    body = {"count": 1000, "seconds": 0.2}
    response = requests.post(
        f"{box.url}/v2/models/counts/generate_stream", json=body, stream=True, timeout=30
    )
    first = next(line for line in response.iter_lines(chunk_size=1) if line)
    assert json.loads(first.removeprefix(b"data: "))["number"] == 0
    response.close()
    wait_until(note.exists, description="is_cancelled in the model")
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the stream")


def test_a_slow_reader_stops_nobody_else(box: RunningBox) -> None:
    body = json.dumps({"modelname": "words", "payload": {"text": "word " * 400_000}}).encode()
    head = (
        f"POST /invocations HTTP/1.1\r\nHost: box\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", box.port)) as reader:
        reader.sendall(head.encode() + body)
        assert reader.recv(1).startswith(b"H")
        for _ in range(5):
            assert len(data(ask(box, "words", text="a b c"))) == 3
        # The text of /metrics may be a moment old.
        wait_until(
            lambda: box.metric("trireme_in_flight") == 1,
            description="the slow reader's request alone in flight",
        )
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the stream nobody reads")


def test_the_log_tells_of_a_stream_at_its_end(box: RunningBox) -> None:
    requests.post(
        f"{box.url}/invocations",
        json={"modelname": "words", "payload": "a b c"},
        headers={"Accept": "text/event-stream", "X-Amzn-SageMaker-Inference-Id": "told-at-its-end"},
        timeout=30,
    )

    def line() -> dict[str, Any] | None:
        found = [text for text in box.log.read_text().splitlines() if "told-at-its-end" in text]
        return json.loads(found[0]) if found else None

    record = wait_until(line, description="the line")
    assert (record["model"], record["status"], record["parts"]) == ("words", 200, 3)


def test_a_stream_that_runs_at_a_stop_is_finished_first(start: Start) -> None:
    with start(SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        response = ask(box, "words", text="one two three four", seconds=1.0)
        lines = response.iter_lines(chunk_size=1)
        next(lines)
        box.process.send_signal(signal.SIGTERM)
        assert [json.loads(line[6:])["result"] for line in lines if line] == ["two", "three", "four"]
        assert box.process.wait(60) == 0


def test_a_worker_that_dies_half_way_leaves_no_stream_that_looks_whole(start: Start) -> None:
    with start(SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        (worker,) = box.workers()
        events = ask(box, "words", text="word " * 100, seconds=0.1)
        frames = invoke(box, "words", {"text": "word " * 100, "seconds": 0.1})
        lines = events.iter_lines(chunk_size=1)
        assert next(lines)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(lines)
        with closing(frames["Body"]) as body, pytest.raises(ProtocolError):
            list(body)
        retry_until_ok(lambda: ask(box, "words", text="a b"))


def test_a_stream_has_its_own_time_and_says_when_it_is_over(start: Start) -> None:
    with start(
        SAGEMAKER_MODEL_SERVER_WORKERS="1", SAGEMAKER_MODEL_SERVER_TIMEOUT="1", TRIREME_STREAM_TIMEOUT="3"
    ) as box:
        *numbers, last = data_of_all(ask(box, "numbers", count=100, seconds=0.3))
        assert last["code"] == "deadline_passed"
        # More than an answer in one piece would have had time for.
        assert len(numbers) > 4
        *words, last = data_of_all(ask(box, "words", text="word " * 100, seconds=0.3))
        assert last["code"] == "deadline_passed"
        assert len(words) > 4


def test_tritons_own_streams_reach_boto3_in_frames(start: Start) -> None:
    with start(
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate_stream",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="counts",
    ) as box:
        body = json.dumps({"count": 3, "seconds": 0.0})
        plain = requests.post(
            f"{box.url}/invocations", data=body, headers={"Content-Type": "application/json"}
        )
        assert plain.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert [event["number"] for event in data_of_all(plain)] == [0, 1, 2]
        answer = runtime(box).invoke_endpoint_with_response_stream(
            EndpointName="any", ContentType="application/json", Body=body
        )
        assert b"".join(parts(answer)) == plain.content
        assert answer["ContentType"] == "text/event-stream; charset=utf-8"
        failing = json.dumps({"count": 20, "seconds": 0.0})
        answer = requests.post(
            f"{box.url}/invocations", data=failing, headers={"Content-Type": "application/json"}
        )
        assert data_of_all(answer)[-1]["error"] == "model 'counts' failed: ValueError: no such luck"
        answer = runtime(box).invoke_endpoint_with_response_stream(
            EndpointName="any", ContentType="application/json", Body=failing
        )
        with closing(answer["Body"]) as body, pytest.raises(EventStreamError, match="no such luck"):
            list(body)
