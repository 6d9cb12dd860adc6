"""The stand-in for the toolkit: its modules are imported and pickled as those of a package on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sm.plugins.toolkit.code_imports import STAND_IN

PACKAGE = "sagemaker_inference"


@pytest.fixture(autouse=True)
def importable_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(STAND_IN)
    yield
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


def test_every_form_of_import_works() -> None:
    script = ModuleType("script")
    exec(
        "import sagemaker_inference.environment\n"
        "import sagemaker_inference.errors as errors\n"
        "from sagemaker_inference import content_types, logging\n"
        "from sagemaker_inference.encoder import encode\n"
        "class Handler(sagemaker_inference.default_inference_handler.DefaultInferenceHandler): pass\n",
        vars(script),
    )
    assert script.sagemaker_inference.environment.Environment().module_name == "inference"
    assert script.Handler().default_input_fn("[1]", script.content_types.JSON).tolist() == [1]
    assert issubclass(script.errors.UnsupportedFormatError, Exception)
