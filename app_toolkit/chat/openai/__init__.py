"""The API of OpenAI, as a router and as a client."""
