"""Archives as the platform unpacks them, of small real models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.support.tritons import HEAD, Model


def multiplying_model(factor: float = 1, seconds: float = 0, failing: str = "") -> Model:
    """``y`` is ``x`` times ``factor``. Loading takes so long, or ends in the exception ``failing``."""
    head = f"{HEAD}        time.sleep({seconds})\n" + (f"        raise {failing}\n" if failing else "")
    answer = f'return {{"y": tensor(request, "x") * np.float32({factor})}}'
    return Model(answer, {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}, batch=8, head=head)


def chain_config(*steps: str) -> str:
    """The configuration of a chain of models, each from ``x`` to ``y``."""
    names = ["x", *(f"t{index}" for index in range(1, len(steps))), "y"]
    listed = ", ".join(
        f'{{model_name: "{step}", model_version: -1, input_map {{key: "x", value: "{names[index]}"}}, '
        f'output_map {{key: "y", value: "{names[index + 1]}"}}}}'
        for index, step in enumerate(steps)
    )
    tensors = '{name: "%s", data_type: TYPE_FP32, dims: [-1]}'
    return (
        f'platform: "ensemble"\nmax_batch_size: 8\ninput [{tensors % "x"}]\noutput [{tensors % "y"}]\n'
        f"ensemble_scheduling {{ step [{listed}] }}\n"
    )


class ArchiveFolder:
    """The folder below which the platform unpacks, and what it does with a ``model.tar.gz``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)

    def flat(self, name: str, made: Model | None = None, **code: str) -> str:
        """``model/config.pbtxt`` and ``model/1/``: the url to load it from."""
        folder = self._folder(name)
        (made or multiplying_model()).write(folder)
        _write(folder / "code", code)
        return str(folder)

    def nested(self, name: str, models: Mapping[str, object], **code: str) -> str:
        """``model/<dir>/config.pbtxt``, several; a text is an ensemble's configuration."""
        folder = self._folder(name)
        for inside, made in models.items():
            if isinstance(made, Model):
                made.write(folder / inside)
            else:
                (folder / inside).mkdir(parents=True)
                (folder / inside / "config.pbtxt").write_text(str(made))
        _write(folder / "code", code)
        return str(folder)

    def _folder(self, name: str) -> Path:
        shutil.rmtree(self.home / name, ignore_errors=True)
        folder = self.home / name / "model"
        folder.parent.mkdir(parents=True)
        return folder


def _write(folder: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)
