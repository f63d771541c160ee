"""ddp_tokens.train in an environment with another torch, as far as a program can tell."""

import sys

import torch

from ddp_tokens.options import run_as_program

torch.__version__ = "2.12.0"

if __name__ == "__main__":
    from ddp_tokens.train import PROGRAM, main

    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
