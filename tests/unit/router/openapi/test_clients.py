"""What a client says of itself by its types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openapi_spec_validator import validate

from sm.client.base import Client, Parameters, TextPayload
from sm.client.result_kinds import Boxes
from sm.router.openapi.client_schemas import MAX_EXAMPLE_BYTES, MAX_SAMPLE_BYTES, describe_client
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
    said = describe_client(client(Plain, tmp_path))
    assert said["summary"] == "Counts words."
    assert list(said["payload"]["properties"]) == ["text"]
    assert said["schemas"]["words.Options"]["properties"]["top"]["default"] == 3
    assert said["result"] == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("kind", [Plain, Odd, Unnamed, Arbitrary])
def test_a_document_is_valid_whatever_a_client_s_types_are(kind: type[Client], tmp_path: Path) -> None:
    validate(document([describe_client(client(kind, tmp_path))]))


def test_a_document_without_clients_is_valid() -> None:
    validate(document([]))


def test_samples_are_examples_unless_they_are_large(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "payload.json").write_text('{"text": "a"}')
    (tmp_path / "sample" / "golden.json").write_text(json.dumps("a" * MAX_EXAMPLE_BYTES))
    said = describe_client(client(Plain, tmp_path))
    assert (said["example"], said["golden"]) == ({"text": "a"}, None)


class Shown(Plain):
    result = Boxes(items="objects", relative=True, parameters={"format": "boxes"})
    samples = ("street.jpg", "../secret.txt", "link.jpg", "absent.jpg", "large.jpg")


def test_the_kind_of_the_result_is_in_the_document(tmp_path: Path) -> None:
    page = document([describe_client(client(Shown, tmp_path))])
    validate(page)
    assert page["components"]["schemas"]["words.Request"]["x-result"] == {
        "kind": "boxes",
        "items": "objects",
        "parameters": {"format": "boxes"},
        "label": "label",
        "score": "score",
        "box": "box",
        "relative": True,
    }


def test_a_client_that_says_nothing_of_its_result_has_no_kind(tmp_path: Path) -> None:
    page = document([describe_client(client(Plain, tmp_path))])
    assert "x-result" not in page["components"]["schemas"]["words.Request"]


def test_samples_are_files_of_the_folder_that_are_listed_and_not_too_large(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    sample.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("payload.json", "street.jpg", "unlisted.jpg"):
        (sample / name).write_text("{}")
    (sample / "link.jpg").symlink_to(tmp_path / "secret.txt")
    (sample / "large.jpg").write_bytes(bytes(MAX_SAMPLE_BYTES + 1))
    assert describe_client(client(Shown, tmp_path))["samples"] == ["payload.json", "street.jpg"]
