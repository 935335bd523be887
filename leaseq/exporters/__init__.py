"""Read-only HTTP."""
