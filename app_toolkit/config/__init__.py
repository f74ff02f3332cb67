"""The shapes of what people write: every option, with its unit, its default and its bounds."""
