"""Write repositories with valid and invalid ensembles of small real models."""

from __future__ import annotations

from pathlib import Path

from tests.support.tritons import Model

FRONT = Model(
    'return {"mid": tensor(request, "x") * 2}', {"x": ("FP32", [4])}, {"mid": ("FP32", [4])}, max_batch_size=8
)
BACK = Model(
    'return {"y": tensor(request, "mid") + 1}', {"mid": ("FP32", [4])}, {"y": ("FP32", [4])}, max_batch_size=8
)
WORDS = Model(
    'return {"y": np.char.decode(tensor(request, "text").astype(bytes)).astype(object)}',
    {"text": ("STRING", [4])},
    {"y": ("STRING", [4])},
    max_batch_size=8,
)
SMALL = Model(BACK.answer, BACK.inputs, BACK.outputs, max_batch_size=2)

X, Y = "name: 'x', data_type: TYPE_FP32, dims: 4", "name: 'y', data_type: TYPE_FP32, dims: 4"


def step(model: str, reads: dict[str, str], writes: dict[str, str]) -> str:
    """Return a step's configuration. ``reads`` and ``writes`` map a model's tensors to the ensemble's."""
    maps = [
        f"{side}_map {{ key: '{port}' value: '{tensor}' }}"
        for side, tensor_names in (("input", reads), ("output", writes))
        for port, tensor in tensor_names.items()
    ]
    return f"step {{ model_name: '{model}' model_version: -1 {' '.join(maps)} }}"


def ensemble(*steps: str, x: str = X, y: str = Y, batch: int = 8) -> str:
    return (
        f"platform: 'ensemble' max_batch_size: {batch} input {{ {x} }} output {{ {y} }}\n"
        f"ensemble_scheduling {{ {' '.join(steps)} }}"
    )


FIRST = step("front", {"x": "x"}, {"mid": "m"})
LAST = step("back", {"mid": "m"}, {"y": "y"})
VALID_ENSEMBLE = ensemble(FIRST, LAST)

ANY_SIZE = ensemble(FIRST, LAST, x=X.replace("4", "-1"))

#: Invalid configurations, each with the names that the report of its fault has.
INVALID_ENSEMBLES = {
    "missing": (ensemble(FIRST, step("gone", {"mid": "m"}, {"y": "y"})), ("'gone'",)),
    "no_input": (ensemble(FIRST, step("back", {"middle": "m"}, {"y": "y"})), ("'middle'", "'back'",)),
    "no_output": (ensemble(step("front", {"x": "x"}, {"end": "m"}), LAST), ("'end'", "'front'",)),
    "unmapped": (ensemble(FIRST, step("back", {}, {"y": "y"})), ("'mid'", "'back'",)),
    "nobody": (ensemble(FIRST, step("back", {"mid": "n"}, {"y": "y"})), ("'n'", "'back'",)),
    "no_end": (ensemble(FIRST, step("back", {"mid": "m"}, {"y": "z"})), ("'y'",)),
    "twice": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "m"}), LAST), ("'m'", "'front'",)),
    "datatype": (ensemble(FIRST, step("words", {"text": "m"}, {"y": "y"}), y=Y.replace("FP32", "STRING")), ("'m'", "STRING",)),
    "shape": (ensemble(FIRST, LAST, x=X.replace("4", "5")), ("'x'", "FP32 [5]",)),
    "batches": (ensemble(FIRST, step("small", {"mid": "m"}, {"y": "y"})), ("'small'",)),
    "circle": (ensemble(step("front", {"x": "n"}, {"mid": "m"}), step("back", {"mid": "m"}, {"y": "n"}), step("front", {"x": "x"}, {"mid": "o"}), step("back", {"mid": "o"}, {"y": "y"})), ("'front'", "'back'",)),
    "itself": (ensemble(step("itself", {"x": "x"}, {"y": "y"})), ("'itself'",)),
    "unused": (ensemble(step("front", {"x": "y"}, {"mid": "m"}), LAST), ("'x'",)),
    "loose": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "k"}), LAST), ("'k'", "'front'",)),
}  # fmt: skip


def write_repository(repository: Path, **ensembles: str) -> Path:
    """Write all the models and the given ensembles, and return the repository."""
    for name, model in (("front", FRONT), ("back", BACK), ("words", WORDS), ("small", SMALL)):
        model.write(repository / name)
    for name, text in ensembles.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    return repository
