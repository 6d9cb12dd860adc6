"""build-model's options: each is on its page, and a model's usual ones give way to the command line's."""

from __future__ import annotations

import argparse

from sm import cli
from sm.settings import HERE
from sm.tools.build import build_arguments


def options() -> list[str]:
    command = argparse.ArgumentParser(add_help=False)
    build_arguments.add_arguments(command)
    return [string for action in command._actions for string in action.option_strings]


def test_every_option_is_on_its_page() -> None:
    page = (HERE / "docs" / "run" / "engines.md").read_text()
    assert "--precision" in options()
    for option in options():
        assert option in page, option


def test_the_usual_options_of_a_model_can_be_read() -> None:
    words = (HERE / "model" / "bert_base" / "tensorrt.options").read_text().split()
    read = cli.parser(["build-model"]).parse_args(["build-model", "bert_base", *words, "--precision", "fp32"])
    assert dict(read.shapes) == {"input_ids": ((1, 128), (16, 128), (128, 128))}
    assert read.precision == "fp32"
