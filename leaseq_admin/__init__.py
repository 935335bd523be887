"""What operators see and do in the Django admin."""
