"""The decisions, as pure functions of plain data. The time and random number generators are arguments."""
