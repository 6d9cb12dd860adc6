"""Forms of a request for tasks, rows of the door ``sm.forms``: Hugging Face's, and rows of a table."""
