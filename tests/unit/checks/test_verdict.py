from ddp_tokens.checks.verdict import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Verdict,
    diagnosis_of,
    outcome,
    read_verdicts,
    write_verdicts,
)

VERDICT = Verdict(
    case="first",
    expected=FAIL,
    outcome=PASS,
    criterion="a sentence",
    observed={"values": 3, "max_abs_error": 0.1, "units_per_rank": [1, 2]},
    evidence={"a.safetensors": "00ff"},
    first_difference={"parameter": "head.bias", "index": [0, 1]},
)


def test_verdicts_survive_their_file(tmp_path):
    other = Verdict("second", PASS, PASS, "", {}, {})
    write_verdicts(tmp_path / "v.json", "gradient_parity", [VERDICT, other])
    assert read_verdicts(tmp_path / "v.json") == ("gradient_parity", [VERDICT, other])


def test_an_outcome_is_as_expected_or_not():
    assert not VERDICT.as_expected
    assert Verdict("control", FAIL, FAIL, "", {}, {}).as_expected
    assert not Verdict("undecided", PASS, INCONCLUSIVE, "", {}, {}).as_expected


def test_what_holds_passes():
    assert (outcome(True), outcome(False)) == ("pass", "fail")


def test_a_control_must_be_diagnosed_as_what_it_is():
    def control(*diagnosis):
        return Verdict("control", FAIL, FAIL, "", {}, {}, diagnosis=diagnosis, expected_diagnosis=("a",))

    assert control("a").problem is None
    assert control("b").problem == "is diagnosed as b, expected a"
    assert control("a", "b").problem == "is diagnosed as a or b, expected a"
    assert control().problem == "is diagnosed as nothing known, expected a"


def test_a_diagnosis_survives_its_file(tmp_path):
    control = Verdict("control", FAIL, FAIL, "", {}, {}, diagnosis=("a", "b"), expected_diagnosis=("a", "b"))
    write_verdicts(tmp_path / "v.json", "resume", [control])
    [read] = read_verdicts(tmp_path / "v.json")[1]
    assert read == control
    assert read.as_expected


def test_what_all_failures_are_diagnosed_as():
    """Each name once, in alphabetical order; what passes has nothing to explain."""

    def verdict(outcome, *diagnosis):
        return Verdict("case", PASS, outcome, "", {}, {}, diagnosis=diagnosis)

    assert diagnosis_of([verdict(FAIL, "b"), verdict(FAIL), verdict(FAIL, "b", "a"), verdict(PASS, "c")]) == ("a", "b")
    assert diagnosis_of([verdict(FAIL), verdict(PASS)]) == ()
