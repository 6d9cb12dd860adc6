"""The OpenAPI 3.1 document: the routes, and each client's payload and result."""
