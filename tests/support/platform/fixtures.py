"""Fixtures: a fake AWS whose SageMaker endpoints are real boxes, and a model repository to deploy on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.aws import fake_aws
from tests.support.platform.account import Account
from tests.support.platform.host import Host
from tests.support.platform.machines import ProcessLauncher
from tests.support.tritons import MODELS

#: A streaming client that sends each word of a text through a model. Some words are commands: it waits 0.5 s for
#: ``wait``, for a file to exist if the word is a path, raises for ``boom``, and sends $NAME for ``name``.
CLIENT_SOURCE = '''
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
    """The fake SageMaker and the account of its only customer."""

    host: Host
    account: Account


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A fake SageMaker that runs its instances as processes."""
    with fake_aws() as address:
        host = Host(f"http://{address}", ProcessLauncher(), tmp_path_factory.mktemp("machines"))
        with host.run():
            yield Platform(host, Account(host.url))


def write_team_repository(folder: Path) -> Path:
    """Write a model repository with one model and its client in ``code/``, and return its folder."""
    MODELS["words"].write(folder / "words")
    (folder / "code").mkdir()
    (folder / "code" / "team.py").write_text(CLIENT_SOURCE)
    return folder
