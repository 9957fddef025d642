"""The pure heart: names, states, specs, events and how they fold. No I/O, no async."""
