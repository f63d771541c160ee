import math

import pytest
import torch

from ddp_tokens import workloads
from ddp_tokens.checkpoint import TrainingState, save
from ddp_tokens.config import AdamW, Transformer
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, supervised, supervised_in
from ddp_tokens.errors import WorkloadError
from ddp_tokens.reference import initial_weights, reference_gradient
from ddp_tokens.tensors import load_tensors, load_weights, weights_of
from ddp_tokens.trainer import build_optimizer
from ddp_tokens.workloads import causal_lm
from ddp_tokens.world import World
from tests.helpers import TINY_MODEL, next_token_row, tiny_experiment

# As in test_token_labels: float64 sums that are taken in another order agree to about 1e-13, with a margin of ten.
REORDERED = 1e-12

SHAPE = Shape(vocabulary=7, classes=7, positions=8)
LONG, SHORT, LONE = (
    next_token_row("long", 0, 3, 1, 2, 5, 3),
    next_token_row("short", 2, 6, 1),
    next_token_row("lone", 4),
)
ROWS = [LONG, SHORT, LONE]


def tiny_model(dtype=torch.float32, seed=0, scale=10.0, **changes):
    """`scale`: GPT-2's weights are so small that logits hardly differ; larger ones make every path count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = causal_lm.build_model(Transformer(**TINY_MODEL | changes), SHAPE).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
    return model


def loss_of(model, rows):
    batch = causal_lm.collate(rows)
    return causal_lm.loss_sum(causal_lm.forward(model, batch), batch)


def test_it_is_loaded_by_its_name():
    assert workloads.load("causal_lm") is causal_lm


def test_a_tied_weight_is_counted_once():
    """Width 8, feed-forward 8, 1 block, 7 tokens, 8 positions. Embeddings: 7 x 8 and 8 x 8, so 120. Block: two
    LayerNorms 2 x 16, qkv 8 x 24 + 24, projection 64 + 8, expansion 64 + 8, contraction 64 + 8, so 464. Final
    LayerNorm: 16. The head, 56 more if it were its own, adds nothing.
    """
    model = tiny_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 120 + 464 + 16
    assert model.head.weight is model.embedding.weight
    assert model.head.bias is None


def test_a_tied_weight_is_saved_once_and_stays_tied():
    model, other = tiny_model(seed=0), tiny_model(seed=1)
    weights = weights_of(model)
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert "embedding.weight" in weights
    assert "head.weight" not in weights
    assert not torch.equal(other.embedding.weight, model.embedding.weight)
    load_weights(other, weights)
    assert torch.equal(other.head.weight, model.embedding.weight)
    assert other.head.weight is other.embedding.weight


def test_a_checkpoint_holds_the_tied_weight_and_its_moments_once(tmp_path):
    """AdamW counts it as one parameter, too: two moments and a step for each of the 16 parameters."""
    model = tiny_model()
    state = TrainingState(model, build_optimizer(model, AdamW()))
    loss, units = loss_of(model, ROWS)
    (loss / units).backward()
    state.optimizer.step()
    save(tmp_path / "step-0001", state, {}, World())
    names = {name for name, _ in model.named_parameters()}
    assert set(load_tensors(tmp_path / "step-0001" / "model.safetensors")) == names
    assert len(state.optimizer.state) == len(names) == 16


def test_a_reference_gradient_holds_the_tied_weight_once():
    model = tiny_model(torch.float64)
    gradient = reference_gradient(model, causal_lm, ROWS)
    assert set(gradient) == set(weights_of(model))
    assert all(torch.count_nonzero(tensor) for tensor in gradient.values())


@pytest.mark.parametrize(("token", "role"), [(0, "input only"), (6, "input and label"), (3, "twice"), (2, "both rows")])
def test_a_reference_gradient_of_the_tied_weight_is_what_a_small_step_says(token, role):
    """(f(w + h) - f(w - h)) / 2h with h = 1e-5: h^2 times a third derivative (at most about 1000 here) is 1e-7 / 6, and
    the rounding of f, 1e-15 / h, is less. The token appears under the roles named, so both uses of the weight count.
    """
    model = tiny_model(torch.float64, scale=5.0).eval()
    gradient = reference_gradient(model, causal_lm, ROWS)["embedding.weight"]
    weight, h = model.embedding.weight, 1e-5
    for column in (0, 5):
        values = []
        for step in (h, -h):
            with torch.no_grad():
                weight[token, column] += step
                values.append(sum(float(loss_of(model, [row])[0]) for row in ROWS) / supervised_in(ROWS))
                weight[token, column] -= step
        slope = (values[0] - values[1]) / (2 * h)
        assert abs(slope) > 1e-3, role
        assert float(gradient[token, column]) == pytest.approx(slope, abs=1e-7)


def test_both_uses_of_the_tied_weight_add_to_its_gradient():
    """With a head of its own of the same values, the two gradients add up to that of the tied weight."""
    tied, own_head = tiny_model(torch.float64), tiny_model(torch.float64)
    own_head.head.weight = torch.nn.Parameter(own_head.embedding.weight.detach().clone())
    together, apart = (reference_gradient(model, causal_lm, ROWS) for model in (tied, own_head))
    both = apart["embedding.weight"] + apart["head.weight"]
    assert min(float(apart[name].norm()) for name in ("embedding.weight", "head.weight")) > 0.01
    assert torch.allclose(together["embedding.weight"], both, rtol=0, atol=REORDERED)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_output_depends_on_a_later_token(dtype, training):
    """Bit for bit, whatever token j becomes: an attention weight on a later position is exactly 0. Each output from j
    on does depend on it. Dropout, where it is on, is drawn alike for both.
    """
    model = tiny_model(dtype).train(training)
    tokens = torch.tensor([[0, 3, 1, 2, 5, 3]])
    for j in range(6):
        outputs = []
        for token in (int(tokens[0, j]), 6):
            changed = tokens.clone()
            changed[0, j] = token
            torch.manual_seed(1)
            outputs.append(model(changed))
        before, after = outputs
        assert before.dtype == dtype
        assert torch.equal(before[:, :j], after[:, :j])
        assert all(not torch.equal(before[:, place], after[:, place]) for place in range(j, 6))


# Names of a block's parts in torch's own encoder layer.
SAME_PART = {
    "attention_norm": "norm1",
    "qkv": "self_attn.in_proj",
    "projection": "self_attn.out_proj",
    "feed_forward_norm": "norm2",
    "expansion": "linear1",
    "contraction": "linear2",
}


def test_a_block_is_torchs_pre_norm_layer_with_gelu_and_a_causal_mask():
    block = tiny_model(torch.float64).blocks[0].eval()
    torchs = torch.nn.TransformerEncoderLayer(
        8, 2, 8, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    ).eval()
    weights = {}
    for name, parameter in block.named_parameters():
        part, kind = name.split(".")
        torch.nn.init.normal_(parameter)
        weights[f"{SAME_PART[part]}{'_' if part == 'qkv' else '.'}{kind}"] = parameter.detach()
    torchs.load_state_dict(weights)
    hidden = torch.randn(3, 5, 8, dtype=torch.float64)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.allclose(block(hidden), torchs(hidden, src_mask=later), rtol=REORDERED, atol=REORDERED)


def test_each_position_counts_for_itself():
    """The same token at another place gives another output: there are position embeddings."""
    outputs = tiny_model().eval()(torch.tensor([[2, 2, 2]]))
    assert len({tuple(outputs[0, place].tolist()) for place in range(3)}) == 3


def test_padding_does_not_change_the_loss_of_a_row():
    model = tiny_model(torch.float64).eval()
    batch = causal_lm.collate(ROWS)
    assert batch.padding.sum(1).tolist() == [0, 3, 5]
    together, units = causal_lm.loss_sum(causal_lm.forward(model, batch), batch)
    one_by_one = [loss_of(model, [row]) for row in ROWS]
    assert units == sum(of_row for _, of_row in one_by_one)
    assert together.item() == pytest.approx(sum(loss.item() for loss, _ in one_by_one), rel=REORDERED)


def test_what_stands_in_the_padding_does_not_matter():
    """Bit for bit: padding stands to the right, where no position of the row looks, and has no label."""
    model = tiny_model().eval()
    batch = causal_lm.collate(ROWS)
    before, _ = causal_lm.loss_sum(causal_lm.forward(model, batch), batch)
    batch.tokens[batch.padding] = 6
    after, _ = causal_lm.loss_sum(causal_lm.forward(model, batch), batch)
    assert torch.equal(before, after)


def test_a_row_of_n_tokens_has_n_minus_1_units():
    """6, 3 and 1 tokens: 5 + 2 + 0."""
    assert [supervised(row) for row in ROWS] == [5, 2, 0]
    assert loss_of(tiny_model(), ROWS)[1] == supervised_in(ROWS) == 7


def test_the_loss_of_a_model_that_can_be_computed_by_hand():
    """The final LayerNorm gives (1, 0, 0, ...) everywhere, so that the logit of a token is the first entry of its
    embedding: ln 1, ln 2, ln 5, and far below for the others. The chances are then 1/8, 2/8 and 5/8, and the labels
    2, 2, 1, 0 cost 2 ln(8/5) + ln 4 + ln 8.
    """
    model = tiny_model(torch.float64).eval()
    logits = [math.log(1), math.log(2), math.log(5), -99, -99, -99, -99]
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.zero_()
        model.norm.bias[0] = 1.0
        model.embedding.weight[:, 0] = torch.tensor(logits, dtype=torch.float64)
    loss, units = loss_of(model, [next_token_row("a", 0, 2, 2, 1), next_token_row("b", 4, 0)])
    assert units == 4
    # exp(-99) is below 1e-42; the rest is rounded some ten times.
    assert loss.item() == pytest.approx(2 * math.log(8 / 5) + math.log(4) + math.log(8), rel=1e-14)


def test_the_loss_of_the_first_weights_is_that_of_a_guess():
    """GPT-2's weights are small: after the LayerNorm, logits are sums of 8 with a standard deviation of 0.02 sqrt(8) =
    0.057. Four of these are 0.23, and a token costs ln 7 to within that.
    """
    loss, units = loss_of(tiny_model(scale=1.0).eval(), ROWS)
    assert loss.item() / units == pytest.approx(math.log(7), abs=0.23)


class ShiftsAgain:
    """The known mistake of many language models: outputs are moved against labels that are already the next token."""

    collate, forward = staticmethod(causal_lm.collate), staticmethod(causal_lm.forward)

    @staticmethod
    def loss_sum(outputs, batch):
        later = batch.labels[:, 1:]
        loss = torch.nn.functional.cross_entropy(
            outputs[:, :-1].flatten(0, 1), later.flatten(), ignore_index=UNSUPERVISED, reduction="sum"
        )
        return loss, int((later != UNSUPERVISED).sum())


def test_labels_that_are_shifted_again_are_refused():
    """Rows of 6 and 3 tokens have 5 + 2 units; shifted again, 4 + 1."""
    message = (
        "window 2: workload ShiftsAgain sums the losses of 5 units on rank 0, where the corpus counts 7: let its "
        "loss_sum cover the supervised units and no others"
    )
    with pytest.raises(WorkloadError) as refusal:
        reference_gradient(tiny_model(), ShiftsAgain(), [LONG, SHORT], window="window 2")
    assert str(refusal.value) == message
    assert reference_gradient(tiny_model(), causal_lm, [LONG, SHORT], window="window 2")


TOKENS = (3, 5, 1, 5)
WHAT_TO_DO = ": shift the labels by one, or give rows without labels and corpus.labels: next_token"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((5, 1, 3, -100), "position 2: workload causal_lm predicts the next token, which is 5, but the label is 3"),
        ((-100, 3, 5, 1), "position 1: workload causal_lm predicts the next token, which is 1, but the label is 3"),
        (
            (3, 5, 1, 5),
            "position 0: workload causal_lm predicts the next token, which is 5, but the label is 3 (the labels are "
            "the tokens themselves, not shifted)",
        ),
        (
            (-100, 5, 1, 5),
            "position 1: workload causal_lm predicts the next token, which is 1, but the label is 5 (the labels are "
            "the tokens themselves, not shifted)",
        ),
    ],
    ids=["one wrong", "shifted the other way", "copies", "copies after a prompt"],
)
def test_labels_that_are_not_the_next_tokens_are_refused(labels, said):
    """Otherwise such a model learns in silence: to copy, where the labels are the tokens. The row is named."""
    with pytest.raises(WorkloadError) as refusal:
        causal_lm.collate([LONG, Row("x", "train", TOKENS, labels)])
    assert str(refusal.value) == f"row 'x', {said}{WHAT_TO_DO}"


def test_the_last_label_may_come_from_a_longer_text():
    """What follows the last token of a row is not in the row."""
    rows = [Row("cut", "train", TOKENS, (5, 1, 5, 2)), Row("one", "train", (4,), (0,))]
    assert causal_lm.collate(rows).units == 5


@pytest.mark.parametrize(
    ("labels", "units"), [((5, 1, 5, -100), 3), ((-100, -100, 5, -100), 1), ((5, -100, 5, -100), 2), ((-100,) * 4, 0)]
)
def test_positions_without_a_label_will_do_anywhere(labels, units):
    batch = causal_lm.collate([Row("x", "train", TOKENS, labels)])
    assert batch.labels.tolist() == [list(labels)]
    assert batch.units == units


def test_a_reference_gradient_refuses_labels_that_are_the_tokens():
    row = Row("x", "train", TOKENS, TOKENS)
    with pytest.raises(WorkloadError, match=r"row 'x', position 0: .*the labels are the tokens themselves"):
        reference_gradient(tiny_model(), causal_lm, [LONG, row])


def test_labels_that_are_no_tokens_are_refused():
    message = (
        "workload causal_lm predicts tokens, but the corpus has 8 classes of labels and a vocabulary of only 7 tokens: "
        "let each label be the token that comes next, or take workload token_labels"
    )
    with pytest.raises(WorkloadError) as refusal:
        causal_lm.build_model(Transformer(**TINY_MODEL), Shape(vocabulary=7, classes=8, positions=8))
    assert str(refusal.value) == message


def test_fewer_classes_than_tokens_will_do():
    """A token that only ever begins a row is never a label."""
    model = causal_lm.build_model(Transformer(**TINY_MODEL), Shape(vocabulary=7, classes=5, positions=8))
    assert model(torch.tensor([[0, 1]])).shape == (1, 2, 7)


def test_the_first_weights_are_gpt_2s():
    """Standard deviations over 8192 or more values are within 5 % (six times their own, 0.78 %); residual projections
    have 0.02 / sqrt(2 x 3).
    """
    torch.manual_seed(0)
    settings = Transformer(width=128, layers=3, heads=4, feed_forward=256)
    model = causal_lm.build_model(settings, Shape(vocabulary=64, classes=64, positions=64))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            adds = name.endswith(("projection.weight", "contraction.weight"))
            assert float(parameter.detach().std()) == pytest.approx(0.02 / math.sqrt(6) if adds else 0.02, rel=0.05), (
                name
            )
            assert abs(float(parameter.detach().mean())) < 0.0015, name
        elif name.endswith("norm.weight"):
            assert bool((parameter == 1).all()), name
        else:
            assert name.endswith("bias"), name
            assert not parameter.any(), name


def test_the_first_weights_follow_the_seed():
    first, again, other = (
        initial_weights(tiny_experiment(seed=seed), causal_lm, SHAPE)["embedding.weight"] for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model = tiny_model(dropout=0.5)
    training = [float(loss_of(model.train(), ROWS)[0].detach()) for _ in range(2)]
    evaluating = [float(loss_of(model.eval(), ROWS)[0].detach()) for _ in range(2)]
    assert training[0] != training[1]
    assert evaluating[0] == evaluating[1]


def test_dropout_falls_on_the_embeddings_and_on_both_branches():
    model = tiny_model(dropout=0.3).train()
    fallen = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda *_, name=name: fallen.append(name))
    model(torch.tensor([[0, 1, 2]]))
    assert fallen == ["dropout", "blocks.0.dropout", "blocks.0.dropout"]


def test_a_batch_without_a_supervised_token_has_loss_zero_and_gradient_zero():
    model = tiny_model()
    loss, units = loss_of(model, [row.unsupervised() for row in ROWS])
    assert (loss.item(), units) == (0.0, 0)
    loss.backward()
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.parameters())


def test_metrics_count_the_next_tokens_that_are_right():
    batch = causal_lm.collate([SHORT, Row("b", "test", (0, 1), (1, UNSUPERVISED))])
    logits = torch.zeros(2, 3, 7)
    logits[0, 0, 6] = logits[0, 1, 2] = logits[1, 0, 1] = 1.0  # right, wrong (1 comes next), right
    assert causal_lm.metrics(logits, batch) == {
        "loss_sum": float(causal_lm.loss_sum(logits, batch)[0]),
        "correct": 2,
        "units": 3,
    }


STOP = frozenset({6})


def sampled(model, seed=1, first_token=0, longest=8, stop=STOP):
    return causal_lm.sample(model, first_token, torch.Generator().manual_seed(seed), longest, stop)


def model_that_prefers(chances):
    """The next token's chances are the same everywhere: the final LayerNorm gives (1, 0, 0, ...)."""
    model = tiny_model()
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.zero_()
        model.norm.bias[0] = 1.0
        model.embedding.weight[:, 0] = torch.tensor(chances).log().clamp(min=-1e4)
    return model


def test_a_sample_begins_with_the_first_token_and_ends_with_a_stop_or_the_longest():
    """Tokens 1 and 6 with chances 3/4 and 1/4, where 6 ends the sequence."""
    model = model_that_prefers([0, 0.75, 0, 0, 0, 0, 0.25])
    lengths = set()
    for seed in range(40):
        tokens = sampled(model, seed, first_token=3)
        assert tokens[0] == 3
        assert set(tokens[1:-1]) <= {1}
        assert tokens[-1] == 6 or (len(tokens) == 8 and tokens[-1] == 1)
        lengths.add(len(tokens))
    assert 2 in lengths
    assert 8 in lengths


def test_a_sequence_may_be_one_token():
    assert sampled(tiny_model(), longest=1) == [0]
    assert sampled(tiny_model(), first_token=6) == [6]


def test_tokens_are_drawn_with_the_chances_of_the_model():
    """1000 sequences of one drawn token. A chance of 0.3 is met 300 times, give or take 14.5; 0.1, 100 and 9.5; within
    four of these. What is most likely alone would be met 1000 times.
    """
    model = model_that_prefers([0.6, 0.3, 0.1, 0, 0, 0, 0])
    generator = torch.Generator().manual_seed(5)
    drawn = [causal_lm.sample(model, 0, generator, 2, STOP)[1] for _ in range(1000)]
    assert set(drawn) == {0, 1, 2}
    assert abs(drawn.count(1) - 300) < 58
    assert abs(drawn.count(2) - 100) < 38


def test_each_token_is_drawn_after_all_those_before_it():
    """By hand: the chances after the first two tokens, and one number of the generator for each draw."""
    model, generator = tiny_model().eval(), torch.Generator().manual_seed(1)
    tokens = [0]
    for _ in range(3):
        chances = model(torch.tensor([tokens]))[0, -1].detach().double().softmax(0)
        tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    assert sampled(model, longest=4, stop=frozenset()) == tokens


def test_samples_follow_the_generator_given_and_leave_the_global_one_alone():
    model = tiny_model(dropout=0.5).train()
    before = torch.get_rng_state()
    first, again, other = (sampled(model, seed, stop=frozenset()) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before), "dropout is off, too"
