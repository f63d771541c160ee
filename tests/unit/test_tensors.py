import pytest
import torch

from ddp_tokens.tensors import fits, load_tensors, load_weights, save_tensors, weights_of


def test_tensors_come_back_bit_for_bit(tmp_path):
    tensors = {
        "float32": torch.tensor([0.1, -0.0, float("inf"), 1e-45]),
        "float64": torch.tensor([[1 / 3]], dtype=torch.float64),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "scalar": torch.tensor(7),
        "nothing": torch.empty(0, 3),
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    read = load_tensors(tmp_path / "t.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert read[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_a_transposed_view_and_a_parameter_can_be_saved(tmp_path):
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    save_tensors(tmp_path / "t.safetensors", {"view": weight.T, "weight": weight})
    assert torch.equal(load_tensors(tmp_path / "t.safetensors")["view"], weight.T)


def test_the_bytes_do_not_depend_on_the_order_of_names(tmp_path):
    one, two = torch.ones(2), torch.zeros(3)
    save_tensors(tmp_path / "a.safetensors", {"one": one, "two": two})
    save_tensors(tmp_path / "b.safetensors", {"two": two, "one": one})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


class Tied(torch.nn.Module):
    """One tensor under two names, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(1))


def test_tied_weights_are_saved_once_and_loaded_under_both_names(tmp_path):
    model, other = Tied(), Tied()
    assert list(weights_of(model)) == ["count", "embedding.weight"]
    assert not torch.equal(model.head.weight, other.head.weight)
    save_tensors(tmp_path / "tied", weights_of(model))
    load_weights(other, load_tensors(tmp_path / "tied"))
    assert torch.equal(other.head.weight, model.head.weight)
    assert other.head.weight is other.embedding.weight


def test_equal_weights_that_are_not_shared_are_both_saved():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(model[0].weight)
    assert list(weights_of(model)) == ["0.weight", "1.weight"]


def test_parameters_without_a_value_share_nothing():
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(0)) for _ in range(2)])
    assert list(weights_of(model)) == ["0", "1"]


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"weight": torch.zeros(2, 2), "more": torch.zeros(1)},
        {"weight": torch.zeros(2, 3)},
        {"other": torch.zeros(2, 2)},
    ],
    ids=["missing", "extra", "shape", "name"],
)
def test_weights_of_another_model_are_refused(weights):
    model = torch.nn.Linear(2, 2, bias=False)
    before = model.weight.clone()
    assert not fits(model, weights)
    with pytest.raises(ValueError, match="not those of the model"):
        load_weights(model, weights)
    assert torch.equal(model.weight, before)
