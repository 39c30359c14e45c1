"""Our NF4 against that of bitsandbytes, bit for bit: an adapter of ours fits a base that it has loaded in 4 bits."""

from __future__ import annotations

import pytest
import torch

from posttrain.models.nf4 import dequantise, quantise

functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed: see `make oracle`")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("shape", [(192, 64), (50, 36), (512, 1024)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_scales_and_matrices_are_those_of_bitsandbytes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    theirs, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=False)
    codes, scales = quantise(weight)
    count = weight.numel() // 2
    assert torch.equal(theirs.flatten()[:count], codes[:count])
    assert torch.equal(state.absmax.float(), scales)
    assert torch.equal(functional.dequantize_4bit(theirs, state), dequantise(codes, scales, weight.shape, dtype))
