"""Mutants of week 15's later stretch tasks, 15.10 to 15.13: see `mutants15.py`."""

from tests.mutant import ANY, At

# ---- 15.10


def waiting(Ws: str) -> str:
    """The end of `zero_bubble`, if so many Ws wait."""
    return (
        f'("W", m - ({Ws}))] if kind == "B" and m >= {Ws} else []\n'
        f'    return steps + [("W", m) for m in range(max(0, M - ({Ws})), M)]'
    )


LATER = waiting("p").replace("(p)", "p")
SCHEDULE_TEST, RUN_TEST = ("test_zero_bubble",), ("test_run_in_three_kinds_of_steps",)
zero_bubble, bubble, Apart = At.each("15.10", "stretch.zero_bubble", "def zero_bubble", "def bubble", "class Apart")
run_schedule = At("15.10", "stretch.zero_bubble", "def run_schedule")
ZERO_BUBBLE = [
    zero_bubble("this is 1F1B again",
        LATER,
        """("W", m)] if kind == "B" else []
    return steps""",
        SCHEDULE_TEST, "each W right behind its B"),
    zero_bubble("every W at the end",
        """        steps += [("W", m - p)] if kind == "B" and m >= p else []
    return steps + [("W", m) for m in range(max(0, M - p), M)]""",
        '    return steps + [("W", m) for m in range(M)]', SCHEDULE_TEST, "every W at the end"),
    zero_bubble("one W more is held back", LATER, waiting("p + 1"), SCHEDULE_TEST),
    zero_bubble("P-1 Ws wait on every stage", LATER, waiting("P - 1"),
        SCHEDULE_TEST, "as many Ws wait on the first stage"),
    zero_bubble("held back where there is no room", LATER, waiting("P - p - 1"),
        SCHEDULE_TEST, "stage p holds back P-p-1"),
    zero_bubble("a W is left out", "m >= p else []", "m > p else []", SCHEDULE_TEST),
    bubble("the bubble of 1F1B", "(3 * M + P - 1)", "(M + P - 1)", "test_zero_bubbles_bubble", "of 1F1B"),
    bubble("idle time over busy time", "(3 * M + P - 1)", "(3 * M)", "test_zero_bubbles_bubble", "idle over busy"),
    Apart("both products in backward",
        "ctx.left.put(ctx.weight, x, dy)",
        """ctx.left.put(ctx.weight, x, dy * 0)
        dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
        ctx.weight.grad = dW if ctx.weight.grad is None else ctx.weight.grad + dW""",
        RUN_TEST, "backward makes dW at once"),
    Apart("nothing is put aside", "ctx.left.put(ctx.weight, x, dy)", "pass", RUN_TEST, verdicts=ANY),
    run_schedule("the last micro-batch's dW alone", "dW if weight.grad is None else weight.grad.add_(dW)", "dW",
        RUN_TEST, "the last micro-batch's alone"),
    run_schedule("the sum over micro-batches",
        "torch.tensor(1.0 / M, device=y.device)", "torch.tensor(1.0, device=y.device)", RUN_TEST, "M times too much"),
    run_schedule("all that is left in the first W",
        "            undone[m] = left.take()\n", "            undone[m] = []\n", RUN_TEST, verdicts=ANY),
    run_schedule("the gradient leaves with its W",
        """            on_their_way += [] if first else [group.isend(x.grad, p - 1)]
        else:
""",
        """            kept[-m - 1] = x.grad
        else:
            on_their_way += [] if first else [group.isend(kept.pop(-m - 1), p - 1)]
""",
        ("test_run_in_three_kinds_of_steps[ZB-H1", "test_run_in_three_kinds_of_steps[all Ws"), "Deadlock",
        verdicts=ANY),
    At("15.10", "stretch.zero_bubble", "run_schedule")("what a forward kept stays behind its B", "kept.pop(m)",
        "kept[m]", (f"{RUN_TEST[0]}[ZB", f"{RUN_TEST[0]}[all"), "nothing is dropped after a backward"),
    At("15.10", "stretch.zero_bubble", "run_schedule")("x and dy stay behind their W", "undone.pop(m)", "undone[m]",
        f"{RUN_TEST[0]}[ZB"),
]

# ---- 15.11
RING_TEST = ("test_ring_attention",)
SHARES = "(l1 - both).exp().unsqueeze(-1) * o1 + (l2 - both).exp().unsqueeze(-1) * o2, both"
TWO = tuple(f"test_ring_attention[{case}]" for case in ("in order, 2", "in order, 4", "zigzag, 2", "zigzag, 4"))
zigzag, merge = At.each("15.11", "stretch.ring_attention", "def zigzag", "def merge")
attend_backward = At("15.11", "stretch.ring_attention", "def attend_backward")
RingAttention, around = At.each("15.11", "stretch.ring_attention", "class RingAttention", "def around")
seen, ring_attention = At.each("15.11", "stretch.ring_attention", "def seen", "def ring_attention")
FOUR = ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]")
RING_ATTENTION = [
    zigzag("the sequence in order",
        "[(r * c, (r + 1) * c), (late * c, (late + 1) * c)]",
        "[(2 * r * c, (2 * r + 1) * c), ((2 * r + 1) * c, (2 * r + 2) * c)]",
        "test_zigzag", "the two pieces stand side by side"),
    zigzag("dealt out in turns", "late = T // (2 * N), 2 * N - 1 - r", "late = T // (2 * N), N + r", "test_zigzag"),
    zigzag("no length is refused", "if T % (2 * N):", "if False:", "test_zigzag_refuses"),
    zigzag("refused for N parts alone", "if T % (2 * N):", "if T % N:", "test_zigzag_refuses"),
    merge("the mean of two parts", SHARES, "(o1 + o2) / 2, both", ("test_merge", *RING_TEST), "the mean of both"),
    merge("weights that do not add up", SHARES, "o1 + o2, both",
        ("test_merge", *TWO), "the sum of both", may=RING_TEST),
    merge("exponentials of scores", "both = torch.logaddexp(l1, l2)", "both = (l1.exp() + l2.exp()).log()",
        "test_merge", may=RING_TEST),
    merge("the denominator is not carried on", "* o2, both", "* o2, l2",
        ("test_merge", "test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"), may=RING_TEST),
    attend_backward("later positions are seen backward", "        P = P.tril()", "        pass", RING_TEST),
    attend_backward("delta is left out", " - delta)", " - 0 * delta)", RING_TEST),
    attend_backward("no scale in dK", "@ q.flatten(2, 3) * scale", "@ q.flatten(2, 3)", RING_TEST),
    RingAttention("the block's own denominator",
        "parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], lse[:, :, a],",
        """part = attend(q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], triangle)
                    parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], part[1],""",
        RING_TEST),
    around("nothing travels", "            kv = coming.wait()\n", "            coming.wait()\n", TWO),
    RingAttention("its own keys only",
        "        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):\n",
        """        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):
            if owner != group.rank:
                with group.compute(f"attend {owner}"):
                    continue
""",
        TWO, "its own keys alone"),
    around("the block is waited for before it is used",
        "        yield (r - s) % N, kv, s\n",
        """        kv, now = (coming.wait(), kv) if coming else (kv, kv)
        yield (r - s) % N, now, s
""",
        TWO, "the next block is posted behind this one's products, or waited for before them"),
    around("the next block is posted behind the products",
        """        coming = going = None
        if s < N - 1:
            coming, going = group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)
        yield (r - s) % N, kv, s
        if coming is not None and going is not None:
""",
        """        yield (r - s) % N, kv, s
        if s < N - 1:
            coming, going = group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)
""",
        TWO, "the next block is posted behind"),
    around("to the left",
        "group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)",
        "group.irecv((r + 1) % N, like=kv), group.isend(kv, (r - 1) % N)", FOUR, verdicts=ANY, may=RING_TEST),
    RingAttention("every pair is multiplied, and masked",
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
        RING_TEST, "every pair of pieces is multiplied", may=RING_TEST),
    seen("a triangle nowhere", "found.append((a, b, start == first))", "found.append((a, b, False))", RING_TEST),
    ring_attention("keys repeated before they travel",
        "return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)",
        """G = q_BntH.shape[1] // k_BktH.shape[1]
    k_BktH, v_BktH = (x.repeat_interleave(G, 1) for x in (k_BktH, v_BktH))
    return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)""",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 2]", "test_ring_attention[zigzag, 4]"),
        "keys and values are repeated for every query head", may="test_ring_attention"),
    RingAttention("the gradients' sum does not come home",
        "            own += coming.wait()\n", "            coming.wait()\n", TWO, "its own queries' part alone"),
    RingAttention("each rank's part replaces the others'",
        "                dkv += coming.wait()\n", "                coming.wait()\n", FOUR),
    RingAttention("the own part goes all the way",
        """                own = dkv
                continue
""",
        "                own = torch.zeros_like(dkv)\n",
        TWO, "an own gradient travels all the way round", verdicts=ANY, may="test_ring_attention[zigzag, 1]"),
    RingAttention("gradients waited for where they are posted",
        "            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)\n",
        """            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)
            coming.wait(), going.wait()
""",
        FOUR, "the gradients' messages are waited for where they are posted"),
    RingAttention("the last block that came is kept",
        "ctx.save_for_backward(q_BntH, k_BktH, v_BktH, o, lse)",
        "ctx.save_for_backward(q_BntH, k_BktH, v_BktH, o, lse)\n        ctx.kv = kv", "test_ring_attention"),
]

# ---- 15.12
LAYER_TEST = ("test_ulysses[2 ranks]", "test_ulysses[4 ranks]", "test_ulysses[each its own]")
ToHeads, ToPositions = At.each("15.12", "stretch.ulysses", "class ToHeads", "class ToPositions")
forward, init = At.each("15.12", "stretch.ulysses", "UlyssesAttention.forward", "UlyssesAttention.__init__")
ULYSSES = [
    ToHeads("nothing is exchanged for heads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "x_BtnH.reshape(len(x_BtnH), -1, x_BtnH.shape[2] // group.size, x_BtnH.shape[3])",
        ("test_turn[to_heads]", *LAYER_TEST), "its own numbers, laid out anew", may="test_turn"),
    ToHeads("joined in reversed order",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group)[::-1], dim=1)",
        ("test_turn[to_heads]", *LAYER_TEST), "the parts are joined in another order", may="test_turn"),
    ToPositions("backward stays where it is",
        "ToHeads.apply(dy_BtnH, ctx.group), None",
        "dy_BtnH.reshape(len(dy_BtnH), -1, dy_BtnH.shape[2] // ctx.group.size, dy_BtnH.shape[3]), None",
        ("test_turn[to_positions]", *LAYER_TEST), "its own numbers, laid out anew"),
    ToHeads("gathered, and cut",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "group.all_gather(x_BtnH.transpose(0, 1).contiguous()).transpose(0, 1).chunk(group.size, 2)[group.rank]",
        ("test_turn[to_heads]", *LAYER_TEST), verdicts=ANY, may=("test_turn", "test_ulysses")),
    ToPositions("everything to everybody",
        "torch.cat(exchange(x_BTmH.chunk(group.size, dim=1), group), dim=2)",
        "torch.cat([x.chunk(group.size, 1)[group.rank] for x in exchange([x_BTmH] * group.size, group)], dim=2)",
        ("test_turn[to_positions]", *LAYER_TEST), "every rank sends all that it has to all others", may="test_turn"),
    forward("weights' gradients not summed",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(self.wq, self.wk, self.wv, self.wo)", LAYER_TEST, "its own positions' addend"),
    forward("W_o's gradient not summed",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(*(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv)), self.wo)",
        LAYER_TEST, "its own positions' addend"),
    forward("its own positions' keys alone",
        """            to_heads(nn.functional.linear(x_BtD, w).unflatten(-1, (-1, self.d_head)), self.group) for w in (wq, wk, wv)
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
        LAYER_TEST, "its own positions alone"),
    forward("turned by the positions' number here",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR, sin_TR)",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR.roll(-1, 0), sin_TR.roll(-1, 0))",
        LAYER_TEST, may="test_ulysses"),
    init("key/value heads are not looked at",
        '((n_heads, "query"), (n_kv_heads, "key/value"))', '((n_heads, "query"),)', "test_ulysses_refuses"),
]

# ---- 15.13
SPREAD_TEST = (
    "test_spread_experts[2 ranks]",
    "test_spread_experts[4 ranks, one expert unused]",
    "test_spread_experts[one rank gets everything]",
    "test_spread_experts[a rank without tokens]",
)
Exchange, exchange = At.each("15.13", "stretch.experts", "class Exchange", "def exchange")
spread_experts = At("15.13", "stretch.experts", "spread_experts")
EXPERTS = [
    Exchange("backward in forward's sizes",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "exchange(dy, ctx.to, ctx.come, ctx.group), None",
        "test_uneven_exchange", "Rank ", verdicts=ANY, may=SPREAD_TEST),
    Exchange("no gradient comes back",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "0 * exchange(dy, ctx.come, ctx.to, ctx.group), None", ("test_uneven_exchange", "test_spread_experts")),
    exchange("the own part at the end",
        "    return torch.cat(found)",
        "    return torch.cat([f for s, f in enumerate(found) if s != group.rank] + [found[group.rank]])",
        "test_uneven_exchange", "Rank ", verdicts=ANY, may=SPREAD_TEST),
    spread_experts("filled up to the largest",
        "    rows = Exchange.apply(x_SD[order // K], to, come, group)\n",
        """    most = counts_Ne.new_tensor([max(to + come)])
    most = int(exchange(most.repeat(N), [1] * N, [1] * N, group).max())
    parts = x_SD[order // K].split(to)
    filled = torch.cat([torch.cat((p, p.new_zeros(most - len(p), p.shape[1]))) for p in parts])
    wide = Exchange.apply(filled, [most] * N, [most] * N, group).split(most)
    rows = torch.cat([p[:n] for p, n in zip(wide, come)])
""",
        SPREAD_TEST[:3], may=SPREAD_TEST),
    spread_experts("counts of four bytes",
        "exchange(counts_Ne, [1] * N, [1] * N, group)",
        "exchange(counts_Ne.int(), [1] * N, [1] * N, group).long()", SPREAD_TEST),
    exchange("messages without rows",
        """ and to[s]]
    receives = [
        Recv(s, like=x_RD.new_empty(come[s], *x_RD.shape[1:])) for s in range(group.size) if s != group.rank and come[s]
    ]""",
        """]
    receives = [
        Recv(s, like=x_RD.new_empty(come[s], *x_RD.shape[1:])) for s in range(group.size) if s != group.rank
    ]
    come = [n + 1 for n in come]""", "test_uneven_exchange", may="test_spread_experts"),
    spread_experts("rows in the tokens' order",
        "order = chosen_SK.flatten().argsort(stable=True)",
        "order = torch.arange(chosen_SK.numel())", SPREAD_TEST, may="test_spread_experts"),
    spread_experts("sources' rows are not sorted by expert",
        "here = expert_R.argsort(stable=True)",
        "here = torch.arange(len(expert_R))",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"), may=SPREAD_TEST),
    spread_experts("results come back unsorted", "done[here.argsort()]", "done",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"), may=SPREAD_TEST),
    spread_experts("results in the experts' order", "back[order.argsort()]", "back",
        SPREAD_TEST, may="test_spread_experts"),
    spread_experts("the permutation twice, not undone", "back[order.argsort()]", "back[order]",
        SPREAD_TEST, may="test_spread_experts"),
    spread_experts("gates left out",
        "(gates_SK.unsqueeze(-1) * y_SKD).sum(1)",
        "((1 + 0 * gates_SK.unsqueeze(-1)) * y_SKD).sum(1)", "test_spread_experts", "the sum of its experts' outputs"),
    spread_experts("experts' gradients averaged",
        "    N, e, K = ",
        """    N = group.size
    up_eFD, down_eDF = (w / N + (w - w / N).detach() for w in (up_eFD, down_eDF))
    N, e, K = """,
        SPREAD_TEST, "the mean over the ranks"),
    spread_experts("gradients of its own rows alone",
        "    done = torch.cat(",
        """    sources = torch.arange(N).repeat_interleave(torch.tensor(come))[here].split(theirs_Ne.sum(0).tolist())
    done = torch.cat([torch.where((s == group.rank).unsqueeze(-1), feed_forward(part, up, down), feed_forward(part, up.detach(), down.detach())) for s, part, up, down in zip(sources, parts, up_eFD, down_eDF)])
    _ = torch.cat(""",
        SPREAD_TEST[:3], "its own tokens' part alone", may=SPREAD_TEST),
    spread_experts("a library's collective",
        "    rows = Exchange.apply(x_SD[order // K], to, come, group)\n",
        """    rows = Exchange.apply(x_SD[order // K], to, come, group)
    group.all_reduce(x_SD.new_zeros(1))
""", "test_spread_experts"),
]

MUTANTS = [*ZERO_BUBBLE, *RING_ATTENTION, *ULYSSES, *EXPERTS]
