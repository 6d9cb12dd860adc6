"""A model's name in a caller's path and in Triton's, which decodes no name."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from sm.triton.model_paths import model_asked, model_in, model_path

NAMES = [f"a{character}b" for character in "!\"$%&'()*+,;:=@[\\]^`{|}~.-_<>"] + [
    "a%2Bb",
    "a%25b",
    "..",
    "100%",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_decoded_once_and_triton_gets_it_as_it_is(name: str) -> None:
    for sent in (quote(name, safe=""), quote(name, safe="!$&'()*+,;:=@")):
        assert model_in(f"/v2/models/{sent}/infer?a=/b") == name
    assert model_path(name, "/infer") == f"/v2/models/{name}/infer"
    assert model_asked(model_path(name, "/infer")) == name


@pytest.mark.parametrize("name", ["a?b", "a#b", "a b", "a\r\nHost", "a/b", "mod\xe8le", "\x7f"])
def test_a_name_that_would_end_the_path_or_its_line_stays_one_part_of_it(name: str) -> None:
    path = model_path(name, "/infer")
    assert path == f"/v2/models/{quote(name, safe='')}/infer"
    assert path.isascii()
    assert path.isprintable()
