"""MiniResNet and what stands around it: shapes, layers, losses, counts and augmentation, by hand on small images."""

import math

import numpy
import pytest
import torch
from torch import nn

from ddp_tokens import workloads
from ddp_tokens.config import ResNet, Transformer
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.errors import ConfigError, WorkloadError
from ddp_tokens.workloads import causal_lm, images, token_labels

SMALL = ImageShape(classes=3, channels=2, height=4, width=4)
TINY = ResNet(stages=(4,), blocks=1)


def tiny_model(shape=SMALL, seed=0, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return images.build_model(TINY.model_copy(update=settings), shape)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def pixels(index, shape=SMALL):
    """As a row makes them: float32, other ones for each index."""
    drawn = numpy.random.default_rng(index).standard_normal((shape.channels, shape.height, shape.width))
    return drawn.astype(numpy.float32)


def row(index, label):
    return Row(f"row-{index}", "train", (), (label,), index=index, images=pixels)


ROWS = [row(0, 2), row(1, UNSUPERVISED), row(2, 0)]


def test_the_default_network_has_the_number_of_parameters_that_is_stated():
    """A convolution of k x k has k * k * before * after weights, a norm 2 per channel; all without the head's 2,570:

    stem 9*3*64 + 2*64; stage 1 has 4 convolutions and norms of 64; stages 2 and 3, of c channels after b, have
    9*b*c + 3 * 9*c*c, a shortcut b*c, and 5 norms; head 256*10 + 10.
    """
    stem = 9 * 3 * 64 + 2 * 64
    first = 4 * (9 * 64 * 64 + 2 * 64)
    second, third = (9 * b * c + 3 * 9 * c * c + b * c + 5 * 2 * c for b, c in ((64, 128), (128, 256)))
    head = 256 * 10 + 10
    assert stem + first + second + third + head == 2_777_674
    model = images.build_model(ResNet(), ImageShape(10, 3, 32, 32))
    assert parameters(model) == 2_777_674
    assert "2,777,674 parameters" in images.MiniResNet.__doc__


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_number_of_parameters_does_not_depend_on_the_norm(norm):
    assert parameters(tiny_model(norm=norm, groups=2)) == parameters(tiny_model())


@pytest.mark.parametrize(
    ("stages", "blocks", "shape", "after"),
    [
        ((4,), 1, ImageShape(3, 2, 4, 4), (4, 4, 4)),
        ((4,), 3, ImageShape(7, 1, 5, 5), (4, 5, 5)),
        ((4, 8), 1, ImageShape(2, 3, 8, 8), (8, 4, 4)),
        ((4, 8, 6), 2, ImageShape(5, 3, 16, 16), (6, 4, 4)),
        ((4, 8, 6), 1, ImageShape(5, 3, 12, 20), (6, 3, 5)),
        ((4, 8), 1, ImageShape(5, 3, 7, 9), (8, 4, 5)),
        ((8, 8), 1, ImageShape(5, 1, 1, 6), (8, 1, 3)),
    ],
    ids=str,
)
def test_logits_have_a_value_per_class_whatever_the_images_size(stages, blocks, shape, after):
    """Each stage but the first halves height and width, rounded up; the channels are the last stage's."""
    model = images.build_model(ResNet(stages=stages, blocks=blocks), shape).eval()
    assert len(model.blocks) == blocks * len(stages)
    given = torch.randn(2, shape.channels, shape.height, shape.width, generator=torch.Generator().manual_seed(1))
    assert model(given).shape == (2, shape.classes)
    hidden = model.blocks(nn.functional.relu(model.stem_norm(model.stem(given))))
    assert hidden.shape == (2, *after)
    assert torch.equal(model(given), model.head(hidden.mean((2, 3))))


def test_a_block_adds_what_came_in():
    """With a second norm of weight 0 and bias 0 nothing is added: what came in, not being negative, comes out."""
    model = tiny_model().eval()
    block = model.blocks[0]
    assert isinstance(block.shortcut, nn.Identity)
    given = torch.rand(2, 4, 4, 4)
    assert not torch.equal(block(given), given)
    nn.init.zeros_(block.second_norm.weight)
    assert torch.equal(block(given), given)


def test_every_parameter_gets_a_gradient():
    model = tiny_model(stages=(4, 8))
    batch = images.collate(ROWS)
    images.loss_sum(images.forward(model, batch), batch)[0].backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def layers(model):
    return {type(layer).__name__ for layer in model.modules() if "Norm" in type(layer).__name__}


@pytest.mark.parametrize(
    ("norm", "kind", "statistics"),
    [("batch", "BatchNorm2d", True), ("sync_batch", "SyncBatchNorm", True), ("group", "GroupNorm", False)],
)
def test_every_norm_is_of_the_kind_that_is_asked_for(norm, kind, statistics):
    model = tiny_model(stages=(4, 8), norm=norm, groups=2)
    assert layers(model) == {kind}
    assert any(name.endswith("running_mean") for name, _ in model.named_buffers()) == statistics
    if not statistics:
        assert list(model.buffers()) == []
        assert {layer.num_groups for layer in model.modules() if isinstance(layer, nn.GroupNorm)} == {2}


def test_the_three_kinds_have_parameters_of_the_same_names():
    names = [[name for name, _ in tiny_model(norm=norm, groups=2).named_parameters()] for norm in NORMS]
    assert names[0] == names[1] == names[2]


NORMS = ("batch", "sync_batch", "group")


@pytest.mark.parametrize(("norm", "depends"), [("batch", True), ("group", False)])
def test_in_training_an_image_s_logits_depend_on_the_others_with_batch_norm_alone(norm, depends):
    model = tiny_model(norm=norm, groups=2).double().train()
    batch = images.collate(ROWS)
    alone, together = model(batch.images[:1])[0], model(batch.images)[0]
    assert (float((alone - together).abs().max()) > 1e-3) == depends
    frozen = model.eval()
    difference = (frozen(batch.images[:1])[0] - frozen(batch.images)[0]).abs().max()
    assert float(difference) < 1e-12  # sums of float64 in another order


def refused(tmp_path, text):
    path = tmp_path / "other.yaml"
    path.write_text(f"corpus: {{kind: images}}\nworkload: images\n{text}\n")
    with pytest.raises(ConfigError) as refusal:
        load_experiment(path)
    return str(refusal.value)


def test_sync_batch_is_refused_on_the_cpu_in_one_sentence(tmp_path):
    message = refused(tmp_path, "model: {kind: resnet, norm: sync_batch}")
    assert message.endswith(
        "model.norm sync_batch needs device cuda, since torch's SyncBatchNorm refuses CPU tensors: take norm batch or "
        "group here"
    )
    assert "\n" not in message


def test_groups_that_do_not_divide_a_stage_are_refused(tmp_path):
    assert "groups 8 must divide the channels of every stage, [8, 12]" in refused(
        tmp_path, "model: {kind: resnet, norm: group, stages: [8, 12]}"
    )


def test_a_batch_holds_pixels_and_labels_in_the_order_of_its_rows():
    batch = images.collate(ROWS)
    assert (batch.images.dtype, batch.images.shape) == (torch.float32, (3, 2, 4, 4))
    assert (batch.labels.dtype, batch.labels.tolist()) == (torch.int64, [2, -100, 0])
    assert batch.units == 2
    for image, of_row in zip(batch.images, ROWS, strict=True):
        assert numpy.array_equal(image.numpy(), pixels(of_row.index))


def test_a_row_without_pixels_is_named():
    with pytest.raises(ValueError, match="row 'a' holds no image"):
        images.collate([Row("a", "train", (), (1,))])


LOGITS = torch.tensor([[1.0, 2.0, 4.0], [9.0, 0.0, 0.0], [0.0, 3.0, 1.0]], dtype=torch.float64)


def test_the_loss_is_the_sum_of_the_cross_entropies_of_images_that_count():
    """ln(sum of e^logit) - logit of the label; the second image has no label."""
    total, units = images.loss_sum(LOGITS, images.collate(ROWS))
    first = math.log(math.exp(1) + math.exp(2) + math.exp(4)) - 4
    third = math.log(math.exp(0) + math.exp(3) + math.exp(1)) - 0
    assert units == 2
    assert float(total) == pytest.approx(first + third, rel=1e-14)


def test_an_image_without_a_label_adds_nothing_whatever_its_logits():
    batch = images.collate(ROWS)
    changed = LOGITS.clone()
    changed[1] = torch.tensor([-50.0, 7.0, 3.0])
    assert torch.equal(images.loss_sum(changed, batch)[0], images.loss_sum(LOGITS, batch)[0])


def test_a_batch_of_which_nothing_counts_has_loss_zero_and_gradients_of_zero():
    """Neither NaN nor a missing gradient: a rank without rows takes part in the averaging so."""
    model = tiny_model()
    batch = images.collate([each.unsupervised() for each in ROWS])
    loss, units = images.loss_sum(images.forward(model, batch), batch)
    loss.backward()
    assert (float(loss), units) == (0.0, 0)
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.parameters())


def test_a_batch_has_the_loss_of_its_images_one_by_one():
    model = tiny_model().double().eval()

    def loss(rows):
        batch = images.collate(rows)
        return float(images.loss_sum(images.forward(model, batch), batch)[0])

    assert loss(ROWS) == pytest.approx(sum(loss([each]) for each in ROWS), rel=1e-12)


def test_right_is_the_largest_logit_of_an_image_that_counts():
    """The first is right, the third is not; the second has no label, so that no class is right."""
    batch = images.collate(ROWS)
    found = images.correct(LOGITS, batch)
    assert (found.shape, int(found)) == ((), 1)
    without = images.collate([each.unsupervised() for each in ROWS])
    assert int(images.correct(LOGITS, without)) == 0


def test_metrics_are_sums_and_counts():
    batch = images.collate(ROWS)
    total, _ = images.loss_sum(LOGITS, batch)
    assert images.metrics(LOGITS, batch) == {"loss_sum": float(total), "correct": 1, "units": 2}


class Drawn:
    """A generator whose draws are written down: down, right, mirrored; and what it was asked for."""

    def __init__(self, *draws):
        self.draws, self.asked = list(draws), []

    def integers(self, low, high=None, size=None, endpoint=False):
        self.asked.append((low, high, endpoint))
        return numpy.array(self.draws.pop(0))


def numbered(height=8, width=16, rows=1):
    """An image of one channel whose pixels are 1, 2, 3 and so on, so that each is known by its value."""
    made = torch.arange(1.0, height * width + 1).reshape(1, 1, height, width).repeat(rows, 1, 1, 1)
    return images.Batch(made, torch.arange(rows), rows)


@pytest.mark.parametrize(("down", "right"), [(0, 0), (1, 0), (-1, 0), (0, 2), (0, -2), (1, -2), (-1, 1)])
def test_an_image_is_moved_and_zeros_come_in(down, right):
    """By hand: the pixel at (y, x) is the one that stood at (y - down, x - right), or nothing."""
    batch = numbered()
    generator = Drawn([down], [right], [0])
    [[moved]] = images.augment(batch, "shift", generator).images.tolist()
    before = batch.images[0, 0].tolist()
    for y in range(8):
        for x in range(16):
            inside = 0 <= y - down < 8 and 0 <= x - right < 16
            assert moved[y][x] == (before[y - down][x - right] if inside else 0.0), (y, x)


def test_an_image_is_moved_by_at_most_an_eighth_of_height_and_width():
    generator = Drawn([0], [0], [0])
    images.augment(numbered(height=8, width=31), "shift", generator)
    assert generator.asked[:2] == [(-1, 1, True), (-3, 3, True)]


def test_an_image_is_mirrored_from_left_to_right_and_then_moved():
    [[mirrored]] = images.augment(numbered(), "shift_and_flip", Drawn([0], [0], [1])).images.tolist()
    assert mirrored[0] == [float(number) for number in range(16, 0, -1)]
    assert mirrored[7][-1] == 7 * 16 + 1.0
    [[moved]] = images.augment(numbered(), "shift_and_flip", Drawn([0], [2], [1])).images.tolist()
    assert moved[0] == [0.0, 0.0, *(float(number) for number in range(16, 2, -1))]


def test_each_image_is_changed_by_draws_of_its_own():
    batch = numbered(rows=3)
    changed = images.augment(batch, "shift_and_flip", Drawn([1, 0, 0], [0, 0, 2], [0, 1, 0])).images
    assert changed[0, 0, 0].tolist() == [0.0] * 16
    assert torch.equal(changed[1], batch.images[1].flip(-1))
    assert changed[2, 0, 0].tolist() == [0.0, 0.0, *range(1, 15)]


def test_without_mirroring_none_is_mirrored_and_the_draws_are_the_same():
    """So that both settings move the same images by the same."""
    batch = numbered(rows=64)
    plain = images.augment(batch, "shift", numpy.random.default_rng(3)).images
    mirrored = images.augment(batch, "shift_and_flip", numpy.random.default_rng(3)).images
    unlike = [not torch.equal(one, other) for one, other in zip(plain, mirrored, strict=True)]
    assert 16 < sum(unlike) < 48, "half of the time"
    rising = plain[:, 0, 4, 3:13].diff(dim=-1)
    assert bool((rising == 1).all())


def test_the_same_generator_gives_the_same_images_and_leaves_all_else():
    batch = numbered(rows=8)
    before = batch.images.clone()
    once, again, other = (images.augment(batch, "shift_and_flip", numpy.random.default_rng(seed)) for seed in (5, 5, 6))
    assert torch.equal(once.images, again.images)
    assert not torch.equal(once.images, other.images)
    assert torch.equal(batch.images, before), "what was given is not touched"
    assert not torch.equal(once.images, before)
    assert torch.equal(once.labels, batch.labels)
    assert once.units == batch.units == 8
    assert once.images.dtype == torch.float32


def test_augmentation_draws_from_its_generator_alone():
    state = torch.random.get_rng_state()
    numpy_state = numpy.random.get_state()[1].tolist()
    images.augment(numbered(rows=4), "shift_and_flip", numpy.random.default_rng(1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert numpy.random.get_state()[1].tolist() == numpy_state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_images_are_taken_in_the_dtype_of_the_weights(dtype):
    model = tiny_model().to(dtype).eval()
    batch = images.collate(ROWS)
    assert batch.images.dtype == torch.float32
    logits = images.forward(model, batch)
    assert logits.dtype == dtype
    exact = tiny_model().double().eval()(batch.images)
    assert float((logits - exact).abs().max()) < (1e-12 if dtype == torch.float64 else 1e-5)


TOKENS = Shape(vocabulary=4, classes=4, positions=8)


@pytest.mark.parametrize(
    ("workload", "settings", "shape", "problem"),
    [
        (images, Transformer(), SMALL, "workload images needs model.kind resnet and a corpus of images"),
        (images, TINY, TOKENS, "workload images needs model.kind resnet and a corpus of images"),
        (token_labels, TINY, TOKENS, "workload token_labels needs model.kind transformer and a corpus of tokens"),
        (
            token_labels,
            Transformer(),
            SMALL,
            "workload token_labels needs model.kind transformer and a corpus of tokens",
        ),
        (causal_lm, TINY, TOKENS, "workload causal_lm needs model.kind transformer and a corpus of tokens"),
        (causal_lm, Transformer(), SMALL, "workload causal_lm needs model.kind transformer and a corpus of tokens"),
    ],
)
def test_settings_or_rows_of_another_kind_are_refused_in_one_sentence(workload, settings, shape, problem):
    with pytest.raises(WorkloadError) as refusal:
        workload.build_model(settings, shape)
    assert str(refusal.value) == problem


def test_images_that_would_be_halved_to_a_single_pixel_are_refused():
    """Three stages halve twice: 5 pixels to 3 and 2, 4 pixels to 2 and 1."""
    small, large = (ImageShape(classes=2, channels=1, height=size, width=size) for size in (4, 5))
    with pytest.raises(WorkloadError, match=r"the 3 stages of model.stages halve images of 4 x 4 pixels to a"):
        images.build_model(ResNet(stages=(8, 8, 8)), small)
    assert images.build_model(ResNet(stages=(8, 8, 8)), large)
    assert images.build_model(ResNet(stages=(8, 8, 8), norm="group"), small)


def test_it_is_loaded_by_the_name_of_its_file_and_counts_augments_and_names_its_unit():
    workload = workloads.load("images")
    assert workload is images
    assert workloads.unit_of(workload) == "image"
    assert workloads.counter(workload) is images
    assert workloads.augmenter(workload) is images
    assert workloads.writer(workload) is None


def test_what_cannot_augment_is_told_what_to_set():
    with pytest.raises(WorkloadError, match="workload token_labels has no function augment: set augmentation to none"):
        workloads.augmenter(token_labels)
