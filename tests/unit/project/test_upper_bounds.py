"""A library whose internals the code uses has an upper bound: its next major version may change them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tomllib

from sm.cli import EXTRAS
from sm.settings import HERE

#: The requirements of the three packages and their extras; those of developers come after the first part.
RUNTIME_REQUIREMENTS = (HERE / "pyproject.toml").read_text().partition("\nbench = [")[0] + "".join(
    (HERE / name / "pyproject.toml").read_text() for name in ("extensions", "tools")
)
#: The name and the bounds of each requirement.
REQUIREMENTS = re.findall(r'^    "([\w-]+)(?:\[\w+\])?([^";]*)', RUNTIME_REQUIREMENTS, re.M)
#: Modules whose distribution has another name, or is bounded by another one.
DISTRIBUTIONS = {
    "grpc": "tritonclient",
    "botocore": "boto3",
    "pydantic_core": "pydantic",
}
#: The submodules of these libraries are documented interfaces.
PUBLIC_SUBMODULES = {"matplotlib", "numpy", "opentelemetry", "prometheus_client", "rich"}


def distributions_of_imported_submodules() -> Iterator[str]:
    """Yield the distributions of which the code imports a submodule."""
    for folder in ("sm", "extensions/trireme_extensions", "tools/trireme_tools", "gateway"):
        for file in (HERE / folder).rglob("*.py"):
            for top in re.findall(r"^\s*from (\w+)\.\S+ import ", file.read_text(), re.M):
                yield DISTRIBUTIONS.get(top, top)


def test_a_library_whose_submodules_are_imported_has_an_upper_bound() -> None:
    used = set(distributions_of_imported_submodules()) - PUBLIC_SUBMODULES
    assert {"gunicorn", "tritonclient", "uvicorn", "werkzeug", "boto3"} <= used
    assert [f"{name}{bounds}" for name, bounds in REQUIREMENTS if name in used and "<" not in bounds] == []
    assert used & {name for name, _ in REQUIREMENTS} >= {"gunicorn", "boto3"}


def test_transformers_is_no_part_of_the_core_and_is_installed_by_make_and_in_the_image() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    assert not [each for each in project["dependencies"] if each.startswith("transformers")]
    assert [each for each in project["optional-dependencies"]["tasks"] if each.startswith("transformers")]
    assert EXTRAS["transformers"] == "tasks"
    assert "\ntransformers==" in (HERE / "locks" / "requirements.lock").read_text()


#: The modules of distributions that have another name.
MODULES = {"opencv-python-headless": "cv2", "pillow": "PIL"}


def test_the_core_asks_for_no_package_that_it_does_not_import() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in project["dependencies"]}
    code = "\n".join(file.read_text() for file in (HERE / "sm").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", code, re.M))
    assert {name for name in names if MODULES.get(name, name.replace("-", "_")) not in imported} == set()
