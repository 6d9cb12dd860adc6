"""The values that Kubernetes documents are written with: plain values, or expressions of a Helm chart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trireme_tools.templates.yaml_text import Each, Expression, When


class Values(Protocol):
    """Gives the values that documents are written with. A path names one: ``autoscaling.max``."""

    def get(self, path: str) -> Any:
        """Return the value."""

    def total(self, *terms: str | int) -> Any:
        """Return the sum of values and numbers."""

    def attempts(self, path: str, period: int) -> Any:
        """Return how many probes, one every ``period`` seconds, fit into the value's seconds, rounded up."""

    def text(self, path: str) -> Any:
        """Return the value as a text, for an environment variable."""

    def each(self, path: str, item: dict[str, Any]) -> list[Any]:
        """Return ``item`` for each member of a map, which replaces :data:`NAME` and :data:`VALUE` in it."""

    def when(self, path: str, value: Any, *, negated: bool = False) -> Any:
        """Return ``value`` if the value at the path is true, else :data:`ABSENT`."""


#: Stands for a member that is left out.
ABSENT = object()
NAME, VALUE = Expression("$name | quote"), Expression("$value | quote")


@dataclass(frozen=True)
class GivenValues:
    """The values themselves."""

    values: Mapping[str, Any]

    def get(self, path: str) -> Any:
        value: Any = self.values
        for part in path.split("."):
            value = value[part]
        return value

    def total(self, *terms: str | int) -> int:
        return sum(term if isinstance(term, int) else self.get(term) for term in terms)

    def attempts(self, path: str, period: int) -> int:
        return -(-int(self.get(path)) // period)

    def text(self, path: str) -> str:
        return str(self.get(path))

    def each(self, path: str, item: dict[str, Any]) -> list[Any]:
        def fill(member: Any, name: str, value: str) -> Any:
            return name if member is NAME else value if member is VALUE else member

        return [
            {key: fill(member, name, value) for key, member in item.items()}
            for name, value in sorted(self.get(path).items())
        ]

    def when(self, path: str, value: Any, *, negated: bool = False) -> Any:
        return value if bool(self.get(path)) != negated else ABSENT


@dataclass(frozen=True)
class ChartValues:
    """Expressions that Helm replaces by the values of ``values.yaml``."""

    defaults: GivenValues

    def get(self, path: str) -> Expression:
        if path == "name":
            return Expression(".Release.Name | quote")
        value = self.defaults.get(path)
        function = "quote" if isinstance(value, str) else "toJson"
        return Expression(f".Values.{path} | {function}")

    def total(self, *terms: str | int) -> Expression:
        words = [str(term) if isinstance(term, int) else f".Values.{term}" for term in terms]
        return Expression(f"add {' '.join(words)}")

    def attempts(self, path: str, period: int) -> Expression:
        return Expression(f"div (add .Values.{path} {period - 1}) {period}")

    def text(self, path: str) -> Expression:
        return Expression(f".Values.{path} | toString | quote")

    def each(self, path: str, item: dict[str, Any]) -> list[Any]:
        return [Each(path, item)]

    def when(self, path: str, value: Any, *, negated: bool = False) -> When:
        return When(f"{'not ' * negated}.Values.{path}", value)


def remove_absent(value: Any) -> Any:
    """Return ``value`` without the members that are :data:`ABSENT`."""
    if isinstance(value, dict):
        return {name: remove_absent(member) for name, member in value.items() if member is not ABSENT}
    if isinstance(value, list):
        return [remove_absent(item) for item in value if item is not ABSENT]
    return value
