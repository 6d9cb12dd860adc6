"""The command that this extension adds to ``sm``."""

from __future__ import annotations

from sm.commands import Command

#: The entry point ``sm.commands`` names this table.
GROUPS = {
    "Build models and clients": {
        "build-model": Command(
            "Build a model for one target, from its recipe or an ONNX file, into a model repository.",
            "trireme_extensions.convert.build_arguments:add_arguments "
            "trireme_extensions.convert.build_command:run",
            ("build-model pets --source pets.onnx --out model", "build-model resnet --target onnxruntime"),
        ),
    },
}
