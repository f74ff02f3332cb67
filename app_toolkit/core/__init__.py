"""Decisions: pure functions of plain data. Time and chance are arguments."""
