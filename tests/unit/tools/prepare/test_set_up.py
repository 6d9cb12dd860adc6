"""``make`` chooses an interpreter and hands pip's settings on, with the standard library of Python 3.9."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sm.settings import HERE
from trireme_tools.prepare import interpreters, pip_settings
from trireme_tools.prepare.interpreters import Interpreter, InterpreterChoice, Unusable

PREPARE = HERE / "tools" / "trireme_tools" / "prepare"
BOOTSTRAP = ("set_up", "interpreters", "needs", "install_packages", "pip_settings")
FITS = Interpreter(13, "3.13.5", True, "/usr/bin/python3", "/usr", library=True, venv=True, pip=False)
OLD, NEW = (replace(FITS, minor=minor, version=f"3.{minor}.1") for minor in (10, 14))
STATIC = replace(FITS, minor=12, version="3.12.1", library=False)


@pytest.mark.parametrize("name", BOOTSTRAP)
def test_what_runs_before_anything_is_installed_needs_an_old_python_alone(name: str) -> None:
    tree = ast.parse((PREPARE / f"{name}.py").read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "trireme_tools.prepare":
            assert {alias.name for alias in node.names} <= set(BOOTSTRAP)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            own = node.module.removeprefix("trireme_tools.prepare.")
            assert own in BOOTSTRAP or node.module.partition(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names


def choose(
    monkeypatch: pytest.MonkeyPatch,
    present: dict[str, Interpreter],
    requested: str = "",
    own_triton: bool = False,
) -> InterpreterChoice:
    """Choose on a machine with these programs, of which ``python3_13`` stands for ``python3.13``."""
    by_program = {name.replace("_", "."): found for name, found in present.items()}
    monkeypatch.setattr(interpreters, "probe", by_program.get)
    return interpreters.choose(requested, own_triton)


@pytest.mark.parametrize(
    ("present", "chosen", "has_reason"),
    [
        pytest.param({"python3": FITS}, FITS, False, id="the usual one"),
        pytest.param({"python3": NEW, "python3_13": FITS, "python3_12": STATIC}, FITS, True, id="too new"),
        pytest.param({"python3": OLD, "python3_12": STATIC}, STATIC, True, id="too old"),
        pytest.param({"python3": STATIC, "python3_13": FITS}, FITS, True, id="without its library"),
        pytest.param({"python3": replace(FITS, usual=False)}, None, True, id="without the lock, or PyPy"),
        pytest.param({"python3": NEW}, None, True, id="uv has to fetch one"),
        pytest.param({}, None, True, id="none"),
    ],
)
def test_the_first_interpreter_that_fits_is_taken_and_the_reason_said(
    monkeypatch: pytest.MonkeyPatch,
    present: dict[str, Interpreter],
    chosen: Interpreter | None,
    has_reason: bool,
) -> None:
    choice = choose(monkeypatch, present)
    assert (choice.interpreter, bool(choice.reason)) == (chosen, has_reason)


def test_a_newer_python_is_taken_if_it_is_named_and_another_triton_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = {"python3": FITS, "python3_14": NEW}
    assert choose(monkeypatch, present, "python3.14", own_triton=True).interpreter is NEW
    for requested in ("python3.14", "python3.99"):
        with pytest.raises(Unusable, match=requested):
            choose(monkeypatch, present, requested)
    assert choose(monkeypatch, present, interpreters.MANAGED).interpreter is None


LISTING = """\
:env:.index-url='https://one.example/simple'
global.cert='/global.pem'
global.index-url='https://two.example/simple'
global.extra-index-url='https://three.example/simple\\nhttps://four.example/simple'
global.find-links='/opt/wheels /opt/more'
global.trusted-host='one.example'
install.proxy='http://proxy.example:3128'
install.timeout='60'
freeze.timeout='1'
"""


def test_uv_gets_the_indexes_and_the_proxy_of_pip(tmp_path: Path) -> None:
    file = tmp_path / "company.pem"
    file.touch()
    options = pip_settings.parse(LISTING.replace("/global.pem", str(file)))
    variables = pip_settings.for_uv(options, {"UV_HTTP_TIMEOUT": "90", "REQUESTS_CA_BUNDLE": "/other.pem"})
    assert variables["UV_DEFAULT_INDEX"] == "https://one.example/simple"
    assert variables["UV_EXTRA_INDEX_URL"] == "https://three.example/simple https://four.example/simple"
    assert variables["UV_FIND_LINKS"] == "/opt/wheels,/opt/more"
    assert variables["UV_INSECURE_HOST"] == "one.example"
    assert variables["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert variables["UV_HTTP_TIMEOUT"] == "90"
    assert variables["SSL_CERT_FILE"] == str(file)


@pytest.mark.parametrize("variable", ["", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_npm_trusts_the_certificates_that_pip_trusts(tmp_path: Path, variable: str) -> None:
    file = tmp_path / "company.pem"
    file.touch()
    options = {} if variable else {"cert": str(file)}
    environment = {variable: str(file)} if variable else {}
    assert pip_settings.for_npm(options, environment) == {"NODE_EXTRA_CA_CERTS": str(file)}
    assert pip_settings.for_npm(options, {**environment, "NODE_EXTRA_CA_CERTS": "/own.pem"}) == {}
    assert pip_settings.for_npm({}, {}) == {}
