"""The sources of clients of small_box that give the model ``echo`` good and wrong tensors, and one of pictures."""

SHAPE = """
import time

from sm.client import Client, ImagePayload


class Shape(Client):
    payload = ImagePayload

    def inference(self, image):
        shape = image.pixels.shape
        time.sleep(0.3)
        return shape
"""
#: The model's input is x, FP32 [-1, -1], and its output y.
ECHO = """
import numpy as np

from sm.client import TensorClient, TensorPayload


class Echo(TensorClient):
    model, payload = "echo", TensorPayload

    def preprocess(self, payload):
        return {inputs}

    def wanted(self, payload):
        return {outputs}

    def postprocess(self, outputs, payload):
        return outputs["y"]
"""
#: By client: the inputs that it gives the model, and the outputs that it asks for.
WRONG = {
    "wrong_name": ('{"wrong": payload.array}', None),
    "one_too_many": ('{"x": payload.array, "more": payload.array}', None),
    "nothing": ("{}", None),
    "wrong_cast": ('{"x": payload.array.astype(np.float64)}', None),
    "no_datatype": ('{"x": payload.array.astype(complex)}', None),
    "wrong_output": ('{"x": payload.array}', ["wrong"]),
}
GOOD = {
    "plain": ('{"x": payload.array}', None),
    "cast": ('{"x": payload.array.astype(np.float32)}', None),
}
SOURCES = {
    "shape.py": SHAPE,
    **{
        f"{name}.py": ECHO.format(inputs=inputs, outputs=outputs)
        for name, (inputs, outputs) in (WRONG | GOOD).items()
    },
}
