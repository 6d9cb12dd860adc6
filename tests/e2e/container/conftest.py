"""The images, built once, and the container that most tests share."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator

import pytest

from tests.e2e.container.hostile import HOSTILE
from tests.support.containers import (
    CLIENT_SOURCE,
    Container,
    build_image,
    has_image,
    image,
    podman,
    running_container,
    write_team_repository,
)
from tests.support.demo_box import cat, demo
from tests.support.wheels import write_wheel

__all__ = ["cat", "demo", "image"]

TEAM, GPU = "localhost/trireme-test:team", "localhost/trireme-test:gpu"
#: NVIDIA's users, folders, Python packages, environment and entry point, without CUDA, TensorRT and a GPU.
STAND_IN = "localhost/lab/tritonserver:stand-in"
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
#: A client that sends 12 MB to the model, gets 12 MB back and returns two of the numbers.
LARGE = CLIENT_SOURCE.replace("np.full(3,", "np.full(3_000_000,").replace(
    '["y"].tolist()', '["y"][[0, -1]].tolist()'
)
#: A client that returns a number of a package that the image does not have.
TINY = f"import trireme_tiny\n{CLIENT_SOURCE}".replace("len(text.text)", "trireme_tiny.NUMBER")
#: A client that tokenizes texts with ``transformers``, from files beside it, as the article does.
TOKENS = """
from transformers import AutoTokenizer
from sm.client import Client, TextPayload

class Tokens(Client):
    payload, models = TextPayload, ()

    def setup(self):
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def inference(self, payload):
        return self.tokenizer(payload.text)["input_ids"]
"""
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "world", "has", "people", ".")
TOKENS_FILES = {
    "client.py": TOKENS,
    "vocab.txt": "\n".join(VOCABULARY) + "\n",
    "tokenizer_config.json": json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    "sample/payload.json": json.dumps({"text": "The world has [MASK] people."}),
    "sample/golden.json": json.dumps([2, 5, 6, 7, 4, 8, 9, 3]),
}


@pytest.fixture(scope="session")
def shared_container(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A locked-down container with Docker's default 64 MB of shared memory; no test may break it."""
    repository = write_team_repository(tmp_path_factory.mktemp("shared") / "repository")
    HOSTILE.write(repository / "hostile")
    code = repository / "code"
    (code / "large.py").write_text(LARGE.replace("class Team", "class Large"))
    (code / "tiny.py").write_text(TINY.replace("class Team", "class Tiny"))
    (code / "requirements.txt").write_text("trireme-tiny>=1\n")
    write_wheel(code / "wheels", "trireme_tiny", text="NUMBER = 17\n")
    flags = (*HARDENED, "--shm-size", "64m", "-e", "TRIREME_INSTALL_REQUIREMENTS=true")
    with running_container(image, repository, *flags) as started:
        yield started


@pytest.fixture(scope="session")
def team_image(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with the models of an archive whose files only their owner may read."""
    folder = tmp_path_factory.mktemp("baked")
    repository = write_team_repository(folder / "repository")
    for name, text in TOKENS_FILES.items():
        file = repository / "code" / "tokens" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in repository.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with tarfile.open(folder / "model.tar.gz", "w:gz") as packed:
        packed.add(repository, ".")
    build_image(f"IMAGE={TEAM}", f"MODELS={folder / 'model.tar.gz'}")
    yield TEAM
    podman("rmi", "--force", TEAM)


@pytest.fixture(scope="session")
def stand_in() -> str:
    if not has_image(STAND_IN):
        pytest.skip(f"there is no {STAND_IN}: nothing stands in for NVIDIA's image")
    return STAND_IN


@pytest.fixture(scope="session")
def gpu_image(stand_in: str) -> str:
    """Build the GPU flavour with the documented command, and return its name."""
    build_image(f"BASE_IMAGE={stand_in}", f"IMAGE={GPU}")
    return GPU
