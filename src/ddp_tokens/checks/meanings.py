"""What a diagnosis means, in one sentence for a reader who does not know the code."""

from collections.abc import Sequence

from ddp_tokens import formulas, term_formulas
from ddp_tokens.checks import evaluation, gradient_formulas, replicas, resume_diagnosis, window

MEANINGS = {
    **formulas.MEANINGS,
    **term_formulas.MEANINGS,
    gradient_formulas.LOSS_SCALE: "the right gradient times a power of two: a loss scale that was not undone",
    gradient_formulas.SCALED: "the right direction in a length that no known mistake gives",
    gradient_formulas.OWN_STATISTICS: "each microbatch is normalized with its own statistics: another function "
    "than one process computes",
    gradient_formulas.ANOTHER_UNIT: "the mean over another unit than the one that was chosen, such as over tokens "
    "where each sequence was to count the same",
    gradient_formulas.WEIGHTS_IGNORED: "the weights of tokens or classes are not in the loss",
    window.WEIGHTS_UPDATED_INSIDE: "weights are updated between microbatches",
    window.NEVER_REDUCED: "ranks never exchange their gradients",
    window.REDUCED_EVERY_TIME: "no_sync has no effect: forward stands outside of it, or there is none",
    window.ARMED_EARLY: "a synchronized forward without its backward makes a microbatch inside no_sync reduce",
    window.CLEARED_INSIDE: "gradients of earlier microbatches are cleared",
    resume_diagnosis.ANOTHER_CORPUS: "the rows are not those that the interrupted run was trained on",
    resume_diagnosis.RANK_FILES_SWAPPED: "a rank loads the files of another",
    resume_diagnosis.POSITION_OFF_BY_ONE: "the first window after the resume is skipped",
    resume_diagnosis.POSITION_RESET: "the data starts again from the first window",
    resume_diagnosis.GENERATORS_NOT_RESTORED: "the generators stand where a new run's stand",
    resume_diagnosis.ONLY_SEED_RESTORED: "the generators are seeded again instead of being restored",
    resume_diagnosis.DRAWN_FROM_AFTER_RESTORING: "numbers are drawn after the generators were restored",
    resume_diagnosis.OPTIMIZER_STATE_LOST: "the optimizer starts without its state, such as momentum",
    resume_diagnosis.SCHEDULE_LOST: "the schedule of the learning rate starts anew",
    resume_diagnosis.SCALER_LOST: "the loss scale is that of a new run, so that updates overflow and are skipped again",
    resume_diagnosis.HISTORY_NOT_CONTINUED: "the history starts anew at the resume",
    resume_diagnosis.SUMMED_IN_ANOTHER_ORDER: "everything that was restored is right, and the weights differ by "
    "rounding: ranks add gradients in another order than before",
    replicas.WEIGHTS_DIFFER_AT_START: "ranks hold other weights before the first update",
    replicas.RANKS_DRIFT_APART: "ranks start alike and end with other weights",
    replicas.BUFFERS_DRIFT_APART: "parameters are equal, buffers such as the running statistics of BatchNorm are not",
    evaluation.PADDED_DUPLICATES: "a sampler repeats rows until all ranks have the same number",
    evaluation.MEAN_OF_BATCH_MEANS: "means of batches are averaged, whatever the batches hold",
    evaluation.MEAN_OF_RANK_MEANS: "means of ranks are averaged, whatever the ranks hold",
}


def meaning_of(diagnosis: Sequence[str]) -> str:
    """One phrase for each name that is known here; empty where none is."""
    return "; or ".join(MEANINGS[name] for name in diagnosis if name in MEANINGS)
