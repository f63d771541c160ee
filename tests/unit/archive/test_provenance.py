import json
from base64 import urlsafe_b64encode

from ddp_tokens.archive.provenance import provenance, read_records

RECORD = {
    "rule": "continuous",
    "input": ["results/minimum/plan.json"],
    "log": ["results/minimum/logs/continuous.log"],
    "shellcmd": "python -m ddp_tokens.train",
    "code": "{params.launch}",
    "conda_env": "IyBNYWRl",
    "starttime": 0.0,
    "endtime": 90061.5,  # a day, an hour, a minute and 1.5 s
}
SCRIPT = {"rule": "gate", "shellcmd": None, "code": '        "../workflow_scripts/gate.py"\n'}
LONGEST = 255


def write_record(folder, output, record):
    """As Snakemake names it: base64, cut into folders with an @ where it is longer than a file's name may be."""
    name = urlsafe_b64encode(output.encode()).decode()
    parts = [name[start : start + LONGEST - 1] for start in range(0, len(name), LONGEST - 1)]
    path = folder.joinpath(*(f"@{part}" for part in parts[:-1]), parts[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def test_an_output_is_told_for_itself_and_for_each_file_below_it(tmp_path):
    write_record(tmp_path, "results/minimum/runs/continuous", RECORD)
    write_record(tmp_path, "results/minimum/gate.txt", SCRIPT)
    write_record(tmp_path, "results/other/plan.json", SCRIPT)
    names = ["results/minimum/runs/continuous/history.jsonl", "results/minimum/gate.txt", "results/minimum/config.yaml"]
    told = provenance(tmp_path, names)
    assert list(told) == ["results/minimum/gate.txt", "results/minimum/runs/continuous"]
    assert told["results/minimum/runs/continuous"] == {
        "rule": "continuous",
        "inputs": ["results/minimum/plan.json"],
        "log": ["results/minimum/logs/continuous.log"],
        "command": "python -m ddp_tokens.train",
        "started": "1970-01-01T00:00:00.000+00:00",
        "ended": "1970-01-02T01:01:01.500+00:00",
    }
    assert told["results/minimum/gate.txt"]["command"] == "workflow_scripts/gate.py"
    assert told["results/minimum/gate.txt"]["started"] is None


def test_a_long_name_is_put_together_again(tmp_path):
    output = "results/" + "x" * 600
    path = write_record(tmp_path, output, RECORD)
    assert len(path.relative_to(tmp_path).parts) == 4
    assert list(read_records(tmp_path)) == [output]


def test_what_is_no_record_is_passed_over(tmp_path):
    write_record(tmp_path, "results/a", RECORD)
    write_record(tmp_path, "results/b", RECORD).write_text('{"rule": "cut o')
    (tmp_path / "notbase64!").write_text("{}")
    assert list(read_records(tmp_path)) == ["results/a"]


def test_without_records_nothing_is_told(tmp_path):
    assert provenance(tmp_path / "missing", ["results/a"]) == {}
