"""Chat models behind the AG-UI protocol."""
