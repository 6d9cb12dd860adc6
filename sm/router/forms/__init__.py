"""What a request for vectors or a ranking looks like in other systems: a file for each system."""
