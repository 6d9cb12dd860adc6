"""Everything that knows Triton: its command line, its HTTP and gRPC, its shared memory."""
