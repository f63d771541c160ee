from pathlib import Path

import pytest

from ddp_tokens.archive.collect import config_file, wall_times, without_host
from ddp_tokens.config_reading import load_experiment
from tests.helpers import PROJECT

CONFIGS = sorted(path for path in (PROJECT / "config").glob("*.yaml") if path.stem != "config")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_experiment_is_read_again_from_its_settings(path, tmp_path):
    experiment = load_experiment(path)
    again = tmp_path / path.name
    again.write_text(config_file(experiment))
    assert load_experiment(again) == experiment


def test_one_of_them_counts_in_epochs():
    """Whose updates follow, and must not be given."""
    experiment = load_experiment(PROJECT / "config" / "images_small.yaml")
    assert experiment.epochs is not None
    assert "\nsteps:" not in config_file(experiment)
    assert experiment.steps > 0


def test_hosts_and_processes_are_left_out_wherever_they_stand():
    told = {"host": "a", "cores": 2, "dual": {"processes": [{"rank": 0, "host": "a", "pid": 3, "uuid": "GPU-1"}]}}
    assert without_host(told) == {"cores": 2, "dual": {"processes": [{"rank": 0}]}}
    assert told["host"] == "a"  # what was given is left as it is


def test_times_are_those_of_snakemakes_benchmarks(tmp_path):
    folder = tmp_path / "minimum"
    (folder / "benchmarks").mkdir(parents=True)
    columns = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
    (folder / "benchmarks" / "continuous.tsv").write_text(
        f"{columns}29.36\t0:00:29\t962.92\t1\t1\t1\t0\t0\t34\t11.66\n"
    )
    (folder / "benchmarks" / "a.tsv").write_text(f"{columns}0.44\t0:00:00\t-\t-\t-\t-\t-\t-\t-\t-\n")
    assert wall_times([folder, Path("missing")]).splitlines() == [
        "experiment,rule,seconds,cpu_seconds,max_rss_mib",
        "minimum,a,0.44,-,-",
        "minimum,continuous,29.36,11.66,962.92",
    ]
