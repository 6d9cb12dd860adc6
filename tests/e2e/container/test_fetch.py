"""examples/models_from_s3/compose.yaml: its services belong together."""

from __future__ import annotations

import yaml

from sm.settings import HERE


def test_the_services_of_the_example_belong_together() -> None:
    services = yaml.safe_load((HERE / "examples/models_from_s3/compose.yaml").read_text())["services"]
    minio, box = services["minio"]["environment"], services["box"]
    variables = box["environment"]
    assert variables["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert variables["AWS_ACCESS_KEY_ID"] == minio["MINIO_ROOT_USER"]
    assert variables["AWS_SECRET_ACCESS_KEY"] == minio["MINIO_ROOT_PASSWORD"]
    assert f"cache:{variables['TRIREME_CACHE']}" in box["volumes"]
    bucket = variables["TRIREME_MODEL_REPOSITORY"].removeprefix("s3://").rstrip("/")
    assert f"/models s3/{bucket}\n" in services["upload"]["command"][0]
