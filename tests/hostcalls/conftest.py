from __future__ import annotations

from hypothesis import settings

# The machine is shared: how long an example takes says nothing about the code.
settings.register_profile("low", deadline=None, max_examples=60)
settings.load_profile("low")
