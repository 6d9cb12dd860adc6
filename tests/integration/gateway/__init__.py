"""The gateway, on a real Chalice server, a real Triton and moto's S3."""
