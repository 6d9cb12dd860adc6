"""SageMaker's container contract as tests that take a URL. See README.md."""
