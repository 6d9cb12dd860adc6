"""A client's types become its schemas in the OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from openapi_spec_validator import validate

from sm.client import Client, Parameters, TextPayload
from sm.client.results import Boxes
from sm.http.openapi import MAX_SAMPLE_BYTES, document
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


class ClientWithBoxes(WordCounter):
    result = Boxes(items="objects", relative=True, parameters={"format": "boxes"})
    samples = ("street.jpg", "../secret.txt", "link.jpg", "absent.jpg", "large.jpg")


def test_the_document_is_valid_for_any_types_of_clients_and_names_the_kind_of_a_result(
    tmp_path: Path,
) -> None:
    kinds = (ClientWithBoxes, ResultWithoutSchema, ResultOfUnknownType, ArbitraryPayloadTypes)
    clients = [make_client(kind, tmp_path) for kind in kinds]
    for number, client in enumerate(clients[1:]):
        client.name = f"words{number}"
    openapi = document([describe_client(client) for client in clients])
    validate(openapi)
    described = openapi["components"]["schemas"]["words.Request"]["x-result"]
    assert described["kind"] == "boxes"
    assert (described["items"], described["relative"], described["box"]) == ("objects", True, "box")


def test_samples_are_examples_and_listed_files_of_the_folder_that_are_not_too_large(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("payload.json", "street.jpg", "unlisted.jpg"):
        (folder / name).write_text('{"text": "a"}')
    (folder / "golden.json").write_text(json.dumps("a" * MAX_EXAMPLE_BYTES))
    (folder / "link.jpg").symlink_to(tmp_path / "secret.txt")
    (folder / "large.jpg").write_bytes(bytes(MAX_SAMPLE_BYTES + 1))
    schemas = describe_client(make_client(ClientWithBoxes, tmp_path))["schemas"]
    assert schemas["words.Request"]["x-samples"] == ["payload.json", "street.jpg"]
    assert schemas["words.Request"]["examples"] == [{"modelname": "words", "payload": {"text": "a"}}]
    assert "examples" not in schemas["words.Answer"]


def test_every_schema_has_a_title_of_its_own(tmp_path: Path) -> None:
    first, second = (make_client(WordCounter, tmp_path) for _ in range(2))
    first.name, second.name = "word_count", "word-count"
    schemas = document([describe_client(client) for client in (first, second)])["components"]["schemas"]
    titles = [schema["title"] for schema in schemas.values()]
    assert len(titles) == len(set(titles))
    assert {"WordCountOptions", "WordCountOptions2"} <= {*titles}
