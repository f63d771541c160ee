from pathlib import Path

from ddp_tokens.config import Experiment
from ddp_tokens.config_docs import config_docs
from ddp_tokens.config_reading import sections_of

CONFIG_README = Path(__file__).resolve().parents[2] / "config" / "README.md"


def test_config_readme_is_what_the_definition_says():
    assert CONFIG_README.read_text() == config_docs(), "config/README.md is out of date: run `make docs`"


def test_every_field_of_every_section_is_documented():
    documented = config_docs()
    sections = [Experiment, *(s for f in Experiment.model_fields.values() for s in sections_of(f.annotation))]
    assert len(sections) > 6
    for section in sections:
        for name, field in section.model_fields.items():
            assert f"| `{name}` |" in documented
            assert field.description, f"{section.__name__}.{name} has no description"


def test_what_is_no_field_of_an_experiment_is_documented_too():
    documented = config_docs()
    for text in (
        "`base: images.yaml`",
        "## corpus, `kind: images`",
        "## model, `kind: resnet`",
        "## schedule, `kind: cosine`",
    ):
        assert text in documented
