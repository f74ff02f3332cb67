"""The configuration: every option with its unit, default and bounds, and the sources that can set it."""
