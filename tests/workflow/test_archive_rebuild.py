"""An archive rebuilt by its own source, end to end, with the packages that are installed here."""

import json

import pytest
import yaml

from ddp_tokens.archive.rebuild import main
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.archives import write_archive
from tests.workflow.archives import without_controls

FORMULA = "src/ddp_tokens/normalization.py"


def altered(contents, path, changes=None, config=None):
    """Without controls. `changes`: source file -> text in it and what stands in its place. `config`: fields that are
    set otherwise.
    """
    files = without_controls(contents)
    for name, (old, new) in (changes or {}).items():
        text = files[f"source/{name}"].decode()
        assert text.count(old) == 1
        files[f"source/{name}"] = text.replace(old, new)
    if config:
        settings = yaml.safe_load(files["results/tiny/config.yaml"]) | config
        files["results/tiny/config.yaml"] = yaml.safe_dump(settings, sort_keys=False)
    return write_archive(path, files)


def rebuilt(archive, folder, capsys):
    code = main("rebuild", [str(archive), "--into", str(folder), "--cores", "2", "--use-this-python"])
    return code, capsys.readouterr().out, json.loads((folder / "rebuild.json").read_text())


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Another home, and a profile that would let Snakemake build nothing."""
    (tmp_path / "home").mkdir()
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "config.yaml").write_text("dry-run: true\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(tmp_path / "profile"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path / "home"


def test_the_archive_is_confirmed(contents, tmp_path, capsys, outside):
    code, out, document = rebuilt(altered(contents, tmp_path / "tiny.zip"), tmp_path / "new", capsys)
    assert code == 0, out
    assert document["same_results"], out
    assert document["files"] == []
    assert len(document["verdicts"]) > 30
    counted = {of["folder"]: of["identical"] for of in document["folders"]}
    assert counted["config"] == counted["plan"] == counted["initial"] == 1
    assert counted["runs"] > 30
    assert "  tiny: gradients of all ranks, for each formula and dtype\n" in out
    assert "settings of" not in out
    assert "The rebuild confirms the archive; the results are the same, byte for byte" in out
    assert document["scores"]
    assert not list(outside.rglob("*")), "all that is kept lies in the folder"
    assert (tmp_path / "new" / ".cache").is_dir()


def test_a_fault_in_the_archived_source_is_named(contents, tmp_path, capsys):
    """The archive holds results of the right formula and a source with a wrong one."""
    fault = {FORMULA: ("return local_sum * world_size / global_count", "return local_sum * 1.5 / global_count")}
    code, out, document = rebuilt(altered(contents, tmp_path / "tiny.zip", fault), tmp_path / "new", capsys)
    assert code == 1
    problems = {f"{of['check']}/{of['case']}": of["problem"] for of in document["verdicts"] if of["problem"]}
    assert problems["gradient_parity/token_mean.float64.first"].startswith("was pass, expected pass, rebuilt fail")
    assert problems["resume/parameters"] == "was not reached again"
    assert "gradient_parity/token_mean.float64.first was pass, expected pass, rebuilt fail" in out
    assert "Snakemake: " in out
    assert "The rebuild does NOT confirm the archive" in out
    states = {of["name"]: of["state"] for of in document["files"]}
    assert states["results/tiny/gradients/token_mean.float64.safetensors"] == "differs"
    assert states["results/tiny/runs/continuous/history.jsonl"] == "missing"
    assert "results/tiny/plan.json" not in states


def test_an_experiment_for_gpus_says_that_it_needs_them(contents, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs that the test needs to be missing")
    archive = altered(contents, tmp_path / "tiny.zip", config={"device": "cuda"})
    with pytest.raises(ArchiveError, match=r"nothing could be built: device cuda needs 2 GPUs \(one per rank\)"):
        main("rebuild", [str(archive), "--into", str(tmp_path / "new"), "--use-this-python"])
