from ddp_tokens.build import verdict_table
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout


def summary(tmp_path, *outcomes):
    verdicts = [
        {"check": "loss", "case": f"case_{index}", "expected": "pass", "outcome": outcome}
        for index, outcome in enumerate(outcomes)
    ]
    at = Layout(tmp_path / "tiny")
    write_json(at.summary, {"verdicts": verdicts})
    return at


def test_the_table_names_each_verdict_and_concludes(tmp_path):
    table = verdict_table(summary(tmp_path, "pass", "pass"))
    assert "case_0" in table
    assert table.endswith("Verdicts: all 2 are as expected")


def test_an_unexpected_outcome_is_counted(tmp_path):
    assert verdict_table(summary(tmp_path, "pass", "fail")).endswith("Verdicts: 1 of 2 are NOT as expected")
