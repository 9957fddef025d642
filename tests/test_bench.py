import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from tenuto.bench import main as bench
from tenuto.bench.place import LeftOver, Place, carriers
from tenuto.bench.table import Row, line, percentile, times_at_least
from tenuto.engine.work import Options

# What takes seconds even when it is quick is left to `tenuto bench` itself.
CHEAP = [
    "start", "throughput", "follower", "stdin", "kill", "crowd", "tape", "index", "rebuild", "sandbox",
    "history",
]  # fmt: skip
CHEAP += ["hostcalls", "vm", "vms", "vm-crowd", "deno", "tasks"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the benchmarks put their folders, to see that nothing stays there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", CHEAP)
def test_a_quick_benchmark_is_right_and_leaves_nothing(name, temporary, capsys):
    environ = dict(os.environ)
    assert bench.main([name, "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["rows"]
    assert rows
    assert {"what", "ours", "unit", "floor", "ratio", "target", "met"} <= rows[0].keys()
    assert [row for row in rows if row["exact"] and not row["met"]] == []
    assert all(row["ours"] >= 0 for row in rows)
    assert {"load", "busy"} <= document["conditions"].keys()
    assert list(temporary.iterdir()) == []
    assert dict(os.environ) == environ


def test_the_table_names_load_and_verdict(temporary, capsys):
    assert bench.main(["rebuild", "--quick"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("load ")
    assert "rebuild from 200 folders" in text
    assert "1 of 1 met" in text


def test_an_unknown_name_is_refused(capsys):
    assert bench.main(["nonsense"]) == 2
    assert "throughput" in capsys.readouterr().err


def test_a_benchmark_that_breaks_is_a_row_and_the_others_go_on(temporary, monkeypatch, capsys):
    def breaks(quick):
        yield Row(what="first", ours=1.0)
        raise RuntimeError("no luck")

    monkeypatch.setitem(bench.BENCHMARKS, "breaks", breaks)
    assert bench.main(["breaks", "rebuild", "--quick", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["benchmark"] for row in rows] == ["breaks", "breaks", "rebuild", "rebuild"]
    assert rows[1]["note"] == "RuntimeError: no luck"


def test_a_place_ends_what_was_left_running(temporary):
    place = Place()
    with place:
        engine = place.blocking()
        _, sock = engine.start(engine.command(["sleep", "600"], Options()))
        sock.close()
        engine.close()
        while not place.processes("sleep"):  # its fork may not have become it yet
            time.sleep(0.01)
    assert carriers("TENUTO_KEEPER_LOG", place.log) == []
    assert not os.path.exists(place.base)


def test_a_failed_keeper_is_not_passed_over(temporary):
    with pytest.raises(LeftOver, match="a keeper failed"), Place() as place:
        Path(place.log).write_text("Traceback")


def test_percentiles_are_samples():
    samples = [float(one) for one in range(1, 101)]
    assert percentile(samples, 50) == 50
    assert percentile(samples, 99) == 99
    assert percentile([7.0], 99) == 7


def test_a_line_shows_floor_ratio_and_verdict():
    row = times_at_least("some rate", 90.0, 100.0, 0.8, "/s")
    assert row.met and row.ratio == 0.9
    assert line(row).split() == [
        "some",
        "rate",
        "100",
        "/s",
        "90",
        "/s",
        "0.90×",
        "≥",
        "0.8×",
        "yes",
    ]
