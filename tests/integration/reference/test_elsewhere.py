"""docs/start/from-elsewhere.md: each port on the page is loaded and answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sm.plugins import discovery
from tests.support.pages import code_blocks

WEIGHTS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


class NoTriton:
    """The ports on the page call no model."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The clients of the page's code blocks, whose first lines name their files."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for block in code_blocks("start/from-elsewhere.md", "python"):
        path, _, code = block.partition("\n")
        file = folder / path.removeprefix("# ")
        file.parent.mkdir(parents=True)
        file.write_text(code)
        np.save(file.with_name("weights.npy"), WEIGHTS)
    built = discovery.find_clients((folder / "code",), NoTriton(), folder)  # type: ignore[arg-type]
    for client in built.clients.values():
        client.setup()
    return dict(built.clients)


def answer_to(client: Any, **fields: object) -> Any:
    return client.inference(client.payload(**fields))


def test_the_port_of_a_torchserve_handler_answers(clients: dict[str, Any]) -> None:
    body = np.array([1.0, 1.0], np.float32).tobytes()
    answer = answer_to(clients["classify"], body=body, content_type="application/octet-stream")
    assert answer == [4.0, 6.0]


def test_the_port_of_a_djl_handler_answers_with_its_own_body(clients: dict[str, Any]) -> None:
    answer = answer_to(clients["scale"], body=b"[[1, 1]]", content_type="application/json")
    assert (json.loads(answer.body), answer.content_type) == ([[4.0, 6.0]], "application/json")


def test_the_port_of_a_kserve_model_keeps_its_json(clients: dict[str, Any]) -> None:
    assert answer_to(clients["score"], instances=[[1, 0], [0, 1]]) == {"predictions": WEIGHTS.tolist()}


def test_the_port_of_a_cog_predictor_keeps_its_arguments_and_bounds(clients: dict[str, Any]) -> None:
    assert answer_to(clients["repeat"], word="ho", times=3) == "hohoho!"
    with pytest.raises(ValueError, match="less than or equal to 9"):
        answer_to(clients["repeat"], word="ho", times=10)
