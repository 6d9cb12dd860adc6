"""What runs on a developer's machine: build, check, package, deploy, invoke, and the rest of ``sm``."""
