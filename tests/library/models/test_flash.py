"""Which FlashAttention torch has, without a GPU; the calls that each gets are in tests/second_device/test_flash.py."""

from __future__ import annotations

import importlib.util

import pytest
from torch.nn.attention import current_flash_attention_impl, list_flash_attention_impls

from posttrain.models.forward import flash


def test_torch_knows_the_kernels_by_these_names() -> None:
    assert set(flash.NAMES) <= set(list_flash_attention_impls())


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="FlashAttention 4 is installed")
def test_a_kernel_that_is_not_installed_leaves_torchs_own() -> None:
    with pytest.raises(ImportError):
        flash._activate("FA4")
    assert current_flash_attention_impl() is None
    flash.use_own()
    assert current_flash_attention_impl() is None
