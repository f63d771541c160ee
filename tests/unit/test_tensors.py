import torch

from ddp_tokens.tensors import load_tensors, save_tensors


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
