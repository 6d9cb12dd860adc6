"""The torch target's configuration."""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2

from sm.tools.build import model_config
from sm.tools.build.torch_operators import as_sizes


def test_a_torch_program_is_a_python_model_on_a_gpu_with_dynamic_batching_as_it_was() -> None:
    written = model_config_pb2.ModelConfig(name="resnet", max_batch_size=8)
    written.dynamic_batching.SetInParent()
    made = model_config.for_target(written, "torch")
    assert made.backend == "python"
    assert [group.kind for group in made.instance_group] == [model_config.Groups.KIND_GPU]
    assert made.HasField("dynamic_batching")


def test_instances_that_somebody_put_on_processors_stay_there() -> None:
    written = model_config_pb2.ModelConfig(name="resnet")
    written.instance_group.add(count=2, kind=model_config.Groups.KIND_CPU)
    made = model_config.for_target(written, "torch")
    assert [(group.count, group.kind) for group in made.instance_group] == [(2, model_config.Groups.KIND_CPU)]


def test_sizes_stay_numbers_where_the_graph_counts_them() -> None:
    assert as_sizes([1, 2]) == [1, 2]
    assert as_sizes(3) == [3]
