"""The stand-in for the toolkit: its modules are imported and pickled as those of a package on disk."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sm.plugins.toolkit.code_imports import STAND_IN

PACKAGES = ("sagemaker_inference", "sagemaker_containers", "sagemaker_xgboost_container")


@pytest.fixture(autouse=True)
def importable_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(STAND_IN)
    yield
    for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sagemaker_inference.errors", "UnsupportedFormatError"),
        ("sagemaker_inference.decoder", "decode"),
        ("sagemaker_inference.default_inference_handler", "DefaultInferenceHandler"),
        ("sagemaker_containers.beta.framework.errors", "ClientError"),
        ("sagemaker_containers.beta.framework.worker", "Response"),
        ("sagemaker_xgboost_container.encoder", "json_to_jsonlines"),
        ("sagemaker_xgboost_container.data_utils", "get_dmatrix"),
    ],
)
def test_a_pickle_names_a_class_by_the_toolkits_module(module: str, name: str) -> None:
    member = getattr(importlib.import_module(module), name)
    pickled = pickle.dumps(member)
    assert module.encode() in pickled
    assert pickle.loads(pickled) is member


def test_every_form_of_import_works() -> None:
    script = ModuleType("script")
    exec(
        "import sagemaker_inference.environment\n"
        "import sagemaker_containers.beta.framework.worker as worker\n"
        "from sagemaker_inference import content_types, logging\n"
        "from sagemaker_containers.beta import framework\n"
        "from sagemaker_inference.encoder import encode\n"
        "class Handler(sagemaker_inference.default_inference_handler.DefaultInferenceHandler): pass\n",
        vars(script),
    )
    assert script.sagemaker_inference.environment.Environment().module_name == "inference"
    assert script.framework.env.ServingEnv().default_accept == script.content_types.JSON
    assert script.Handler().default_input_fn("[1]", script.content_types.JSON).tolist() == [1]
    assert script.worker.Response("1").mimetype == "application/json"
