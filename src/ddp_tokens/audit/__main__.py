"""torchrun --standalone --nproc-per-node=2 -m ddp_tokens.audit --loss causal-lm -- train.py"""

import sys

from ddp_tokens.audit.command import PROGRAM, main
from ddp_tokens.options import run_as_program

if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
