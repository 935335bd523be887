"""What happened, for machines; writes nothing to the database."""
