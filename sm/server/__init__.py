"""The box's processes: the supervisor, nginx, the gunicorn workers of both planes, and the access checks."""
