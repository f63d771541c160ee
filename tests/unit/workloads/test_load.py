"""A file that cannot do what the chain asks of a workload is refused when it is loaded, by file and function."""

import inspect

import pytest

from ddp_tokens import workloads
from ddp_tokens.errors import WorkloadError
from ddp_tokens.workloads import FUNCTIONS, Workload, causal_lm, load, require_same_units, token_labels, writer

COMPLETE = {
    "build_model": "def build_model(settings, shape): ...",
    "collate": "def collate(rows, device='cpu'): ...",
    "forward": "def forward(model, batch): ...",
    "loss_sum": "def loss_sum(outputs, batch): ...",
    "metrics": "def metrics(outputs, batch): ...",
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a workload's file with some functions changed (None: left out) and return its name."""
    monkeypatch.setattr(workloads, "__path__", [str(tmp_path)])

    def write(name, **changes):
        functions = {**COMPLETE, **changes}
        (tmp_path / f"{name}.py").write_text("\n".join(text for text in functions.values() if text))
        return name

    return write


def test_every_function_of_the_protocol_is_required():
    assert set(FUNCTIONS) == {name for name, _ in inspect.getmembers(Workload, inspect.isfunction) if name[0] != "_"}


def test_the_workload_that_is_there_loads():
    assert load("token_labels") is token_labels


def test_a_complete_file_loads(written):
    module = load(written("complete"))
    assert module.forward(None, None) is None


@pytest.mark.parametrize("text", [None, "{name} = 3"], ids=["absent", "no function"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_missing_function_is_named(written, tmp_path, name, text):
    workload = written(f"without_{name}_{'value' if text else 'it'}", **{name: text and text.format(name=name)})
    with pytest.raises(WorkloadError) as refusal:
        load(workload)
    message = str(refusal.value)
    assert message.startswith(f"{tmp_path}/{workload}.py has no function {name}: define {name}(")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "build_model",
            "def build_model(settings): ...",
            "build_model(settings, shape) (too many positional arguments)",
        ),
        ("collate", "def collate(rows): ...", "collate(rows, device) (too many positional arguments)"),
        (
            "forward",
            "def forward(model, batch, mask): ...",
            "forward(model, batch) (missing a required argument: 'mask')",
        ),
        ("loss_sum", "def loss_sum(outputs, batch, *, count): ...", "loss_sum(outputs, batch) (missing a required "),
        ("metrics", "metrics = max", "metrics(outputs, batch) (no signature found for builtin"),
    ],
)
def test_signature_decides_formula_so_a_function_that_cannot_take_the_arguments_is_named(
    written, tmp_path, name, text, problem
):
    workload = written(f"wrong_{name}", **{name: text})
    with pytest.raises(WorkloadError) as refusal:
        load(workload)
    message = str(refusal.value)
    assert message.startswith(f"{tmp_path}/{workload}.py: {name} cannot be called as {problem}")
    assert message.endswith("): let it take these arguments")


def test_a_workload_may_write_and_need_not(written):
    assert writer(load(written("silent"))) is None
    assert writer(load(written("writing", sample="def sample(*given): ..."))) is not None
    assert (writer(token_labels), writer(causal_lm)) == (None, causal_lm)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "def sample(model): ...",
            " cannot be called as sample(model, first_token, generator, longest, stop) (too many ",
        ),
        ("sample = None", " has no function sample: define sample(model, first_token, generator, longest, stop)"),
    ],
)
def test_one_that_cannot_write_as_it_is_asked_is_named(written, tmp_path, text, problem):
    name = written(f"writes_{len(text)}", sample=text)
    with pytest.raises(WorkloadError) as refusal:
        load(name)
    assert problem in str(refusal.value)
    assert str(refusal.value).startswith(f"{tmp_path}/{name}.py")


@pytest.mark.parametrize("text", ["def loss_sum(*arguments): ...", "def loss_sum(a, b, *, more=0): ..."])
def test_what_can_take_the_arguments_is_let_in(written, text):
    assert load(written(f"free_{len(text)}", loss_sum=text)).loss_sum(None, None) is None


def test_equal_units_pass_and_the_first_rank_that_differs_is_named():
    require_same_units(token_labels, "window 4", [(3, 3), (0, 0)])
    message = "window 4: workload token_labels sums the losses of 1234567 units on rank 1, where the corpus counts 2:"
    with pytest.raises(WorkloadError, match=message):
        require_same_units(token_labels, "window 4", [(3, 3), (1234567, 2), (1, 2)])
