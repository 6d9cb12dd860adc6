"""gRPC calls to Triton that end with the invocation's deadline, or when its caller disconnects.

Calls with one answer go over :mod:`sm.triton.wire`. gRPC's own client makes streams, which need several
answers of one call; and in the gateway all calls, as its Tritons are elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from sm.errors import CallerGone, DeadlinePassed, ModelFailed, NotReady, TriremeError, Unavailable
from sm.invocation import NO_HEADERS, Invocation, Value, current, span, wait
from sm.polling import poll_until
from sm.triton.read_ahead import read_ahead
from sm.triton.server import LOOPBACK, NO_KEYS
from sm.triton.triton_errors import ENDING, Failed, translate_client_status, translate_status
from sm.triton.wire import ConnectionPool, Unreadable, encode_call_headers, encode_literals

#: Seconds for calls that register or unregister shared memory; Triton answers them at once.
REGISTRATION_TIMEOUT_S = 2.0
SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
#: A call without a listener.
UNHEARD = contextlib.nullcontext(NO_HEADERS)
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnect to a restarted Triton at once; gRPC would wait for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This is the time for the connection too, and a busy machine needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 300),
    # Ignore the environment's proxy, which is not for Triton.
    ("grpc.enable_http_proxy", 0),
)


class Channel:
    """The calls to Triton of all threads of a process. Create it after a fork, which gRPC does not survive.

    Args:
        port: Triton's on loopback.
        timeout: Seconds for a call without a deadline.
        keys: gRPC metadata for Triton's restricted APIs.
    """

    def __init__(self, port: int, timeout: float, keys: Mapping[str, str] = NO_KEYS) -> None:
        self._port, self._timeout, self._keys = port, timeout, tuple(keys.items())
        #: gRPC's channel with its methods; None at rest.
        self._channel: Any = None
        self._stub: Any = None
        #: The calls that use them.
        self._uses, self._lock = 0, threading.Lock()
        self._is_closed = False
        self._pool, authority = ConnectionPool(port), f"{LOOPBACK}:{port}"
        #: The headers of each method's calls, and what decodes its answer.
        self._methods = {
            method.name: (
                encode_call_headers(f"/{SERVICE.full_name}/{method.name}", authority, keys),
                getattr(pb, method.output_type.name).FromString,
            )
            for method in SERVICE.methods
        }

    def connect(self, seconds: float) -> None:
        """Wait up to ``seconds`` for Triton. Before that, calls fail at once."""
        poll_until(self._is_live, seconds)

    def _is_live(self) -> bool:
        try:
            return bool(self.call("ServerLive", pb.ServerLiveRequest(), REGISTRATION_TIMEOUT_S).live)
        except Failed:
            return False

    def _open(self, channel: grpc.Channel) -> None:
        self._channel, self._stub = channel, service_pb2_grpc.GRPCInferenceServiceStub(channel)

    @contextlib.contextmanager
    def _stubs(self) -> Iterator[Any]:
        """Return the methods of gRPC's channel, which is open until the end of the block."""
        with self._lock:
            if self._is_closed:
                raise Failed(Unavailable, ENDING, finished=True)
            if self._channel is None:
                self._open(grpc.insecure_channel(f"{LOOPBACK}:{self._port}", OPTIONS))
            self._uses += 1
        try:
            yield self._stub
        finally:
            with self._lock:
                self._uses -= 1

    def rest(self) -> None:
        """Close gRPC's channel until the next stream, if none runs: its threads wake up all the time."""
        with self._lock:
            if self._channel is not None and not self._uses:
                self._channel.close()
                self._channel = self._stub = None

    def call(
        self,
        method: str,
        request: Any,
        seconds: float | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> Any:
        """Make a call within the time that the invocation has left.

        Args:
            method: The name of Triton's gRPC method.
            request: Its message.
            seconds: The limit outside of an invocation.
            interrupt: Called now and then during the call; if it raises, the call ends.

        Raises:
            Failed: The call failed.
        """
        return self._call(method, request, self._invocation(seconds), interrupt, NO_HEADERS)

    def infer(self, request: Any, interrupt: Callable[[], None] | None = None) -> Any:
        """Send a ModelInferRequest.

        Args:
            request: The message.
            interrupt: Called now and then during the call; if it raises, the call ends.
        """
        invocation = self._invocation()
        with UNHEARD if invocation.listener is None else self._part("ModelInfer", request) as headers:
            return self._call("ModelInfer", request, invocation, interrupt, headers)

    def stream(self, request: Any, interrupt: Callable[[], None]) -> Generator[Any, None, None]:
        """Yield each of a model's answers as it arrives. Closing the generator cancels the work in Triton.

        Args:
            request: A ModelInferRequest.
            interrupt: Called now and then during a wait for the next answer; if it raises, the stream ends.
        """
        with self._part("ModelStreamInfer", request, nests=False) as headers, self._stubs() as stub:
            invocation = self._invocation()
            metadata, seconds = (*self._keys, *headers.items()), invocation.remaining()
            try:
                call = stub.ModelStreamInfer(iter((request,)), timeout=seconds, metadata=metadata)
            except ValueError:
                raise Failed(Unavailable, ENDING, finished=True) from None
            size_of = pb.ModelInferResponse.ByteSize
            try:
                yield from read_ahead(_answers(call), size_of, call.cancel, invocation, interrupt)
            except (CallerGone, DeadlinePassed) as error:
                raise unfinished(error) from None
            except grpc.RpcError as error:
                raise translate_client_status(error.code(), error.details() or "") from None
            finally:
                call.cancel()

    def _invocation(self, seconds: float | None = None) -> Invocation:
        """Return the current invocation, or one of so many seconds; :class:`Failed` if it has ended."""
        invocation = current()
        if invocation is None:
            return Invocation(time.monotonic() + (self._timeout if seconds is None else seconds))
        try:
            invocation.check()
        except TriremeError as error:
            raise Failed(type(error), error.sentence, finished=True) from None
        return invocation

    @contextlib.contextmanager
    def _part(self, name: str, request: Any, nests: bool = True) -> Iterator[Mapping[str, str]]:
        """Tell the request's listener of a call; yield the headers to send with it."""
        method = f"{SERVICE.full_name}/{name}"
        attributes: dict[str, Value] = {
            "rpc.system.name": "grpc",
            "rpc.method": method,
            "server.address": LOOPBACK,
            "server.port": self._port,
            "trireme.model": request.model_name,
        }
        with span(method, attributes, is_call=True, nests=nests) as call:
            try:
                yield call.headers
            except Failed as failure:
                call.fail(failure.kind.code)
                raise

    def register(self, name: str, size: int) -> None:
        """Make Triton map a region. Each name is used once: if Triton has it already, it has this region."""
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", offset=0, byte_size=size)
        try:
            self._call_registration("SystemSharedMemoryRegister", request)
        except TriremeError as error:
            if "already in manager" not in error.sentence:
                raise

    def unregister(self, name: str) -> None:
        self._call_registration(
            "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name)
        )

    def registered(self) -> set[str]:
        """Return the regions of all workers that Triton has mapped."""
        return set(
            self._call_registration("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()).regions
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._channel is not None:
                self._channel.close()
        self._pool.close()

    def _call_registration(self, method: str, request: Any) -> Any:
        try:
            invocation = Invocation(time.monotonic() + REGISTRATION_TIMEOUT_S)
            return self._call(method, request, invocation, None, NO_HEADERS)
        except Failed as failure:
            raise failure.error from None

    def _call(
        self,
        method: str,
        request: Any,
        invocation: Invocation,
        interrupt: Callable[[], None] | None,
        headers: Mapping[str, str],
    ) -> Any:
        """Make a call with one answer."""
        head, decode = self._methods[method]
        if headers:
            head += encode_literals(headers)
        message, seconds = request.SerializeToString(), max(0.0, invocation.at - time.monotonic())
        connection = self._pool.acquire(seconds)
        try:
            connection.send(head, message, seconds)
            del message  # it may be megabytes
            answer = wait(connection.receive, invocation, interrupt)
        except BaseException as error:
            # Triton drops the requests of a connection that closes.
            connection.close()
            if isinstance(error, CallerGone | DeadlinePassed):
                raise unfinished(error) from None
            if isinstance(error, Unreadable):
                raise Failed(ModelFailed, f"Triton's answer cannot be read: {error}", finished=True) from None
            if isinstance(error, Failed) and issubclass(error.kind, NotReady) and not invocation.remaining():
                raise translate_status(grpc.StatusCode.DEADLINE_EXCEEDED, "") from None
            raise
        self._pool.release(connection)
        return decode(answer)


def _answers(call: Any) -> Generator[Any, None, None]:
    """Yield a stream's answers. An error among them is raised only when Triton has ended the stream.

    Otherwise a stream of Triton 2.51 may never finish. Errors in a stream have no code.
    """
    error: Failed | None = None
    for answer in call:
        if answer.error_message:
            # It has no code. Without parameters Triton refused the request itself.
            reached_model = bool(answer.infer_response.parameters)
            code = grpc.StatusCode.UNKNOWN if reached_model else None
            error = error or translate_status(code, answer.error_message)
        elif error is None:
            yield answer.infer_response
    if error:
        raise error


def unfinished(error: CallerGone | DeadlinePassed) -> Failed:
    """Return the failure of a call whose invocation ended before Triton answered."""
    if isinstance(error, DeadlinePassed):
        return translate_status(grpc.StatusCode.DEADLINE_EXCEEDED, "")
    return Failed(CallerGone, error.sentence, finished=False)
