"""Mutants of week 15's later stretch tasks, 15.10 to 15.13: see `mutants15.py`."""

from __future__ import annotations

from tests.mutant import Mutant

ANY = ("wrong", "crashed", "hung", "no result", "forbidden call")

# ---- 15.10
SCHEDULE = ("15.10", "stretch.zero_bubble", "def zero_bubble")
APART = ("15.10", "stretch.zero_bubble", "class Apart")
RUN_THREE = ("15.10", "stretch.zero_bubble", "def run_schedule")


def waiting(Ws: str) -> str:
    """The end of `zero_bubble`, if so many Ws wait."""
    return (
        f'("W", m - ({Ws}))] if kind == "B" and m >= {Ws} else []\n'
        f'    return steps + [("W", m) for m in range(max(0, M - ({Ws})), M)]'
    )


LATER = waiting("p").replace("(p)", "p")
SCHEDULE_TEST, RUN_TEST = ("test_zero_bubble",), ("test_run_in_three_kinds_of_steps",)
ZERO_BUBBLE = [
    Mutant(
        "this is 1F1B again",
        *SCHEDULE,
        LATER,
        '("W", m)] if kind == "B" else []\n    return steps',
        SCHEDULE_TEST,
        ("each W right behind its B",),
    ),
    Mutant(
        "every W at the end",
        *SCHEDULE,
        '        steps += [("W", m - p)] if kind == "B" and m >= p else []\n'
        '    return steps + [("W", m) for m in range(max(0, M - p), M)]',
        '    return steps + [("W", m) for m in range(M)]',
        SCHEDULE_TEST,
        ("every W at the end",),
    ),
    Mutant("one W more is held back", *SCHEDULE, LATER, waiting("p + 1"), SCHEDULE_TEST),
    Mutant(
        "P-1 Ws wait on every stage",
        *SCHEDULE,
        LATER,
        waiting("P - 1"),
        SCHEDULE_TEST,
        ("as many Ws wait on the first stage",),
    ),
    Mutant(
        "held back where there is no room",
        *SCHEDULE,
        LATER,
        waiting("P - p - 1"),
        SCHEDULE_TEST,
        ("stage p holds back P-p-1",),
    ),
    Mutant("a W is left out", *SCHEDULE, "m >= p else []", "m > p else []", SCHEDULE_TEST),
    Mutant(
        "the bubble of 1F1B",
        "15.10",
        "stretch.zero_bubble",
        "def bubble",
        "(3 * M + P - 1)",
        "(M + P - 1)",
        ("test_zero_bubbles_bubble",),
        ("of 1F1B",),
    ),
    Mutant(
        "idle time over busy time",
        "15.10",
        "stretch.zero_bubble",
        "def bubble",
        "(3 * M + P - 1)",
        "(3 * M)",
        ("test_zero_bubbles_bubble",),
        ("idle over busy",),
    ),
    Mutant(
        "both products in backward",
        *APART,
        "ctx.left.put(ctx.weight, x, dy)",
        "ctx.left.put(ctx.weight, x, dy * 0)\n"
        "        dW = dy.flatten(0, -2).T @ x.flatten(0, -2)\n"
        "        ctx.weight.grad = dW if ctx.weight.grad is None else ctx.weight.grad + dW",
        RUN_TEST,
        ("backward makes dW at once",),
    ),
    Mutant("nothing is put aside", *APART, "ctx.left.put(ctx.weight, x, dy)", "pass", RUN_TEST, verdicts=ANY),
    Mutant(
        "the last micro-batch's dW alone",
        *RUN_THREE,
        "dW if weight.grad is None else weight.grad.add_(dW)",
        "dW",
        RUN_TEST,
        ("the last micro-batch's alone",),
    ),
    Mutant(
        "the sum over micro-batches",
        *RUN_THREE,
        "torch.tensor(1.0 / M, device=y.device)",
        "torch.tensor(1.0, device=y.device)",
        RUN_TEST,
        ("M times too much",),
    ),
    Mutant(
        "all that is left in the first W",
        *RUN_THREE,
        "            undone[m] = left.take()\n",
        "            undone[m] = []\n",
        RUN_TEST,
        verdicts=ANY,
    ),
    Mutant(
        "the gradient leaves with its W",
        *RUN_THREE,
        "            on_their_way += [] if first else [group.isend(x.grad, p - 1)]\n        else:\n",
        "            kept[-m - 1] = x.grad\n        else:\n"
        "            on_their_way += [] if first else [group.isend(kept.pop(-m - 1), p - 1)]\n",
        ("test_run_in_three_kinds_of_steps[ZB-H1", "test_run_in_three_kinds_of_steps[all Ws"),
        ("Deadlock",),
        verdicts=ANY,
    ),
]

# ---- 15.11
RING = ("15.11", "stretch.ring_attention")
RING_TEST = ("test_ring_attention",)
SHARES = "(l1 - both).exp().unsqueeze(-1) * o1 + (l2 - both).exp().unsqueeze(-1) * o2, both"
TWO = (
    "test_ring_attention[in order, 2]",
    "test_ring_attention[in order, 4]",
    "test_ring_attention[zigzag, 2]",
    "test_ring_attention[zigzag, 4]",
)
RING_ATTENTION = [
    Mutant(
        "the sequence in order",
        *RING,
        "def zigzag",
        "[(r * c, (r + 1) * c), (late * c, (late + 1) * c)]",
        "[(2 * r * c, (2 * r + 1) * c), ((2 * r + 1) * c, (2 * r + 2) * c)]",
        ("test_zigzag",),
        ("the two pieces stand side by side",),
    ),
    Mutant(
        "dealt out in turns",
        *RING,
        "def zigzag",
        "late = T // (2 * N), 2 * N - 1 - r",
        "late = T // (2 * N), N + r",
        ("test_zigzag",),
    ),
    Mutant("no length is refused", *RING, "def zigzag", "if T % (2 * N):", "if False:", ("test_zigzag_refuses",)),
    Mutant("refused for N parts alone", *RING, "def zigzag", "if T % (2 * N):", "if T % N:", ("test_zigzag_refuses",)),
    Mutant(
        "the mean of two parts",
        *RING,
        "def merge",
        SHARES,
        "(o1 + o2) / 2, both",
        ("test_merge", *RING_TEST),
        ("the mean of both",),
    ),
    Mutant(
        "weights that do not add up",
        *RING,
        "def merge",
        SHARES,
        "o1 + o2, both",
        ("test_merge", *TWO),
        ("the sum of both",),
        may=RING_TEST,
    ),
    Mutant(
        "exponentials of scores",
        *RING,
        "def merge",
        "both = torch.logaddexp(l1, l2)",
        "both = (l1.exp() + l2.exp()).log()",
        ("test_merge",),
        may=RING_TEST,
    ),
    Mutant(
        "the denominator is not carried on",
        *RING,
        "def merge",
        "* o2, both",
        "* o2, l2",
        ("test_merge", "test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"),
        may=RING_TEST,
    ),
    Mutant(
        "later positions are seen backward",
        *RING,
        "def attend_backward",
        "        P = P.tril()",
        "        pass",
        RING_TEST,
    ),
    Mutant("delta is left out", *RING, "def attend_backward", " - delta)", " - 0 * delta)", RING_TEST),
    Mutant("no scale in dK", *RING, "def attend_backward", "@ q.flatten(2, 3) * scale", "@ q.flatten(2, 3)", RING_TEST),
    Mutant(
        "the block's own denominator",
        *RING,
        "class RingAttention",
        "parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], lse[:, :, a],",
        "part = attend(q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], triangle)\n"
        "                    parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], part[1],",
        RING_TEST,
    ),
    Mutant(
        "nothing travels", *RING, "def around", "            kv = coming.wait()\n", "            coming.wait()\n", TWO
    ),
    Mutant(
        "its own keys only",
        *RING,
        "class RingAttention",
        "        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):\n",
        "        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):\n"
        "            if owner != group.rank:\n"
        '                with group.compute(f"attend {owner}"):\n                    continue\n',
        TWO,
        ("its own keys alone",),
    ),
    Mutant(
        "the block is waited for before it is used",
        *RING,
        "def around",
        "        yield (r - s) % N, kv, s\n",
        "        kv, now = (coming.wait(), kv) if coming else (kv, kv)\n        yield (r - s) % N, now, s\n",
        TWO,
        ("the next block is waited for before this one is used",),
    ),
    Mutant(
        "to the left",
        *RING,
        "def around",
        "group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)",
        "group.irecv((r + 1) % N, like=kv), group.isend(kv, (r - 1) % N)",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"),
        may=RING_TEST,
        verdicts=ANY,
    ),
    Mutant(
        "every pair is multiplied, and masked",
        *RING,
        "class RingAttention",
        """                for a, b, triangle in seen(layout, q_BntH.shape[2], group, owner):
                    part = attend(q_BntH[:, :, a], kv[0][:, :, b], kv[1][:, :, b], triangle)
                    o[:, :, a], lse[:, :, a] = merge(o[:, :, a], lse[:, :, a], *part)
""",
        """                T, G = q_BntH.shape[2] * group.size, q_BntH.shape[1] // kv.shape[2]
                mine, theirs = (
                    torch.cat([torch.arange(*piece) for piece in layout(T, group.size, rank)])
                    for rank in (group.rank, owner)
                )
                k, v = (x.repeat_interleave(G, 1) for x in kv)
                scores = q_BntH @ k.transpose(-1, -2) * q_BntH.shape[-1] ** -0.5
                scores = scores.masked_fill(mine.unsqueeze(1) < theirs, -torch.inf)
                o, lse = merge(o, lse, scores.softmax(-1).nan_to_num() @ v, scores.logsumexp(-1))
""",
        RING_TEST,
        ("every pair of pieces is multiplied",),
        may=RING_TEST,
    ),
    Mutant(
        "a triangle nowhere",
        *RING,
        "def seen",
        "found.append((a, b, start == first))",
        "found.append((a, b, False))",
        RING_TEST,
    ),
    Mutant(
        "keys repeated before they travel",
        *RING,
        "def ring_attention",
        "return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)",
        "G = q_BntH.shape[1] // k_BktH.shape[1]\n"
        "    k_BktH, v_BktH = (x.repeat_interleave(G, 1) for x in (k_BktH, v_BktH))\n"
        "    return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 2]", "test_ring_attention[zigzag, 4]"),
        ("keys and values are repeated for every query head",),
    ),
    Mutant(
        "the gradients' sum does not come home",
        *RING,
        "class RingAttention",
        "            own += coming.wait()\n",
        "            coming.wait()\n",
        TWO,
        ("its own queries' part alone",),
    ),
    Mutant(
        "each rank's part replaces the others'",
        *RING,
        "class RingAttention",
        "                dkv += coming.wait()\n",
        "                coming.wait()\n",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"),
    ),
    Mutant(
        "the own part goes all the way",
        *RING,
        "class RingAttention",
        "                own = dkv\n                continue\n",
        "                own = torch.zeros_like(dkv)\n",
        TWO,
        ("an own gradient travels all the way round",),
        may=("test_ring_attention[zigzag, 1]",),
        verdicts=ANY,
    ),
    Mutant(
        "gradients waited for where they are posted",
        *RING,
        "class RingAttention",
        "            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)\n",
        "            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)\n"
        "            coming.wait(), going.wait()\n",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"),
        ("the gradients' messages are waited for where they are posted",),
    ),
]

# ---- 15.12
HEADS = ("15.12", "stretch.ulysses")
LAYER_TEST = ("test_ulysses[2 ranks]", "test_ulysses[4 ranks]", "test_ulysses[each its own]")
ULYSSES = [
    Mutant(
        "nothing is exchanged for heads",
        *HEADS,
        "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "x_BtnH.reshape(len(x_BtnH), -1, x_BtnH.shape[2] // group.size, x_BtnH.shape[3])",
        ("test_turn[to_heads]", *LAYER_TEST),
        ("its own numbers, laid out anew",),
        may=("test_turn",),
    ),
    Mutant(
        "joined in reversed order",
        *HEADS,
        "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group)[::-1], dim=1)",
        ("test_turn[to_heads]", *LAYER_TEST),
        ("the parts are joined in another order",),
        may=("test_turn",),
    ),
    Mutant(
        "backward stays where it is",
        *HEADS,
        "class ToPositions",
        "ToHeads.apply(dy_BtnH, ctx.group), None",
        "dy_BtnH.reshape(len(dy_BtnH), -1, dy_BtnH.shape[2] // ctx.group.size, dy_BtnH.shape[3]), None",
        ("test_turn[to_positions]", *LAYER_TEST),
        ("its own numbers, laid out anew",),
    ),
    Mutant(
        "gathered, and cut",
        *HEADS,
        "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "group.all_gather(x_BtnH.transpose(0, 1).contiguous()).transpose(0, 1).chunk(group.size, 2)[group.rank]",
        ("test_turn[to_heads]", *LAYER_TEST),
        may=("test_turn", "test_ulysses"),
        verdicts=ANY,
    ),
    Mutant(
        "everything to everybody",
        *HEADS,
        "class ToPositions",
        "torch.cat(exchange(x_BTmH.chunk(group.size, dim=1), group), dim=2)",
        "torch.cat([x.chunk(group.size, 1)[group.rank] for x in exchange([x_BTmH] * group.size, group)], dim=2)",
        ("test_turn[to_positions]", *LAYER_TEST),
        ("every rank sends all that it has to all others",),
        may=("test_turn",),
    ),
    Mutant(
        "weights' gradients not summed",
        *HEADS,
        "UlyssesAttention.forward",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(self.wq, self.wk, self.wv, self.wo)",
        LAYER_TEST,
        ("its own positions' addend",),
    ),
    Mutant(
        "W_o's gradient not summed",
        *HEADS,
        "UlyssesAttention.forward",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(*(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv)), self.wo)",
        LAYER_TEST,
        ("its own positions' addend",),
    ),
    Mutant(
        "its own positions' keys alone",
        *HEADS,
        "UlyssesAttention.forward",
        "            to_heads(nn.functional.linear(x_BtD, w).unflatten(-1, (-1, self.d_head)), self.group) "
        """for w in (wq, wk, wv)
        )
        y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR, sin_TR)
        return nn.functional.linear(to_positions(y_BTmH, self.group).flatten(-2), wo)
""",
        """            nn.functional.linear(x_BtD, w).unflatten(-1, (-1, self.d_head)) for w in (wq, wk, wv)
        )
        t = x_BtD.shape[1]
        own = slice(self.group.rank * t, (self.group.rank + 1) * t)
        y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR[own], sin_TR[own])
        return nn.functional.linear(y_BTmH.flatten(-2), wo)
""",
        LAYER_TEST,
        ("its own positions alone",),
    ),
    Mutant(
        "turned by the positions' number here",
        *HEADS,
        "UlyssesAttention.forward",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR, sin_TR)",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR.roll(-1, 0), sin_TR.roll(-1, 0))",
        LAYER_TEST,
        may=("test_ulysses",),
    ),
    Mutant(
        "key/value heads are not looked at",
        *HEADS,
        "UlyssesAttention.__init__",
        '((n_heads, "query"), (n_kv_heads, "key/value"))',
        '((n_heads, "query"),)',
        ("test_ulysses_refuses",),
    ),
]

# ---- 15.13
MOE = ("15.13", "stretch.experts")
SPREAD_TEST = (
    "test_spread_experts[2 ranks]",
    "test_spread_experts[4 ranks, one expert unused]",
    "test_spread_experts[one rank gets everything]",
    "test_spread_experts[a rank without tokens]",
)
EXPERTS = [
    Mutant(
        "backward in forward's sizes",
        *MOE,
        "class Exchange",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "exchange(dy, ctx.to, ctx.come, ctx.group), None",
        ("test_uneven_exchange",),
        ("Rank ",),
        may=SPREAD_TEST,
        verdicts=ANY,
    ),
    Mutant(
        "no gradient comes back",
        *MOE,
        "class Exchange",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "0 * exchange(dy, ctx.come, ctx.to, ctx.group), None",
        ("test_uneven_exchange", "test_spread_experts"),
    ),
    Mutant(
        "the own part at the end",
        *MOE,
        "def exchange",
        "    return torch.cat(found)",
        "    return torch.cat([f for s, f in enumerate(found) if s != group.rank] + [found[group.rank]])",
        ("test_uneven_exchange",),
        ("Rank ",),
        may=SPREAD_TEST,
        verdicts=ANY,
    ),
    Mutant(
        "filled up to the largest",
        *MOE,
        "spread_experts",
        "    rows = Exchange.apply(x_SD[order // K], to, come, group)\n",
        "    most = counts_Ne.new_tensor([max(to + come)])\n"
        "    most = int(exchange(most.repeat(N), [1] * N, [1] * N, group).max())\n"
        "    parts = x_SD[order // K].split(to)\n"
        "    filled = torch.cat([torch.cat((p, p.new_zeros(most - len(p), p.shape[1]))) for p in parts])\n"
        "    wide = Exchange.apply(filled, [most] * N, [most] * N, group).split(most)\n"
        "    rows = torch.cat([p[:n] for p, n in zip(wide, come)])\n",
        SPREAD_TEST[:3],
        may=SPREAD_TEST,
    ),
    Mutant(
        "rows in the tokens' order",
        *MOE,
        "spread_experts",
        "order = chosen_SK.flatten().argsort(stable=True)",
        "order = torch.arange(chosen_SK.numel())",
        SPREAD_TEST,
        may=("test_spread_experts",),
    ),
    Mutant(
        "sources' rows are not sorted by expert",
        *MOE,
        "spread_experts",
        "here = expert_R.argsort(stable=True)",
        "here = torch.arange(len(expert_R))",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"),
        may=SPREAD_TEST,
    ),
    Mutant(
        "results come back unsorted",
        *MOE,
        "spread_experts",
        "done[here.argsort()]",
        "done",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"),
        may=SPREAD_TEST,
    ),
    Mutant(
        "results in the experts' order",
        *MOE,
        "spread_experts",
        "back[order.argsort()]",
        "back",
        SPREAD_TEST,
        may=("test_spread_experts",),
    ),
    Mutant(
        "the permutation twice, not undone",
        *MOE,
        "spread_experts",
        "back[order.argsort()]",
        "back[order]",
        SPREAD_TEST,
        may=("test_spread_experts",),
    ),
    Mutant(
        "gates left out",
        *MOE,
        "spread_experts",
        "(gates_SK.unsqueeze(-1) * y_SKD).sum(1)",
        "((1 + 0 * gates_SK.unsqueeze(-1)) * y_SKD).sum(1)",
        ("test_spread_experts",),
        ("the sum of its experts' outputs",),
    ),
    Mutant(
        "experts' gradients averaged",
        *MOE,
        "spread_experts",
        "    N, e, K = ",
        "    N = group.size\n"
        "    up_eFD, down_eDF = (w / N + (w - w / N).detach() for w in (up_eFD, down_eDF))\n"
        "    N, e, K = ",
        SPREAD_TEST,
        ("the mean over the ranks",),
    ),
    Mutant(
        "gradients of its own rows alone",
        *MOE,
        "spread_experts",
        "    done = torch.cat(",
        "    sources = torch.arange(N).repeat_interleave(torch.tensor(come))[here].split(theirs_Ne.sum(0).tolist())\n"
        "    done = torch.cat([torch.where((s == group.rank).unsqueeze(-1), feed_forward(part, up, down), "
        "feed_forward(part, up.detach(), down.detach())) "
        "for s, part, up, down in zip(sources, parts, up_eFD, down_eDF)])\n"
        "    _ = torch.cat(",
        SPREAD_TEST[:3],
        ("its own tokens' part alone",),
        may=SPREAD_TEST,
    ),
    Mutant(
        "a library's collective",
        *MOE,
        "spread_experts",
        "    rows = Exchange.apply(x_SD[order // K], to, come, group)\n",
        "    rows = Exchange.apply(x_SD[order // K], to, come, group)\n    group.all_reduce(x_SD.new_zeros(1))\n",
        ("test_spread_experts",),
    ),
]

MUTANTS = [*ZERO_BUBBLE, *RING_ATTENTION, *ULYSSES, *EXPERTS]
