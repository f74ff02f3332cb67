"""Calls between deployments: handles, and the objects, batches and models that answer.

Design: docs/design/calls.md
"""
