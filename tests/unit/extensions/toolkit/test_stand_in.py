"""Scripts import the toolkit's names where the toolkit is not installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from trireme_extensions.toolkit.client_sources import STAND_IN, offer_stand_in


@pytest.fixture(autouse=True)
def restore_imports() -> Iterator[None]:
    """Undo changes of sys.path and sys.modules."""
    path, loaded = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def test_what_is_installed_goes_before_the_stand_in() -> None:
    for _ in range(2):
        sys.path.append("/later")
        offer_stand_in()
        assert (sys.path[-1], sys.path.count(STAND_IN)) == (STAND_IN, 1)


def test_every_form_of_import_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
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


#: Every public name of the toolkit that an inference script can use.
PUBLIC_NAMES = {
    "content_types": "JSON CSV OCTET_STREAM ANY NPY NPZ UTF8_TYPES",
    "decoder": "decode",
    "default_inference_handler": "DefaultInferenceHandler",
    "encoder": "encode SUPPORTED_CONTENT_TYPES",
    "environment": "Environment base_dir code_dir model_dir DEFAULT_MODULE_NAME",
    "errors": "UnsupportedFormatError BaseInferenceToolkitError GenericInferenceToolkitError",
    "logging": "configure_logger get_logger",
    "parameters": (
        "BASE_PATH_ENV USER_PROGRAM_ENV LOG_LEVEL_ENV DEFAULT_INVOCATIONS_ACCEPT_ENV"
        " MODEL_SERVER_WORKERS_ENV MODEL_SERVER_TIMEOUT_ENV BIND_TO_PORT_ENV SAFE_PORT_RANGE_ENV MULTI_MODEL_ENV"
    ),
    "utils": "CONTENT_TYPE_REGEX read_file write_file retrieve_content_type_header parse_accept remove_crlf",
}


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_every_public_name_of_the_toolkit_can_be_imported(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    imported = importlib.import_module(f"sagemaker_inference.{module}")
    assert set(PUBLIC_NAMES[module].split()) <= set(vars(imported))
