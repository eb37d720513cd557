"""`lab crossover`: on which shapes is an FP8 linear faster than a BF16 one, and where it is not, why not?

A linear of K inputs and N outputs, applied to M tokens, costs three matrix products in a training step:

    y_MN  = x_MK @ w_NK.T          forward            2 M K N FLOPs each
    dx_MK = dy_MN @ w_NK           backward
    dw_NK = dy_MN.T @ x_MK         backward

Every measured time is split, and the part that grows most is why FP8 loses:

    product     the kernels that multiply
    quantise    every other kernel of the step: a lone linear has no other work than to prepare its operands
    launch      the rest of the time: no kernel runs, the GPU waits for the CPU
"""
