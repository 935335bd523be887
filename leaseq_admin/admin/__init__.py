"""Imports the modules of this folder, so that Django registers them."""
