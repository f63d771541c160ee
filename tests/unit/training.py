"""Training of a tiny model in this process, for tests of what a run leaves behind."""

import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import GeneratedCorpus, Sgd, Transformer
from ddp_tokens.corpora.generated import make
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.determinism import seed_rank
from ddp_tokens.generators import read_generators
from ddp_tokens.plan import make_plan
from ddp_tokens.start import take_start
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.helpers import TINY_CORPUS, TINY_MODEL

ROWS = {row.id: row for row in make(GeneratedCorpus(**TINY_CORPUS), 17)}
TRAINING = [row for row in ROWS.values() if row.split == "train"]
SHAPE = Shape(vocabulary=4, classes=4, positions=8)
PLAN = list(make_plan(TrainingRows(TRAINING), seed=17, steps=6, world_size=1, accumulation=1, batch=2))


def tiny_model(dtype=torch.float32, seed=0, **changes):
    """A model with the weights of `seed`; the generators of this process stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return token_labels.build_model(Transformer(**TINY_MODEL | changes), SHAPE).to(dtype)


def new_state(make_optimizer=lambda model: build_optimizer(model, Sgd()), seed=0, **changes):
    model = tiny_model(seed=seed, **changes)
    return TrainingState(model, make_optimizer(model))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))


def advance(state, until, plan=PLAN, rows=ROWS, how=None):
    """Updates of one rank with one microbatch each: DDP's wrapper is not needed for these."""
    return list(train(state.model, state, token_labels, plan, rows, World(), until, how))


def start_of(state, when_seeded=None):
    """What the state is now, as a run's record of its start; without `when_seeded`, generators count as just seeded."""
    return take_start(state, when_seeded or read_generators("cpu").digests, World())


def fresh_run(until, make_optimizer=None):
    """A run from the beginning, generators included."""
    seed_rank(17, 0)
    state = new_state(make_optimizer) if make_optimizer else new_state()
    advance(state, until)
    return state
