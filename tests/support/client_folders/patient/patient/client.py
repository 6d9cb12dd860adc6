"""A client that takes long: it sleeps, waits for Triton, or blocks while it holds the GIL."""

import ctypes
import time
from typing import Literal

import numpy as np

from sm.client import Client, Payload


class Wanted(Payload):
    seconds: int
    how: Literal["asleep", "triton", "locked"]


class Patient(Client):
    payload = Wanted
    models = ("slow",)

    def inference(self, payload: Wanted) -> object:
        if payload.how == "asleep":
            time.sleep(payload.seconds)
        elif payload.how == "locked":
            # PyDLL calls C code without releasing the GIL, like a careless library.
            ctypes.PyDLL(None).sleep(payload.seconds)
        else:
            seconds = np.array([[payload.seconds]], np.float32)
            self.triton.infer("slow", {"seconds": seconds, "size": np.array([[1]])})
        return payload.how
