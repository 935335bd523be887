"""Tables, constraints and triggers, in order."""
