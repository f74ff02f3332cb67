"""Chat models behind Anthropic's Messages API."""
