"""A client's types become its schemas in the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openapi_spec_validator import validate

from sm.client import Client, Parameters, TextPayload
from sm.client.results import Boxes
from sm.control.openapi import MAX_SAMPLE_BYTES, METHODS, document
from sm.router.client_schemas import MAX_EXAMPLE_BYTES, describe_client


class Options(Parameters):
    top: int = 3


class Words(TextPayload):
    parameters: Options = Options()


class WordCounter(Client):
    """Counts words.

    More of it.
    """

    payload = Words

    def inference(self, payload: Words) -> dict[str, int]:
        return {payload.text: 1}


class ResultWithoutSchema(WordCounter):
    """Its result type, Any, has no schema."""

    def inference(self, payload: Words) -> Any:
        return {payload.text: object()}


class ResultOfUnknownType(WordCounter):
    def inference(self, payload: Words) -> NoSuchType:  # type: ignore[name-defined]  # noqa: F821
        return payload.text


class ArbitraryPayloadTypes(WordCounter):
    class Body(TextPayload):
        model_config: ClassVar = {"arbitrary_types_allowed": True}
        path: type[Path] | object

    payload = Body  # type: ignore[assignment]


def make_client(client_class: type[Client], folder: Path) -> Client:
    # These clients never call Triton.
    client = client_class(None, folder, folder)  # type: ignore[arg-type]
    client.name = "words"
    return client


def test_the_schemas_of_payload_parameters_and_result_come_from_the_types(tmp_path: Path) -> None:
    schemas = describe_client(make_client(WordCounter, tmp_path))["schemas"]
    assert schemas["words.Request"]["description"] == "Counts words."
    assert list(schemas["words"]["properties"]) == ["text"]
    assert schemas["words.Options"]["properties"]["top"]["default"] == 3
    result = schemas["words.Answer"]["properties"]["result"]["anyOf"][0]
    assert result == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    "client_class", [WordCounter, ResultWithoutSchema, ResultOfUnknownType, ArbitraryPayloadTypes]
)
def test_the_document_is_valid_for_any_types_of_a_client(client_class: type[Client], tmp_path: Path) -> None:
    validate(document([describe_client(make_client(client_class, tmp_path))]))


def test_the_document_without_clients_is_valid() -> None:
    validate(document())


def test_samples_become_examples_unless_they_are_large(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "payload.json").write_text('{"text": "a"}')
    (tmp_path / "sample" / "golden.json").write_text(json.dumps("a" * MAX_EXAMPLE_BYTES))
    schemas = describe_client(make_client(WordCounter, tmp_path))["schemas"]
    assert schemas["words.Request"]["examples"] == [{"modelname": "words", "payload": {"text": "a"}}]
    assert "examples" not in schemas["words.Answer"]


class ClientWithBoxes(WordCounter):
    result = Boxes(items="objects", relative=True, parameters={"format": "boxes"})
    samples = ("street.jpg", "../secret.txt", "link.jpg", "absent.jpg", "large.jpg")


def test_the_result_kind_is_in_the_document(tmp_path: Path) -> None:
    openapi = document([describe_client(make_client(ClientWithBoxes, tmp_path))])
    validate(openapi)
    assert openapi["components"]["schemas"]["words.Request"]["x-result"] == {
        "kind": "boxes",
        "items": "objects",
        "parameters": {"format": "boxes"},
        "label": "label",
        "score": "score",
        "box": "box",
        "relative": True,
    }


def test_samples_are_listed_files_of_the_folder_that_are_not_too_large(tmp_path: Path) -> None:
    sample_folder = tmp_path / "sample"
    sample_folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("payload.json", "street.jpg", "unlisted.jpg"):
        (sample_folder / name).write_text("{}")
    (sample_folder / "link.jpg").symlink_to(tmp_path / "secret.txt")
    (sample_folder / "large.jpg").write_bytes(bytes(MAX_SAMPLE_BYTES + 1))
    schemas = describe_client(make_client(ClientWithBoxes, tmp_path))["schemas"]
    assert schemas["words.Request"]["x-samples"] == ["payload.json", "street.jpg"]


def test_every_schema_has_a_title_of_its_own(tmp_path: Path) -> None:
    first, second = (make_client(WordCounter, tmp_path) for _ in range(2))
    first.name, second.name = "word_count", "word-count"
    schemas = document([describe_client(client) for client in (first, second)])["components"]["schemas"]
    titles = [schema["title"] for schema in schemas.values()]
    assert len(titles) == len(set(titles))
    assert {"WordCountOptions", "WordCountOptions2", "WordCountPayload", "WordCountRequest", "Error"} <= {
        *titles
    }


def arrays(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas of arrays within a document."""
    if isinstance(schema, dict):
        kinds = schema.get("type", ())
        if "array" in ([kinds] if isinstance(kinds, str) else kinds):
            yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from arrays(inner)


def test_every_array_says_what_its_items_are(tmp_path: Path) -> None:
    openapi = document([describe_client(make_client(WordCounter, tmp_path))])
    found = list(arrays(openapi))
    assert found
    assert [array for array in found if not {"items", "prefixItems"} & array.keys()] == []


def test_the_routes_begin_with_invocations_and_each_is_in_a_group() -> None:
    described = document()["paths"]
    assert next(iter(described)) == "/invocations"
    operations = [item[method] for item in described.values() for method in METHODS & item.keys()]
    assert all(len(operation["tags"]) == 1 for operation in operations)
