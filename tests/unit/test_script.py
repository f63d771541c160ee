import errno
import logging
import os

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


def test_a_file_that_cannot_be_written_is_one_sentence_and_exit_code_2(tmp_path):
    with pytest.raises(SystemExit) as stop:
        fail(tmp_path / "step.log", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/tiny/plan.json"))
    assert stop.value.code == 2
    sentence = "results/tiny/plan.json: No space left on device: free some space and start again\n"
    assert (tmp_path / "step.log").read_text() == sentence


def test_where_the_log_cannot_be_written_the_reason_stands_on_standard_error(tmp_path, capsys):
    """On a full disk the log fails for the same reason as the step; a page of tracebacks would hide both."""
    (tmp_path / "log").write_text("a file, where the log's folder should be")
    with pytest.raises(SystemExit) as stop:
        fail(tmp_path / "log" / "step.log", PlanError("prepare again"))
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"prepare again\n{tmp_path / 'log'}: File exists\n"


def test_anything_else_leaves_its_traceback(tmp_path):
    with pytest.raises(SystemExit) as stop:
        fail(tmp_path / "step.log", ZeroDivisionError("why"))
    assert stop.value.code == 1
    text = (tmp_path / "step.log").read_text()
    assert text.startswith("Traceback")
    assert "ZeroDivisionError: why" in text
    assert "test_script.py" in text


def test_what_the_step_says_stands_in_its_log(tmp_path):
    logger, log = logging.getLogger("ddp_tokens.prepare"), tmp_path / "step.log"
    with logged(str(log)):
        logger.info("rank %d: %d rows", 0, 16)
        logger.debug("not this")
        logging.getLogger("other").info("nor what libraries say")
        logger.warning("a warning")
    assert log.read_text() == "rank 0: 16 rows\na warning\n"


def test_what_a_step_said_stands_before_what_stopped_it(tmp_path):
    logger = logging.getLogger("ddp_tokens.prepare")

    def fail_after_a_line(log, error):
        with logged(str(log)):
            logger.info("rank 0: 16 rows")
            raise error

    for error, last in (
        (PlanError("prepare again"), "prepare again"),
        (ZeroDivisionError("why"), "ZeroDivisionError: why"),
    ):
        with pytest.raises(SystemExit):
            fail_after_a_line(tmp_path / "step.log", error)
        lines = (tmp_path / "step.log").read_text().splitlines()
        assert (lines[0], lines[-1]) == ("rank 0: 16 rows", last)


def test_each_step_has_its_own_lines_and_leaves_the_logger_as_it_was(tmp_path, caplog):
    logger = logging.getLogger("ddp_tokens")
    caplog.set_level(logging.ERROR, logger="ddp_tokens")
    handlers = list(logger.handlers)
    for text in ("one", "two"):
        with logged(str(tmp_path / text)):
            logger.info(text)
    logger.error("after")
    assert [(tmp_path / text).read_text() for text in ("one", "two")] == ["one\n", "two\n"]
    assert (logger.level, logger.handlers) == (logging.ERROR, handlers)
