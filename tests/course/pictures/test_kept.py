"""What a cache keeps, drawn: the triangle, the column, the keys that move, the shared heads."""

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config

from specdec_course.pictures import kept
from specdec_ref.arithmetic import decode, model_shape
from specdec_ref.models import Llama

LLAMA = model_shape("llama-3-70b")


def test_attention_is_a_triangle_and_the_new_token_a_column():
    left, right = kept.cache_figure(n_tokens=5, n_layers=3).axes
    empty = [p for p in left.patches if p.get_facecolor()[:3] == (1, 1, 1)]
    assert len(left.patches) == 25 and len(empty) == 10
    assert len(right.patches) == 15
    assert len({p.get_facecolor() for p in right.patches if p.get_x() == 4} | set()) == 1


def test_a_changed_token_moves_no_earlier_key_and_in_the_first_layer_its_own_alone():
    torch.manual_seed(0)
    model = Llama(tiny_config(), torch.float64)
    moved = np.array(kept.changed_keys(model, [3, 1, 4, 1, 5, 9], 2, 7))
    assert moved.shape == (model.config.n_layers, 6)
    assert moved[:, :2].max() < 1e-9 and moved[0, 3:].max() < 1e-9
    assert moved[:, 2].min() > 1e-6 and moved[1:, 3:].min() > 1e-9
    image = kept.changed_figure(moved.tolist(), list("abcdef")).axes[0].images[0].get_array()
    assert image.mask[0, 0] and not image.mask[0, 2]
    with pytest.raises(ValueError, match="0 to 5"):
        kept.changed_keys(model, [3, 1, 4, 1, 5, 9], 6, 7)


def test_each_kind_of_attention_keeps_its_own_number_of_keys():
    axes = kept.heads_figure(n_heads=8, groups=2).axes
    assert [len(ax.patches) - 8 for ax in axes] == [16, 4, 2, 1], "keys and values, and one latent"
    assert [len(ax.lines) for ax in axes] == [8, 8, 8, 8], "every query head reads something"


def test_shares_are_those_of_the_arithmetic():
    shares = kept.cache_shares(LLAMA, (1, 64), (1024, 8192))
    work = decode(LLAMA, 8192, 64)
    assert shares[1][1] == work.kv_read_bytes / work.bytes
    texts = [t.get_text() for t in kept.shares_figure(shares, (1, 64), (1024, 8192)).axes[0].texts]
    assert texts == ["0%", "2%", "13%", "55%"]
