"""A fake trtexec, as the real one needs a GPU: it records its command line and fails as the real one does."""

from __future__ import annotations

import sys
from pathlib import Path

#: Output (from users' bug reports) and exit code of the real one; -9: killed by SIGKILL.
OUTCOMES = {
    "works": ("[I] Engine built in 1.0 sec.\n&&&& PASSED TensorRT.trtexec [TensorRT v101303]", 0),
    "no GPU": (
        "[W] [TRT] CUDA initialization failure with error: 100\n[E] Builder creation failed\n"
        "[E] Engine set up failed\n&&&& FAILED TensorRT.trtexec [TensorRT v101303]",
        1,
    ),
    "unsupported operator": (
        "[I] [TRT] No importer registered for op: Known. Attempting to import as plugin.\n"
        "[I] [TRT] Successfully created plugin: Known\n"
        "[I] [TRT] No importer registered for op: Frobnicate. Attempting to import as plugin.\n"
        '[E] [TRT] Assertion failed: creator && "Plugin not found, are the plugin name, version, and '
        'namespace correct?"\n[E] Failed to parse onnx file\n[E] Parsing model failed',
        1,
    ),
    "out of memory": (
        "[E] [TRT] Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)\n[E] Engine set up failed",
        1,
    ),
    "killed": ("[I] [TRT] Building", -9),
    "TensorRT 11": ("[E] Unknown option: --fp16 \n&&&& FAILED TensorRT.trtexec [TensorRT v110000]", 1),
    "something else": ("[E] Could not find any implementation for node TopK_531.", 1),
}

SCRIPT = """#!{python}
import json, os, pathlib, signal, sys, time
pathlib.Path({record!r}).write_text(json.dumps(sys.argv[1:]))
if {slow!r} in " ".join(sys.argv):
    time.sleep(60)
print("&&&& RUNNING TensorRT.trtexec [TensorRT v101303] [b9]")
print({text!r}, flush=True)
if {code} < 0:
    os.kill(os.getpid(), -({code}))
if {code} == 0:
    said = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    pathlib.Path(said["--saveEngine"]).write_bytes(b"a plan")
sys.exit({code})
"""


def write_fake_trtexec(folder: Path, outcome: str = "works", slow: str = "no model") -> Path:
    """Write an executable ``trtexec`` into ``folder``, and return the file in which it records its command line.

    It takes a minute for the model ``slow``.
    """
    text, code = OUTCOMES[outcome]
    record = folder / "recorded.json"
    folder.mkdir(exist_ok=True)
    path = folder / "trtexec"
    path.write_text(
        SCRIPT.format(python=sys.executable, record=str(record), text=text, code=code, slow=f"/{slow}/")
    )
    path.chmod(0o755)
    return record
