"""What FP8 parameters save: the study counts what a rank holds and sends, and its round trips lose nothing."""

import pytest

from studies.parameters import AFTER, study

SHAPE = '{"vocab_size"=512,"d_model"=256,"n_layers"=2,"n_heads"=2,"n_kv_heads"=2,"d_ffn"=256,"max_seq_len"=64}'


@pytest.mark.thorough
def test_two_ranks_gather_bf16_and_hold_masters():
    """On a CPU FP8 is emulated: its values lie in FP32, so that nothing is saved, and masters come on top."""
    settings = ["seq_len=64", "batch_size=4", 'attention="auto"', "compile=false", f"model={SHAPE}"]
    settings.append('data={"vocab_size"=512,"max_bytes"=2000000}')
    found = study(["bf16", "emulated-parameters"], settings, 2, "cpu")
    block, outside = 4 * 256**2 + 3 * 256**2 + 2 * 256, 2 * 512 * 256 + 256
    sharded = 4 * (2 * block + outside) // 2
    for name, arm in found["arms"].items():
        assert all(arm["held"][f"{what}, float32"] == sharded for what in ("weights", "gradients", "m", "v"))
        assert arm["sent"]["reduce_scatter"] == 4 * (2 * block + outside)
        # Blocks are gathered twice, in BF16; what is outside of them once.
        assert arm["sent"]["all_gather"] == 2 * (2 * 2 * block + outside)
        assert arm["held"].get("master, float32", 0) == ("parameters" in name) * 4 * 2 * 7 * 256**2 // 2
    trip = study([], settings, 2, "cpu", trip="emulated-parameters")["round trip"]
    assert all(len(losses) == AFTER for losses in trip.values())
    assert trip["and to fp8 again"] == trip["as it is"], "the same codes, the same masters"
    assert trip["converted to bf16, values"][0] == trip["as it is"][0], "FP8 values, whatever holds them"
    assert trip["converted to bf16, masters"][0] != trip["as it is"][0], "or the masters were not taken"
