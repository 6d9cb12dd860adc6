"""A python model that needs a package from a packed environment."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.tritons import HEAD, Model

ANSWER = """
import json, sys
import trireme_greeting
said = {"word": trireme_greeting.WORD, "numpy": np.__version__, "prefix": sys.prefix, "at": np.__file__}
return {"y": np.array([json.dumps(said), tensor(request, "x")[0].decode()], dtype=object)}
"""


@dataclass(frozen=True)
class ModelWithEnvironment(Model):
    """A model that runs in a packed environment."""

    environment: str = ""

    def config(self) -> str:
        value = f'{{string_value: "{self.environment}"}}'
        return super().config() + f'parameters {{key: "EXECUTION_ENV_PATH", value: {value}}}\n'


GREETING_MODEL = ModelWithEnvironment(ANSWER, {"x": ("STRING", [1])}, {"y": ("STRING", [2])}, head=HEAD)


BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["back"]}]}
