"""`lab crossover`: on which shapes is an FP8 linear faster than a BF16 one, and where it is not, why not?

A linear of K inputs and N outputs, applied to M tokens, costs three matrix products in a training step:

    y_MN  = x_MK @ w_NK.T          forward            2 M K N FLOPs each
    dx_MK = dy_MN @ w_NK           backward
    dw_NK = dy_MN.T @ x_MK         backward

FP8 doubles their rate at best, but x, w and dy are read, scaled, rounded and written again, often twice: that grows
like M K + K N + M N, the product like M K N. And below some sizes the GPU is done before the CPU has queued the next
kernel, of which FP8 has several. Hence the split of every measured time, whose largest growth is why FP8 loses:

    product     the kernels that multiply
    quantise    every other kernel of the step: a lone linear has no other work than to prepare its operands
    launch      the rest of the time: no kernel runs, the GPU waits for the CPU

A lone linear cannot share its quantising with its neighbours, as in a compiled block. Backends run as they are meant
to: Transformer Engine eager, torchao compiled. record.py keeps crossover.json, so that a killed run goes on.
"""
