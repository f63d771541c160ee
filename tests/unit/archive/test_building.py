import pytest

from ddp_tokens.archive.building import DEFAULT_LIMIT_MIB, archived, limit_mib
from ddp_tokens.archive.collect import require_archivable
from ddp_tokens.config import OwnRows
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.errors import ArchiveError, ConfigError
from tests.helpers import PROJECT

NAMES = ["minimum", "grammar"]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([], []),
        (["all"], []),
        (["archive"], NAMES),
        (["results/archive/digits.zip"], ["digits"]),
        (["./results//archive/a.b.zip", "results/minimum/gate.txt"], ["a.b"]),
        (["archive", "results/archive/digits.zip"], [*NAMES, "digits"]),
    ],
)
def test_the_archives_that_a_call_asks_for(targets, expected):
    assert archived(targets, NAMES) == expected


def test_the_limit_has_a_default_and_must_be_a_number_of_mib():
    assert limit_mib({}) == DEFAULT_LIMIT_MIB
    assert limit_mib({"archive_limit_mib": 1}) == 1
    for wrong in (0, -1, 1.5, "1", True, None, []):
        with pytest.raises(ConfigError, match="field 'archive_limit_mib' must be a whole number"):
            limit_mib({"archive_limit_mib": wrong})


def test_own_data_must_be_found_from_a_rebuilt_folder():
    experiment = load_experiment(PROJECT / "config" / "minimum.yaml")
    require_archivable(experiment)
    for path in ("data/rows.jsonl", "/data/rows.jsonl", "data/a..b.jsonl"):
        require_archivable(experiment.model_copy(update={"corpus": OwnRows(path=path)}))
    for path in ("../rows.jsonl", "data/../../rows.jsonl"):
        with pytest.raises(ArchiveError, match="leads out of the project's folder"):
            require_archivable(experiment.model_copy(update={"corpus": OwnRows(path=path)}))
