"""The terminal edge."""
