"""Damaged files beside an archive's client harm that archive only."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import running_box
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint

#: Seconds that an invocation may take, and that anything may take here at most.
TIMEOUT_S, PATIENCE_S = 5, 40.0
CLIENT = """
from pathlib import Path

from sm.client.base import Client

HERE = Path(__file__).parent


class Reader(Client):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        {statement}

    def inference(self, payload):
        return 1
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelEndpoint]:
    """A box with one well-behaved model."""
    folder = tmp_path_factory.mktemp("hostile")
    platform = ArchiveFolder(folder / "models")
    with running_box(
        folder,
        None,
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(TIMEOUT_S),
    ) as box:
        endpoint = MultiModelEndpoint(box, platform)
        endpoint.load_successfully("good", platform.write_flat("good", multiplying_model(2)))
        yield endpoint


def check_harmless(endpoint: MultiModelEndpoint, url: str, body: object) -> tuple[int, int]:
    """Load, invoke and unload an archive; return the statuses of the load and of the invocation."""
    triton, started = endpoint.child_pid("triton"), time.monotonic()
    load = endpoint.load("bad", url)
    answers = [load, *([endpoint.invoke("bad", body)] if load.ok else [])]
    if load.ok:
        answers.append(endpoint.unload("bad"))
    assert time.monotonic() - started < PATIENCE_S
    assert endpoint.infer_y("good") == [2, 4]
    assert endpoint.child_pid("triton") == triton
    for answer in answers:
        assert answer.ok or {"error", "code"} <= answer.json().keys(), answer.text
        assert "Traceback" not in answer.text
    return load.status_code, answers[1].status_code if load.ok else 0


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("tokenizer.json", "import tokenizers; tokenizers.Tokenizer.from_file(str(HERE / 'tokenizer.json'))"),
        ("vocab.txt", "self.words = (HERE / 'vocab.txt').read_text('utf-8').split()"),
        ("sample.png", "from PIL import Image; Image.open(HERE / 'sample.png').load()"),
        ("weights.npy", "import numpy; numpy.load(HERE / 'weights.npy')"),
    ],
)
def test_a_damaged_file_beside_a_client_is_a_500_of_that_archive(
    endpoint: MultiModelEndpoint, file: str, statement: str
) -> None:
    client = CLIENT.format(statement=statement)
    url = Path(endpoint.platform.write_flat("bad", multiplying_model(3), client=client))
    (url / "code" / file).write_bytes(b'{"model": {"type": "BPE", ' + random.Random(1).randbytes(512))
    assert check_harmless(endpoint, str(url), {"payload": {}}) == (200, 500)
