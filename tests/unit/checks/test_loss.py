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
    assert list(verdicts) == ["global_mean", "two_microbatches", "extra_division", "equal_losses_unequal_gradients"]
    assert {verdict.outcome for verdict in verdicts.values()} == {"pass"}
    seen = verdicts["global_mean"].observed
    assert (seen["global_mean"], seen["mean_of_means"]) == (2.5, 2.0)
    assert verdicts["two_microbatches"].observed["global_mean"] == 2.5
    assert verdicts["extra_division"].observed["divided_again"] == 1.25
    # 12 targets at +1, 36 at -1: gradients -24 and 72; (-2 + 2)/2 = 0 and 48/48 = 1.
    theta = verdicts["equal_losses_unequal_gradients"].observed
    assert (theta["loss_mean_of_means"], theta["loss_token_mean"]) == (1.0, 1.0)
    assert (theta["gradient_mean_of_means"], theta["gradient_token_mean"]) == (0.0, 1.0)


def test_a_wrong_formula_would_fail(monkeypatch):
    """The fault: a denominator that is the rank's own count, whatever is passed."""
    monkeypatch.setattr(loss, "global_token_loss", lambda local_sum, global_count, world_size: local_sum / 12)
    outcomes = {verdict.case: verdict.outcome for verdict in check_loss()}
    assert set(outcomes.values()) == {"fail"}
