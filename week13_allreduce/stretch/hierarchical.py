"""All-reduce on two levels: fast wires inside a node, slow ones between (task 13.10, stretch, no points).

M nodes with P ranks each; rank r is the (r mod P)-th of node r // P. A flat ring goes at the speed of its slowest
hop, the network, with 2 (N-1)/N of the vector over it, and pays the network's alpha in 2 (N-1) steps. On two levels:

  1. reduce-scatter inside every node: afterwards the i-th rank of a node holds chunk i of P, summed over its node;
  2. all-reduce of chunk i over the M ranks that hold it, one in each node: P rings at the same time, each with 1/P of
     the vector;
  3. all-gather inside every node.

Over a node's network card go 2 (M-1)/M of the vector, in 2 (M-1) messages one after another on each of P rings:
nearly the same bytes as the flat ring where M is large, but far fewer alphas. And if every GPU has a network card of
its own, as in the large machines, the P rings of step 2 use all P cards, while a flat ring uses one.

`topology.InOrder(group, members)` makes a ring of some of the ranks.
"""

from __future__ import annotations

import torch

from week13_allreduce.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from week13_allreduce.topology import InOrder


def hierarchical_all_reduce(x_L: torch.Tensor, group, per_node: int, op: str = "sum") -> torch.Tensor:
    """Task 13.10. In place. Arguments as `ring_all_reduce`, and `per_node`: P, ValueError unless it divides N.

    "mean": take the mean inside the node and then over the nodes; all nodes are equally large, so that is the mean
    over all.
    """
    ### BEGIN SOLUTION 13.10 hierarchical all-reduce
    if group.size % per_node:
        raise ValueError(f"{group.size} ranks are no whole number of nodes of {per_node}")
    node, place = divmod(group.rank, per_node)
    inner = InOrder(group, range(node * per_node, (node + 1) * per_node))
    across = InOrder(group, range(place, group.size, per_node))
    shard = ring_reduce_scatter(x_L, inner, op)
    ring_all_reduce(shard, across, op)
    return ring_all_gather(shard, inner, x_L.numel(), out=x_L)
    ### END SOLUTION
