"""The sources of clients of small_box: of pictures, and of good and wrong tensors for the model ``echo``."""

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
        x = payload.array
        return {inputs}

    def wanted(self, payload):
        return {outputs}

    def postprocess(self, outputs, payload):
        return outputs["y"]
"""
#: What the client ``wrong`` gives the model, by the number that the caller sends.
WRONG_INPUTS = (
    '{"wrong": x}',
    '{"x": x, "more": x}',
    "{}",
    '{"x": x.astype(np.float64)}',
    '{"x": x.astype(complex)}',
)
#: With this number it asks for an output that there is not.
WRONG_OUTPUT = len(WRONG_INPUTS)
SOURCES = {
    "shape.py": SHAPE,
    "plain.py": ECHO.format(inputs='{"x": x}', outputs=None),
    "cast.py": ECHO.format(inputs='{"x": x.astype(np.float32)}', outputs=None),
    "wrong.py": ECHO.format(
        inputs=f'({", ".join(WRONG_INPUTS)}, {{"x": x}})[int(x[0])]',
        outputs=f'["wrong"] if payload.array[0] == {WRONG_OUTPUT} else None',
    ),
}
