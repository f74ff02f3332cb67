"""The dashboard of an instance: a static page, and the live data that it shows."""
