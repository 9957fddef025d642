import re
import tomllib
from pathlib import Path

import pytest

import requirements

FAMILIES = {
    "X": 17,
    "C": 9,
    "S": 2,
    "R": 4,
    "G": 3,
    "B": 3,
    "D": 6,
    "K": 5,
    "M": 4,
    "U": 1,
    "W": 1,
    "P": 1,
    "N": 1,
}
KNOWN = {f"{family}{n}" for family, last in FAMILIES.items() for n in range(1, last + 1)}
FRESHEN = "run `make requirements`"


@pytest.fixture(scope="module")
def scan() -> requirements.Scan:
    return requirements.scan()


@pytest.fixture(scope="module")
def listed() -> dict[str, list[str]]:
    return tomllib.loads(requirements.LISTING.read_text(encoding="utf-8"))


def test_every_listed_test_exists_and_carries_its_marker(scan, listed):
    pairs = [(promise, test) for promise, tests in listed.items() for test in tests]
    missing = [pair for pair in pairs if pair[1] not in scan.tests]
    unmarked = [
        (promise, test)
        for promise, test in pairs
        if test in scan.tests and test not in scan.promises.get(promise, ())
    ]
    assert not missing, f"listed but gone; {FRESHEN}"
    assert not unmarked, f"listed but not marked; {FRESHEN}"


def test_every_marked_test_is_listed(scan, listed):
    unlisted = [
        (promise, test)
        for promise, tests in scan.promises.items()
        for test in sorted(tests)
        if test not in listed.get(promise, ())
    ]
    assert not unlisted, f"marked but not listed; {FRESHEN}"


def test_every_promise_is_a_known_one(scan, listed):
    ids = set(listed) | set(scan.promises)
    unknown = {i for i in ids if i.partition(".")[0] not in KNOWN}
    malformed = {i for i in ids if not re.fullmatch(r"[A-Z]\d+(\.[a-z0-9_-]+)?", i)}
    assert not unknown
    assert not malformed


SAMPLE = """
import pytest

pytestmark = pytest.mark.promise("X1")

@pytest.mark.promise("X10", "X16.redact")
def test_plain(): ...

class TestGroup:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.promise("X2"))])
    async def test_inner(self, n): ...
"""


def scan_of(folder: Path, text: str) -> requirements.Scan:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_sample.py").write_text(text, encoding="utf-8")
    return requirements.scan(folder)


def test_markers_are_found_on_modules_functions_and_parameters(tmp_path):
    found = scan_of(tmp_path, SAMPLE)
    plain, inner = "tests/test_sample.py::test_plain", "tests/test_sample.py::TestGroup::test_inner"
    assert found.tests == {plain, inner}
    expected = {"X1": [plain, inner], "X2": [inner], "X10": [plain], "X16.redact": [plain]}
    assert found.promises == {promise: set(tests) for promise, tests in expected.items()}
    listing = tomllib.loads(requirements.render(found.promises))
    assert list(listing) == list(expected)
    assert {promise: set(tests) for promise, tests in listing.items()} == found.promises


def test_a_marker_on_no_test_is_refused(tmp_path):
    with pytest.raises(ValueError, match="on no test"):
        scan_of(tmp_path, 'import pytest\n@pytest.mark.promise("X1")\ndef helper(): ...\n')


def test_a_computed_promise_id_is_refused(tmp_path):
    with pytest.raises(ValueError, match="literal"):
        scan_of(tmp_path, "import pytest\n@pytest.mark.promise(f())\ndef test_it(): ...\n")
