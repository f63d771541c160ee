import pytest

from ddp_tokens.checks import loss
from ddp_tokens.checks.loss import check_loss, mean_of_means, token_mean


def test_both_means():
    assert token_mean((12, 108), (12, 36)) == 2.5
    assert mean_of_means((12, 108), (12, 36)) == 2.0


def test_sums_and_counts_must_belong_together():
    with pytest.raises(ValueError, match="shorter"):
        mean_of_means((12, 108), (12,))


def test_every_case_passes_and_shows_its_numbers():
    verdicts = {verdict.case: verdict for verdict in check_loss()}
    assert list(verdicts) == [
        *("global_mean", "two_microbatches", "extra_division", "equal_losses_unequal_gradients"),
        *("each_token", "each_sequence", "each_document", "each_sample", "class_weights"),
    ]
    assert {(verdict.expected, verdict.outcome) for verdict in verdicts.values()} == {("pass", "pass")}
    assert [verdict.evidence for verdict in verdicts.values()] == [{}] * 9  # the numbers are its own, no file is read
    assert verdicts["global_mean"].observed == {
        "local_loss_sums": [12.0, 108.0],
        "local_tokens": [12, 36],
        "mean_of_means": 2.0,
        "global_mean": 2.5,
    }
    assert verdicts["two_microbatches"].observed == {
        "microbatch_loss_sums": [[4.0, 8.0], [30.0, 78.0]],
        "global_mean": 2.5,
    }
    assert verdicts["extra_division"].observed == {"divided_again": 1.25, "global_mean": 2.5}
    # 12 targets at +1, 36 at -1: gradients -24 and 72; (-2 + 2)/2 = 0 and 48/48 = 1.
    assert verdicts["equal_losses_unequal_gradients"].observed == {
        "loss_mean_of_means": 1.0,
        "loss_token_mean": 1.0,
        "gradient_mean_of_means": 0.0,
        "gradient_token_mean": 1.0,
    }


def test_each_criterion_says_what_its_numbers_come_from():
    criteria = {verdict.case: verdict.criterion for verdict in check_loss()}
    assert "the global mean is 120/48 = 2.5, the mean of means (1 + 3)/2 = 2.0" in criteria["global_mean"]
    assert "two microbatches per rank, each scaled by the window's denominator" in criteria["two_microbatches"]
    assert "once more by the 2 microbatches gives 1.25, not 2.5" in criteria["extra_division"]
    assert "both losses are 1, the gradients are 0 and 1" in criteria["equal_losses_unequal_gradients"]


def test_the_same_losses_by_each_unit():
    """Sequences of means 1; 1, 2 and 13/3. Documents and rows of means 1 and 108 / 36 = 3."""
    observed = {verdict.case: verdict.observed for verdict in check_loss()}
    assert observed["each_token"]["sums_of_weighted_losses"] == pytest.approx([12, 108])
    assert observed["each_token"]["global_mean"] == pytest.approx(2.5)
    assert observed["each_sequence"]["units"] == [1, 3]
    assert observed["each_sequence"]["global_mean"] == pytest.approx((1 + 1 + 2 + 13 / 3) / 4)
    assert observed["each_document"]["sums_of_weighted_losses"] == pytest.approx([1, 3])
    assert observed["each_sample"]["global_mean"] == pytest.approx(2.0)
    # (12 * 3 + 108 / 3) / (12 * 3 + 36 / 3) = 72 / 48; each rank's own weighted mean is 1 and 3, as without weights.
    assert observed["class_weights"]["global_mean"] == 1.5
    assert observed["class_weights"]["mean_of_means"] == 2.0


def test_a_wrong_formula_would_fail(monkeypatch):
    """The fault: a denominator that is the rank's own count, whatever is passed."""
    monkeypatch.setattr(loss, "global_token_loss", lambda local_sum, global_count, world_size: local_sum / 12)
    outcomes = {verdict.case: verdict.outcome for verdict in check_loss()}
    assert set(outcomes.values()) == {"fail"}
