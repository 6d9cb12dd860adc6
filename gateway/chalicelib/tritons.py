"""The Tritons: calls to any of them by gRPC's balancing, and what has to be said to each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tritonclient.grpc import service_pb2 as pb

from sm.deadline import Deadline, current, running
from sm.errors import NotReady, TriremeError
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.call_failures import Failed
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from sm.triton.remote_servers import RemoteServers
from sm.triton.transport import Transport

T = TypeVar("T")
#: Seconds that one server gets to say how it is.
STATUS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServerState:
    """A server, and why it is not ready; empty if it is."""

    address: str
    reason: str = ""


class Tritons:
    """Make it after a fork. ``timeout`` in seconds, where no deadline holds."""

    def __init__(self, peers: RemoteServers, timeout: float) -> None:
        self._peers, self._timeout = peers, timeout
        # The box's own transport; without shared memory, tensors travel as bytes.
        box = Box("gateway", Path(), Path(), 0, 0, 0, front="", shared_bytes=0)
        self.transport = Transport(Settings(), box, channel=Channel(peers, timeout))

    def server_states(self, live: bool = False) -> list[ServerState]:
        """How each server is, all asked at once: whether its models are ready, or whether it is ``live``."""

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
        """Versions by model of what every server that answers has ready; :class:`NotReady` if none does."""

        def list_ready(_: str, channel: Channel) -> dict[str, set[str]]:
            ready: dict[str, set[str]] = {}
            for row in _call(channel, "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)).models:
                ready.setdefault(row.name, set()).add(row.version)
            return ready

        results = [result for _, result in self._query_all(list_ready, STATUS_TIMEOUT_S)]
        answered = [result for result in results if isinstance(result, dict)]
        if not answered:
            raise next(result for result in results if isinstance(result, TriremeError))
        first, *others = answered
        common = {
            name: versions.intersection(*(o.get(name, ()) for o in others))
            for name, versions in first.items()
        }
        return {name: sorted(versions) for name, versions in sorted(common.items()) if versions}

    def servers_without(self, model: str) -> list[str]:
        """The servers that have the model not ready, of those that answer; :class:`NotReady` if none does."""

        def is_ready(_: str, channel: Channel) -> bool:
            return bool(_call(channel, "ModelReady", pb.ModelReadyRequest(name=model)).ready)

        results = self._query_all(is_ready, STATUS_TIMEOUT_S)
        if not any(isinstance(result, bool) for _, result in results):
            raise next(result for _, result in results if isinstance(result, TriremeError))
        return [address for address, result in results if result is False]

    def load(self, model: str, addresses: Collection[str] | None = None, seconds: float = 0) -> None:
        """On every server, or on these, side by side; the first that fails says why."""
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
        """What each server answers, in ``seconds`` or what the request has left; errors in their places."""
        peers, outer = self._peers.resolve(), current()
        timeout_s = min(seconds, outer.remaining()) if outer else seconds

        def query_server(peer: RemoteServers) -> tuple[str, T | TriremeError]:
            with _channel(peer, timeout_s) as channel, running(Deadline(time.monotonic() + timeout_s)):
                try:
                    return peer.addresses[0], query(peer.addresses[0], channel)
                except TriremeError as error:
                    return peer.addresses[0], error

        with ThreadPoolExecutor(len(peers)) as executor:
            return list(executor.map(query_server, peers))


@contextmanager
def _channel(peer: RemoteServers, seconds: float) -> Iterator[Channel]:
    """To one server, for one question: only the channel to all of them is kept."""
    channel = Channel(peer, seconds)
    try:
        yield channel
    finally:
        channel.close()


def _call(channel: Channel, method: str, request: object) -> Any:
    try:
        return channel.call(method, request)
    except Failed as failure:
        kind = failure.error
        raise (NotReady("Triton does not answer") if isinstance(kind, NotReady) else kind) from None
