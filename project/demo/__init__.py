"""The main job a newcomer runs, on services that come out of wheels."""
