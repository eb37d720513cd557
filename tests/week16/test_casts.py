"""Rounding and its opposite, as a GPU runs them: each of its kernels gives what one operation after another gives.

Without a GPU the compiled form is captured only, since code for it is generated on a GPU alone.
"""

import pytest
import torch

from week16_fp8 import casts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILER = "inductor" if DEVICE == "cuda" else "aot_eager"
DTYPES = [torch.float32, torch.bfloat16]


def wide(dtype, shape=(64, 48)):
    """Numbers of both signs over fifty powers of two, infinities and zeros among them."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw) * torch.exp2(torch.randint(-30, 20, shape, generator=draw).float())
    x[0, :4] = torch.tensor([float("inf"), float("-inf"), 0.0, -0.0])
    return x.to(dtype).to(DEVICE)


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing compiled stays, on disk neither: a training would get tiles for a small tensor."""
    with torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
    casts.compiled.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_way_to_round_gives_the_same_values(fmt, dtype):
    x, s = wide(dtype), torch.tensor(3.7, device=DEVICE)
    rest = s, casts.FORMATS[fmt].largest, casts.DTYPES[fmt]
    want = casts.through(x, *rest)
    assert want.dtype == dtype and torch.equal(casts.rounded(x, s, fmt), want)
    for y in (x, x.t()):
        assert torch.equal(casts.compiled(casts.through, COMPILER)(y, *rest), casts.through(y, *rest))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("s_a, s_b", [(3.7, 211.3), (1e20, 1e-10), (2.0**64, 2.0**66), (2.0**-72, 2.0**-68)])
def test_scales_are_divided_out_with_one_rounding(dtype, s_a, s_b):
    """Also where the scales' product is no FP32 number, and the result is one."""
    y, a, b = wide(dtype), *(torch.tensor(s, device=DEVICE) for s in (s_a, s_b))
    exact = y.double() / a.double() / b.double()
    # Half of the last place, and four roundings of FP32: two reciprocals and two products.
    within = (torch.finfo(dtype).eps / 2 + 4 * 2.0**-24) * exact.abs()
    normal = (exact.abs() > torch.finfo(dtype).tiny) & (exact.abs() < torch.finfo(dtype).max)
    assert normal.sum() > 200
    for way in (casts.unscaled, casts.dividing, casts.compiled(casts.dividing, COMPILER)):
        got = way(y.clone(), a, b)
        assert got.dtype == dtype
        assert ((got.double() - exact).abs() <= within)[normal].all()
        assert torch.equal(got[0, :4].isinf(), y[0, :4].isinf()) and not got[0, 2:4].any()
