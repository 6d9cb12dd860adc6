"""Write model archives, unpacked as SageMaker unpacks them, with small real models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.support.tritons import HEAD, Model

#: In a Python model: declares its inputs and outputs, so that Triton completes its configuration.
AUTO_COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        return config

    def initialize"""


def multiplying_model(factor: float = 1, seconds: float = 0, failing: str = "") -> Model:
    """Return a model with ``y = x * factor``. It takes ``seconds`` to load, and then raises ``failing``, if given."""
    head = f"{HEAD}        time.sleep({seconds})\n" + (f"        raise {failing}\n" if failing else "")
    answer = f'return {{"y": tensor(request, "x") * np.float32({factor})}}'
    return Model(answer, {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}, max_batch_size=8, head=head)


def leave_config_to_triton(folder: Path) -> None:
    """Remove the configuration of a model such as :func:`multiplying_model`; Triton completes it from ``model.py``."""
    (folder / "config.pbtxt").unlink()
    script = folder / "1" / "model.py"
    script.write_text(script.read_text().replace("\n    def initialize", AUTO_COMPLETE, 1))


def chain_config(*steps: str) -> str:
    """Return the configuration of an ensemble that passes ``x`` through one model after the other to ``y``."""
    names = ["x", *(f"t{index}" for index in range(1, len(steps))), "y"]
    step_list = ", ".join(
        f'{{model_name: "{step}", model_version: -1, input_map {{key: "x", value: "{names[index]}"}}, '
        f'output_map {{key: "y", value: "{names[index + 1]}"}}}}'
        for index, step in enumerate(steps)
    )
    tensors = '{name: "%s", data_type: TYPE_FP32, dims: [-1]}'
    return (
        f'platform: "ensemble"\nmax_batch_size: 8\ninput [{tensors % "x"}]\noutput [{tensors % "y"}]\n'
        f"ensemble_scheduling {{ step [{step_list}] }}\n"
    )


class ArchiveFolder:
    """The folder into which SageMaker unpacks each ``model.tar.gz``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)

    def write_flat(self, name: str, model: Model | None = None, **code: str) -> str:
        """Write an archive of one model (``model/config.pbtxt``, ``model/1/``), and return its folder."""
        folder = self._folder(name)
        (model or multiplying_model()).write(folder)
        _write(folder / "code", code)
        return str(folder)

    def write_nested(self, name: str, models: Mapping[str, object], **code: str) -> str:
        """Write an archive of several models (``model/<name>/config.pbtxt``), and return its folder.

        ``models`` maps a name to a model, or to the text of an ensemble's configuration.
        """
        folder = self._folder(name)
        for name_in_archive, content in models.items():
            if isinstance(content, Model):
                content.write(folder / name_in_archive)
            else:
                (folder / name_in_archive).mkdir(parents=True)
                (folder / name_in_archive / "config.pbtxt").write_text(str(content))
        _write(folder / "code", code)
        return str(folder)

    def _folder(self, name: str) -> Path:
        shutil.rmtree(self.home / name, ignore_errors=True)
        folder = self.home / name / "model"
        folder.parent.mkdir(parents=True)
        return folder


def write_script(repository: Path, script: str, **modules: str) -> Path:
    """Write ``code/inference.py``, a script for SageMaker's toolkit, and modules beside it. Returns the repository."""
    _write(repository / "code", {"inference": script, **modules})
    return repository


def _write(folder: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)
