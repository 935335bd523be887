"""The only writers; one verb per function."""
