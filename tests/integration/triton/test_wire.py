"""The router's own gRPC client reads long answers and errors, and leaves to grpcio what it cannot read."""

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
    decode_headers,
    encode_call_headers,
    frame,
)
from tests.support.tritons import TritonProcess

pytestmark = pytest.mark.core

#: Status 0: name and value as plain text; the value in Huffman's code.
PLAIN_STATUS, HUFFMAN_STATUS = b"\x00\x0bgrpc-status\x010", b"\x00\x0bgrpc-status\x81\x07"
RESOURCE_EXHAUSTED_STATUS = b"\x00\x0bgrpc-status\x018"
MESSAGE_FRAME = frame(DATA, 0, 1, b"\0\0\0\0\x02hi")
#: Trailers of an answer that the client cannot read, by its error message.
UNREADABLE_TRAILERS = {
    "a string in Huffman's code": frame(HEADERS, END_HEADERS | END_STREAM, 1, HUFFMAN_STATUS),
    "an entry of the dynamic table": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xbe"),
    "more than one frame": frame(HEADERS, END_STREAM, 1, PLAIN_STATUS[:5]),
    "has no status": frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"),
}

SERVICE_PATH = "/inference.GRPCInferenceService/"


def call_repeatedly(triton: TritonProcess, method: str, message: bytes, times: int = 3) -> bytes | None:
    """Call several times on one connection. Returns the last answer."""
    pool, answer = ConnectionPool(triton.box.grpc_port, SERVICE_PATH + method, triton.box.grpc_keys), None
    for _ in range(times):
        connection = pool.acquire(message, 10)
        try:
            answer = connection.receive(10)
        except Failed:
            connection.close()
            raise
        pool.release(connection)
    pool.close()
    return answer


def test_answers_of_megabytes_are_complete_on_a_reused_connection(triton: TritonProcess) -> None:
    request = pb.ModelInferRequest(model_name="slow")
    request.inputs.add(name="seconds", datatype="FP32", shape=(1, 1))
    request.inputs.add(name="size", datatype="INT64", shape=(1, 1))
    request.raw_input_contents.extend((np.float32(0).tobytes(), np.int64(1_000_000).tobytes()))
    answer = call_repeatedly(triton, "ModelInfer", request.SerializeToString())
    assert answer is not None
    (y,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
    assert np.array_equal(np.frombuffer(y, np.float32), np.full(1_000_000, 7))


def test_an_error_has_tritons_sentence(triton: TritonProcess) -> None:
    request = pb.ModelMetadataRequest(name="model's ä %")
    with pytest.raises(Failed) as excinfo:
        call_repeatedly(triton, "ModelMetadata", request.SerializeToString())
    assert "model's ä %" in excinfo.value.sentence


def test_a_port_without_a_server_fails_at_once() -> None:
    with pytest.raises(Failed) as excinfo:
        ConnectionPool(1, SERVICE_PATH + "ServerLive", {}).acquire(b"", 10)
    assert excinfo.value.finished


def test_headers_are_decoded_as_they_were_encoded() -> None:
    block = b"\x20" + encode_call_headers("/a", "b:1", {"long": "x" * 5000, "grpc-status": "0"})
    assert {**decode_headers(block), b"": b""} == {
        b"": b"",
        b"te": b"trailers",
        b"long": b"x" * 5000,
        b"grpc-status": b"0",
    }


@contextmanager
def serve_answer(answer: bytes, fallback_port: int = 0) -> Iterator[int]:
    """A port where our client gets this ``answer``. Other callers are connected to the port ``fallback_port``."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = listener.accept()[0]
                received = caller.recv(2**16)
                if received.startswith(PREFACE):
                    caller.sendall(frame(SETTINGS, 0, 0, b"") + answer)
                    connections.append(caller)
                else:
                    upstream = socket.create_connection(("127.0.0.1", fallback_port))
                    upstream.sendall(received)
                    for ends in ((caller, upstream), (upstream, caller)):
                        Thread(target=copy_bytes, args=ends).start()

    connections: list[socket.socket] = []
    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for open_socket in (listener, *connections):
            open_socket.close()


def copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source:
        while chunk := source.recv(2**16):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_RDWR)


def receive_from(answer: bytes) -> bytes | None:
    with serve_answer(answer) as port:
        connection = ConnectionPool(port, SERVICE_PATH + "ServerLive", {}).acquire(b"", 10)
        try:
            return connection.receive(10)
        finally:
            connection.close()


def test_an_answer_or_error_is_read_despite_a_reset_behind_it() -> None:
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, PLAIN_STATUS) + frame(RST_STREAM, 0, 1, bytes(4))
    assert receive_from(MESSAGE_FRAME + trailers) == b"hi"
    error_trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, RESOURCE_EXHAUSTED_STATUS) + frame(
        RST_STREAM, 0, 1, bytes(4)
    )
    with pytest.raises(Failed) as excinfo:
        receive_from(error_trailers)
    assert excinfo.value.kind is Overloaded


def test_a_method_that_triton_does_not_have_is_unsupported(triton: TritonProcess) -> None:
    with pytest.raises(Failed) as excinfo:
        call_repeatedly(triton, "Unknown", b"x" * 10_000)
    assert excinfo.value.kind is Unsupported


@pytest.mark.parametrize("sentence", UNREADABLE_TRAILERS)
def test_an_answer_that_cannot_be_read_says_why(sentence: str) -> None:
    with pytest.raises(Unreadable, match=sentence):
        receive_from(MESSAGE_FRAME + UNREADABLE_TRAILERS[sentence])


def test_grpcio_takes_over_when_answers_cannot_be_read(
    triton: TritonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    answer = UNREADABLE_TRAILERS["a string in Huffman's code"]
    with serve_answer(answer, triton.box.grpc_port) as port, caplog.at_level(logging.WARNING):
        transport = Transport(triton.settings, replace(triton.box, grpc_port=port))
        for size in (8, 100_000, 8):
            x = np.full((1, size), size, np.float32)
            assert np.array_equal(transport.infer("echo", {"x": x})["y"], x)
        transport.close()
    (record,) = caplog.records
    assert "a string in Huffman's code" in record.getMessage()
