"""`lab crossover`: on which shapes is an FP8 linear faster than a BF16 one, and where it is not, why not?

A linear of K inputs and N outputs, applied to M tokens, costs three matrix products in a training step:

    y_MN  = x_MK @ w_NK.T          forward            2 M K N FLOPs each
    dx_MK = dy_MN @ w_NK           backward
    dw_NK = dy_MN.T @ x_MK         backward

An FP8 product runs at twice the rate of a BF16 one at best. But x, w and dy are BF16 numbers in memory: somebody has
to read them, find their largest value, scale, round, and write them again, often twice (once by rows, once by columns,
since the products sum along different sides). That grows like M K + K N + M N, the product like M K N. So there are
sizes below which FP8 cannot pay, however good the kernels. And below these there are sizes at which the GPU is done
before the CPU has queued the next kernel; FP8 queues several where BF16 queues one. Hence the split of every measured
time:

    product     the kernels that multiply
    quantise    every other kernel of the step: a lone linear has no other work than to prepare its operands
    launch      the rest of the time: no kernel runs, the GPU waits for the CPU

and the reason where FP8 loses: the largest of what it pays more than BF16.

What the map does not know. A lone linear cannot share its quantising with the norm before it or the activation after
it, which a compiled block can. Here the backends run as they are meant to: Transformer Engine eager, torchao compiled.

    grid.py       the shapes, the arms, a cell of the map, why FP8 loses in it
    linear.py     one linear, timed and taken apart, on a GPU or a CPU
    record.py     crossover.json: written after every shape, so that a killed run goes on
    pictures.py   the maps (numbers in every cell) and the split
    crossover.py  what `lab crossover` does
"""
