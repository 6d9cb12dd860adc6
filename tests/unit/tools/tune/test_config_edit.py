"""Editing a ``config.pbtxt`` changes only the tuned fields; comments, order and spelling are kept."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from sm.repository.models import protobuf
from trireme_tools.tune.config_edit import (
    remove_batching,
    set_backend,
    set_batching,
    set_instance_count,
    set_parameter,
)

COMMENTED_CONFIG = """# The team's model, see the wiki: instance_group { count: 9 }
name: "m"  # dynamic_batching {}
max_batch_size: 8
instance_group [
  {
    count: 1  # one is enough on the small machine
    kind: KIND_CPU
  }
]
dynamic_batching {
  preferred_batch_size: [ 2, 4 ]   # as measured in May
  max_queue_delay_microseconds: 100
  # Old requests go first.
  preserve_ordering: true
}
parameters { key: "note" value: { string_value: "dynamic_batching { }" } }
"""
CONFIGS = [
    COMMENTED_CONFIG,
    "",
    "instance_group: [ { kind: KIND_CPU }, { count: 2, gpus: [0, 1] } ]\n",
    "instance_group < count: 1 >\ndynamic_batching: < preferred_batch_size: 2 preferred_batch_size: 4 >\n",
    "dynamic_batching { max_queue_delay_microseconds: 5; preferred_batch_size: 2, }\n",
    "dynamic_batching {\n}\ninstance_group {\n\tkind: KIND_CPU\n}\n",
    "dynamic_batching {\n  default_queue_policy { max_queue_size: 7 }\n}\n",
    'name: \'it\\\'s\' "}"\ninstance_group { name: "count: 4" }\n',
]


def parse(text: str) -> Any:
    return text_format.Parse(text, protobuf().ModelConfig())


@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.parametrize(("sizes", "delay"), [((), 500), ((4, 8), 0)])
def test_any_spelling_of_a_configuration_can_be_edited(text: str, sizes: tuple[int, ...], delay: int) -> None:
    expected = parse(text)
    for group in expected.instance_group or [expected.instance_group.add()]:
        group.count = 5
    expected.dynamic_batching.SetInParent()
    expected.dynamic_batching.preferred_batch_size[:] = sizes
    expected.dynamic_batching.max_queue_delay_microseconds = delay
    edited = set_batching(set_instance_count(text, 5), sizes, delay)
    assert parse(edited) == expected
    expected.ClearField("dynamic_batching")
    assert parse(remove_batching(edited)) == expected


THREADS = ['parameters { key: "threads" value { string_value: "1" } }', "parameters [ { key: 'a' value: < string_value: 'b' > }, { key: 'threads', value {} } ]"]  # fmt: skip


@pytest.mark.parametrize("text", [*CONFIGS, *THREADS, "# backend: 'python'\nbackend: 'python' # ours\n"])
def test_a_parameter_and_the_backend_are_set_in_any_spelling(text: str) -> None:
    expected = parse(text)
    expected.parameters["threads"].string_value = "3"
    expected.backend = "onnxruntime"
    assert parse(set_backend(set_parameter(text, "threads", "3"), "onnxruntime")) == expected
