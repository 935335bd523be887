"""What Django looks up under this name."""
