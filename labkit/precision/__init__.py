"""Precision: what the linears of a decoder compute in, behind one small interface (`base.Backend`).

Here belong: backends, what a run may configure of them (config), what each recipe needs and refuses (recipes, and the
matrix made of them), a schedule's phases, the probe, and the flags that a checkpoint carries. Not here: the order in which a model is converted, compiled and sharded
(labkit.parallel), the optimizer's master weights (labkit.train), and how FP8 numbers and scales are computed: that is
week 16's, so backends use torch's casts and what their libraries bring.

On a CPU without BF16 instructions all BF16 products go through FP32, whatever the backend: products.py.

fp32, bf16        plain nn.Linear
amp               plain nn.Linear under torch.autocast: bf16, fp16; any GPU from Volta on, and CPU
torchao           torchao's float8 training: tensorwise, rowwise, rowwise_with_gw_hp; CPU and GPU
te                Transformer Engine: bf16, delayed, current, block; GPU
week16            your own FP8 linear, when it is finished
emulated          week 16's reference, FP8 values multiplied in BF16: tensorwise, block; anywhere, when it is finished
broken-<mistake>  negative controls, FP8 with one mistake: e5m2, unscaled, unscaled-forward, stale, inverse
                  ("broken" takes the mistake as its recipe)
"""
