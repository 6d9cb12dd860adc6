"""Call the Tritons: inference on any of them, balanced by gRPC; status and loads on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tritonclient.grpc import service_pb2 as pb

from chalicelib.remote_channel import RemoteChannel
from chalicelib.remote_servers import RemoteServers
from sm.errors import NotReady, TriremeError
from sm.invocation import Invocation, current, running
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl, is_ready
from sm.triton.transport import Transport
from sm.triton.triton_errors import Failed

T = TypeVar("T")
#: Seconds for one server to report its state.
STATUS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServerState:
    """A server, and the reason why it is not ready; empty if it is ready."""

    address: str
    reason: str = ""


class Tritons:
    """All servers. Create it after a fork. ``timeout`` is in seconds, for calls without a deadline."""

    def __init__(self, peers: RemoteServers, timeout: float) -> None:
        self._peers, self._timeout = peers, timeout
        # The box's own transport; without shared memory, tensors travel as bytes.
        box = Box("gateway", Path(), Path(), 0, 0, 0, front="", shared_bytes=0)
        self.transport = Transport(Settings(), box, channel=RemoteChannel(peers.connect(), timeout))

    def server_states(self, live: bool = False) -> list[ServerState]:
        """Ask all servers at once whether their models are ready or, with ``live``, whether they are live."""

        def probe(address: str, channel: Channel) -> ServerState:
            if live:
                lives = _call(channel, "ServerLive", pb.ServerLiveRequest()).live
                return ServerState(address, "" if lives else "it is not live")
            ready = _call(channel, "ServerReady", pb.ServerReadyRequest()).ready
            return ServerState(address, "" if ready else "not all of its models are ready")

        return [
            result if isinstance(result, ServerState) else ServerState(address, result.sentence)
            for address, result in self._query_all(probe, STATUS_TIMEOUT_S)
        ]

    def ready_versions(self) -> dict[str, list[str]]:
        """Return the versions, by model, that are ready on every server that answers.

        Raises :class:`NotReady` if none answers.
        """

        def list_ready(_: str, channel: Channel) -> dict[str, set[str]]:
            ready: dict[str, set[str]] = {}
            for row in _call(channel, "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)).models:
                ready.setdefault(row.name, set()).add(row.version)
            return ready

        results = [result for _, result in self._query_all(list_ready, STATUS_TIMEOUT_S)]
        answers = [result for result in results if isinstance(result, dict)]
        if not answers:
            raise next(result for result in results if isinstance(result, TriremeError))
        first, *others = answers
        common = {
            name: versions.intersection(*(o.get(name, ()) for o in others))
            for name, versions in first.items()
        }
        return {name: sorted(versions) for name, versions in sorted(common.items()) if versions}

    def servers_without(self, model: str) -> list[str]:
        """Return the servers that answer and on which the model is not ready.

        Raises :class:`NotReady` if none answers.
        """

        def query(_: str, channel: Channel) -> bool:
            with _translated():
                return is_ready(channel, model)

        results = self._query_all(query, STATUS_TIMEOUT_S)
        if not any(isinstance(result, bool) for _, result in results):
            raise next(result for _, result in results if isinstance(result, TriremeError))
        return [address for address, result in results if result is False]

    def load(self, model: str, addresses: Collection[str] | None = None, seconds: float = 0) -> None:
        """Load a model on all servers, or on ``addresses``, in parallel. Raises the first server's error."""
        seconds = seconds or self._timeout

        def load_model(address: str, channel: Channel) -> None:
            if addresses is None or address in addresses:
                ModelControl(channel, seconds).load(model)

        for address, result in self._query_all(load_model, seconds):
            if isinstance(result, TriremeError):
                raise type(result)(f"{result.sentence} ({address})")
        self.transport.forget([model])

    def close(self) -> None:
        self.transport.close()

    def _query_all(
        self, query: Callable[[str, Channel], T], seconds: float
    ) -> list[tuple[str, T | TriremeError]]:
        """Query every server within ``seconds`` or the request's deadline; an error is a result too."""
        peers, outer = self._peers.resolve(), current()
        timeout_s = min(seconds, outer.remaining()) if outer else seconds

        def query_server(peer: RemoteServers) -> tuple[str, T | TriremeError]:
            with _channel(peer, timeout_s) as channel, running(Invocation(time.monotonic() + timeout_s)):
                try:
                    return peer.addresses[0], query(peer.addresses[0], channel)
                except TriremeError as error:
                    return peer.addresses[0], error

        with ThreadPoolExecutor(len(peers)) as executor:
            return list(executor.map(query_server, peers))


@contextmanager
def _channel(peer: RemoteServers, seconds: float) -> Iterator[Channel]:
    """Open a channel to one server for one query; only the channel to all servers is kept."""
    channel = RemoteChannel(peer.connect(), seconds)
    try:
        yield channel
    finally:
        channel.close()


def _call(channel: Channel, method: str, request: object) -> Any:
    with _translated():
        return channel.call(method, request)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Failed as failure:
        kind = failure.error
        raise (NotReady("Triton does not answer") if isinstance(kind, NotReady) else kind) from None
