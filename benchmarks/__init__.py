"""How fast is it, against bare FastAPI and against its peers? `python -m benchmarks --help`."""
