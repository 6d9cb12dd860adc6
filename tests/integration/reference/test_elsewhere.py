"""docs/start/from-elsewhere.md: each port on the page is loaded and answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sm.plugins import discovery
from tests.support.pages import code_blocks

WEIGHTS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
ONES = np.array([1.0, 1.0], np.float32).tobytes()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The clients of the page's code blocks, whose first lines name their files. They call no model."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for block in code_blocks("start/from-elsewhere.md", "python"):
        path, _, code = block.partition("\n")
        file = folder / path.removeprefix("# ")
        file.parent.mkdir(parents=True)
        file.write_text(code)
        np.save(file.with_name("weights.npy"), WEIGHTS)
    built = discovery.find_clients((folder / "code",), object(), folder)  # type: ignore[arg-type]
    for client in built.clients.values():
        client.setup()
    return dict(built.clients)


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        # TorchServe's, KServe's and Cog's.
        ("classify", {"body": ONES, "content_type": "application/octet-stream"}, [4.0, 6.0]),
        ("score", {"instances": [[1, 0], [0, 1]]}, {"predictions": WEIGHTS.tolist()}),
        ("repeat", {"word": "ho", "times": 3}, "hohoho!"),
    ],
)
def test_the_port_of_a_handler_answers(
    clients: dict[str, Any], name: str, fields: dict[str, object], expected: object
) -> None:
    assert clients[name].inference(clients[name].payload(**fields)) == expected


def test_the_port_of_a_djl_handler_answers_with_its_own_body(clients: dict[str, Any]) -> None:
    payload = clients["scale"].payload(body=b"[[1, 1]]", content_type="application/json")
    answer = clients["scale"].inference(payload)
    assert (json.loads(answer.body), answer.content_type) == ([[4.0, 6.0]], "application/json")


def test_the_port_of_a_cog_predictor_keeps_its_bounds(clients: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="times"):
        clients["repeat"].payload(word="ho", times=10)
