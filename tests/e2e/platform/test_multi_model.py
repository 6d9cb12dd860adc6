"""A multi-model endpoint loads a model for its first caller, and unloads one if memory is full."""

from __future__ import annotations

import json
import shutil

import pytest
from botocore.exceptions import ClientError

from tests.support.model_archives import multiplying_model
from tests.support.platform.account import BUCKET, Account
from tests.support.platform.fixtures import Platform
from tests.support.tritons import HEAD, Model

BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
#: Code of a model of which two fit into memory; a third fails as Python fails without memory.
ROOM = """        self.note = os.path.join(os.environ["ROOM"], args["model_name"])
        if len(os.listdir(os.environ["ROOM"])) > 1:
            raise MemoryError("no room for a third")
        open(self.note, "w").close()

    def finalize(self):
        os.remove(self.note)
"""


def large(factor: int) -> Model:
    answer = f'return {{"y": tensor(request, "x") * np.float32({factor})}}'
    return Model(answer, {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}, max_batch_size=8, head=HEAD + ROOM)


@pytest.fixture(scope="module")
def shared(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Account:
    """The endpoint ``shared``, with three models of which two fit, and one that does not load."""
    folder, room = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("room")
    models = {
        **{f"m{number}": large(number) for number in (2, 3, 5)},
        "bad": multiplying_model(failing="ValueError('no')"),
    }
    for name, model in models.items():
        model.write(folder / name)
        platform.account.upload(f"shared/{name}.tar.gz", folder / name)
        shutil.rmtree(folder / name)
    options = {"mode": "MultiModel", "environment": {"ROOM": str(room)}}
    platform.account.create("shared", f"s3://{BUCKET}/shared/", **options)
    assert platform.account.wait_until_steady("shared")["EndpointStatus"] == "InService"
    return platform.account


def invoke(account: Account, name: str) -> float:
    answer = account.runtime.invoke_endpoint(
        EndpointName="shared", TargetModel=f"{name}.tar.gz", ContentType="application/json", Body=BODY
    )
    return float(json.loads(answer["Body"].read())["outputs"][0]["data"][0])


def test_a_model_is_loaded_for_its_first_caller_in_place_of_the_least_recently_used(
    platform: Platform, shared: Account
) -> None:
    models = platform.host.endpoints["shared"].instances[0].models
    assert [invoke(shared, name) for name in ("m2", "m3", "m2")] == [2, 3, 2]
    assert models.loaded == ["m3.tar.gz", "m2.tar.gz"]
    assert invoke(shared, "m5") == 5
    assert models.loaded == ["m2.tar.gz", "m5.tar.gz"]


def test_a_model_that_cannot_load_is_an_error_for_its_caller_alone(shared: Account) -> None:
    with pytest.raises(ClientError, match="object located at the URL"):
        invoke(shared, "nothing")
    with pytest.raises(ClientError, match="TargetModel must be set"):
        shared.invoke_text("shared", "x")
    with pytest.raises(ClientError) as caught:
        invoke(shared, "bad")
    assert caught.value.response["OriginalStatusCode"] == 400
    assert invoke(shared, "m5") == 5
