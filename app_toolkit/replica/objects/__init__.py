"""The object of a class deployment: its calls, its batches, its threads and its models."""
