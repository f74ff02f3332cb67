"""Admission control: which requests run in a replica, wait for a slot, or are refused.

Design: docs/design/admission.md
"""
