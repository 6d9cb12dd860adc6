"""A ready box says what it serves: in the words of the installed hints, or in a line of its log."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from selectors import PollSelector
from unittest.mock import Mock

import pytest

from sm import entry_points
from sm.errors import StartError
from sm.run_state import Box
from sm.server.logs import Desk, Formatter, Log
from sm.server.supervisor.start import announce, read_arguments, run
from sm.settings import Settings


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box("1", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0)
    rows = [{"name": "cats", "load_error": None}, {"name": "broken", "load_error": "SyntaxError"}]
    box.clients_file.write_text(json.dumps(rows))
    return box


@pytest.fixture
def log() -> Log:
    log = Log(Formatter("info", text=False, colour=False), PollSelector())
    log.output = Mock()
    return log


desk = partial(Desk, lambda _: None, watch_clients=lambda *_: None)


def test_without_a_hint_the_log_names_the_clients_that_serve_and_the_page(box: Box, log: Log) -> None:
    announce(Settings(port=18080), box, log, ())
    ((line,),) = (call.args for call in log.output.write.call_args_list)  # type: ignore[attr-defined]
    message = json.loads(line)["message"]
    assert "cats" in message and "broken" not in message
    assert "http://localhost:18080/" in message


def test_a_person_reads_every_hint_as_it_is(box: Box, log: Log) -> None:
    announce(Settings(), box, log, [desk(lambda *_: "one\n"), desk(lambda settings, _: f"{settings.port}\n")])
    log.output.write.assert_called_once_with(b"one\n8080\n")  # type: ignore[attr-defined]


def test_reload_is_refused_where_nothing_watches_clients(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "load", lambda _: ())
    with pytest.raises(StartError, match="--reload"):
        run(Settings(), PollSelector(), log, (), reload=True)


@pytest.mark.parametrize(
    ("words", "flags", "sources"),
    [
        (["serve"], set(), []),
        (["serve", "--examples", "--reload"], {"--examples", "--reload"}, []),
        (["--demo", "s3://bucket/models/"], {"--demo"}, ["s3://bucket/models/"]),
    ],
)
def test_serve_takes_its_word_its_options_and_a_repository(
    words: list[str], flags: set[str], sources: list[str]
) -> None:
    assert read_arguments(words) == (flags, sources)


@pytest.mark.parametrize("words", [["serv"], ["--prepare"], ["s3://a/b/", "s3://c/d/"]])
def test_serve_takes_no_other_word_and_no_second_repository(words: list[str]) -> None:
    with pytest.raises(StartError, match=words[-1]):
        read_arguments(words)
