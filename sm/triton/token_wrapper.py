"""Lay a wrapper around a Python model, so that its answers say which request they are for.

Both files run in the model's process, so they import nothing of the box.
"""

from __future__ import annotations

from pathlib import Path

from sm.triton import onnx_cpu

WRAPPER = Path(__file__).with_name("wrapped_model.py")
TOKENS = Path(onnx_cpu.__file__).with_name("request_token.py")
#: The name under which the wrapper finds the team's own ``model.py``.
INNER = "trireme_inner_model.py"


def install(model: Path) -> None:
    """Wrap each ``model.py`` in a model's folder of links, unless it answers with tokens itself."""
    for script in model.glob("*/model.py"):
        target = script.resolve()
        if TOKENS.stem in target.read_text(errors="replace"):
            continue
        script.unlink()
        script.with_name(INNER).symlink_to(target)
        script.symlink_to(WRAPPER)
        if not script.with_name(TOKENS.name).exists():
            script.with_name(TOKENS.name).symlink_to(TOKENS)
