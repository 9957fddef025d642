"""A frozen keeper of an earlier release; see tests/frozen/freeze.py."""
