"""Triton's program for Python models, as what an environment for one of them has to fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.repository.machine import BUNDLED_LIBPYTHON, STUB, VERSION, is_wheel, stub_version


@dataclass(frozen=True)
class Stub:
    """Triton's program that runs a Python model, for one version of Python."""

    file: Path
    #: The version of Python, such as ``3.11``.
    python: str
    #: The requirement for a NumPy that works with the stub.
    numpy: str

    @property
    def libpython(self) -> str:
        return f"libpython{self.python}.so.1.0"

    @property
    def bundled_libpython(self) -> str:
        """The name by which the stub asks for the wheel's copy of CPython; empty if it does not."""
        name = BUNDLED_LIBPYTHON.search(self.file.read_bytes())
        return name[0].decode() if name else ""

    @classmethod
    def find(cls, server: Path, python: str) -> Stub:
        """Find the stub of a Triton.

        Args:
            server: The tritonserver.
            python: The version of Python; empty for that of this process, or for the only one.

        Raises:
            StartError: Triton has no stub for this version.
        """
        root = server.parent.parent
        if is_wheel(server):
            stubs = root / "python_backend_stubs"
            file = stubs / (python or VERSION) / STUB
            names = (path.name for path in stubs.iterdir())
            available = ", ".join(sorted(names, key=lambda name: int(name[2:])))
        else:
            file = root / "backends" / "python" / STUB
            available = stub_version(file)
        linked = stub_version(file)
        if not linked or (python and python != linked):
            raise StartError(
                f"Triton's python backend here ({root}) has programs for Python {available or 'no version'}, "
                f"not for {python or VERSION}, and each program runs one minor version."
            )
        # The wheel's stub loses strings on NumPy 2, and there is no NumPy 1 for Python 3.13.
        needs_numpy_1 = is_wheel(server) and int(linked[2:]) < 13
        return cls(file, linked, "numpy<2" if needs_numpy_1 else "numpy")
