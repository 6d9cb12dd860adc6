"""The configuration of models built for the torch target."""

from __future__ import annotations

import pytest
from onnx import helper
from tritonclient.grpc import model_config_pb2

from sm.build import model_config
from sm.errors import CommandError
from trireme_tools.build.torch_graph import check_operators


def test_a_torch_model_runs_on_the_python_backend_and_a_gpu_and_keeps_dynamic_batching() -> None:
    config = model_config_pb2.ModelConfig(name="resnet", max_batch_size=8)
    config.dynamic_batching.SetInParent()
    merged = model_config.for_target(config, "torch")
    assert merged.backend == "python"
    assert [group.kind for group in merged.instance_group] == [model_config.Groups.KIND_GPU]
    assert merged.HasField("dynamic_batching")


def test_all_operators_that_torch_lacks_are_named_at_once() -> None:
    nodes = [helper.make_node(name, ["x"], ["y"]) for name in ("Pad", "Add", "Range", "Constant", "Pad")]
    nodes.append(helper.make_node("Add", ["x"], ["y"], domain="com.example"))
    with pytest.raises(CommandError, match=r"does not know Pad, Range, com\.example\.Add: ") as raised:
        check_operators(nodes, {"Add", "Constant"})
    assert "--nms" not in str(raised.value)
