"""Which models a Triton is still loading, as its own log tells, by the words of both releases."""

from __future__ import annotations

import pytest

from sm.server.logs import LoadLines, Members, parse

FORMS = (
    "I1127 02:34:42.163460 7 model_lifecycle.cc:473] {}",
    'I1127 02:34:42.163460 7 model_lifecycle.cc:473] "{}"',
)


@pytest.mark.parametrize("form", FORMS, ids=["2.51", "2.71"])
def test_a_model_loads_until_triton_says_how_it_ended(form: str) -> None:
    written: list[Members] = []
    lines = LoadLines(written.append)
    texts = (
        "loading: a:b:1",
        "loading: good:1",
        "loading: bad:2",
        "successfully loaded 'good'",
        "failed to load 'bad' version 2: Internal: no",
    )
    for text in texts:
        lines(parse(form.format(text)))
    lines(parse("loading: printed:1"))
    assert lines.loading == ["a:b"]
    assert lines.without_ended(["bad", "good", "unseen"]) == ["unseen"]
    assert len(written) == len(texts) + 1
