import base64
import gzip
import re

from ddp_tokens import profile_page as module
from ddp_tokens.files import write_bytes, write_json
from ddp_tokens.layout import Layout, operators_file, trace_file
from ddp_tokens.profile_page import profile_page
from tests.helpers import tiny_experiment
from tests.unit.test_report import text_of

TRACE = gzip.compress(b'{"traceEvents": []}')


def page(tmp_path, profile=True):
    return profile_page(tiny_experiment(profile=profile), Layout(tmp_path))


def write_rank(tmp_path, rank, **more):
    folder = Layout(tmp_path).profile("continuous")
    row = {"name": "aten::<conv>", "calls": 1234, "self_cpu_ms": 12.5, "total_cpu_ms": 20.0, "share": 0.625} | more
    table = {"operators": [row], "all_operators": 31, "all_self_ms": 20.0}
    write_json(operators_file(folder, rank), {"rank": rank, "updates": [3, 4, 5], "device": "cpu"} | table)
    write_bytes(trace_file(folder, rank), TRACE)


def test_without_a_profile_the_page_says_how_to_get_one_and_shows_nothing_old(tmp_path):
    before = page(tmp_path, profile=False)
    write_rank(tmp_path, 0)
    assert page(tmp_path, profile=False) == before
    assert text_of(before) == (
        "Profile of tiny Nothing was profiled: set profile: true in the experiment's file and build again, and this "
        "page shows which operators cost most on each rank."
    )


def test_each_rank_has_its_operators_and_its_trace(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)
    found = page(tmp_path)
    assert text_of(found).count("aten::&lt;conv&gt; 1,234 12.5 20 62.5 %") == 2
    assert "Updates 3, 4, 5 on cpu; 1 of 31 operators, by their own time, of 20 ms in all." in text_of(found)
    links = re.findall(r'href="data:application/gzip;base64,([^"]*)" download="([^"]*)"', found)
    assert [name for _, name in links] == ["continuous-rank-0.json.gz", "continuous-rank-1.json.gz"]
    assert all(base64.b64decode(data) == TRACE for data, _ in links)
    assert "GPU" not in found
    assert page(tmp_path) == found


def test_columns_of_the_gpu_are_there_where_there_is_one(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path, rank, self_cuda_ms=7.5, total_cuda_ms=8.5)
    text = text_of(page(tmp_path))
    assert "Own GPU ms GPU ms with what it calls Share" in text
    assert "12.5 20 7.5 8.5 62.5 %" in text


def test_a_trace_that_is_too_large_is_named(tmp_path, monkeypatch):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)
    monkeypatch.setattr(module, "LARGEST_EMBEDDED", len(TRACE) - 1)
    found = page(tmp_path)
    assert "data:" not in found
    path = f"{tmp_path}/logs/profile/continuous/rank-1.json.gz"
    assert f"The trace is {path} , too large for this page." in text_of(found)


def test_a_rank_whose_files_are_gone_is_told(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)
    gone = trace_file(Layout(tmp_path).profile("continuous"), 1)
    gone.unlink()
    text = text_of(page(tmp_path))
    assert f"{gone} is not there: run the continuous run again" in text
    assert text.count("aten::") == 1
