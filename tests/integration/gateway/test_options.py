"""The gateway's environment variables: mistakes are named at start, and keys never appear in messages."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from app import app
from chalice.app import Request
from chalicelib.front import Front
from chalicelib.options import Options

from sm.errors import StartError
from sm.settings import HERE, format_value, help_texts
from tests.support.gateways import api_gateway_event

GOOD = {
    "TRIREME_GATEWAY_BUCKET": "b",
    "TRIREME_GATEWAY_TRITON": "triton.internal:8001",
    "TRIREME_GATEWAY_KEYS": f"me:{'0' * 64}",
}


def short_names_json(**members: object) -> str:
    """A map of one short name, with these members changed."""
    valid_members = {"name": "b", "input_name": "x", "output_name": "y", "input_shape": [1, 3, 8, 8]}
    return json.dumps({"a": {**valid_members, **members}})


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"TRIREME_GATEWAY_BUCKET": "", "TRIREME_GATEWAY_REPOSITORY": "/models"}, "TRIREME_GATEWAY_BUCKET"),
        ({"TRIREME_GATEWAY_KEYS": ""}, ""),
        ({"TRIREME_GATEWAY_INPUTS": "images"}, ""),
        ({"TRIREME_GATEWAY_INPUTS": "results/mine/"}, "TRIREME_GATEWAY_RESULTS"),
        ({"TRIREME_GATEWAY_TIMEOUT": "901"}, ""),
        ({"TRIREME_GATEWAY_TLS_KEY": "/k"}, ""),
        ({"TRIREME_GATEWAY_SHORT_NAMES": "/nowhere"}, "'/nowhere'"),
        ({"TRIREME_GATEWAY_SHORT_NAMES": "{"}, "JSON"),
        ({"TRIREME_GATEWAY_SHORT_NAMES": "{}"}, ""),
        ({"TRIREME_GATEWAY_SHORT_NAMES": '{"a": {"name": "../b"}}'}, "a.name"),
        ({"TRIREME_GATEWAY_SHORT_NAMES": '{"a/b": {}}'}, "a/b"),
        ({"TRIREME_GATEWAY_SHORT_NAMES": short_names_json(input_shape=[1, 4, 8, 8])}, "a.input_shape.1"),
        ({"TRIREME_GATEWAY_SHORT_NAMES": short_names_json(inputs="x")}, "a.inputs"),
    ],
)
def test_an_invalid_variable_is_an_error_with_its_name(variables: dict[str, str], place: str) -> None:
    with pytest.raises(StartError) as error:
        Options.read({**GOOD, **variables})
    assert [*variables][-1] in str(error.value)
    assert place in str(error.value)


def test_short_names_may_be_in_a_file_and_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps({name: json.loads(short_names_json())["a"] for name in ("z", "a", "m")}))
    options = Options.read({**GOOD, "TRIREME_GATEWAY_SHORT_NAMES": str(file)})
    assert list(options.short_names or ()) == ["z", "a", "m"]


def test_a_key_given_instead_of_its_hash_is_not_shown() -> None:
    with pytest.raises(StartError, match="TRIREME_GATEWAY_KEYS") as error:
        Options.read({**GOOD, "TRIREME_GATEWAY_KEYS": "me:secret"})
    assert "secret" not in str(error.value)


def test_behind_api_gateway_no_keys_need_be_set() -> None:
    options = Options.read({**GOOD, "TRIREME_GATEWAY_KEYS": "", "AWS_LAMBDA_FUNCTION_NAME": "gateway"})
    assert options.keys is None


@pytest.mark.parametrize("triton", ["", "triton", "triton:99999", "a.internal:8001,b.internal:8001"])
def test_an_invalid_triton_address_is_an_error(triton: str) -> None:
    with pytest.raises(StartError):
        Options.read({**GOOD, "TRIREME_GATEWAY_TRITON": triton}).peers  # noqa: B018


def test_a_missing_variable_is_in_the_log_and_not_in_the_response(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.environ", {"TRIREME_GATEWAY_BUCKET": "private-name"})
    # Keep pytest's own log handlers.
    monkeypatch.setattr("sm.server.logs.configure", lambda level: None)
    event = api_gateway_event("GET", "/models")
    response = Front().answer(Request(event), lambda api: api.models())
    assert response.status_code == 500
    assert "TRIREME_GATEWAY_KEYS" not in response.body
    assert "TRIREME_GATEWAY_KEYS" in caplog.text


def test_every_route_is_documented() -> None:
    page = (HERE / "docs" / "deploy" / "gateway.md").read_text()
    for path, verbs in app.routes.items():
        for verb in verbs:
            assert f"| `{verb} {path}` |" in page


def test_every_variable_is_documented_with_its_default() -> None:
    page = (HERE / "docs" / "deploy" / "gateway-reference.md").read_text()
    helps = help_texts(Options)
    for row in fields(Options):
        default = format_value(row.default).replace(f"{HERE}/", "")
        cell = f"`{default}`" if default else ""
        assert f"| `{row.metadata['names'][0]}` | {cell} | {helps[row.name]} |" in page
