"""Names of models in paths: a caller's path has them encoded, and Triton's as they are.

Triton's HTTP decodes no name: it takes ``a%2Bb`` for a model that is called so, and does not find ``a+b``
(2.51, tried; the source of later ones reads the path the same way).
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

MODEL_PATH = re.compile(r"/v2/models/([^/?]+)")
#: Characters that a path can have as they are. Other ASCII would end the path or the line: no model that
#: Triton serves has it in its name, see :func:`sm.repository.problems.name_problems`.
PLAIN = "!\"$%&'()*+,:;<=>@[\\]^`{|}"


def model_in(target: str) -> str:
    """Return the name of the model in a caller's path; empty if there is none."""
    match = MODEL_PATH.match(target)
    return unquote(match[1]) if match else ""


def model_asked(target: str) -> str:
    """Return the name of the model in a path for Triton; empty if there is none."""
    match = MODEL_PATH.match(target)
    return match[1] if match else ""


def model_path(model: str, rest: str = "") -> str:
    """Return Triton's path for a model."""
    return f"/v2/models/{quote(model, safe=PLAIN)}{rest}"
