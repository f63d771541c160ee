"""A workload of the user's own: by a file's path or a module's name; a class, an object, or the functions alone."""

import sys
from pathlib import Path

import pytest

from ddp_tokens import own_work
from ddp_tokens.errors import WorkloadError
from ddp_tokens.options import for_users, run_as_program, sentence, theirs
from ddp_tokens.own_work import raised_by_own_work
from ddp_tokens.script import logged
from ddp_tokens.workloads import load, unit_of

FUNCTIONS = """\
def build_model(settings, shape): return "model"
def collate(rows, device="cpu"): return list(rows)
def forward(model, batch): return batch
def loss_sum(outputs, batch): raise ZeroDivisionError("no rows")
def metrics(outputs, batch): return {}
"""
CLASS = "class Work:\n" + "".join("    " + line.replace("(", "(self, ", 1) + "\n" for line in FUNCTIONS.splitlines())


@pytest.fixture
def mine(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(name):
    with pytest.raises(WorkloadError) as error:
        load(name)
    return error.value


@pytest.mark.parametrize(
    ("text", "attribute"),
    [(FUNCTIONS, ""), (CLASS, ":Work"), (CLASS + "work = Work()\n", ":work"), (CLASS + "UNIT = 'pair'\n", ":Work")],
    ids=["module", "class", "object", "class beside a constant"],
)
def test_its_functions_are_called_as_those_of_a_built_in(mine, text, attribute):
    workload = load(f"{mine(text)}{attribute}")
    assert workload.build_model(None, None) == "model"
    assert workload.collate((1, 2), "cpu") == [1, 2]
    assert unit_of(workload) == "token"


def test_its_unit_may_have_a_name(mine):
    path = mine(f"{CLASS}    UNIT = 'pair'\n")
    assert unit_of(load(f"{path}:Work")) == "pair"
    assert unit_of(load(str(mine(FUNCTIONS + 'UNIT = "page"\n', "page.py")))) == "page"


def test_a_relative_path_starts_at_the_current_folder(mine, tmp_path, monkeypatch):
    mine(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    assert load("mine.py").build_model(None, None) == "model"


def test_a_module_of_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "work.py").write_text(CLASS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("package_of_mine.work:Work").build_model(None, None) == "model"


def test_what_lies_beside_it_can_be_imported_and_another_file_of_that_name_is_not_taken(tmp_path, monkeypatch):
    """Each from its own folder, where both are called helper: at first hand, as Python does for a script."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"helper_{folder}.py").write_text(f"answer = {folder!r}\n")
        (tmp_path / folder / "mine.py").write_text(
            f"from helper_{folder} import answer\n{FUNCTIONS}def sample(*given):\n    return answer\n"
        )
    assert [load(str(tmp_path / folder / "mine.py")).sample() for folder in ("a", "b")] == ["a", "b"]
    assert sys.path[0] != str(tmp_path / "a")


def test_each_file_has_the_helper_of_its_own_folder_in_one_process(tmp_path, monkeypatch):
    """Both are called helper, one is a package; the second file of the first folder has the first's again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder, helper in (("a", "own_helper.py"), ("b", "own_helper/inner.py"), ("c", "own_helper.py")):
        (tmp_path / folder / helper).parent.mkdir(parents=True)
        (tmp_path / folder / helper).write_text(f"class Answer:\n    folder = {folder!r}\n")
        module = helper.removesuffix(".py").replace("/", ".")
        for name in ("mine.py", "more.py"):
            (tmp_path / folder / name).write_text(
                f"from {module} import Answer\n{FUNCTIONS}def sample(*given):\n    return Answer\n"
            )
    (tmp_path / "b" / "own_helper" / "__init__.py").write_text("")
    places = [(folder, name) for name in ("mine", "more") for folder in "abc"]
    answers = [load(str(tmp_path / folder / f"{name}.py")).sample() for folder, name in places]
    assert [answer.folder for answer in answers] == ["a", "b", "c"] * 2
    assert answers[:3] == answers[3:], "a folder's helper is imported once"


def test_a_helper_is_found_by_its_name_while_no_other_folder_has_the_name(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    mine("class Batch:\n    pass\n", "own_batches.py")
    path = mine(f"from own_batches import Batch\n{FUNCTIONS}def sample(*given):\n    return Batch\n")
    made = load(str(path)).sample()
    (tmp_path / "other").mkdir()
    load(str(mine(FUNCTIONS, "other/mine.py")))
    assert sys.modules[made.__module__].Batch is made  # where worker processes of a loader look for what they pass


def test_it_is_imported_once_and_known_to_dataclasses(mine):
    path = mine(
        "from __future__ import annotations\nimport dataclasses\n"
        f"{FUNCTIONS}\n@dataclasses.dataclass\nclass B:\n    x: int\n"
    )
    assert load(str(path)).B is load(str(path)).B
    assert sys.modules[load(str(path)).__name__] is load(str(path))


def test_the_file_is_named_that_is_not_there(tmp_path):
    assert f"has no file {tmp_path}/mine.py: write it, or mend the path" in str(refusal(f"{tmp_path}/mine.py:Work"))


def test_a_name_that_is_not_in_it_is_named_beside_those_that_are(mine):
    path = mine(f"from pathlib import Path\n{CLASS}")
    assert str(refusal(f"{path}:Wrok")) == (f"{path} has no Wrok (its classes are Work): mend the name after the colon")
    assert "(it defines no class)" in str(refusal(f"{mine(FUNCTIONS, 'functions.py')}:Work"))


def test_a_function_that_is_missing_is_named(mine):
    path = mine(CLASS.replace("metrics", "other"))
    assert str(refusal(f"{path}:Work")) == f"{path}:Work has no function metrics: define metrics(outputs, batch)"


def test_a_file_whose_class_was_meant_says_so(mine):
    path = mine(CLASS)
    assert str(refusal(str(path))) == (
        f"{path} has no function build_model: define build_model(settings, shape), or name the class that has it, "
        "Work, after a colon"
    )


def test_a_function_that_cannot_take_its_arguments_is_named(mine):
    path = mine(CLASS.replace("(self, outputs, batch): raise", "(self, outputs): raise"))
    assert str(refusal(f"{path}:Work")) == (
        f"{path}:Work: loss_sum cannot be called as loss_sum(outputs, batch) (too many positional arguments): "
        "let it take these arguments"
    )


def test_a_class_that_needs_arguments_is_named(mine):
    error = refusal(f"{mine(CLASS + '    def __init__(self, width): ...' + chr(10))}:Work")
    assert "Work() raised TypeError" in str(error)
    assert "missing 1 required positional argument: 'width'" in error.theirs
    assert str(error).endswith("and to make it without arguments")


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("import json\njson.loads('{')\n", "JSONDecodeError", 2),
        ("\n\nraise KeyError('x')\n", "KeyError", 3),
        ("import sys\nsys.exit(0)\n", "SystemExit", 2),
        ("import no_such_module\n", "ModuleNotFoundError", 1),
    ],
)
def test_what_the_file_raises_when_it_is_imported_is_shown_from_there_and_named(mine, text, kind, line):
    path = mine(text)
    error = refusal(f"{path}:Work")
    assert str(error) == (
        f"{path}, line {line}: importing it raised {kind}, as the traceback above says: mend workload {path}:Work "
        "there, then start again"
    )
    assert error.theirs.startswith(f'Traceback (most recent call last):\n  File "{path}", line {line}, in <module>')
    assert "own_work.py" not in error.theirs, "only their part of it"


def test_syntax_that_python_does_not_know(mine):
    error = refusal(str(mine("def f(:\n")))
    assert "importing it raised SyntaxError" in str(error)
    assert "def f(:" in error.theirs


def raise_in_the_run(path):
    return load(f"{path}:Work").loss_sum(None, None)


def test_what_a_function_raises_in_the_run_ends_a_program_with_their_traceback_and_one_sentence(
    mine, capsys, monkeypatch
):
    path = mine(CLASS)
    monkeypatch.setenv("RANK", "1")
    assert run_as_program("program", lambda arguments: raise_in_the_run(path), []) == 2
    told = capsys.readouterr().err
    assert told.startswith(f'Traceback (most recent call last):\n  File "{path}", line 5, in loss_sum')
    assert told.endswith(
        "ZeroDivisionError: no rows\n"
        f"program, rank 1: {path}, line 5: Work.loss_sum raised ZeroDivisionError, as the traceback above says: mend "
        f"workload {path}:Work there, then start again\n"
    )


def test_the_same_in_the_log_of_a_rule(mine, tmp_path):
    path = mine(CLASS)
    with pytest.raises(SystemExit) as ended, logged(str(tmp_path / "log")):
        raise_in_the_run(path)
    assert ended.value.code == 2
    assert "ZeroDivisionError: no rows\n" in (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().endswith("there, then start again\n")


def test_a_function_that_fails_deeper_is_named_by_the_users_own_file(mine):
    path = mine(CLASS.replace('raise ZeroDivisionError("no rows")', "return open(outputs)"))
    try:
        load(f"{path}:Work").loss_sum("/no/such/file", None)
    except OSError as error:
        told = for_users(error)
    assert isinstance(told, WorkloadError), "not the sentence on a file of this project"
    assert "Work.loss_sum raised FileNotFoundError" in sentence(told)
    assert "/no/such/file" in theirs(told)


def test_mistakes_of_this_project_and_signals_stay_what_they_are(mine):
    load(f"{mine(CLASS)}:Work")
    assert raised_by_own_work(ValueError("never raised")) is None
    with pytest.raises(ZeroDivisionError) as raised:
        load(f"{mine(CLASS)}:Work").loss_sum(None, None)
    assert raised_by_own_work(raised.value) is not None
    raised.value.sigval = 15  # as torch's agent ends a rank, wherever that is
    assert raised_by_own_work(raised.value) is None
    with pytest.raises(ZeroDivisionError):
        run_as_program("program", lambda arguments: 1 // 0, [])
    assert sentence(WorkloadError("plain")) == "plain"
    assert theirs(WorkloadError("plain")) == ""


def test_the_registry_holds_what_was_loaded(mine):
    path = mine(CLASS, "registered.py")
    load(f"{path}:Work")
    assert Path(own_work._loaded[f"{path}:Work"].file) == path
