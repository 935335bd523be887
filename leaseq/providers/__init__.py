"""Adapters to the outside; know nothing of the database."""
