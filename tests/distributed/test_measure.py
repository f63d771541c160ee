"""Two real ranks measure one and two processes in turn. Asserted is what was measured, never how long it took."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ddp_tokens import measure as module
from ddp_tokens.all_reduce_sweep import REPEATS, WARM_UP, _seconds, sizes_of
from ddp_tokens.all_reduce_times import BackwardTime, by_difference, by_hook, time_buckets
from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.errors import ConfigError
from ddp_tokens.files import read_json, read_json_lines
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.measure import PROGRAM, main, on_cpu
from ddp_tokens.options import run_as_program
from ddp_tokens.plan import counts_per_rank, read_plan
from ddp_tokens.reference import gradients_of
from ddp_tokens.scaling_rows import read_all_reduces, read_reached, read_step_parts
from ddp_tokens.tensors import load_tensors
from ddp_tokens.window import accumulate
from ddp_tokens.workloads import load
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import STEPS, prepared, told_by

SCALING = {"processes": [1, 2], "repeats": 2, "windows": 3}
# embedding 4 x 8, positions 12 x 8, attention 24 x 8 + 24 + 8 x 8 + 8, feed-forward 8 x 16 + 16 + 16 x 8 + 8,
# two layer norms in the block and one after it, 16 each, head 4 x 8 + 4
PARAMETERS = 32 + 96 + 288 + 280 + 48 + 36


def measure(world, arguments):
    return run_as_program(PROGRAM, main, arguments)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    tiny = prepared(tmp_path_factory.mktemp("measured"), 2, scaling=SCALING)
    assert run_ranks(measure, 2, tiny.folder, tiny.arguments(), joined=False) == [0, 0]
    return tiny


def test_every_update_of_every_rank_is_timed_in_both_ways(measured):
    rows = read_json_lines(measured.at.timings)
    assert [(row["world_size"], row["step"], row["rank"], row["variant"]) for row in rows] == [
        (processes, step, rank, variant)
        for processes in (1, 2)
        for step in range(1, STEPS + 1)
        for rank in range(processes)
        for variant in ("difference", "hook")
    ]


def test_the_bytes_of_an_update_are_those_of_all_its_gradients(measured):
    [parameters] = {sum(t.numel() for t in load_tensors(measured.at.initial).values())}
    assert parameters == read_json(measured.at.machine)["model_params"] == PARAMETERS
    assert {(row["bytes"], row["buckets"]) for row in read_json_lines(measured.at.timings)} == {(4 * PARAMETERS, 1)}


def test_an_update_is_taken_apart_on_one_process_and_on_two(measured):
    """Two updates of warm-up, then those that were asked for, three: updates 3 to 5 of each rank."""
    rows = read_step_parts(measured.at.step_parts)
    assert [(row.processes, row.step, row.rank) for row in rows] == [
        (processes, step, rank) for processes in (1, 2) for step in (3, 4, 5) for rank in range(processes)
    ]
    assert all(row.forward_s > 0 and row.backward_s > 0 and row.communication_s > 0 for row in rows)
    assert all(row.optimizer_s > 0 and row.data_s > 0 for row in rows)
    assert all(row.other_s > 0 for row in rows), "no second is counted twice"


def test_all_reduces_of_several_sizes_are_timed_the_gradients_own_among_them(measured):
    rows = read_all_reduces(measured.at.all_reduces)
    assert [(row.processes, row.bytes, row.repeat) for row in rows] == [
        (2, size, repeat)
        for size in (4 * PARAMETERS, *(4096 * 4**power for power in range(7)))
        for repeat in range(1, REPEATS + 1)
    ]
    assert len({second for row in rows for second in row.seconds}) > len(rows), "each rank has times of its own"


@pytest.mark.parametrize(("gradient", "sizes"), [(4096, 7), (10**6, 8), (10**8, 8)])
def test_the_sweep_holds_each_size_once(gradient, sizes):
    found = sizes_of(gradient)
    assert gradient in found
    assert found == sorted(set(found))
    assert (len(found), found[0], max(found[-1], 2**24)) == (sizes, 4096, max(gradient, 2**24))


def sums_of_a_sweep(world):
    """By size, what one all-reduce of the sweep's kind leaves: it really goes over all ranks."""
    timed = []
    original = dist.all_reduce

    def watched(tensor, **options):
        original(tensor.fill_(world.rank + 1), **options)
        timed.append([tensor.numel() * tensor.element_size(), float(tensor[-1])])

    dist.all_reduce = watched
    seconds = _seconds(64, dist.group.WORLD)
    return timed[-1], len(timed), len(seconds)


def test_what_is_timed_is_a_sum_over_the_ranks(tmp_path):
    assert run_ranks(sums_of_a_sweep, 2, tmp_path) == [[[64, 3.0], WARM_UP + REPEATS, REPEATS]] * 2


def test_a_workload_that_does_not_count_is_not_timed_to_an_accuracy(measured):
    assert read_reached(measured.at.time_to_accuracy) == []
    manifest = read_json(measured.at.scaling / "manifest.json")
    assert manifest["time_to_accuracy"]["accuracy"] is None


IMAGES = {
    "corpus": {"kind": "images", "train": 25, "validation": 3, "test": 5, "classes": 2, "size": 8, "noise": 0.1},
    "workload": "images",
    "model": {"kind": "resnet", "stages": [4], "blocks": 1},
    "sharding": "by_epoch",
    "workers": 1,
    "steps": 12,
    "scaling": SCALING | {"repeats": 1, "accuracy": 0.5},
}


def test_images_are_timed_to_an_accuracy_on_one_process_and_on_two(tmp_path):
    """Accuracy over the last three updates; at least three are made, and both get there before the plan's end."""
    tiny = prepared(tmp_path, 2, **IMAGES)
    assert run_ranks(measure, 2, tiny.folder, tiny.arguments(), joined=False) == [0, 0]
    runs = read_reached(tiny.at.time_to_accuracy)
    assert [(run.processes, run.repeat, run.reached) for run in runs] == [(1, 1, True), (2, 1, True)]
    assert all(run.accuracy >= 0.5 and 3 <= run.updates < 12 for run in runs)
    manifest = read_json(tiny.at.scaling / "manifest.json")
    assert manifest["images_per_sec_2proc"] > 0
    assert "images/s" in manifest["lesson_notes"]
    assert "token" not in manifest["lesson_notes"]
    assert manifest["time_to_accuracy"]["2proc"]["reached"]
    parts = read_step_parts(tiny.at.step_parts)
    assert {row.processes for row in parts} == {1, 2}
    assert all(row.forward_s > 0 and row.other_s > 0 for row in parts), "also of a model with buffers"


def test_a_norm_that_the_cpu_cannot_compute_is_refused_in_one_sentence():
    wrong = Experiment(
        name="x",
        interrupt_at=3,
        **IMAGES | {"device": "cuda", "drop_last": True, "model": {"kind": "resnet", "norm": "sync_batch"}},
    )
    with pytest.raises(ConfigError, match="scaling is measured on the CPU, which torch's SyncBatchNorm refuses: take"):
        on_cpu(wrong)


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1"])
def test_another_strategy_is_not_measured_as_if_it_were_ddp(strategy):
    said = f"scaling measures DistributedDataParallel, not strategy {strategy}: set it to ddp"
    with pytest.raises(ConfigError, match=said):
        on_cpu(Experiment(name="x", strategy=strategy))


def test_times_are_positive_but_for_the_difference_of_two(measured):
    rows = read_json_lines(measured.at.timings)
    assert all(row["compute_s"] > 0 for row in rows)
    assert all(row["communication_s"] > 0 for row in rows if row["variant"] == "hook")


def test_strong_runs_hold_the_windows_of_the_plan_and_weak_ones_a_share_per_process(measured):
    """Derived from plan.json: windows 1 to 3 whole; weak, all 6 of their shares for two processes, 3 for one."""
    rows, lock = read_corpus(measured.at.rows, measured.at.lock)
    counts = [counts_per_rank(w, rows) for w in read_plan(measured.at.plan, lock["corpus_sha256"], {})]
    windows = sum(map(sum, counts[:3]))
    assert counts[0][0] != counts[0][1], "equal ranks would not tell shares apart"
    expected = {
        ("strong", 1): windows,
        ("strong", 2): windows,
        ("weak", 1): sum(counts[0]) + counts[1][0],
        ("weak", 2): windows,
    }
    runs = read_json_lines(measured.at.runs_in_turn)
    assert [(run["scaling"], run["processes"], run["repeat"]) for run in runs] == [
        (scaling, processes, repeat) for scaling in ("strong", "weak") for processes in (1, 2) for repeat in (1, 2)
    ]
    for run in runs:
        assert run["units"] == expected[run["scaling"], run["processes"]]
        assert run["updates"] == 3
        assert run["seconds"] > 0


def test_the_measured_weights_moved_and_are_those_of_both_ranks(measured):
    states = [load_tensors(measured.at.measured_state(rank)) for rank in range(2)]
    initial = load_tensors(measured.at.initial)
    assert all(torch.equal(states[0][name], states[1][name]) for name in initial)
    assert any(not torch.equal(states[0][name], tensor) for name, tensor in initial.items())


def test_ddp_is_measured_as_it_comes(measured):
    machine = read_json(measured.at.machine)
    assert machine["find_unused_parameters"] is machine["gradient_as_bucket_view"] is False
    assert (machine["bucket_cap_mb"], machine["backend"], machine["threads_per_rank"]) == (25, "gloo", 1)
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["torch"] == torch.__version__


def measure_and_tell(world, arguments):
    return told_by(PROGRAM, main, arguments)


def test_a_wrong_number_of_ranks_is_refused(measured):
    """By the ranks that were started, once they have met."""
    arguments = measured.arguments("--scaling.processes", "[1,2,4]")
    for rank in run_ranks(measure_and_tell, 2, measured.folder, arguments, joined=False):
        assert rank["code"] == 2
        assert rank["said"].partition(": ")[2] == (
            "2 ranks were started but 4 are measured, the most of scaling.processes and world_size: start 4 ranks\n"
        )


def test_more_processes_than_rows_in_a_window_leave_the_last_without():
    assert module.plan_for("strong", [[[["a"]], [["b"]]]], 3) == [[[["a"]], [["b"]], [[]]]]


def measure_with_one_process_slow(world, arguments, seconds):
    original = module.time_updates

    def slow(of, processes, group):
        if of.world.rank < processes == 1:
            time.sleep(seconds)
        return original(of, processes, group)

    module.time_updates = slow
    return run_as_program(PROGRAM, main, arguments)


def test_ranks_without_a_part_wait_longer_than_for_a_collective(tmp_path):
    tiny = prepared(tmp_path, 2, scaling={"processes": [1, 2], "repeats": 1, "windows": 1}, timeout_s=3)
    assert run_ranks(measure_with_one_process_slow, 2, tmp_path, tiny.arguments(), 4.5, joined=False) == [0, 0]
    assert len(read_json_lines(tiny.at.timings)) == 2 * STEPS * (1 + 2)


def gradients_of_both_ways(world, config, root):
    """By name: what plain DDP leaves, what is left after a timed backward, and what the timed hook leaves."""
    experiment, at = load_experiment(config), Layout(Path(root))
    known, workload = read_prepared(experiment, at), load(experiment.workload)
    batches = [workload.collate([known.rows[i] for i in ids]) for ids in known.plan[0][world.rank]]

    def wrapped():
        bare = initial_model(experiment, workload, known.shape, at.initial, "cpu", torch.float32)
        return wrap_for_ddp(bare.eval(), keep_first_layout=False)

    def updates(model, progress):
        for _ in range(3):
            yield accumulate(model, workload, batches, lambda loss: loss / 7, progress)

    plain, difference, hooked, backward = wrapped(), wrapped(), wrapped(), BackwardTime()
    of_plain, of_difference, of_hook = (updates(model, backward) for model in (plain, difference, hooked))
    times = time_buckets(hooked, None)
    for _ in range(3):  # DDP lays its buckets out anew after the first
        next(of_plain)
        by_difference(difference, workload, batches[-1], of_difference, backward)
        compute, communication, size, buckets = by_hook(times, of_hook, backward)
    left = [gradients_of(model.module) for model in (plain, difference, hooked)]
    with plain.no_sync():
        accumulate(plain, workload, batches, lambda loss: loss / 7)
    own = gradients_of(plain.module)
    return {
        "same": [all(torch.equal(left[0][name], other[name]) for name in left[0]) for other in left[1:]],
        "own": all(torch.equal(left[0][name], own[name]) for name in own),
        "reduced": [len(times.ready), len(times.reduced), buckets, size],
        "in_order": all(ready < reduced for ready, reduced in zip(times.ready, times.reduced, strict=True)),
        "positive": compute > 0 and communication > 0,
    }


def test_timing_changes_no_gradient(measured):
    """Bit for bit, on both ranks; and the ranks' own gradients are others, so something was averaged."""
    config, root = str(measured.config), str(measured.at.root)
    for rank in run_ranks(gradients_of_both_ways, 2, measured.folder, config, root):
        assert rank == {
            "same": [True, True],
            "own": False,
            "reduced": [1, 1, 1, 4 * PARAMETERS],
            "in_order": True,
            "positive": True,
        }
