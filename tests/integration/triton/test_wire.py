"""The little of HTTP/2 that a call takes: blocks of headers, long answers, refusals, a server that has gone."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from sm.errors import Overloaded, Unsupported
from sm.triton.call_failures import Failed
from sm.triton.hpack import decode_headers, encode_call_headers
from sm.triton.transport import Transport
from sm.triton.wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    ConnectionPool,
    Unreadable,
    frame,
)
from tests.support.tritons import TritonProcess

#: Status 0 by a name and a value as they are, and by Huffman's code of the value.
STATUS, CODED = b"\x00\x0bgrpc-status\x010", b"\x00\x0bgrpc-status\x81\x07"
REFUSED = b"\x00\x0bgrpc-status\x018"
MESSAGE = frame(DATA, 0, 1, b"\0\0\0\0\x02hi")
#: Blocks of headers that the answer ends with.
UNREADABLE = {
    "a string in Huffman's code": frame(HEADERS, END_HEADERS | END_STREAM, 1, CODED),
    "an entry of the dynamic table": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xbe"),
    "more than one frame": frame(HEADERS, END_STREAM, 1, STATUS[:5]),
    "has no status": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"),
}

PATH = "/inference.GRPCInferenceService/"


def call_repeatedly(triton: TritonProcess, method: str, message: bytes, times: int = 3) -> bytes | None:
    """The last of several answers, from the second on by the connection of the first."""
    line, answer = ConnectionPool(triton.box.grpc_port, PATH + method, triton.box.grpc_keys), None
    for _ in range(times):
        connection = line.acquire(message, 10)
        try:
            answer = connection.receive(10)
        except Failed:
            connection.close()
            raise
        line.release(connection)
    line.close()
    return answer


def test_an_answer_of_megabytes_comes_whole_again_and_again(triton: TritonProcess) -> None:
    request = pb.ModelInferRequest(model_name="slow")
    request.inputs.add(name="seconds", datatype="FP32", shape=(1, 1))
    request.inputs.add(name="size", datatype="INT64", shape=(1, 1))
    request.raw_input_contents.extend((np.float32(0).tobytes(), np.int64(1_000_000).tobytes()))
    answer = call_repeatedly(triton, "ModelInfer", request.SerializeToString())
    assert answer is not None
    (y,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
    assert np.array_equal(np.frombuffer(y, np.float32), np.full(1_000_000, 7))


def test_a_refusal_has_its_code_and_its_sentence(triton: TritonProcess) -> None:
    request = pb.ModelMetadataRequest(name="nobody's ä %")
    with pytest.raises(Failed) as excinfo:
        call_repeatedly(triton, "ModelMetadata", request.SerializeToString())
    assert "nobody's ä %" in excinfo.value.sentence


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(Failed) as excinfo:
        ConnectionPool(1, PATH + "ServerLive", {}).acquire(b"", 10)
    assert excinfo.value.finished


def test_a_block_of_headers_is_read_as_it_was_written() -> None:
    block = b"\x20" + encode_call_headers("/a", "b:1", {"long": "x" * 5000, "grpc-status": "0"})
    assert {**decode_headers(block), b"": b""} == {
        b"": b"",
        b"te": b"trailers",
        b"long": b"x" * 5000,
        b"grpc-status": b"0",
    }


@contextmanager
def server(answer: bytes, otherwise: int = 0) -> Iterator[int]:
    """A port where each caller of ours gets this ``answer``; others are led on to the port ``otherwise``."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = listener.accept()[0]
                said = caller.recv(2**16)
                if said.startswith(PREFACE):
                    caller.sendall(frame(SETTINGS, 0, 0, b"") + answer)
                    kept.append(caller)
                else:
                    onwards = socket.create_connection(("127.0.0.1", otherwise))
                    onwards.sendall(said)
                    for pair in ((caller, onwards), (onwards, caller)):
                        Thread(target=lead, args=pair).start()

    kept: list[socket.socket] = []
    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (listener, *kept):
            each.close()


def lead(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source:
        while content := source.recv(2**16):
            target.sendall(content)
        target.shutdown(socket.SHUT_RDWR)


def receive_from(answer: bytes) -> bytes | None:
    with server(answer) as port:
        connection = ConnectionPool(port, PATH + "ServerLive", {}).acquire(b"", 10)
        try:
            return connection.receive(10)
        finally:
            connection.close()


def test_an_answer_is_read_whatever_comes_behind_it() -> None:
    end = frame(HEADERS, END_HEADERS | END_STREAM, 1, STATUS) + frame(RST_STREAM, 0, 1, bytes(4))
    assert receive_from(MESSAGE + end) == b"hi"
    refusal = frame(HEADERS, END_HEADERS | END_STREAM, 1, REFUSED) + frame(RST_STREAM, 0, 1, bytes(4))
    with pytest.raises(Failed) as excinfo:
        receive_from(refusal)
    assert excinfo.value.kind is Overloaded


def test_a_method_that_is_not_there_is_a_refusal(triton: TritonProcess) -> None:
    with pytest.raises(Failed) as excinfo:
        call_repeatedly(triton, "Nobody", b"x" * 10_000)
    assert excinfo.value.kind is Unsupported


@pytest.mark.parametrize("sentence", UNREADABLE)
def test_what_cannot_be_read_is_said(sentence: str) -> None:
    with pytest.raises(Unreadable, match=sentence):
        receive_from(MESSAGE + UNREADABLE[sentence])


def test_grpcs_own_client_goes_on_where_answers_cannot_be_read(
    triton: TritonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    answer = UNREADABLE["a string in Huffman's code"]
    with server(answer, triton.box.grpc_port) as port, caplog.at_level(logging.WARNING):
        transport = Transport(triton.settings, replace(triton.box, grpc_port=port))
        for size in (8, 100_000, 8):
            x = np.full((1, size), size, np.float32)
            assert np.array_equal(transport.infer("echo", {"x": x})["y"], x)
        transport.close()
    (record,) = caplog.records
    assert "a string in Huffman's code" in record.getMessage()
