"""Read only: never locks, never writes."""
