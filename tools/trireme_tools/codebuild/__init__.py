"""Build the image in the account, with AWS CodeBuild: for a machine without a container engine."""
