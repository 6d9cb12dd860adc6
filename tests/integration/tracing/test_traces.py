"""Traces of a real box, read by a receiver that decodes OTLP as a collector does."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket

from sm import __version__
from tests.integration.tracing.otlp_receiver import (
    ERROR,
    UNSET,
    ReceivedSpan,
    Receiver,
    running_receiver,
)
from tests.support.box_fixture import Boxes, write_models
from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import infer
from tests.support.other_triton import needs
from tests.support.s3 import CREDENTIALS, aws, client

__all__ = ["aws"]
pytestmark = needs("traces")
SECRET = "never-in-a-trace"
CALLERS_TRACE, CALLERS_SPAN = "ab" * 16, "cd" * 8
INFER_CALL = "inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with running_receiver() as receiver:
        yield receiver


def upload(aws: str, folder: Path) -> str:
    """Put a folder of models into the fake S3, and return its address."""
    for file in filter(Path.is_file, folder.rglob("*")):
        client(aws).upload_file(str(file), "inputs", str(file.relative_to(folder.parent)))
    return f"s3://inputs/{folder.name}/"


def of_fake_s3(aws: str) -> dict[str, Any]:
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}


@pytest.fixture(scope="module")
def box(
    boxes: Boxes, receiver: Receiver, aws: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("s3") / "fetched"
    write_models(("echo", "counts"), folder)
    trace_config = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"rate={2**31 - 1}",
        f"opentelemetry,url={receiver.url}/v1/traces",
        "opentelemetry,resource=service.name=trireme-triton",
    )
    with boxes.own(
        None,
        ("streaming", "traced"),
        arguments=upload(aws, folder),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=tests",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=" ".join(f"--trace-config={words}" for words in trace_config),
        TRIREME_CACHE=str(folder.parent / "cache"),
        **of_fake_s3(aws),
    ) as box:
        yield box


@pytest.mark.usefixtures("box")
def test_a_fetch_at_the_start_is_a_trace_of_its_own(receiver: Receiver) -> None:
    fetches = wait_until(lambda: spans_named([*receiver.spans], "fetch"), description="the span")
    assert [(fetch.parent, fetch.attributes["trireme.source"]) for fetch in fetches] == [
        ("", "s3://inputs/fetched/")
    ]


def trace_id_of(response: requests.Response) -> str:
    """The id of the trace that the response names."""
    version, trace_id, _, flags = response.headers["traceresponse"].split("-")
    assert (version, flags) == ("00", "01")
    return trace_id


def traced_to_triton(
    box: RunningBox, receiver: Receiver, model: str, payload: object, spans: int
) -> list[ReceivedSpan]:
    """Return the spans of a request, Triton's among them.

    Triton sends no spans of a few calls in a hundred: see docs/run/traces.md. Such a request is sent again.
    """
    for _ in range(9):
        with contextlib.suppress(AssertionError):
            return receiver.trace(trace_id_of(box.invoke(model, payload)), spans, timeout_s=6)
    return receiver.trace(trace_id_of(box.invoke(model, payload)), spans, timeout_s=6)


def spans_named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def span_named(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    (span,) = spans_named(spans, name)
    return span


def names_below(spans: list[ReceivedSpan], parent: ReceivedSpan) -> list[str]:
    return [span.name for span in spans if span.parent == parent.span_id]


def test_a_request_continues_its_trace_with_named_attributes(box: RunningBox, receiver: Receiver) -> None:
    headers = {
        "traceparent": f"00-{CALLERS_TRACE}-{CALLERS_SPAN}-01",
        "tracestate": "vendor=1",
        "X-Amzn-SageMaker-Inference-Id": "seen-again",
        "User-Agent": "a caller",
    }
    response = requests.post(
        f"{box.url}/invocations?modelname={SECRET}",
        json={"modelname": "echoes", "payload": {"x": [1, 2]}, "version": "1"},
        headers=headers,
        timeout=20,
    )
    assert response.status_code == 200, response.text
    assert trace_id_of(response) == CALLERS_TRACE
    request = span_named(receiver.trace(CALLERS_TRACE, 6), "POST /invocations")
    assert (request.kind, request.parent, request.trace_state) == ("server", CALLERS_SPAN, "vendor=1")
    assert (request.service, request.status) == ("trireme", UNSET)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/invocations",
        "http.response.status_code": 200,
        "http.request.body.size": len(response.request.body or ""),
        "http.response.body.size": len(response.content),
        "url.path": "/invocations",
        "url.scheme": "http",
        "server.address": "127.0.0.1",
        "server.port": box.port,
        "user_agent.original": "a caller",
        "trireme.model": "echoes",
        "trireme.model_version": "1",
        "trireme.records": 1,
        "trireme.request_id": "seen-again",
    }


def test_stages_are_ordered_spans_with_tritons_below_infer(box: RunningBox, receiver: Receiver) -> None:
    trace = traced_to_triton(box, receiver, "echoes", {"x": [3]}, 10)
    request = span_named(trace, "POST /invocations")
    stages = [span_named(trace, name) for name in ("queue", "decode", "preprocess", "infer", "postprocess")]
    assert all(stage.parent == request.span_id and request.contains(stage) for stage in stages)
    assert all(stage.end <= next_stage.start for stage, next_stage in itertools.pairwise(stages))
    assert sum(stage.end - stage.start for stage in stages) <= request.end - request.start
    call = span_named(trace, INFER_CALL)
    assert (call.kind, call.parent) == ("client", stages[3].span_id)
    assert call.attributes["rpc.system.name"] == "grpc"
    assert call.attributes["trireme.model"] == "echo"
    # Triton sends its own spans itself, so the header reached it.
    triton_request = span_named(trace, "InferRequest")
    assert (triton_request.service, triton_request.parent) == ("trireme-triton", call.span_id)
    assert names_below(trace, triton_request) == ["echo"]


def test_each_record_has_a_span_with_its_stages_and_error(box: RunningBox, receiver: Receiver) -> None:
    response = box.invoke("echoes", [{"x": [1]}, {"x": SECRET}, {"x": [-5]}])
    assert [type(result).__name__ for result in response.json()["result"]] == ["list", "dict", "dict"]
    trace = receiver.trace(trace_id_of(response), 13)
    request, records = span_named(trace, "POST /invocations"), spans_named(trace, "record")
    assert all(record.parent == request.span_id and request.contains(record) for record in records)
    by_path = {record.attributes["trireme.record"]: record for record in records}
    good, wrong_payload, failed = (by_path[f"payload[{number}]"] for number in range(3))
    assert names_below(trace, good) == ["decode", "preprocess", "infer", "postprocess"]
    assert (good.status, wrong_payload.status, failed.status) == (UNSET, UNSET, ERROR)
    assert wrong_payload.attributes["trireme.error_code"] == "wrong_payload"
    assert names_below(trace, wrong_payload) == ["decode"]
    assert failed.attributes["error.type"] == failed.attributes["trireme.error_code"] == "client_failed"
    assert failed.events == (("exception", {"exception.type": "sm.errors.ClientFailed"}),)
    assert request.attributes["trireme.records"] == 3


@pytest.mark.parametrize(
    ("model", "payload", "status", "code"),
    [
        ("unknown", {}, 404, "unknown_model"),
        ("echoes", {"x": SECRET}, 422, "wrong_payload"),
        ("echoes", {"x": [-1]}, 500, "client_failed"),
    ],
)
def test_only_a_5xx_is_an_error_of_the_span(
    box: RunningBox, receiver: Receiver, model: str, payload: object, status: int, code: str
) -> None:
    response = box.invoke(model, payload)
    assert response.status_code == status
    request = span_named(receiver.trace(trace_id_of(response), 2), "POST /invocations")
    assert request.attributes["http.response.status_code"] == status
    assert request.attributes["trireme.error_code"] == code
    assert request.status == (ERROR if status >= 500 else UNSET)
    assert request.attributes.get("error.type") == (str(status) if status >= 500 else None)


def test_calls_and_a_teams_own_span_are_below_the_request(box: RunningBox, receiver: Receiver) -> None:
    trace = traced_to_triton(box, receiver, "twice", {"text": SECRET}, 14)
    request, own_span = span_named(trace, "POST /invocations"), span_named(trace, "look up")
    calls, stages = spans_named(trace, INFER_CALL), spans_named(trace, "infer echo")
    assert len(calls) == 2
    assert [call.parent for call in calls] == [stage.span_id for stage in stages]
    # The second call is made within the span of the team.
    assert [stage.parent for stage in stages] == [request.span_id, own_span.span_id]
    assert (own_span.parent, own_span.service, own_span.attributes) == (
        request.span_id,
        "trireme",
        {"team.rows": 3},
    )


def test_a_streams_span_ends_with_its_last_part(box: RunningBox, receiver: Receiver) -> None:
    body = {"modelname": "words", "payload": {"text": "one two three", "seconds": 0.02}}
    response = requests.post(
        f"{box.url}/invocations", json=body, headers={"Accept": "text/event-stream"}, timeout=20
    )
    trace = receiver.trace(trace_id_of(response), 3)
    request, stream = span_named(trace, "POST /invocations"), span_named(trace, "stream")
    assert stream.attributes["trireme.stream.parts"] == 3
    assert [name for name, _ in stream.events] == ["first part"]
    assert request.contains(stream)
    assert names_below(trace, stream) == ["decode"]
    assert request.attributes["http.response.body.size"] == len(response.content)


def test_a_websocket_is_one_trace_with_the_spans_of_its_messages(box: RunningBox, receiver: Receiver) -> None:
    connection = websocket.create_connection(
        f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream", timeout=20
    )
    trace_id = connection.headers["traceresponse"].split("-")[1]
    for number in (1, 2):
        connection.send(json.dumps({"modelname": "echoes", "payload": {"x": [number]}}))
        assert json.loads(connection.recv())["result"] == [number]
    connection.close()
    trace = receiver.trace(trace_id, 11)
    request = span_named(trace, "GET /invocations-bidirectional-stream")
    assert request.attributes["http.response.status_code"] == 101
    assert request.attributes["trireme.records"] == 2
    assert len(spans_named(trace, INFER_CALL)) == 2
    assert all(request.contains(span) for span in spans_named(trace, "infer"))


def test_a_request_that_its_caller_does_not_sample_is_not_traced(box: RunningBox, receiver: Receiver) -> None:
    trace_id = "ef" * 16
    headers = {"traceparent": f"00-{trace_id}-{CALLERS_SPAN}-00"}
    tensors = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    for path, body in (
        ("/invocations", {"modelname": "echoes", "payload": {"x": [1]}}),
        ("/v2/models/echo/infer", tensors),
    ):
        response = requests.post(f"{box.url}{path}", json=body, headers=headers, timeout=20)
        assert response.status_code == 200
        assert "traceresponse" not in response.headers
    # The spans of a later request have arrived, including Triton's.
    traced_to_triton(box, receiver, "echoes", {"x": [3]}, 10)
    assert trace_id not in {span.trace_id for span in receiver.spans}


def test_the_log_names_the_trace_and_no_trace_has_a_payload(box: RunningBox, receiver: Receiver) -> None:
    for model, payload in (("echoes", {"x": [1]}), ("unknown", {}), ("twice", {"text": SECRET})):
        trace_id = trace_id_of(box.invoke(model, payload))
        lines = [line for line in box.wait_for_log(trace_id).splitlines() if trace_id in line]
        assert [json.loads(line)["model"] for line in lines]
    receiver.trace(trace_id, 5)
    assert not [body for body in receiver.bodies if SECRET.encode() in body]


def test_last_spans_are_sent_at_the_stop_those_of_a_load_too(boxes: Boxes, aws: str, tmp_path: Path) -> None:
    """With a key and compressed, as the collector wants it."""
    multiplying_model(2).write(tmp_path / "traced" / "cats")
    with running_receiver() as receiver:
        with boxes.own(
            arguments=upload(aws, tmp_path / "traced"),
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/v1/traces",
            OTEL_EXPORTER_OTLP_HEADERS="api-key=for-the-collector",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_SERVICE_NAME="cats",
            OTEL_BSP_SCHEDULE_DELAY="600000",
            TRIREME_MODELS="on-demand",
            TRIREME_CACHE=str(tmp_path / "cache"),
            **of_fake_s3(aws),
        ) as box:
            response = infer(box.url, "cats")
            assert response.status_code == 200, response.text
            assert not receiver.spans
        spans = receiver.trace(trace_id_of(response), 4)
    assert {span.service for span in spans} == {"cats"}
    wait, fetch, load = (span_named(spans, name) for name in ("load", "fetch", "load into Triton"))
    assert sorted(names_below(spans, wait)) == ["fetch", "load into Triton"]
    assert wait.start <= fetch.start
    assert fetch.end <= load.start
    assert load.attributes["trireme.model"] == "cats"
    assert receiver.headers[0]["api-key"] == "for-the-collector"
    assert __version__.encode() in receiver.bodies[0]
