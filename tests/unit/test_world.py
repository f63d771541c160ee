import re

import pytest

from ddp_tokens.errors import LaunchError
from ddp_tokens.world import World, require_size, world_from_environment

ENVIRONMENT = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_the_variables_become_a_value():
    assert world_from_environment(ENVIRONMENT, "cpu", 4) == World(rank=3, local_rank=1, size=4, device="cpu")


def test_a_rank_takes_the_gpu_of_its_local_rank():
    assert world_from_environment(ENVIRONMENT, "cuda", 4).device == "cuda:1"


def test_one_process_is_a_world_too():
    assert (World().rank, World().size, World().device) == (0, 1, "cpu")


def test_rank_0_is_the_main_one():
    assert World(rank=0, size=2).is_main
    assert not World(rank=1, size=2).is_main


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_missing_variable_is_named(name):
    environment = {key: value for key, value in ENVIRONMENT.items() if key != name}
    with pytest.raises(LaunchError, match=rf"^{name} not set: start this module with torchrun.*--nproc-per-node=4"):
        world_from_environment(environment, "cpu", 4)


def test_all_missing_variables_are_named():
    with pytest.raises(LaunchError, match=re.escape("RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set")):
        world_from_environment({}, "cpu", 2)


def test_another_number_of_ranks_is_refused():
    with pytest.raises(LaunchError, match="4 ranks were started but the experiment says world_size 2: start 2 ranks"):
        require_size(world_from_environment(ENVIRONMENT, "cpu", 2), 2)
    require_size(world_from_environment(ENVIRONMENT, "cpu", 4), 4)
