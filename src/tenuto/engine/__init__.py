"""The engine: starting, waiting, reading, ending, recovering. Surfaces are thin around it."""
