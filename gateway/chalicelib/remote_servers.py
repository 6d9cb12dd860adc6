"""Triton servers on other machines: addresses, TLS and load balancing."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import grpc

from sm.errors import NotReady, StartError
from sm.triton.channel import OPTIONS

SERVICE = "inference.GRPCInferenceService"
#: Methods without side effects, which may be retried if their result is unknown.
RETRYABLE_METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "RepositoryIndex",
)
#: Each call goes to the next connected server that is healthy. Triton does not support subscriptions to its
#: health; gRPC then takes it as healthy.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": method} for method in RETRYABLE_METHODS],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.1s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}


@dataclass(frozen=True)
class Tls:
    """How this client and a server verify each other. Certificates and keys are PEM."""

    #: Who may sign the server's certificate; None for gRPC's own list.
    authorities: bytes | None = None
    #: This client's certificate, for servers that require one.
    certificate: bytes | None = None
    #: The key of ``certificate``.
    key: bytes | None = None
    #: The name in the server's certificate, if it differs from the address.
    name: str = ""

    def credentials(self) -> Any:
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificate)


@dataclass(frozen=True)
class RemoteServers:
    """Servers by ``host:port``: one name, which may resolve to several addresses, or several IP addresses."""

    addresses: tuple[str, ...]
    tls: Tls | None = None

    @classmethod
    def parse(cls, addresses: Sequence[str], tls: Tls | None = None) -> RemoteServers:
        """Parse addresses.

        Raises:
            StartError: An address is wrong, or there are several names: gRPC resolves only one.
        """
        if not addresses:
            raise StartError("No address of a Triton is given.")
        for address in addresses:
            host, port = split_address(address)
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise StartError(f"{address!r} is not an address of a Triton, such as triton.internal:8001.")
        if len(addresses) > 1 and not all(is_ip(address) for address in addresses):
            raise StartError(
                "Several Tritons are given by their IP addresses, or by one name for all of them."
            )
        if len(addresses) > 1 and tls and not tls.name:
            raise StartError("Several Tritons with TLS need the name that their certificates have in common.")
        return cls(tuple(addresses), tls)

    @property
    def target(self) -> str:
        """The servers as a gRPC target."""
        if not is_ip(self.addresses[0]):
            return f"dns:///{self.addresses[0]}"
        kind = "ipv6" if self.addresses[0].startswith("[") else "ipv4"
        return f"{kind}:{','.join(self.addresses)}"

    def connect(self) -> Any:
        """Create a channel, which connects at its first use. It does not survive a fork."""
        options = [*OPTIONS, ("grpc.service_config", json.dumps(SERVICE_CONFIG))]
        if self.tls is None:
            return grpc.insecure_channel(self.target, options)
        if self.tls.name:
            options.append(("grpc.ssl_target_name_override", self.tls.name))
        return grpc.secure_channel(self.target, self.tls.credentials(), options)

    def resolve(self) -> list[RemoteServers]:
        """Return each server by itself. Raises :class:`NotReady` if a name cannot be resolved."""
        if is_ip(self.addresses[0]):
            return [RemoteServers((address,), self.tls) for address in self.addresses]
        host, port = split_address(self.addresses[0])
        try:
            resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError:
            raise NotReady(f"no machine has the name {host}") from None
        tls = self.tls and Tls(
            self.tls.authorities, self.tls.certificate, self.tls.key, self.tls.name or host
        )
        hosts = sorted({str(row[4][0]) for row in resolved})
        return [
            RemoteServers((f"[{host}]:{port}" if ":" in host else f"{host}:{port}",), tls) for host in hosts
        ]


def split_address(address: str) -> tuple[str, str]:
    """Split host and port; an IPv6 host keeps its brackets."""
    host, _, port = address.rpartition(":")
    return host, port


def is_ip(address: str) -> bool:
    try:
        ip_address(split_address(address)[0].strip("[]"))
    except ValueError:
        return False
    return True
