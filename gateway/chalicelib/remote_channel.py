"""gRPC calls to Tritons elsewhere, through gRPC's own client: it has TLS and channels to several servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc

from sm.errors import CallerGone, DeadlinePassed, Unavailable
from sm.invocation import Invocation, wait
from sm.triton.channel import Channel, unfinished
from sm.triton.server import NO_KEYS
from sm.triton.triton_errors import ENDING, Failed, translate_client_status


class RemoteChannel(Channel):
    """The calls of all threads of a process. Create it after a fork, which gRPC does not survive.

    Args:
        channel: gRPC's channel to the servers.
        timeout: Seconds for a call without a deadline.
        keys: gRPC metadata for Triton's restricted APIs.
    """

    def __init__(self, channel: grpc.Channel, timeout: float, keys: Mapping[str, str] = NO_KEYS) -> None:
        super().__init__(0, timeout, keys)
        self._open(channel)

    def rest(self) -> None:
        """Keep the channel, which nobody here can open again."""

    def _call(
        self,
        method: str,
        request: Any,
        invocation: Invocation,
        interrupt: Callable[[], None] | None,
        headers: Mapping[str, str],
    ) -> Any:
        metadata = (*self._keys, *headers.items())
        with self._stubs() as stub:
            # gRPC sends the deadline to Triton, which then drops a request that is still queued.
            try:
                seconds = invocation.remaining()
                future = getattr(stub, method).future(request, timeout=seconds, metadata=metadata)
            except ValueError:
                raise Failed(Unavailable, ENDING, finished=True) from None
            try:
                return wait(partial(_result, future), invocation, interrupt)
            except (CallerGone, DeadlinePassed) as error:
                raise unfinished(error) from None
            except grpc.RpcError as error:
                # The error is the future, and its traceback refers to it. Break this cycle: it would keep the
                # call's memory until the garbage collector runs.
                error.with_traceback(None)
                raise translate_client_status(error.code(), error.details() or "") from None
            finally:
                future.cancel()


def _result(future: Any, seconds: float) -> Any:
    """Return the answer of gRPC's client; None if there is none yet."""
    try:
        return future.result(timeout=seconds)
    except grpc.FutureTimeoutError:
        return None
