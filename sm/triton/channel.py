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
from sm.triton.call_failures import Failed, describe, failed
from sm.triton.caller_watch import watch_caller
from sm.triton.health import NO_KEYS
from sm.triton.remote_servers import OPTIONS, RemoteServers
from sm.triton.wire import MAX_FRAME_BYTES, ConnectionPool, Unreadable

log = logging.getLogger(__name__)

#: Seconds until the caller is looked after for the first time, and then each time.
FIRST_LOOK, NEXT_LOOK = 0.05, 0.1
#: Seconds that calls about shared memory get: they do no work.
HOUSEKEEPING = 2.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Channel:
    """One connection for all threads of a process. Make it after the fork: it does not survive one.

    ``where``: a port on loopback, or Tritons elsewhere. ``timeout`` in seconds, where no deadline holds;
    ``keys`` open what Triton restricts.
    """

    def __init__(self, where: int | RemoteServers, timeout: float, keys: Mapping[str, str] = NO_KEYS) -> None:
        if isinstance(where, RemoteServers):
            self._channel = where.connect()
        else:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{where}", OPTIONS)
        self._line = ConnectionPool(where, INFER, keys) if isinstance(where, int) else None
        self._readable = True
        self._closed = False
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._timeout = timeout
        self._keys = tuple(keys.items())

    def connect(self, seconds: float) -> None:
        """Wait for the connection. Each try of gRPC's is short, and the first calls would fail with it."""
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(seconds)

    def call(
        self,
        method: str,
        request: Any,
        seconds: float | None = None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> Any:
        """The answer to ``request``, in the time the invocation has left; :class:`Failed` otherwise.

        ``seconds`` hold where there is no invocation. ``interrupt`` is called meanwhile, and may raise.
        """
        deadline = _checked()
        seconds = deadline.remaining() if deadline else self._timeout if seconds is None else seconds
        return self._call(method, request, seconds, deadline, interrupt)

    def infer(self, request: Any) -> Any:
        """The answer to a ModelInferRequest; on loopback by :mod:`sm.triton.wire`, if it is not too long."""
        if self._line is None or not self._readable:
            return self.call("ModelInfer", request)
        message = request.SerializeToString()
        if len(message) > MAX_FRAME_BYTES:
            return self.call("ModelInfer", request)
        deadline = _checked()
        seconds = deadline.remaining() if deadline else self._timeout
        try:
            answer = self._wired(self._line, message, seconds, deadline)
        except Unreadable as error:
            if self._readable:
                log.warning("Triton's answer cannot be read, gRPC's own client asks from now on: %s", error)
            self._readable = False
            return self.call("ModelInfer", request)
        return pb.ModelInferResponse.FromString(answer)

    def stream(self, request: Any) -> Generator[Any, None, None]:
        """Each of a model's answers to ``request`` as it comes; closing it cancels the work in Triton."""
        deadline = _checked()
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
        """Have Triton map a region. One that it has already is the same: no name is used twice."""
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", offset=0, byte_size=size)
        try:
            self._housekeeping("SystemSharedMemoryRegister", request)
        except TriremeError as error:
            if "already in manager" not in error.sentence:
                raise

    def unregister(self, name: str) -> None:
        self._housekeeping("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name))

    def registered(self) -> set[str]:
        """The regions that Triton has mapped, of all workers."""
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
            return self._call(method, request, HOUSEKEEPING, None)
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
            while (answer := connection.receive(min(FIRST_LOOK, end - time.monotonic()))) is None:
                if deadline and deadline.is_disconnected():
                    raise Failed(CallerGone, "the caller hung up", settled=False)
                if time.monotonic() >= end:
                    raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        except BaseException as error:
            # Triton drops what is asked on a connection that closes.
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
        # gRPC tells Triton when the time is over, and Triton drops what is still in its queue.
        try:
            future = getattr(self._stub, method).future(request, timeout=seconds, metadata=self._keys)
        except ValueError:
            raise Failed(NotReady, "the worker is ending", settled=True) from None
        look = FIRST_LOOK
        try:
            while True:
                try:
                    return future.result(timeout=look)
                except grpc.FutureTimeoutError:
                    look = NEXT_LOOK
                    if deadline and deadline.is_disconnected():
                        raise Failed(CallerGone, "the caller hung up", settled=False) from None
                    interrupt()
        except grpc.RpcError as error:
            # It is the future itself, which the frames in its traceback refer to: nothing of this call would
            # be let go before the garbage collector comes.
            error.with_traceback(None)
            raise failed(error.code(), error.details() or "") from None
        finally:
            future.cancel()


def _answers(call: Any) -> Generator[Any, None, None]:
    """What a stream brings. An error among it is raised, but only when Triton has ended the stream.

    Version 2.51 never has done with a stream that is cancelled right after its error; and where it is asked
    to end one with a code (``triton_grpc_error``) it crashes.
    """
    error: Failed | None = None
    for answer in call:
        if answer.error_message:
            error = error or describe(answer.error_message, bool(answer.infer_response.parameters))
        elif error is None:
            yield answer.infer_response
    if error:
        raise error


def _checked() -> Deadline | None:
    """The deadline of the invocation being served; :class:`Failed` if there is no point in going on."""
    deadline = current()
    try:
        if deadline:
            deadline.check()
    except TriremeError as error:
        raise Failed(type(error), error.sentence, settled=True) from None
    return deadline
