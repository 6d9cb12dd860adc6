"""A fake package registry for pip and npm on loopback. It can pause in the middle of a download."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from werkzeug import Request, Response

from tests.support.http_server import serving
from tests.support.wheels import wheel
from trireme_tools.prepare.packages import PackageFile

VERSION = "1.0.0"
#: A recipe for a model that adds 1 to its input. It reads the 1 from the package.
RECIPE = """
import zipfile
import onnx
from onnx import TensorProto, helper
from trireme_tools.prepare.packages import PackageFile

SOURCES = ({source!r},)

def build(sources, out):
    with zipfile.ZipFile(sources["tiny"]) as wheel:
        added = float(wheel.read("tiny.py")[:1])
    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 4])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])], "tiny", [tensor("x")], [tensor("y")],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [added])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), out / "model.onnx")
    (out / "labels.txt").write_text("one\\n")
"""


def tarball(name: str, content: bytes) -> bytes:
    """An npm package whose one data file is ``content``."""
    stream = io.BytesIO()
    members = {"package.json": json.dumps({"name": name, "version": VERSION}).encode(), "data.bin": content}
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, member in members.items():
            header = tarfile.TarInfo(f"package/{path}")
            header.size = len(member)
            archive.addfile(header, io.BytesIO(member))
    return gzip.compress(stream.getvalue(), mtime=0)


class FakeRegistry:
    """The packages by kind and name, and the downloads so far."""

    def __init__(self) -> None:
        self.packages: dict[tuple[str, str], bytes] = {}
        self.downloads: list[str] = []
        #: Clear it to pause downloads half-way.
        self.resume_downloads = threading.Event()
        self.resume_downloads.set()
        self.halfway = threading.Event()
        self.url = ""

    def publish(
        self, kind: Literal["npm", "pypi"], name: str, content: bytes, licence: str = "MIT"
    ) -> PackageFile:
        """Publish a package, and return the source from which to fetch it."""
        package = tarball(name, content) if kind == "npm" else wheel(name, VERSION, content.decode())
        self.packages[kind, name] = package
        digest = hashlib.sha256(package).hexdigest()
        return PackageFile(kind, name, VERSION, digest, len(package), licence, "a package of the tests")

    def environment(self) -> dict[str, str]:
        """Return variables with which pip and npm use this registry only."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.lower().startswith(("pip_", "npm_"))
        }
        return {
            **inherited,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{self.url}/simple",
            "npm_config_userconfig": os.devnull,
            "npm_config_registry": f"{self.url}/npm/",
            "no_proxy": "127.0.0.1,localhost",
        }

    def respond(self, request: Request) -> Response:
        parts = request.path.strip("/").split("/")
        if parts[0] == "simple":
            file = f"{parts[1]}-{VERSION}-py3-none-any.whl"
            return Response(f'<a href="/file/pypi/{parts[1]}/{file}">{file}</a>', content_type="text/html")
        if parts[0] == "npm":
            return Response(json.dumps(self._packument(parts[1])), content_type="application/json")
        self.downloads.append(request.path)
        if (package := self.packages.get((parts[1], parts[2]))) is None:
            return Response(status=404)
        return Response(self._halves(package), headers={"Content-Length": str(len(package))})

    def _halves(self, package: bytes) -> Iterator[bytes]:
        yield package[: len(package) // 2]
        self.halfway.set()
        self.resume_downloads.wait()
        yield package[len(package) // 2 :]

    def _packument(self, name: str) -> dict[str, Any]:
        package = self.packages.get(("npm", name), b"")
        digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
        file = {"tarball": f"{self.url}/file/npm/{name}/{name}.tgz", "integrity": f"sha512-{digest}"}
        version = {"name": name, "version": VERSION, "dist": file}
        return {"name": name, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}}


@contextmanager
def running_package_registry(tls: tuple[Path, Path] | None = None) -> Iterator[FakeRegistry]:
    """Run a registry until the block ends. ``tls``: the files of a certificate for localhost and its key."""
    registry = FakeRegistry()
    with serving(registry.respond, tls=tls) as registry.url:
        try:
            yield registry
        finally:
            registry.resume_downloads.set()
