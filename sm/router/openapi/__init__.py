"""What the box takes and answers, said in OpenAPI 3.1: the routes, and each client's payload and result."""
