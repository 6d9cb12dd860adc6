"""``manifest.json``: source, tool, GPU and accuracy of a built model.

It lies in the version folder, as each version may have been built elsewhere. Triton ignores the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from sm.hardware import Gpu, Hardware, version_numbers

NAME = "manifest.json"
#: A plan of 8.6.1.6 does not load with 8.6.1.2: TensorRT compares four numbers.
VERSION_NUMBERS = 4
Target = Literal["cpu", "onnxruntime", "tensorrt"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
#: Which other GPUs run a plan, as trtexec names it: none, all from Ampere on, those of the same capability.
Compatibility = Literal["none", "ampere+", "sameComputeCapability"]
#: The oldest capability with such plans.
AMPERE = (8, 0)
#: Changes of the source's graph: pixels as input, suppressed boxes, predictions for masks only.
Change = Literal["uint8", "nms", "masks"]


class Part(BaseModel):
    """Base of the manifest's parts. Later versions read old manifests, so an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceGraph(Part):
    """The ONNX graph that the artifact was made from."""

    #: The name of the source that the graph was made from.
    name: str
    #: The digest of the graph.
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Tool(Part):
    """The program that built or runs the artifact: ``onnxruntime``, ``TensorRT`` or ``torch``."""

    name: str
    version: str


class Accuracy(Part):
    """Absolute differences between the outputs of the artifact and of its source, for random inputs."""

    max_error: float
    mean_error: float
    #: Batch sizes such as ``3``; with free lengths, ``3x128``.
    sizes: tuple[str, ...]
    #: How many of the client's samples have the same answer, of how many; None without samples.
    samples: tuple[int, int] | None = None


class Profile(Part):
    """The shapes of one input that a plan was built for."""

    input: str
    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


class Manifest(Part):
    """The manifest of one model version. ``gpu`` and ``profiles`` are for plans only."""

    model: str
    target: Target
    source: SourceGraph
    tool: Tool
    precision: Precision = "fp32"
    changes: tuple[Change, ...] = ()
    #: The GPU that the plan was built on.
    gpu: Gpu | None = None
    profiles: tuple[Profile, ...] = ()
    #: True if the plan's types come from the graph.
    strongly_typed: bool = True
    #: True if later versions of TensorRT run the plan too: it brings a runtime of its own version.
    version_compatible: bool = False
    hardware_compatibility: Compatibility = "none"
    #: The engines that may run it on the CPU target, the fastest first; empty if the build measured none.
    engines: tuple[str, ...] = ()
    #: Seconds that the build took; a rebuild at start announces them.
    seconds: float | None = None
    built: AwareDatetime
    #: None if nothing was compared.
    accuracy: Accuracy | None = None
    #: What int8 cost in right answers, as the tools measured it; None without a graph in int8.
    quantized: Mapping[str, Any] | None = None
    #: Sentences that a reader should know before using the model.
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the manifest into a version folder."""
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a version folder; None if there is none. Raises ValueError with the fault."""
        path = folder / NAME
        try:
            return cls.model_validate_json(path.read_text("utf-8-sig"))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"{path} cannot be read: {field}: {first['msg']}.") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None

    def find_misfit(self, hardware: Hardware) -> str | None:
        """Explain in a sentence why a plan cannot run here and what to do; None if it can."""
        if self.target != "tensorrt" or self.gpu is None:
            return None
        version = hardware.tensorrt
        if self._runs_on_one_of(hardware.capabilities) and (version is None or self._runs_with(version)):
            return None
        return (
            f"{self.model}'s plan was built for compute capability {self.gpu.compute_capability} with "
            f"TensorRT {self.tool.version}; this box has {_describe_hardware(hardware, version)}. "
            f"Rebuild: sm build-model {self.model} --target tensorrt, "
            "or start with TRIREME_BUILD_ENGINES=missing."
        )

    def _runs_on_one_of(self, capabilities: tuple[str, ...]) -> bool:
        """True if a GPU of these capabilities can run the plan."""
        if self.gpu is None or self.gpu.compute_capability in capabilities:
            return True
        if self.hardware_compatibility != "ampere+":
            return False
        return any(version_numbers(capability) >= AMPERE for capability in capabilities)

    def _runs_with(self, tensorrt: str) -> bool:
        """True if this version of TensorRT can run the plan, as far as both versions are known."""
        if _same_version(self.tool.version, tensorrt):
            return True
        return self.version_compatible and version_numbers(self.tool.version) <= version_numbers(tensorrt)


def now() -> datetime:
    """Return the time in UTC, to the second."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def _describe_hardware(hardware: Hardware, version: str | None) -> str:
    if not hardware.gpus:
        return "no GPU"
    return " and ".join([*hardware.capabilities, version] if version else hardware.capabilities)


def _numbers(version: str) -> list[str]:
    return version.split(".")[:VERSION_NUMBERS]


def _same_version(built: str, available: str) -> bool:
    """True if the known parts of both versions agree: a plan runs only with the version that built it."""
    return all(a == b for a, b in zip(_numbers(built), _numbers(available), strict=False))
