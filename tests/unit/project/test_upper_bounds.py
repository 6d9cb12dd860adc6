"""A library whose inside the code uses has an upper bound: its next major version may have another inside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sm.settings import HERE

#: What the package and its extras need; behind it is what only developers do.
RUNTIME = (HERE / "pyproject.toml").read_text().partition("\ntune = [")[0]
#: Each requirement's name, and its bounds.
REQUIREMENTS = re.findall(r'^    "([\w-]+)(?:\[\w+\])?([^";]*)', RUNTIME, re.M)
#: Where the distribution's name is another, or where one brings and bounds the other.
DISTRIBUTIONS = {
    "prometheus_client": "prometheus-client",
    "grpc": "tritonclient",
    "botocore": "boto3",
    "pydantic_core": "pydantic",
}
#: Submodules of these are their documented interface.
DOCUMENTED = {"numpy", "opentelemetry", "rich"}


def entered() -> Iterator[str]:
    """The distributions of which a module below the first level is imported."""
    for folder in ("sm", "gateway"):
        for file in (HERE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 0 and "." in (node.module or ""):
                    top = str(node.module).partition(".")[0]
                    yield DISTRIBUTIONS.get(top, top)


def test_a_library_that_the_code_reaches_into_has_an_upper_bound() -> None:
    found = set(entered()) - DOCUMENTED
    assert {"gunicorn", "prometheus-client", "tritonclient", "uvicorn", "werkzeug", "boto3"} <= found
    assert [f"{name}{bounds}" for name, bounds in REQUIREMENTS if name in found and "<" not in bounds] == []
    assert found & {name for name, _ in REQUIREMENTS} >= {"gunicorn", "boto3"}
