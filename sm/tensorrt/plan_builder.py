"""Choose what builds a TensorRT plan: the ``tensorrt`` package or ``trtexec``."""

from __future__ import annotations

import importlib
import importlib.util

from sm.tensorrt import python_api, trtexec
from sm.tensorrt.plans import Plan


def build_plan(plan: Plan) -> str:
    """Build a plan with the ``tensorrt`` package if it can be imported, else with trtexec.

    Returns:
        TensorRT's version.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    if importlib.util.find_spec("tensorrt"):
        return python_api.build(plan, importlib.import_module("tensorrt"))
    return trtexec.build(plan)
