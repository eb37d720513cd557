"""Precision: what the linears of a decoder compute in, behind one small interface (`base.Backend`).

    fp32, bf16, amp   plain nn.Linear; amp under torch.autocast: bf16, fp16
    torchao           torchao's float8 training: tensorwise, rowwise, rowwise_with_gw_hp; CPU and GPU
    te                Transformer Engine: bf16, delayed, current, block; GPU
    week16, emulated  your own FP8 linear, and week 16's reference (FP8 values multiplied in BF16), when finished
    broken-<mistake>  negative controls: e5m2, unscaled, unscaled-forward, stale, inverse

Not here: the order in which a model is converted, compiled and sharded (labkit.parallel), the optimizer's master
weights (labkit.train), and how FP8 numbers are computed (week 16's: backends use torch's casts and their libraries).
"""
