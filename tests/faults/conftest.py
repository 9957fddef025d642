import os

import pytest
from fault_help import World, processes_of


@pytest.fixture(scope="package", autouse=True)
def nothing_is_left(tmp_path_factory):
    """Every keeper, zygote and program of these tests carries a folder's name with it."""
    folder = tmp_path_factory.mktemp("faults")
    yield folder
    left = processes_of(folder, patience_s=10)
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes of the tests are left: {left}"


@pytest.fixture
def world(nothing_is_left, tmp_path):
    with World(nothing_is_left, tmp_path) as made:
        yield made
