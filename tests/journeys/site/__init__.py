"""The project whose workers the journeys start: the example project with tasks of their own."""
