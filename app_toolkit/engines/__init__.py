"""The engines, which run the components: in one process, on Ray, or simulated for tests.

Design: docs/design/engines.md
"""
