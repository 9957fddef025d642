import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tenuto

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted(
    f"tenuto.core.{path.stem}"
    for path in (ROOT / "src" / "tenuto" / "core").glob("*.py")
    if path.stem != "__init__"
)
IO_MODULES = {
    "asyncio", "socket", "ssl", "selectors", "select", "subprocess", "multiprocessing", "sqlite3",
    "apsw", "tempfile", "shutil", "logging", "http", "urllib.request", "concurrent.futures",
    "fcntl", "rich", "pathlib", "signal",
}  # fmt: skip


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.promise("P1")
def test_everything_public_resolves():
    assert len(set(tenuto.__all__)) == len(tenuto.__all__)
    for name in tenuto.__all__:
        assert getattr(tenuto, name) is not None
    assert dir(tenuto) == sorted(tenuto.__all__)


@pytest.mark.promise("P1")
def test_what_resolves_is_exactly_what_is_public():
    assert {*tenuto._HOMES, "__version__"} == set(tenuto.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Banana'"):
        _ = tenuto.Banana  # type: ignore[attr-defined]


def test_every_error_that_reaches_callers_is_public():
    from tenuto.core import errors

    classes = {name for name, one in vars(errors).items() if isinstance(one, type)}
    assert classes - set(tenuto.__all__) == set()


@pytest.mark.promise("P1")
def test_every_type_that_the_engine_returns_is_public():
    from tenuto.engine.engine import Engine
    from tenuto.engine.tools import EngineTools

    own = [(name, one) for kind in (Engine, EngineTools) for name, one in vars_of(kind)]
    assert len(own) > 40
    for name, one in own:
        returned = str(inspect.signature(one).return_annotation)
        words = {word for word in re.findall(r"\b[A-Z]\w+", returned) if word not in KNOWN}
        assert words <= set(tenuto.__all__), f"{name} returns {returned}"


KNOWN = {"Any", "AsyncIterator", "Literal", "None", "Scope"}  # the last is two texts


def vars_of(kind: type) -> list[tuple[str, Any]]:
    found = [(name, getattr(kind, name)) for name in dir(kind) if not name.startswith("_")]
    return [(name, one) for name, one in found if inspect.isfunction(one)]


def test_the_version_is_the_one_in_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tenuto.__version__ == project["version"]


@pytest.mark.parametrize("module", CORE)
def test_core_loads_no_module_that_does_io(module):
    assert not loaded_by(f"import {module}") & IO_MODULES


def test_the_package_itself_loads_nothing():
    loaded = {name for name in loaded_by("import tenuto") if name.startswith("tenuto")}
    assert loaded == {"tenuto"}


def test_the_keeper_loads_nothing_of_ours_and_no_dependency():
    modules = [f"tenuto.keeper.{path.stem}" for path in (ROOT / "src/tenuto/keeper").glob("*.py")]
    code = "\n".join(f"import {name.removesuffix('.__init__')}" for name in sorted(modules))
    loaded = loaded_by(code)
    assert {name for name in loaded if name.startswith("tenuto.")} <= {"tenuto.keeper", *modules}
    assert not loaded & {"apsw", "msgspec", "rich", "shtab", "asyncio"}
