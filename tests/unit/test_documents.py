"""docs/troubleshooting.md and CONTRIBUTING.md speak of what there is."""

import ast
import re

import pytest

from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.cli import COMMANDS, TOOLS
from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import sections_of
from ddp_tokens.sources import SOURCE_ROOT, module_path
from ddp_tokens.steps import PROJECT_ROOT, STEPS

TROUBLES = (PROJECT_ROOT / "docs" / "troubleshooting.md").read_text()
# Words of other programs, fields of files that a rank or a check writes, and cases of the environment.
OTHER_NAMES = {
    *("accumulation_steps", "broadcast_buffers", "find_unused_parameters", "loss_sum"),
    *("no_grad", "no_sync", "oom_kill", "set_epoch", "zero_grad", "global_count", "first_difference", "next_best"),
    *("gpu_0", "shared_memory", "next_best_residual", "communication_s", "reducing_backward_s", "forward_s", "data_s"),
}


def sections():
    return [Experiment, *(s for f in Experiment.model_fields.values() for s in sections_of(f.annotation))]


def fields():
    return {name for section in sections() for name in section.model_fields}


def entries(text):
    """Heading -> body, of the third level."""
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return {
        heading: re.split(r"^## ", body, flags=re.MULTILINE)[0]
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def words_of_the_program():
    """Every piece of text in the sources, f-strings in pieces, and the Makefile."""
    trees = [ast.parse(path.read_bytes()) for path in SOURCE_ROOT.rglob("*.py")]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\n".join([text for text in constants if isinstance(text, str)] + [(PROJECT_ROOT / "Makefile").read_text()])


ENTRIES = entries(TROUBLES)
WORDS = words_of_the_program()


def test_the_page_explains_every_diagnosis_and_no_other():
    tables = re.findall(r"^\| diagnosis \|.*\n\|[- |]+\n((?:\|.*\n)+)", TROUBLES, flags=re.MULTILINE)
    named = [name for table in tables for name in re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)]
    assert sorted(named) == sorted(MEANINGS)
    assert len(named) > 30


@pytest.mark.parametrize("heading", ENTRIES)
def test_an_entry_says_how_to_see_it_and_what_to_do(heading):
    body = ENTRIES[heading]
    assert "How to see it:" in body
    is_table_of_diagnoses = "| diagnosis |" in body
    is_table_of_causes = "| what was done |" in body
    assert "What to do" in body or is_table_of_diagnoses or is_table_of_causes


@pytest.mark.parametrize("heading", [heading for heading in ENTRIES if "`" in heading])
def test_a_heading_in_code_is_the_programs_own_sentence(heading):
    for sentence in re.findall(r"`([^`]+)`", heading):
        for piece in re.split(r"\d+|\.\.\.", sentence):
            assert piece.strip() in WORDS or piece.strip() in {"inconclusive", "window"}


def test_a_sentence_that_the_program_does_not_say_would_be_noticed():
    assert "is being written by " in WORDS
    assert "is being written to by " not in WORDS


@pytest.mark.parametrize("command", sorted(set(re.findall(r"ddp_tokens\.cli ([\w-]+)", TROUBLES))))
def test_each_command_exists(command):
    assert command in {*COMMANDS, *TOOLS}


@pytest.mark.parametrize("module", sorted(set(re.findall(r"-m (ddp_tokens[\w.]*)", TROUBLES))))
def test_each_module_exists(module):
    assert module_path(module) is not None


PATHS = r"(?<![\w/.])((?:src|docs|config|profiles|rules|tests|envs|scripts|workflow_scripts)/[\w/.-]*[\w/])"


def paths_in(text):
    return {path for path in re.findall(PATHS, text) if "EXP" not in path and not path.startswith("config/EXP")}


@pytest.mark.parametrize("path", sorted(paths_in(TROUBLES)))
def test_each_file_of_the_project_exists(path):
    assert (PROJECT_ROOT / path).exists()


def names_in_code(text):
    """Single words with an underscore, alone in backticks or before a colon or an equals sign."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(?:--config )?([a-z]+(?:_[a-z0-9]+)+)(?:[:=][^`]*)?`", prose))


def test_each_name_in_code_is_a_setting_a_step_a_diagnosis_or_known_to_be_another():
    named = names_in_code(TROUBLES)
    assert named - fields() - set(STEPS) - set(MEANINGS) - OTHER_NAMES == set()
    assert {"timeout_s", "threads_per_rank", "world_size"} <= named & fields()


CONTRIBUTING = (PROJECT_ROOT / "CONTRIBUTING.md").read_text()
RECIPES = {
    heading: body.split("\n## ")[0].strip() for heading, body in entries(CONTRIBUTING).items() if "Add a" in heading
}
FILES = r"`((?:Snakefile|README\.md)|(?:src|docs|config|rules|tests|workflow_scripts|results)/[\w/.]+\.\w+)`"


def test_there_are_four_recipes_and_they_come_first():
    assert list(RECIPES) == ["Add an experiment", "Add a check", "Add a control", "Add a rule"]
    assert CONTRIBUTING.index("Add a rule") < CONTRIBUTING.index("## Where things are")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_at_most_ten_lines_and_ends_with_a_command(recipe):
    lines = RECIPES[recipe].splitlines()
    assert 5 <= len(lines) <= 10
    numbers = [int(line.split(".")[0]) for line in lines if line[0].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert "`snakemake --cores 2 " in RECIPES[recipe]


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_file_that_a_recipe_names_exists(recipe):
    named = [path for path in re.findall(FILES, RECIPES[recipe]) if "NAME" not in path]
    made = {"results/controls/controls.csv"}
    assert [path for path in named if path not in made and not (PROJECT_ROOT / path).exists()] == []
    assert len(named) >= 3
    for commands in re.findall(r"`python -m pytest ([^`]+)`", RECIPES[recipe]):
        assert all((PROJECT_ROOT / path).exists() for path in commands.split())


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_name_that_a_recipe_says_stands_in_the_file_beside_it(recipe):
    """`FILE`: `NAME`, or (`FILE`), behind a name in capitals."""
    pairs = re.findall(rf"{FILES} \(`([A-Z_]{{4,}})`\)", RECIPES[recipe])
    pairs += [(path, name) for name, path in re.findall(rf"`([a-zA-Z_]+)` \({FILES}\)", RECIPES[recipe])]
    assert all(name in (PROJECT_ROOT / path).read_text() for path, name in pairs)
    assert pairs or recipe in ("Add an experiment", "Add a control")
