"""Everything that knows Triton: its command line, HTTP and gRPC, its shared memory, its model control."""
