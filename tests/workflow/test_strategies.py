"""The whole chain where ranks hold shares: fsdp2 and zero1, from prepare to the summary."""

import json

import pytest
from safetensors.numpy import load_file

from tests.workflow.projects import TINY, build, copy_project
from tests.workflow.test_rebuild import verdicts

CHECKS = ("loss", "window", "resume", "replicas", "checkpoints", "zero_window", "evaluation")


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1"])
def test_the_chain_ends_as_expected(tmp_path, strategy):
    project = copy_project(tmp_path / "project", f"{TINY}strategy: {strategy}\n")
    build(project, "results/tiny/summary.json")
    for check in CHECKS:
        assert {verdict["outcome"] for verdict in verdicts(project, check).values()} == {"pass"}, check
    parity = verdicts(project, "gradient_parity")
    for case, verdict in parity.items():
        wrong = case.startswith("mean_of_means")
        assert (verdict["outcome"], verdict["diagnosis"]) == (("fail", ["mean_of_means"]) if wrong else ("pass", []))
    at = project / "results/tiny"
    assert json.loads((at / "settings/gradients.json").read_text())["settings"]["strategy"] == strategy
    last = at / "runs/continuous/step-0004"
    in_parts = sorted(path.name for path in last.glob("model*"))
    assert in_parts == (
        ["model-rank-0.safetensors", "model-rank-1.safetensors"] if strategy == "fsdp2" else ["model.safetensors"]
    )
    sizes = [sum(array.size for array in load_file(last / name).values()) for name in in_parts]
    assert max(sizes) < 0.6 * sum(sizes) or strategy == "zero1"
