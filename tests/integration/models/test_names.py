"""Each name that a model may have is right in every path, on a real Triton; the others are refused."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY, shared_endpoint

#: As a caller of Triton itself may send them, and as most libraries do.
SAFE = ("", "!$&'()*+,;:=@")
SERVED = {f"a{character}b": number for number, character in enumerate("+%=@,:^", 2)} | {
    "a%2Bb": 11,
    "a..b": 12,
}
PLATFORMS = [f"a{character}b" for character in "?+%#;&= @|'\"\\<>[]{}*~^`$:,"] + [
    "a%2Fb",
    "a..b",
    "mod\xe8le",
    "\u6a21",
]


def test_a_model_of_a_repository_has_its_own_name_in_every_path(boxes: Boxes) -> None:
    box = boxes({name: multiplying_model(factor) for name, factor in SERVED.items()})
    for name, factor in SERVED.items():
        for safe in SAFE:
            model = f"{box.url}/v2/models/{quote(name, safe=safe)}"
            assert requests.get(model, timeout=30).json()["name"] == name
            for path in ("/ready", "/versions/1/ready", "/config", "/stats"):
                assert requests.get(model + path, timeout=30).status_code == 200, (name, path)
            answer = requests.post(f"{model}/infer", json=REQUEST_BODY, timeout=30).json()
            assert (answer["model_name"], answer["outputs"][0]["data"]) == (name, [factor, 2 * factor])
        answer = requests.post(
            f"{box.url}/invocations", params={"modelname": name}, json=REQUEST_BODY, timeout=30
        ).json()
        assert answer["outputs"][0]["data"] == [factor, 2 * factor]
        row = requests.get(f"{box.url}/models/{quote(name, safe='')}", timeout=30).json()
        assert (row["modelName"], row["ready"]) == (name, True)
    assert requests.get(f"{box.url}/v2/models/a%252Fb", timeout=30).status_code == 404


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a\nb", "a\x7fb", "x" * 257])
def test_a_name_that_is_no_part_of_a_path_is_refused(boxes: Boxes, name: str) -> None:
    endpoint = shared_endpoint(boxes)
    url = endpoint.platform.write_flat("odd", multiplying_model())
    assert endpoint.load(name, url).status_code == 400


def test_what_the_platform_calls_a_model_is_loaded_called_shown_and_unloaded(boxes: Boxes) -> None:
    endpoint = shared_endpoint(boxes)
    for number, name in enumerate(PLATFORMS, 2):
        url = endpoint.platform.write_flat(f"odd-{number}", multiplying_model(number))
        endpoint.load_successfully(name, url)
        part = quote(name, safe="")
        assert endpoint.request("GET", f"/models/{part}").json()["modelName"] == name
        assert endpoint.infer_y(part) == [number, 2 * number]
        for safe in SAFE:
            model = f"/v2/models/{quote(name, safe=safe)}"
            answer = endpoint.request("POST", f"{model}/infer", json=REQUEST_BODY).json()
            assert answer["outputs"][0]["data"] == [number, 2 * number], name
        assert endpoint.unload(part).status_code == 200, name
        assert endpoint.request("GET", f"/models/{part}").status_code == 404
