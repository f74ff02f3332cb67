"""Other people's test suites, run against plain uvicorn and against us, and compared case by case."""
