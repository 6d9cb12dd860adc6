"""Scripts written for the SageMaker inference toolkit, served as clients with no change."""
