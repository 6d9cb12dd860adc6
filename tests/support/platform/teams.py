"""A fake AWS whose endpoints are real boxes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.aws import fake_aws
from tests.support.platform.account import Account
from tests.support.platform.host import Host
from tests.support.platform.machines import Processes
from tests.support.tritons import MODELS

#: A team's client: the words of a text, by way of a model, one by one. It waits for a file where a word is its path.
CLIENT = '''
import os
import time

import numpy as np

from sm.client.base import StreamingClient, TextPayload


class Team(StreamingClient):
    """Shouts."""

    payload, models = TextPayload, ("words",)

    def stream(self, payload):
        payload.answer_attributes("seen=" + payload.headers.get("x-amzn-sagemaker-custom-attributes", ""))
        for word in payload.text.split():
            if word == "wait":
                time.sleep(0.5)
            if word.startswith("/"):
                while not os.path.exists(word):
                    time.sleep(0.02)
                continue
            if word == "boom":
                raise ValueError(word)
            if word == "name":
                word = os.environ.get("NAME", "nobody")
            yield self.triton.infer("words", {"x": np.array([word.encode()], object)})["y"][0].decode()
'''


@dataclass(frozen=True)
class Platform:
    """A host and the account of its only customer."""

    host: Host
    account: Account


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The host's machines are processes."""
    with fake_aws() as address:
        host = Host(f"http://{address}", Processes(), tmp_path_factory.mktemp("machines"))
        with host.follow():
            yield Platform(host, Account(host.url))


def team(folder: Path) -> Path:
    """The repository of a team: a model, and its client in ``code/``."""
    MODELS["words"].write(folder / "words")
    (folder / "code").mkdir()
    (folder / "code" / "team.py").write_text(CLIENT)
    return folder
