import pytest

from ddp_tokens.errors import PlanError
from ddp_tokens.script import logged


def fail(log, error):
    with logged(str(log)):
        raise error


def test_a_step_that_ends_well_leaves_an_empty_log(tmp_path):
    with logged(str(tmp_path / "logs" / "step.log")):
        pass
    assert (tmp_path / "logs" / "step.log").read_text() == ""


def test_a_user_error_is_one_sentence_and_exit_code_2(tmp_path):
    with pytest.raises(SystemExit) as stop:
        fail(tmp_path / "step.log", PlanError("prepare again"))
    assert stop.value.code == 2
    assert (tmp_path / "step.log").read_text() == "prepare again\n"


def test_anything_else_leaves_its_traceback(tmp_path):
    with pytest.raises(SystemExit) as stop:
        fail(tmp_path / "step.log", ZeroDivisionError("why"))
    assert stop.value.code == 1
    text = (tmp_path / "step.log").read_text()
    assert text.startswith("Traceback")
    assert "ZeroDivisionError: why" in text
    assert "test_script.py" in text
