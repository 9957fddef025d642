"""The fixtures of the engine's tests serve here too."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hypothesis import settings

ENGINE = Path(__file__).parents[1] / "engine"

# The machine is shared: how long an example takes says nothing about the code.
settings.register_profile("low", deadline=None, max_examples=60)
settings.load_profile("low")

_found = spec_from_file_location("engine_fixtures", ENGINE / "conftest.py")
assert _found is not None
assert _found.loader is not None
_fixtures = module_from_spec(_found)
_found.loader.exec_module(_fixtures)
folder, engine, project = _fixtures.folder, _fixtures.engine, _fixtures.project
