"""Models as a script for SageMaker's inference toolkit."""

from __future__ import annotations

from pathlib import Path


def write_script(repository: Path, script: str, **modules: str) -> Path:
    """Write ``code/inference.py``, and modules by their names beside it. Returns the repository."""
    code = repository / "code"
    code.mkdir(parents=True)
    for name, source in {"inference": script, **modules}.items():
        (code / f"{name}.py").write_text(source)
    return repository
