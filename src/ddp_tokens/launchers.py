"""How the ranks of one host are started: modules that take -m MODULE ARGUMENTS. No torch."""

HOST = "localhost"  # by default torch takes this host's name, which not every host can resolve, containers among them
TORCHRUN = "torch.distributed.run"
_LAUNCHERS = {
    "fork": ["ddp_tokens.launch"],
    "spawn": ["ddp_tokens.spawn"],
    "torchrun": [TORCHRUN, "--standalone", f"--local-addr={HOST}", "--nnodes=1"],
}


def module_and_options(launcher: str, ranks: int) -> list[str]:
    """What follows `python -m`."""
    return [*_LAUNCHERS[launcher], f"--nproc-per-node={ranks}"]


def shell_command(launcher: str, ranks: int) -> str:
    """As one gives it on the command line."""
    module, *options = module_and_options(launcher, ranks)
    return " ".join(["torchrun" if module == TORCHRUN else f"python -m {module}", *options])
