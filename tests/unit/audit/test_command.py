"""The command line of an audit, and what it says of scripts in which there is nothing to audit. One process."""

import sys

import pytest

from ddp_tokens.audit.command import loss_named, main, parsed
from ddp_tokens.audit.losses import causal_lm
from ddp_tokens.errors import AuditError
from ddp_tokens.options import run_as_program

TRAINS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    batch = {"input": torch.randn(4, 3)}
    labels = torch.tensor([0, 1, 1, -100])
    loss = torch.nn.functional.cross_entropy(model(batch["input"]), labels, reduction="sum") / 3
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOSS = """
import torch
def loss_sum(outputs, batch):
    labels = torch.tensor([0, 1, 1, -100])
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"), 3
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "loss_of_test.py").write_text(LOSS)

    def written(text, *arguments):
        (tmp_path / "train.py").write_text(text)
        return ["--loss", f"{tmp_path}/loss_of_test.py:loss_sum", "--", str(tmp_path / "train.py"), *arguments]

    return written


def said(capsys, arguments):
    code = run_as_program("ddp_tokens.audit", main, arguments)
    return code, capsys.readouterr()


def test_one_process_and_one_microbatch_have_no_other_formula_to_exclude(capsys, script):
    """W = 1 and one microbatch: means of ranks and of microbatches are the same, so nothing is shown."""
    code, out = said(capsys, script(TRAINS, "3"))
    assert code == 3, out
    assert "ddp_tokens.audit: inconclusive: window 1: the gradient is that of the mean over all units, but" in out.out
    assert "torchrun --nproc-per-node=2" in out.out


def test_processes_that_do_not_know_of_each_other_are_no_ranks(capsys, script, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, out = said(capsys, script(TRAINS, "3"))
    assert code == 2
    assert (
        "2 processes were started and this one is at an update without torch.distributed being initialized" in out.err
    )


CLOSURE = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def closure():
    optimizer.zero_grad()
    for rows in (1, 3):
        labels = torch.tensor([0, 1, 1, -100])[:rows]
        loss = torch.nn.functional.cross_entropy(model(torch.randn(rows, 3)), labels, reduction="sum")
        (loss / 4).backward()
for _ in range(3):
    optimizer.step(closure)
"""


def test_an_optimizer_that_computes_inside_its_step(capsys, script, tmp_path):
    """1 and 3 units in each window, also in the first one, before which no module was called."""
    (tmp_path / "rows.py").write_text(
        LOSS.replace("[0, 1, 1, -100])", "[0, 1, 1, -100])[: len(outputs)]").replace(", 3\n", ", len(outputs)\n")
    )
    arguments = script(CLOSURE)
    arguments[1] = f"{tmp_path}/rows.py:loss_sum"
    code, out = said(capsys, arguments)
    assert code == 0, out
    assert out.out.count("units per rank and microbatch [[1, 3]]") == 2
    assert "on one rank, which says nothing of how ranks are weighed" in " ".join(out.out.split())


def test_a_wrong_gradient_is_exit_code_1(capsys, script):
    """Three units are divided by 4: three quarters of the gradient, and no clipping that would explain it."""
    code, out = said(capsys, script(TRAINS.replace("/ 3\n", "/ 4\n"), "3"))
    assert code == 1
    assert out.out.startswith("ddp_tokens.audit: fail: ")


def test_fewer_updates_than_windows_are_told(capsys, script):
    code, out = said(capsys, script(TRAINS, "1"))
    assert code == 3
    assert "1 of 2 windows were audited: the loop made no more updates" in out.out


def test_a_script_that_makes_no_update(capsys, script):
    code, out = said(capsys, script(TRAINS.replace("    optimizer.step()\n", ""), "2"))
    assert code == 2
    assert out.err == (
        "ddp_tokens.audit: nothing was audited: the script made no update of Linear: let it train for a window or "
        "more\n"
    )


def test_a_script_that_trains_nothing(capsys, script):
    code, out = said(capsys, script("print('hello')"))
    assert code == 2
    assert out.err == (
        "ddp_tokens.audit: nothing was audited: the script called no module that can be trained: give one that trains\n"
    )


def test_the_exit_code_of_the_script_comes_first(capsys, script):
    code, out = said(capsys, script(TRAINS + "sys.exit(7)", "3"))
    assert code == 7
    assert "window 2: inconclusive" in out.out, "what was found is told all the same"
    code, out = said(capsys, script("import sys; sys.exit('no data')"))
    assert code == 1
    assert out.err == "no data\n"


def test_an_error_of_the_script_passes_through_and_nothing_stays_replaced(script):
    from torch import nn
    from torch.utils.data import DataLoader

    call, iterate, arguments = nn.Module.__call__, DataLoader.__iter__, list(sys.argv)
    with pytest.raises(ZeroDivisionError):
        main(["--watch", *script("1 / 0")])
    assert (nn.Module.__call__, DataLoader.__iter__, sys.argv) == (call, iterate, arguments)


def test_what_was_found_before_a_script_fails_is_told(capsys, script, tmp_path):
    with pytest.raises(ZeroDivisionError):
        main(["--output", str(tmp_path / "audit.json"), *script(TRAINS + "1 / 0", "3")])
    assert "window 2: inconclusive" in capsys.readouterr().out
    assert (tmp_path / "audit.json").is_file()


def test_a_file_that_is_not_there(capsys):
    code, out = said(capsys, ["--", "nowhere.py"])
    assert code == 2
    assert out.err == "ddp_tokens.audit: nowhere.py is no file: give the script after --, with its path\n"


@pytest.mark.parametrize("arguments", [[], ["--loss", "causal-lm"], ["train.py"], ["--"]])
def test_without_a_script_the_usage_is_shown(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        parsed(arguments)
    assert end.value.code == 2
    assert "no script: give it after --, as in: -- train.py --epochs 1" in capsys.readouterr().err


def test_arguments_behind_the_script_are_its_own():
    own, script = parsed(["--windows", "3", "--", "train.py", "--windows", "9", "--", "--stop"])
    assert (own.windows, own.stop, own.loss) == (3, False, "causal-lm")
    assert script == ["train.py", "--windows", "9", "--", "--stop"]


def test_losses_by_name_and_by_place(tmp_path):
    assert loss_named("causal-lm") is causal_lm
    (tmp_path / "mine.py").write_text("def total(outputs, batch):\n    return 5, 1\nNUMBER = 3\n")
    assert loss_named(f"{tmp_path}/mine.py:total")(None, None) == (5, 1)
    assert loss_named("ddp_tokens.audit.losses:causal_lm") is causal_lm


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cross", "loss_sum is 'cross', which is none of causal-lm, token-classification, classification"),
        ("nowhere.py:f", "--loss nowhere.py:f: nowhere.py cannot be imported"),
        ("no_such_module:f", "--loss no_such_module:f: no_such_module cannot be imported"),
        (
            "ddp_tokens.audit.losses:total",
            "--loss ddp_tokens.audit.losses:total: ddp_tokens.audit.losses has no function",
        ),
        ("ddp_tokens.audit.losses:IGNORED", "loss_sum is a int: pass a function"),
    ],
)
def test_a_loss_that_is_not_there_is_named(name, text):
    with pytest.raises(AuditError, match=text.replace("(", r"\(")):
        loss_named(name)
