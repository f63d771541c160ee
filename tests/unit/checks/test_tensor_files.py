import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.tensor_files import first_bit_difference, max_abs_difference, read_arrays
from ddp_tokens.errors import EvidenceError


def arrays(*values, dtype=numpy.float32):
    return {"w": numpy.array(values, dtype=dtype)}


def test_arrays_are_read(tmp_path):
    save_file(arrays(1.5, -2), tmp_path / "a.safetensors")
    assert read_arrays(tmp_path / "a.safetensors")["w"].tolist() == [1.5, -2.0]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"gone\.safetensors does not exist"):
        read_arrays(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"\xff" * 64], ids=["empty", "pickle", "noise"])
def test_another_kind_of_file_is_named(tmp_path, content):
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(EvidenceError, match=r"bad\.safetensors is not a whole safetensors file"):
        read_arrays(tmp_path / "bad.safetensors")


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / "half.safetensors"
    save_file(arrays(*range(100)), path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(EvidenceError, match=r"half\.safetensors is not a whole safetensors file"):
        read_arrays(path)


def test_equal_bits_have_no_difference():
    assert first_bit_difference(arrays(1, float("nan")), arrays(1, float("nan"))) is None


def test_one_bit_is_a_difference():
    one = numpy.float32(1)
    next_one = numpy.nextafter(one, numpy.float32(2))
    found = first_bit_difference(arrays(0, one), arrays(0, next_one))
    assert found == {"parameter": "w", "max_abs_difference": float(next_one) - 1.0}  # 2**-23
    assert found["max_abs_difference"] == 2**-23


def test_minus_zero_is_a_difference_although_it_is_equal():
    assert first_bit_difference(arrays(0.0), arrays(-0.0)) == {"parameter": "w", "max_abs_difference": 0.0}


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (arrays(1, 2, dtype=numpy.float64), "float32[2] against float64[2]"),
        (arrays(1, 2, 3), "float32[2] against float32[3]"),
        ({"w": numpy.array([[1, 2]], dtype=numpy.float32)}, "float32[2] against float32[1, 2]"),
        ({}, "missing on one side"),
    ],
)
def test_another_type_shape_or_name_is_a_difference(other, problem):
    assert first_bit_difference(arrays(1, 2), other) == {"parameter": "w", "problem": problem}
    assert first_bit_difference(other, arrays(1, 2))["parameter"] == "w"


def test_the_first_name_in_order_is_told():
    left, right = {"b": numpy.ones(1), "a": numpy.ones(1)}, {"b": numpy.zeros(1), "a": numpy.zeros(1)}
    assert first_bit_difference(left, right)["parameter"] == "a"


def test_the_largest_difference_is_over_all_names():
    left = {"a": numpy.array([1.0, 2.0]), "b": numpy.array([5.0]), "only here": numpy.array([100.0])}
    right = {"a": numpy.array([1.5, 2.0]), "b": numpy.array([2.0])}
    assert max_abs_difference(left, right) == 3.0
    assert max_abs_difference({"a": numpy.empty(0)}, {"a": numpy.empty(0)}) == 0.0


def test_unsigned_bytes_do_not_wrap_around():
    """Generator states are bytes: 1 - 2 must not become 255."""
    assert max_abs_difference(arrays(1, dtype=numpy.uint8), arrays(2, dtype=numpy.uint8)) == 1.0
