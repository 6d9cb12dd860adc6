"""Python models that cannot start. Triton 2.51 waits for ever for a model whose process ends during an import."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.triton.server import MAX_STUCK_LOADS
from tests.support.boxes import retry_until_ok, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint

EXIT_AT_IMPORT = "import os\nos._exit(3)\n"
CRASH_AT_IMPORT = "import os\nimport signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
#: Long enough to load a good model beside those that hang, on a busy machine.
LOAD_TIMEOUT_S = 12


def load(endpoint: MultiModelEndpoint, name: str, beginning: str = "", seconds: float = 0) -> int:
    """Load an archive whose ``model.py`` begins with a text, and return the status."""
    archive = Path(endpoint.platform.write_flat(name, multiplying_model(seconds=seconds)))
    script = archive / "1" / "model.py"
    script.write_text(beginning + script.read_text())
    return endpoint.load(name, str(archive)).status_code


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelEndpoint]:
    folder = tmp_path_factory.mktemp("endpoint")
    with running_endpoint(folder, SAGEMAKER_STARTUP_TIMEOUT=str(LOAD_TIMEOUT_S)) as endpoint:
        yield endpoint


@pytest.mark.exhaustive
def test_hanging_loads_fail_without_delaying_others_and_free_their_names(
    endpoint: MultiModelEndpoint,
) -> None:
    hanging = {"first": EXIT_AT_IMPORT, "second": CRASH_AT_IMPORT, "third": EXIT_AT_IMPORT}
    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load, endpoint, name, beginning) for name, beginning in hanging.items()]
        assert load(endpoint, "good") == 200
        assert endpoint.infer_y("good") == [1.0, 2.0]
        assert [future.result() for future in loads] == [400] * 3
    assert endpoint.names() == ["good"]
    # One that takes too long is a 504.
    assert load(endpoint, "slow", seconds=3 * LOAD_TIMEOUT_S) == 504
    assert endpoint.names() == ["good"]
    # A good model can then be loaded under each of these names.
    for name in (*hanging, "slow"):
        assert load(endpoint, name) == 200
        assert endpoint.infer_y(name) == [1.0, 2.0]
        assert endpoint.unload(name).status_code == 200


@pytest.mark.exhaustive
def test_triton_is_restarted_when_too_many_loads_hang_and_keeps_its_models(
    endpoint: MultiModelEndpoint,
) -> None:
    assert load(endpoint, "kept") == 200
    triton = endpoint.child_pid("triton")
    names = [f"hanging{number}" for number in range(MAX_STUCK_LOADS)]
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda name: load(endpoint, name, EXIT_AT_IMPORT), names)) <= {400, 503, 504}
    # It is replaced with the next look, perhaps after the last load has failed.
    wait_until(lambda: endpoint.box.child("triton")["pid"] not in (None, triton), 120, "another Triton")
    retry_until_ok(lambda: endpoint.invoke("kept"), 120)
    assert endpoint.infer_y("kept") == [1.0, 2.0]
    assert load(endpoint, "hanging0") == 200
    assert endpoint.invoke("hanging0").status_code == 200
