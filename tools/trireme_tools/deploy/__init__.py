"""To SageMaker: deploy, look at, remove. Needs boto3, the extra ``deploy``; a box loads none of it."""
