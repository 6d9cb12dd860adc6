"""What the torch target copies into a model repository; it runs in Triton's python backend."""
