"""What the settings of the controls must be for each mistake to leave a trace. No torch."""

from ddp_tokens.config import Experiment, GeneratedCorpus, Sgd, Transformer
from ddp_tokens.errors import ConfigError

FILE = "config/controls.yaml"
LONGEST = 128


def require_suitable(experiment: Experiment) -> GeneratedCorpus:
    """The corpus. Raises ConfigError, naming the field, where a control could not go wrong or a case not be made."""
    corpus = experiment.corpus
    if not isinstance(corpus, GeneratedCorpus):
        raise ConfigError(f"{FILE}: field 'corpus' must be generated: the controls make rows to measure")
    dropout = experiment.model.dropout if isinstance(experiment.model, Transformer) else 0
    momentum = experiment.optimizer.momentum if isinstance(experiment.optimizer, Sgd) else 0
    needed = {
        "device": (experiment.device == "cpu", "cpu: up to four ranks share the machine"),
        "strategy": (experiment.strategy == "ddp", "ddp: what is known to go wrong is written for it"),
        "world_size": (experiment.world_size == 2, "2: other numbers of ranks come from the cases"),
        "accumulation": (experiment.accumulation > 1, "2 or more: a window must have microbatches that could be lost"),
        "steps": (experiment.steps - experiment.interrupt_at >= 3, "3 or more above interrupt_at: a run resumes twice"),
        "model.dropout": (dropout > 0, "above 0: without draws no generator could be lost"),
        "optimizer.momentum": (momentum > 0, "above 0, of kind sgd: without state none could be lost"),
        "corpus.classes": (
            corpus.classes == corpus.vocabulary,
            "corpus.vocabulary: one case ties head and embedding",
        ),
        "corpus.max_length": (corpus.max_length >= LONGEST, f"{LONGEST} or more: so long are the longest rows"),
    }
    for field, (holds, must) in needed.items():
        if not holds:
            raise ConfigError(f"{FILE}: field '{field}' must be {must}")
    return corpus
