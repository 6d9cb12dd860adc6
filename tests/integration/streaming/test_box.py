"""Streams through the whole box: nginx, gunicorn, and a client or a decoupled model of a real Triton."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import EventStreamError
from urllib3.exceptions import ProtocolError

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox, retry_until_ok, wait_until


def post_for_events(box: RunningBox, model: str, **payload: object) -> requests.Response:
    """A response whose body is a stream of events, not yet read."""
    return requests.post(
        f"{box.url}/invocations",
        json={"modelname": model, "payload": payload},
        headers={"Accept": "text/event-stream"},
        stream=True,
        timeout=30,
    )


def data_of_events(response: requests.Response) -> list[Any]:
    """The data of every event, an error at the end included. An event is a line or two, and an empty line."""
    *events, end = response.text.split("\n\n")
    assert end == ""
    return [json.loads(event.removeprefix("event: error\n").removeprefix("data: ")) for event in events]


def invoke_with_boto3(box: RunningBox, model: str, payload: object, **options: str) -> Any:
    body = json.dumps({"modelname": model, "payload": payload})
    return runtime_client(box.url).invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType="application/json", Body=body, **options
    )


def parts_of(response: Any) -> list[bytes]:
    return [event["PayloadPart"]["Bytes"] for event in response["Body"]]


def test_a_clients_parts_are_sent_as_server_sent_events(box: RunningBox) -> None:
    response = post_for_events(box, "words", text="a small cat")
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Content-Length" not in response.headers
    assert data_of_events(response) == [
        {"modelname": "words", "result": word} for word in ("a", "small", "cat")
    ]


def test_a_decoupled_models_responses_are_sent_as_events(box: RunningBox) -> None:
    assert data_of_events(post_for_events(box, "numbers", count=4)) == [
        {"number": number} for number in range(4)
    ]


@pytest.mark.parametrize("fixture", ["box", "box_without_nginx"])
def test_a_part_arrives_before_the_next_one_exists(
    request: pytest.FixtureRequest, fixture: str, tmp_path: Path
) -> None:
    second, third = tmp_path / "second", tmp_path / "third"
    response = post_for_events(request.getfixturevalue(fixture), "words", text=f"one {second} {third}")
    lines = (line for line in response.iter_lines(chunk_size=1) if line)
    for word, next_word in (("one", second), (str(second), third), (str(third), None)):
        assert json.loads(next(lines).removeprefix(b"data: "))["result"] == word
        if next_word:
            next_word.touch()
    assert list(lines) == []


def test_without_accepting_events_a_caller_gets_the_list_of_parts(box: RunningBox) -> None:
    assert box.invoke("words", {"text": "a b"}).json() == {"modelname": "words", "result": ["a", "b"]}


def test_a_client_that_does_not_stream_sends_one_event(box: RunningBox) -> None:
    assert data_of_events(post_for_events(box, "slow", seconds=0)) == [{"modelname": "slow", "result": 0.0}]


def test_a_list_of_records_cannot_be_streamed(box: RunningBox) -> None:
    body = {"modelname": "words", "payload": [{"text": "a"}]}
    response = requests.post(
        f"{box.url}/invocations", json=body, headers={"Accept": "text/event-stream"}, timeout=30
    )
    assert (response.status_code, response.json()["field"]) == (422, "payload")


def test_boto3_reads_events_if_it_accepts_them(box: RunningBox) -> None:
    response = invoke_with_boto3(box, "numbers", {"count": 2}, Accept="text/event-stream")
    assert parts_of(response) == [b'data: {"number":0}\n\n', b'data: {"number":1}\n\n']
    assert response["ContentType"] == "text/event-stream; charset=utf-8"


def test_an_error_before_the_first_part_is_an_ordinary_error_response(box: RunningBox) -> None:
    response = post_for_events(box, "words", text="bad luck")
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert response.headers["Content-Type"] == "application/json"
    runtime = runtime_client(box.url)
    with pytest.raises(runtime.exceptions.ModelError) as excinfo:
        invoke_with_boto3(box, "words", {"text": "bad luck"})
    assert excinfo.value.response["OriginalStatusCode"] == 400


@pytest.mark.parametrize(("word", "code"), [("bad", "bad_input"), ("zero", "client_failed")])
def test_an_error_after_the_first_part_is_the_last_event(box: RunningBox, word: str, code: str) -> None:
    response = post_for_events(box, "words", text=f"one {word} three")
    assert response.text.split("\n")[2] == "event: error"
    first, last = data_of_events(response)
    assert (first["result"], last["code"]) == ("one", code)


def test_boto3_raises_an_error_that_comes_after_the_first_part(box: RunningBox) -> None:
    response = invoke_with_boto3(box, "words", {"text": "one bad three"})
    received = []
    with closing(response["Body"]) as body, pytest.raises(EventStreamError) as excinfo:
        for event in body:
            received.append(event["PayloadPart"]["Bytes"])
    assert received == [b"one"]
    assert excinfo.value.response["Error"]["Code"] == "ModelStreamError"


def test_a_model_that_fails_during_a_stream_ends_it_with_the_reason(box: RunningBox) -> None:
    *numbers, last = data_of_events(post_for_events(box, "numbers", count=20))
    assert numbers == [{"number": number} for number in range(13)]
    assert last["code"] == "model_failed"


def test_a_caller_that_hangs_up_cancels_the_work_in_triton(box: RunningBox) -> None:
    hang_ups = box.metric("trireme_invocations_total", model="numbers", status="499")
    cancelled_note = box.folder / "notes" / "cancelled"
    cancelled_note.unlink(missing_ok=True)
    response = post_for_events(box, "numbers", count=1000, seconds=0.2)
    assert next(response.iter_lines(chunk_size=1)) == b'data: {"number":0}'
    response.close()
    wait_until(cancelled_note.exists, description="is_cancelled in the model")
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="numbers", status="499") == hang_ups + 1,
        description="a 499",
    )
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="an idle worker")


def test_a_caller_that_hangs_up_ends_the_clients_work(box: RunningBox) -> None:
    hang_ups = box.metric("trireme_invocations_total", model="words", status="499")
    response = post_for_events(box, "words", text="word " * 1000, seconds=0.1)
    next(response.iter_lines(chunk_size=1))
    response.close()
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="words", status="499") == hang_ups + 1,
        description="a 499",
    )


def test_tritons_own_stream_is_passed_on_at_once_and_ends_with_its_caller(box: RunningBox) -> None:
    cancelled_note = box.folder / "notes" / "cancelled"
    cancelled_note.unlink(missing_ok=True)
    # The whole stream takes much longer than this test waits for the note.
    body = {"count": 1000, "seconds": 0.2}
    response = requests.post(
        f"{box.url}/v2/models/counts/generate_stream", json=body, stream=True, timeout=30
    )
    first_line = next(line for line in response.iter_lines(chunk_size=1) if line)
    assert json.loads(first_line.removeprefix(b"data: "))["number"] == 0
    response.close()
    wait_until(cancelled_note.exists, description="is_cancelled in the model")
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the stream")


def test_a_slow_reader_does_not_delay_other_callers(box: RunningBox) -> None:
    body = json.dumps({"modelname": "words", "payload": {"text": "word " * 400_000}}).encode()
    head = (
        f"POST /invocations HTTP/1.1\r\nHost: box\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", box.port)) as reader:
        reader.sendall(head.encode() + body)
        assert reader.recv(1).startswith(b"H")
        for _ in range(5):
            assert len(data_of_events(post_for_events(box, "words", text="a b c"))) == 3
        # /metrics may lag behind by a moment.
        wait_until(
            lambda: box.metric("trireme_in_flight") == 1,
            description="the slow reader's request alone in flight",
        )
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the unread stream")


def test_a_stream_is_logged_at_its_end_with_the_number_of_parts(box: RunningBox) -> None:
    requests.post(
        f"{box.url}/invocations",
        json={"modelname": "words", "payload": "a b c"},
        headers={"Accept": "text/event-stream", "X-Amzn-SageMaker-Inference-Id": "logged-at-its-end"},
        timeout=30,
    )

    def log_record() -> dict[str, Any] | None:
        lines = [text for text in box.log.read_text().splitlines() if "logged-at-its-end" in text]
        return json.loads(lines[0]) if lines else None

    record = wait_until(log_record, description="the stream's log record")
    assert (record["model"], record["status"], record["parts"]) == ("words", 200, 3)


def test_a_stream_whose_worker_dies_is_visibly_cut_short(box: RunningBox) -> None:
    (worker,) = box.wait_for_workers(1)
    # Both streams take much longer than this test.
    events = post_for_events(box, "words", text="word " * 1000, seconds=0.1)
    boto3_response = invoke_with_boto3(box, "words", {"text": "word " * 1000, "seconds": 0.1})
    lines = events.iter_lines(chunk_size=1)
    assert next(lines)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        list(lines)
    with closing(boto3_response["Body"]) as body, pytest.raises(ProtocolError):
        list(body)
    retry_until_ok(lambda: post_for_events(box, "words", text="a b"))


@pytest.mark.parametrize(
    ("model", "payload"), [("numbers", {"count": 1000}), ("words", {"text": "word " * 1000})]
)
def test_a_stream_has_its_own_time_limit_and_reports_when_it_has_passed(
    box_with_limits: RunningBox, model: str, payload: dict[str, object]
) -> None:
    *parts, last = data_of_events(post_for_events(box_with_limits, model, **payload, seconds=0.5))
    # An ordinary response would have had 1 s, in which there is time for three parts.
    assert len(parts) > 3
    assert last["code"] == "deadline_passed"


def test_a_client_past_nginxs_time_out_is_logged_once_as_an_error_with_its_model(
    box_with_limits: RunningBox,
) -> None:
    box, name = box_with_limits, "past-the-time"
    late = box.metric("trireme_invocations_total", model="slow", status="504")
    body = json.dumps({"modelname": "slow", "payload": {"seconds": 8}}).encode()
    assert box.send(body, headers={"X-Amzn-SageMaker-Inference-Id": name}).status_code == 504
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the client's end")
    lines = [json.loads(line) for line in box.log.read_text().splitlines() if name in line]
    assert sorted((line["process"], line["level"], line["status"]) for line in lines) == [
        ("data", "error", 504),
        ("nginx", "warning", 504),
    ], lines
    (line,) = [line for line in lines if line["process"] == "data"]
    assert (line["model"], line["code"]) == ("slow", "deadline_passed")
    assert box.metric("trireme_invocations_total", model="slow", status="504") == late + 1
