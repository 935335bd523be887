"""The published test kit."""
