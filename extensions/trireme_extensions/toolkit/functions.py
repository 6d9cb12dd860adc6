"""The functions of the toolkit by which a file is known as a script."""

from __future__ import annotations

#: Functions that a script may define, with their numbers of arguments, without the context.
FUNCTIONS = {
    "pre_model_fn": 1,
    "model_fn": 1,
    "model_warmup_fn": 2,
    "input_fn": 2,
    "predict_fn": 2,
    "output_fn": 2,
    "transform_fn": 4,
}
