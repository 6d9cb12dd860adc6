"""Run scripts written for the SageMaker inference toolkit as clients, unchanged."""
