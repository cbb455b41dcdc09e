"""The judge's own reader and writers against the gguf package, bit for bit."""
import ggufio
import numpy as np
import pytest
import tiny
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize


def odd_rows():
    x = np.random.default_rng(0).normal(0, 1, (64, 256)).astype(np.float32)
    x[3, :32] = 0
    x[4, :32] = 1.5
    x[5] *= 1e-8
    x[6, 0] = 300
    return x


@pytest.mark.parametrize("name", sorted(set(ggufio.TYPES) - set(ggufio.SCALES)))
def test_blocks_of_every_type_are_written_and_read_as_the_gguf_package_does(name):
    x = odd_rows()
    ours = ggufio.quant(name, x)
    theirs = np.ascontiguousarray(quantize(x, GGMLQuantizationType[name])).view(np.uint8)
    assert np.array_equal(ours.ravel(), theirs.ravel())
    values = dequantize(theirs.reshape(64, -1), GGMLQuantizationType[name]).astype(np.float32)
    assert np.array_equal(ggufio.dequant(name, ours.reshape(64, -1)).astype(np.float32).ravel(), values.ravel())


@pytest.mark.parametrize("name", ggufio.SCALES)
def test_random_blocks_are_read_as_the_gguf_package_does(name):
    number, _, size = ggufio.TYPES[name]
    raw = np.random.default_rng(1).integers(0, 256, (50, 3, size), dtype=np.uint8)
    for at in ggufio.SCALES[name]:
        raw[..., at + 1] &= 0x3B  # no NaN, no infinity
    raw = raw.reshape(50, -1)
    theirs = dequantize(raw, GGMLQuantizationType(number)).astype(np.float64)
    ours = ggufio.dequant(name, raw)
    assert np.abs(theirs - ours).max() <= 1e-7 * np.abs(ours).max()  # theirs is rounded to f32


@pytest.mark.parametrize("name", ggufio.SCALES)
def test_random_matrices_have_the_spread_asked_for(name):
    f = ggufio.File()
    f.add_random("w", name, (64, 256), 0.25, np.random.default_rng(2))
    w = f.tensors["w"].f64()
    assert abs(w.mean()) < 0.03 and abs(w.std() - 0.25) < 0.02


@pytest.mark.parametrize("name", sorted(tiny.SHAPES))
def test_a_tiny_file_is_read_back_by_the_gguf_package(name, tmp_path):
    path = tmp_path / "tiny.gguf"
    made = tiny.make(name, "Q4_1")
    made.write(path)
    reader = GGUFReader(path)
    assert [t.name for t in reader.tensors] == list(made.tensors)
    for t in reader.tensors:
        values = dequantize(t.data, t.tensor_type).astype(np.float32).ravel()
        assert np.array_equal(values, made.tensors[t.name].f64().astype(np.float32).ravel()), t.name
    back = ggufio.File(path)
    assert back.meta_raw == made.meta_raw
