"""Archives made for AWS's PyTorch, scikit-learn and XGBoost containers work, with the real libraries.

The scripts are like those in the containers' public repositories.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.model_archives import write_script
from tests.support.toolkit_libraries import TOOLKIT as libraries

JSON, CSV, NPY, NPZ = "application/json", "text/csv", "application/x-npy", "application/x-npz"
LINES = "application/jsonlines"
ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]
#: Makes a network (scripted, traced and as weights), a classifier and a booster, and prints their predictions.
MAKE_MODELS = """
import io, json, sys
import joblib, numpy as np, scipy.sparse, sklearn.linear_model, torch, xgboost
home = sys.argv[1]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.dropout = torch.nn.Dropout()

    def forward(self, x):
        return self.dropout(self.layer(x))

torch.manual_seed(1)
net = Net().eval()
torch.jit.script(net).save(home + "/scripted.pt")
torch.jit.trace(net, torch.ones(1, 3)).save(home + "/traced.pth")

rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]
classifier = sklearn.linear_model.LogisticRegression().fit(rows, [0, 1])
joblib.dump(classifier, home + "/model.joblib")

lines = "".join(f"{i % 3} 1:{i * 0.5} 4:{i * i}\\n" for i in range(40))
open(home + "/train.libsvm", "w").write(lines)
matrix = xgboost.DMatrix(home + "/train.libsvm?format=libsvm")
booster = xgboost.train({"max_depth": 3, "seed": 1}, matrix, 5)
booster.save_model(home + "/model.ubj")

sparse = io.BytesIO()
scipy.sparse.save_npz(sparse, scipy.sparse.csr_matrix(rows))
open(home + "/sparse.npz", "wb").write(sparse.getvalue())
beyond = scipy.sparse.csr_matrix(rows)
beyond.indices[0] = 10**6
scipy.sparse.save_npz(home + "/beyond.npz", beyond)

print(json.dumps({
    "net": net(torch.tensor(rows)).tolist(),
    "row of net": net(torch.tensor(rows[:1])).tolist(),
    "classifier": classifier.predict(rows).tolist(),
    "row of classifier": [1],
    "booster_csv": booster.predict(xgboost.DMatrix(np.array([[np.nan, 2.5, 0, 0, 25]]))).tolist(),
}))
"""
#: A transform_fn only, as the container's own test script for TorchScript models.
TRANSFORM_FN_ONLY = """
import json
import torch


def transform_fn(model, payload, request_content_type, response_content_type):
    batch = torch.tensor([json.loads(payload.decode())])
    result = model.forward(batch)
    return json.dumps(result.detach().numpy().tolist()), "application/json"
"""
WITH_PREDICT_FN = """
import torch


def model_fn(model_dir):
    return {"net": torch.jit.load(f"{model_dir}/scripted.pt").eval(), "seen": []}


def predict_fn(data, model):
    assert isinstance(data, torch.Tensor), type(data)
    with torch.no_grad():
        return model["net"](data)
"""
SCIKIT_LEARN = """
import joblib


def model_fn(model_dir):
    return joblib.load(f"{model_dir}/model.joblib")
"""
XGBOOST = """
import xgboost as xgb


def model_fn(model_dir):
    booster = xgb.Booster()
    booster.load_model(f"{model_dir}/model.ubj")
    return booster
"""
#: A client with a module of a name that another archive has too.
CLIENT = """
import torch, words
from sm.client.base import Client


class Says(Client):
    models = ()

    def inference(self, payload):
        return [words.WORD, str(torch.classes)]
"""
ARCHIVES = {
    "transform": (TRANSFORM_FN_ONLY, {"model.pt": "scripted.pt"}),
    "empty": ("", {"any-name.pth": "traced.pth"}),
    "predict": (WITH_PREDICT_FN, {"scripted.pt": "scripted.pt"}),
    "scikit-learn": (SCIKIT_LEARN, {"model.joblib": "model.joblib"}),
    "xgboost": (XGBOOST, {"model.ubj": "model.ubj"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models, and of their predictions without the box."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "make_models.py").write_text(MAKE_MODELS)
    (folder / "answers.json").write_text(libraries.run(folder / "make_models.py", folder))
    return folder


@pytest.fixture(scope="module")
def answers(models: Path) -> dict[str, Any]:
    return dict(json.loads((models / "answers.json").read_text()))


@pytest.fixture(scope="module")
def box(boxes: Boxes, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """All archives, and two with clients that import torch, in one worker of a box in multi-model mode."""
    site = tmp_path_factory.mktemp("site")
    for path in libraries.folder().iterdir():
        # An image would have these libraries beside the box's packages. The box's own NumPy is used.
        if not path.name.startswith("numpy"):
            (site / path.name).symlink_to(path)
    with boxes.own(mode="multi-model", PYTHONPATH=str(site), SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        home = box.folder / "models"
        for name, (script, files) in ARCHIVES.items():
            write_script(home / name / "model", script)
            for file, source in files.items():
                (home / name / "model" / file).write_bytes((models / source).read_bytes())
        for name in ("first", "second"):
            code = home / name / "model" / "code"
            code.mkdir(parents=True)
            (code / "client.py").write_text(CLIENT)
            (code / "words.py").write_text(f"WORD = {name!r}\n")
        for name in (*ARCHIVES, "first", "second"):
            load = {"model_name": name, "url": str(home / name / "model")}
            response = requests.post(f"{box.url}/models", json=load, timeout=60)
            assert response.status_code == 200, response.text
        yield box


def invoke(box: RunningBox, name: str, body: bytes, content_type: str, accept: str = "") -> requests.Response:
    headers = {"Content-Type": content_type, **({"Accept": accept} if accept else {})}
    return requests.post(f"{box.url}/models/{name}/invoke", data=body, headers=headers, timeout=60)


def written(write: Any, **arrays: Any) -> bytes:
    """An array or arrays as NumPy writes them."""
    stream = io.BytesIO()
    write(stream, **arrays)
    return stream.getvalue()


BODIES = {
    JSON: json.dumps(ROWS).encode(),
    CSV: b"1,2.0,3\n4,5.0,6.5\n",
    NPY: written(np.save, arr=np.array(ROWS, np.float32)),
    LINES: b"[1.0, 2.0, 3.0]\n[4.0, 5.0, 6.5]\n",
}


#: How an answer is read.
READERS: dict[str, Callable[[bytes], Any]] = {
    JSON: json.loads,
    CSV: lambda body: np.genfromtxt(io.BytesIO(body), delimiter=",").tolist(),
    NPY: lambda body: np.load(io.BytesIO(body)).tolist(),
}


def read_result(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return READERS[response.headers["Content-Type"].partition(";")[0]](response.content)


@pytest.mark.parametrize("accept", [JSON, CSV, NPY])
@pytest.mark.parametrize("content_type", BODIES)
@pytest.mark.parametrize(
    ("name", "expected"), [("empty", "net"), ("predict", "net"), ("scikit-learn", "classifier")]
)
def test_the_defaults_of_pytorch_and_scikit_learn_read_every_body(
    box: RunningBox, answers: dict[str, Any], name: str, expected: str, content_type: str, accept: str
) -> None:
    response = invoke(box, name, BODIES[content_type], content_type, accept)
    np.testing.assert_allclose(read_result(response), answers[expected], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "body", "content_type", "expected"),
    [
        ("transform", b"[1.0, 2.0, 3.0]", "application/octet-stream", "row of net"),
        ("scikit-learn", b"4,5,6.5", CSV, "row of classifier"),
        ("xgboost", b",2.5,0,0,25\n", CSV, "booster_csv"),
        ("xgboost", b"a,b\n", CSV, 400),
        ("xgboost", b"0 1:2.5\n", "text/libsvm", 415),
    ],
)
def test_transform_fn_alone_gets_the_torchscript_model_and_xgboosts_defaults_read_csv(
    box: RunningBox, answers: dict[str, Any], name: str, body: bytes, content_type: str, expected: str | int
) -> None:
    response = invoke(box, name, body, content_type, JSON)
    if isinstance(expected, int):
        assert response.status_code == expected
    else:
        np.testing.assert_allclose(read_result(response), answers[expected], rtol=1e-5)


def test_a_sparse_matrix_reaches_the_model_and_a_malformed_one_is_refused(
    box: RunningBox, models: Path, answers: dict[str, Any]
) -> None:
    sparse = (models / "sparse.npz").read_bytes()
    assert read_result(invoke(box, "scikit-learn", sparse, NPZ, JSON)) == answers["classifier"]
    for body, status in (
        ((models / "beyond.npz").read_bytes(), 400),
        (written(np.savez, a=np.arange(3)), 400),
        (written(np.savez, data=np.array([{}], dtype=object)), 400),
        (sparse[:-40], 400),
        (b"PK\x01\x02" * 1000, 400),
        (written(np.savez_compressed, data=np.zeros(2**27)), 413),
    ):
        assert invoke(box, "scikit-learn", body, NPZ, JSON).status_code == status


def test_a_client_that_imports_torch_does_not_affect_clients_beside_it(box: RunningBox) -> None:
    assert [box.invoke(name, {}).json()["result"][0] for name in ("first", "second")] == ["first", "second"]
