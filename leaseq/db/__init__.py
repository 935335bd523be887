"""Every statement the ORM cannot say, one per file."""
