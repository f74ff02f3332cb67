"""Which replica gets a request or call. Each file of a placement has one kind of preference with all of its rules.

Design: docs/design/admission.md
"""
