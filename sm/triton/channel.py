"""gRPC calls to Triton that end with the invocation's deadline, or when its caller disconnects."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from sm.deadline import Deadline, current
from sm.errors import CallerGone, NotReady, TriremeError
from sm.metrics import GRPC_CLIENT_FALLBACKS
from sm.triton.call_failures import Failed, describe, failed
from sm.triton.caller_watch import watch_caller
from sm.triton.health import NO_KEYS
from sm.triton.remote_servers import OPTIONS, RemoteServers
from sm.triton.wire import MAX_FRAME_BYTES, ConnectionPool, Unreadable

log = logging.getLogger(__name__)

#: Seconds until the first check for a disconnected caller, and between the next ones.
FIRST_CALLER_CHECK_S, CALLER_CHECK_INTERVAL_S = 0.05, 0.1
#: Seconds for calls that register or unregister shared memory; Triton answers them at once.
REGISTRATION_TIMEOUT_S = 2.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Channel:
    """One connection for all threads of a process. Create it after the fork: it does not survive one.

    Args:
        where: A port on loopback, or remote servers.
        timeout: Seconds for a call without a deadline.
        keys: gRPC metadata for Triton's restricted APIs.
        own_wire: Call models through :mod:`sm.triton.wire` where possible.
    """

    def __init__(
        self,
        where: int | RemoteServers,
        timeout: float,
        keys: Mapping[str, str] = NO_KEYS,
        own_wire: bool = True,
    ) -> None:
        if isinstance(where, RemoteServers):
            self._channel = where.connect()
        else:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{where}", OPTIONS)
        self._line = ConnectionPool(where, INFER, keys) if own_wire and isinstance(where, int) else None
        self._readable = True
        self._closed = False
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._timeout = timeout
        self._keys = tuple(keys.items())

    def connect(self, seconds: float) -> None:
        """Wait for the connection. gRPC's attempts are short, and the first calls would fail with them."""
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(seconds)

    def call(
        self,
        method: str,
        request: Any,
        seconds: float | None = None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> Any:
        """Make a call within the time that the invocation has left. Raises :class:`Failed`.

        ``seconds`` is the limit without an invocation. ``interrupt`` is called meanwhile, and may raise.
        """
        deadline = _checked_deadline()
        seconds = deadline.remaining() if deadline else self._timeout if seconds is None else seconds
        return self._call(method, request, seconds, deadline, interrupt)

    def infer(self, request: Any) -> Any:
        """Send a ModelInferRequest; short ones go through :mod:`sm.triton.wire`, if that is in use."""
        if self._line is None or not self._readable:
            return self.call("ModelInfer", request)
        message = request.SerializeToString()
        if len(message) > MAX_FRAME_BYTES:
            return self.call("ModelInfer", request)
        deadline = _checked_deadline()
        seconds = deadline.remaining() if deadline else self._timeout
        try:
            answer = self._wired(self._line, message, seconds, deadline)
        except Unreadable as error:
            if self._readable:
                log.warning("Triton's answer cannot be read, gRPC's own client asks from now on: %s", error)
                GRPC_CLIENT_FALLBACKS.inc()
            self._readable = False
            return self.call("ModelInfer", request)
        return pb.ModelInferResponse.FromString(answer)

    def stream(self, request: Any) -> Generator[Any, None, None]:
        """Yield each of a model's answers as it arrives. Closing the generator cancels the work in Triton."""
        deadline = _checked_deadline()
        seconds = deadline.remaining() if deadline else self._timeout
        try:
            call = self._stub.ModelStreamInfer(iter((request,)), timeout=seconds, metadata=self._keys)
        except ValueError:
            raise Failed(NotReady, "the worker is ending", settled=True) from None
        with watch_caller(deadline, call.cancel) as watch:
            try:
                yield from _answers(call)
            except grpc.RpcError as error:
                if watch and watch.gone:
                    raise Failed(CallerGone, "the caller hung up", settled=False) from None
                raise failed(error.code(), error.details() or "") from None
            finally:
                call.cancel()

    def register(self, name: str, size: int) -> None:
        """Make Triton map a region. If it has one of this name it is the same: no name is used twice."""
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", offset=0, byte_size=size)
        try:
            self._housekeeping("SystemSharedMemoryRegister", request)
        except TriremeError as error:
            if "already in manager" not in error.sentence:
                raise

    def unregister(self, name: str) -> None:
        self._housekeeping("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name))

    def registered(self) -> set[str]:
        """Return the regions of all workers that Triton has mapped."""
        return set(
            self._housekeeping("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()).regions
        )

    def close(self) -> None:
        self._closed = True
        self._channel.close()
        if self._line:
            self._line.close()

    def _housekeeping(self, method: str, request: Any) -> Any:
        try:
            return self._call(method, request, REGISTRATION_TIMEOUT_S, None)
        except Failed as failure:
            raise failure.error from None

    def _wired(
        self, line: ConnectionPool, message: bytes, seconds: float, deadline: Deadline | None
    ) -> bytes:
        if self._closed:
            raise Failed(NotReady, "the worker is ending", settled=True)
        end = time.monotonic() + seconds
        connection = line.acquire(message, seconds)
        try:
            while (answer := connection.receive(min(FIRST_CALLER_CHECK_S, end - time.monotonic()))) is None:
                if deadline and deadline.is_disconnected():
                    raise Failed(CallerGone, "the caller hung up", settled=False)
                if time.monotonic() >= end:
                    raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        except BaseException as error:
            # Triton drops the requests of a connection that closes.
            connection.close()
            if isinstance(error, Failed) and error.kind is NotReady and time.monotonic() >= end:
                raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "") from None
            raise
        line.release(connection)
        return answer

    def _call(
        self,
        method: str,
        request: Any,
        seconds: float,
        deadline: Deadline | None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> Any:
        # gRPC sends the deadline to Triton, which then drops a request that is still queued.
        try:
            future = getattr(self._stub, method).future(request, timeout=seconds, metadata=self._keys)
        except ValueError:
            raise Failed(NotReady, "the worker is ending", settled=True) from None
        look = FIRST_CALLER_CHECK_S
        try:
            while True:
                try:
                    return future.result(timeout=look)
                except grpc.FutureTimeoutError:
                    look = CALLER_CHECK_INTERVAL_S
                    if deadline and deadline.is_disconnected():
                        raise Failed(CallerGone, "the caller hung up", settled=False) from None
                    interrupt()
        except grpc.RpcError as error:
            # The error is the future, and the frames of its traceback refer to it: a cycle that would keep
            # this call's memory until the garbage collector runs.
            error.with_traceback(None)
            raise failed(error.code(), error.details() or "") from None
        finally:
            future.cancel()


def _answers(call: Any) -> Generator[Any, None, None]:
    """Yield a stream's answers. An error among them is raised when Triton has ended the stream, not before.

    Triton 2.51 never finishes a stream that is cancelled right after its error, and crashes if it is asked to
    end one with a code (``triton_grpc_error``).
    """
    error: Failed | None = None
    for answer in call:
        if answer.error_message:
            error = error or describe(answer.error_message, bool(answer.infer_response.parameters))
        elif error is None:
            yield answer.infer_response
    if error:
        raise error


def _checked_deadline() -> Deadline | None:
    """Return the deadline of the current invocation. Raises :class:`Failed` if it is over or the caller is
    gone.
    """
    deadline = current()
    try:
        if deadline:
            deadline.check()
    except TriremeError as error:
        raise Failed(type(error), error.sentence, settled=True) from None
    return deadline
