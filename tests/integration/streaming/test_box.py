"""Streams through the whole box: nginx, gunicorn, and a client or a decoupled model of a real Triton."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket
from urllib3.exceptions import ProtocolError

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.load import dispatch_body

EVENTS = {"Accept": "text/event-stream"}


def ask(box: RunningBox, model: str, **payload: object) -> requests.Response:
    """A response whose body is a stream of events, not yet read."""
    body = {"modelname": model, "payload": payload}
    return requests.post(f"{box.url}/invocations", json=body, headers=EVENTS, stream=True, timeout=30)


def data_of_events(response: requests.Response) -> list[Any]:
    """The data of every event, an error at the end included. An event is a line or two, and an empty line."""
    *events, end = response.text.split("\n\n")
    assert end == ""
    return [json.loads(event.removeprefix("event: error\n").removeprefix("data: ")) for event in events]


def ask_with_boto3(box: RunningBox, model: str, payload: object, **options: str) -> Any:
    return runtime_client(box.url).invoke_endpoint_with_response_stream(
        EndpointName="any",
        ContentType="application/json",
        Body=dispatch_body(model, payload),
        **options,
    )


def test_a_clients_parts_are_sent_as_server_sent_events(box: RunningBox) -> None:
    body, name = dispatch_body("words", "a small cat"), "logged-at-its-end"
    response = box.send(body, headers={**EVENTS, "X-Amzn-SageMaker-Inference-Id": name})
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Content-Length" not in response.headers
    words = [{"modelname": "words", "result": word} for word in ("a", "small", "cat")]
    assert data_of_events(response) == words
    (line,) = [json.loads(line) for line in box.wait_for_log(name).splitlines() if name in line]
    assert (line["model"], line["status"], line["parts"]) == ("words", 200, 3)
    # One that does not stream sends one event; who accepts no events gets the list of parts.
    assert data_of_events(ask(box, "slow", seconds=0)) == [{"modelname": "slow", "result": 0.0}]
    assert box.invoke("words", {"text": "a b"}).json() == {"modelname": "words", "result": ["a", "b"]}


def test_a_part_arrives_before_the_next_one_exists(either_box: RunningBox, tmp_path: Path) -> None:
    second, third = tmp_path / "second", tmp_path / "third"
    response = ask(either_box, "words", text=f"one {second} {third}")
    lines = (line for line in response.iter_lines(chunk_size=1) if line)
    for word, next_word in (("one", second), (str(second), third), (str(third), None)):
        assert json.loads(next(lines).removeprefix(b"data: "))["result"] == word
        if next_word:
            next_word.touch()
    assert list(lines) == []


def test_boto3_reads_events_if_it_accepts_them(box: RunningBox) -> None:
    response = ask_with_boto3(box, "numbers", {"count": 2}, Accept="text/event-stream")
    parts = [event["PayloadPart"]["Bytes"] for event in response["Body"]]
    assert parts == [b'data: {"number":0}\n\n', b'data: {"number":1}\n\n']
    assert response["ContentType"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("route", ["numbers", "words", "triton's own", "websocket"])
def test_a_caller_that_hangs_up_cancels_the_work_in_triton(box: RunningBox, route: str) -> None:
    """The whole stream takes much longer than this test waits."""
    model = "numbers" if route == "websocket" else route
    hang_ups = partial(box.metric, "trireme_invocations_total", model=model, status="499")
    before, cancelled_note = hang_ups(), box.folder / "notes" / "cancelled"
    cancelled_note.unlink(missing_ok=True)
    many = {"count": 1000, "seconds": 0.2}
    if route == "websocket":
        url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream"
        connection = websocket.create_connection(url, timeout=30)
        connection.send(dispatch_body("numbers", many))
        assert connection.recv() == b'{"number":0}\n'
        assert connection.sock is not None
        connection.sock.close()
    else:
        if route == "words":
            response = ask(box, "words", text="word " * 1000, seconds=0.1)
        elif route == "numbers":
            response = ask(box, "numbers", **many)
        else:
            url = f"{box.url}/v2/models/counts/generate_stream"
            response = requests.post(url, json=many, stream=True, timeout=30)
        assert next(line for line in response.iter_lines(chunk_size=1) if line).startswith(b"data: ")
        response.close()
    if route != "words":
        wait_until(cancelled_note.exists, description="is_cancelled in the model")
    if route != "triton's own":
        wait_until(lambda: hang_ups() == before + 1, description="a 499")
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="an idle worker")


def test_a_stream_whose_worker_dies_is_visibly_cut_short(box: RunningBox) -> None:
    (worker,) = box.wait_for_workers(1)
    # Both streams take much longer than this test.
    long = {"text": "word " * 1000, "seconds": 0.1}
    events, boto3_response = ask(box, "words", **long), ask_with_boto3(box, "words", long)
    lines = events.iter_lines(chunk_size=1)
    assert next(lines)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        list(lines)
    with closing(boto3_response["Body"]) as body, pytest.raises(ProtocolError):
        list(body)
    retry_until_ok(lambda: ask(box, "words", text="a b"))


def test_a_client_past_nginxs_time_out_is_logged_once_as_an_error(
    late_box: RunningBox,
) -> None:
    box, name = late_box, "past-the-time"
    labels = {"model": "slow", "status": "504"}
    late = box.metric("trireme_invocations_total", **labels)
    # With generate_stream, nginx gives each answer a stream's time, and five seconds.
    body = dispatch_body("slow", {"seconds": 14})
    assert box.send(body, headers={"X-Amzn-SageMaker-Inference-Id": name}).status_code == 504
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the client's end")
    lines = [json.loads(line) for line in box.log.read_text().splitlines() if name in line]
    found = sorted(
        [str(line.get(key)) for key in ("process", "level", "status", "model", "code")] for line in lines
    )
    assert found[0] == ["data", "error", "504", "slow", "deadline_passed"]
    assert [line[:3] for line in found[1:]] == [["nginx", "warning", "504"]]
    assert box.metric("trireme_invocations_total", **labels) == late + 1


def test_without_nginx_there_are_pages(box_without_nginx: RunningBox) -> None:
    # The worker on the port passes the request on to the control plane, which keeps the history.
    def get(path: str, **headers: str) -> requests.Response:
        return requests.get(box_without_nginx.url + path, headers=headers, timeout=5)

    assert "nginx" not in {row["name"] for row in get("/dashboard/data").json()["box"]["processes"]}
    for path in ("/", "/docs", "/dashboard", "/page/charts.js", "/page/main.js"):
        page = get(path)
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        unchanged = get(path, **{"If-None-Match": page.headers["ETag"]})
        assert (page.status_code, unchanged.status_code, unchanged.content) == (200, 304, b"")
    refused = get("/dashboard/data?since=a%20b", **{"X-Request-Id": "mine"})
    assert (refused.status_code, refused.json()["request_id"], refused.headers["X-Request-Id"]) == (
        400,
        "mine",
        "mine",
    )
