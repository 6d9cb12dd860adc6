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

#: Invalid configurations, each with a part of the sentence that reports its fault.
INVALID_ENSEMBLES = {
    "missing": (ensemble(FIRST, step("gone", {"mid": "m"}, {"y": "y"})), "step of the model 'gone', which is not there"),
    "no_input": (ensemble(FIRST, step("back", {"middle": "m"}, {"y": "y"})), "maps the input 'middle' of 'back', which has mid"),
    "no_output": (ensemble(step("front", {"x": "x"}, {"end": "m"}), LAST), "maps the output 'end' of 'front', which has mid"),
    "unmapped": (ensemble(FIRST, step("back", {}, {"y": "y"})), "gives nothing to the input 'mid' of 'back'"),
    "nobody": (ensemble(FIRST, step("back", {"mid": "n"}, {"y": "y"})), "nothing that gives the tensor 'n', which 'back' wants"),
    "no_end": (ensemble(FIRST, step("back", {"mid": "m"}, {"y": "z"})), "nothing that gives the tensor 'y', which 'y' wants"),
    "twice": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "m"}), LAST), "the tensor 'm' given by 'front' and 'front'"),
    "datatype": (ensemble(FIRST, step("words", {"text": "m"}, {"y": "y"}), y=Y.replace("FP32", "STRING")), "'m' as FP32 [4] from 'front' (mid), but 'words' (text) wants STRING [4]"),
    "shape": (ensemble(FIRST, LAST, x=X.replace("4", "5")), "'x' as FP32 [5] from 'x', but 'front' (x) wants FP32 [4]"),
    "batches": (ensemble(FIRST, step("small", {"mid": "m"}, {"y": "y"})), "takes batches of 8, but its step 'small' takes 2"),
    "circle": (ensemble(step("front", {"x": "n"}, {"mid": "m"}), step("back", {"mid": "m"}, {"y": "n"}), step("front", {"x": "x"}, {"mid": "o"}), step("back", {"mid": "o"}, {"y": "y"})), "a circle: 'front' and 'back' wait for each other"),
    "itself": (ensemble(step("itself", {"x": "x"}, {"y": "y"})), "a step 'itself' that asks 'itself' again, without end"),
    "unused": (ensemble(step("front", {"x": "y"}, {"mid": "m"}), LAST), "nothing that takes the tensor 'x' of 'x'"),
    "loose": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "k"}), LAST), "nothing that takes the tensor 'k' of 'front'"),
}  # fmt: skip


def write_repository(repository: Path, **ensembles: str) -> Path:
    """Write all the models and the given ensembles, and return the repository."""
    for name, model in (("front", FRONT), ("back", BACK), ("words", WORDS), ("small", SMALL)):
        model.write(repository / name)
    for name, text in ensembles.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    return repository
