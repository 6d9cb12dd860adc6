"""What a client says of itself by its types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openapi_spec_validator import validate

from sm.client.base import Client, Parameters, TextPayload
from sm.router.openapi.client_schemas import LARGEST_EXAMPLE, described
from sm.router.openapi.document import document


class Options(Parameters):
    top: int = 3


class Words(TextPayload):
    parameters: Options = Options()


class Plain(Client):
    """Counts words.

    More of it.
    """

    payload = Words

    def inference(self, payload: Words) -> dict[str, int]:
        return {payload.text: 1}


class Odd(Plain):
    """Its answer has no schema."""

    def inference(self, payload: Words) -> Any:
        return {payload.text: object()}


class Unnamed(Plain):
    def inference(self, payload: Words) -> NoSuchType:  # type: ignore[name-defined]  # noqa: F821
        return payload.text


class Arbitrary(Plain):
    class Body(TextPayload):
        model_config: ClassVar = {"arbitrary_types_allowed": True}
        path: type[Path] | object

    payload = Body  # type: ignore[assignment]


def client(kind: type[Client], folder: Path) -> Client:
    # None of them calls Triton.
    made = kind(None, folder, folder)  # type: ignore[arg-type]
    made.name = "words"
    return made


def test_payload_parameters_and_result_come_from_the_types(tmp_path: Path) -> None:
    said = described(client(Plain, tmp_path))
    assert said["summary"] == "Counts words."
    assert list(said["payload"]["properties"]) == ["text"]
    assert said["schemas"]["words.Options"]["properties"]["top"]["default"] == 3
    assert said["result"] == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("kind", [Plain, Odd, Unnamed, Arbitrary])
def test_a_document_is_valid_whatever_a_client_s_types_are(kind: type[Client], tmp_path: Path) -> None:
    validate(document([described(client(kind, tmp_path))]))


def test_a_document_without_clients_is_valid() -> None:
    validate(document([]))


def test_samples_are_examples_unless_they_are_large(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "payload.json").write_text('{"text": "a"}')
    (tmp_path / "sample" / "golden.json").write_text(json.dumps("a" * LARGEST_EXAMPLE))
    said = described(client(Plain, tmp_path))
    assert (said["example"], said["golden"]) == ({"text": "a"}, None)
