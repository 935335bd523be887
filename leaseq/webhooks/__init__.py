"""The HTTP edge for provider callbacks."""
