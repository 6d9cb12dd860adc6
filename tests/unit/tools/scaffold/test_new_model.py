"""``sm new-model`` names all that is missing at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import CommandError
from tests.support.onnx_graphs import write_graph
from trireme_tools.scaffold.new_model import read_source

PICTURES = "(float[b,3,8,8] pixel_values) => (float[b,3] logits) { logits = ReduceMean<axes = [2, 3], keepdims = 0>(pixel_values) }"
TEXTS = "(int64[b,s] input_ids) => (float[b,s] logits) { logits = Cast<to = 1>(input_ids) }"


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize(
    ("graph", "named", "not_named"),
    [
        (PICTURES, ("--task", "--preprocess"), "tokenizer.json"),
        (TEXTS, ("--task", "tokenizer.json"), "--preprocess"),
    ],
)
def test_all_that_is_missing_is_named_at_once(
    tmp_path: Path, is_folder: bool, graph: str, named: tuple[str, str], not_named: str
) -> None:
    file = tmp_path / "model.onnx"
    write_graph(file, graph)
    with pytest.raises(CommandError) as error:
        read_source(str(tmp_path if is_folder else file), "", None, None)
    assert all(word in str(error.value) for word in named)
    assert not_named not in str(error.value)
