"""Records of many callers meet in batches of a real box, and each caller still gets its own answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import Model

CALLERS, SECONDS = 16, 2.0
#: Slow enough that callers meet.
MODEL = Model(
    'ids = tensor(request, "ids").astype(np.float32)\n'
    "time.sleep(0.01)\n"
    'return {"vector": np.stack([ids.sum(1), (ids > 0).sum(1), ids.max(1), ids[:, 0]], 1).astype(np.float32)}',
    {"ids": ("INT64", [-1])},
    {"vector": ("FP32", [4])},
    max_batch_size=8,
)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("batches")
    MODEL.write(folder / "repository" / "sentences")
    clients = (CLIENT_FOLDERS / "embeddings",)
    with running_box(folder, folder / "repository", clients=clients) as box:
        yield box


def ids_of(caller: int, turn: int) -> list[int]:
    """Return ids that no other record has, of different lengths."""
    return [1000 * caller + turn + 1, *range(1, caller + 1)]


def answer_of(ids: list[int]) -> dict[str, object]:
    return {"embedding": [sum(ids), len(ids), max(ids), ids[0]], "tokens": len(ids)}


def ask(box: RunningBox, caller: int, seconds: float) -> int:
    """Ask again and again; return the number of answers, all of them right."""
    end, turn = time.monotonic() + seconds, 0
    with requests.Session() as session:
        while time.monotonic() < end:
            ids = ids_of(caller, turn)
            body = {"modelname": "sentences", "payload": {"token_ids": ids}}
            answer = session.post(f"{box.url}/invocations", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["result"] == answer_of(ids)
            turn += 1
    return turn


def calls(box: RunningBox) -> float:
    return box.metric("trireme_invocation_duration_seconds_count", model="sentences", stage="preprocess")


def test_callers_share_calls_of_the_model_and_each_gets_its_own_answer(box: RunningBox) -> None:
    before = calls(box)
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = sum(pool.map(lambda caller: ask(box, caller, SECONDS), range(CALLERS)))
    assert calls(box) - before < answers / 1.5


def test_no_caller_notices_that_triton_is_killed_under_their_batch(box: RunningBox) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = [pool.submit(ask, box, caller, 2 * SECONDS) for caller in range(CALLERS)]
        time.sleep(SECONDS / 2)
        box.kill_and_wait_for_restart("triton")
        assert all(answer.result() for answer in answers)
