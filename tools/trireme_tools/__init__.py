"""The commands of ``sm`` for a developer's machine: build clients, check, package, deploy, measure."""
