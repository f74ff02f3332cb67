"""The operations and the status of a running instance, for the command line, the Python API and other programs."""
