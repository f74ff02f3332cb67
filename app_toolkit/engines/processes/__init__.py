"""The engine on plain processes of one machine."""
