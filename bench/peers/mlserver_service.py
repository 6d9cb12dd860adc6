"""Three models behind MLServer: what it loads for each folder of ``mlserver/``."""

# mypy: disallow-subclassing-any=false
from __future__ import annotations

import json

from mlserver import MLModel
from mlserver.codecs import Base64Codec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.work import work


class Model(MLModel):
    """``image`` as base64, or ``text``, to ``result``: a string of JSON."""

    async def load(self) -> bool:
        self.answer = work(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        [given] = payload.inputs
        if given.name == "text":
            content = StringCodec.decode_input(given)[0].encode()
        else:
            content = Base64Codec.decode_input(given)[0]
        result = StringCodec.encode_output("result", [json.dumps(self.answer(content))])
        return InferenceResponse(model_name=self.name, outputs=[result])
