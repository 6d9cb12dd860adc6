"""The little of HTTP/2 that a call takes: blocks of headers, long answers, refusals, a server that has gone."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from sm.triton.failures import Failed
from sm.triton.wire import Line, fields, head
from tests.triton.serving import Serving

PATH = "/inference.GRPCInferenceService/"


def asked(triton: Serving, method: str, message: bytes, times: int = 3) -> bytes | None:
    """The last of several answers, from the second on by the connection of the first."""
    line, answer = Line(triton.box.grpc_port, PATH + method, triton.box.grpc_keys), None
    for _ in range(times):
        connection = line.lend(message, 10)
        try:
            answer = connection.answer(10)
        except Failed:
            connection.close()
            raise
        line.take_back(connection)
    line.close()
    return answer


def test_an_answer_of_megabytes_comes_whole_again_and_again(triton: Serving) -> None:
    request = pb.ModelInferRequest(model_name="slow")
    request.inputs.add(name="seconds", datatype="FP32", shape=(1, 1))
    request.inputs.add(name="size", datatype="INT64", shape=(1, 1))
    request.raw_input_contents.extend((np.float32(0).tobytes(), np.int64(1_000_000).tobytes()))
    answer = asked(triton, "ModelInfer", request.SerializeToString())
    assert answer is not None
    (y,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
    assert np.array_equal(np.frombuffer(y, np.float32), np.full(1_000_000, 7))


def test_a_refusal_has_its_code_and_its_sentence(triton: Serving) -> None:
    request = pb.ModelMetadataRequest(name="nobody's ä %")
    with pytest.raises(Failed) as refused:
        asked(triton, "ModelMetadata", request.SerializeToString())
    assert "nobody's ä %" in refused.value.sentence


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(Failed) as refused:
        Line(1, PATH + "ServerLive", {}).lend(b"", 10)
    assert refused.value.settled


def test_a_block_of_headers_is_read_as_it_was_written() -> None:
    block = b"\x20" + head("/a", "b:1", {"long": "x" * 5000, "grpc-status": "0"})
    assert {**fields(block), b"": b""} == {
        b"": b"",
        b"te": b"trailers",
        b"long": b"x" * 5000,
        b"grpc-status": b"0",
    }
