"""Decide which client has a name that both a team's file and a bundled client claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sm.client.base import Client
from sm.errors import StartError
from sm.plugins.loading import ClientSource


class NameTaken(StartError):
    """A client's name is another's."""


def check_name(client: Client, found: ClientSource, others: Mapping[str, ClientSource]) -> None:
    """:class:`NameTaken` if one of ``others`` has the client's name: the box's own alone may be replaced."""
    other = others.get(client.name, found)
    if client.replaces not in ("", client.name):
        raise NameTaken(
            f"{found.shown}: it replaces {client.replaces!r}, but its name is {client.name!r}: a client can "
            "replace one of its own name alone."
        )
    if other == found or (other.bundled and client.replaces):
        return
    if not other.bundled:
        raise NameTaken(
            f"{found.shown}: there is already a client called {client.name!r}: {other.shown}. Rename one."
        )
    raise NameTaken(
        f"{found.shown}: the box comes with a client {client.name!r}, {other.shown}: give yours another "
        f"name, or write replaces = {client.name!r} into its class to have it served instead."
    )


def select_sources(everything: Iterable[ClientSource]) -> tuple[ClientSource, ...]:
    """Without the clients of the box whose place another takes."""
    found = tuple(everything)
    own = {each.name for each in found if not each.bundled}
    return tuple(each for each in found if not each.bundled or each.name not in own)
