"""The python backend's stub: the program that runs a Python model, built for one minor version of Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.triton import wheel

NAME = "triton_python_backend_stub"


@dataclass(frozen=True)
class Stub:
    """A stub."""

    file: Path
    #: The version of Python, such as ``3.11``.
    python: str
    #: The requirement for a NumPy that works with the stub.
    numpy: str

    @property
    def libpython(self) -> str:
        return f"libpython{self.python}.so.1.0"

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
        if wheel.is_wheel(server):
            stubs = root / "python_backend_stubs"
            file = stubs / (python or wheel.VERSION) / NAME
            names = (path.name for path in stubs.iterdir())
            available = ", ".join(sorted(names, key=lambda name: int(name[2:])))
        else:
            file = root / "backends" / "python" / NAME
            available = version(file)
        stub_version = version(file)
        if not stub_version or (python and python != stub_version):
            raise StartError(
                f"Triton's python backend here ({root}) has a stub for Python {available or 'no version'}, "
                f"not for {python or wheel.VERSION}: a stub is per minor version."
            )
        # The wheel's stub loses strings on NumPy 2, and there is no NumPy 1 for Python 3.13.
        needs_numpy_1 = wheel.is_wheel(server) and int(stub_version[2:]) < 13
        return cls(file, stub_version, "numpy<2" if needs_numpy_1 else "numpy")


def version(stub: Path) -> str:
    """Return the Python version that a stub was linked with; empty if there is no stub."""
    if not stub.is_file():
        return ""
    linked = re.search(rb"libpython(3\.\d+)\.so", stub.read_bytes())
    return linked[1].decode() if linked else ""
