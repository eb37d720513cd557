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
zero_bubble = At("15.10", "stretch.zero_bubble")
ZERO_BUBBLE = [
    zero_bubble("this is 1F1B again", "def zero_bubble",
        LATER,
        """("W", m)] if kind == "B" else []
    return steps""",
        SCHEDULE_TEST, "each W right behind its B"),
    zero_bubble("every W at the end", "def zero_bubble",
        """        steps += [("W", m - p)] if kind == "B" and m >= p else []
    return steps + [("W", m) for m in range(max(0, M - p), M)]""",
        '    return steps + [("W", m) for m in range(M)]',
        SCHEDULE_TEST, "every W at the end"),
    zero_bubble("one W more is held back", "def zero_bubble", LATER, waiting("p + 1"), SCHEDULE_TEST),
    zero_bubble("P-1 Ws wait on every stage", "def zero_bubble",
        LATER,
        waiting("P - 1"),
        SCHEDULE_TEST, "as many Ws wait on the first stage"),
    zero_bubble("held back where there is no room", "def zero_bubble",
        LATER,
        waiting("P - p - 1"),
        SCHEDULE_TEST, "stage p holds back P-p-1"),
    zero_bubble("a W is left out", "def zero_bubble", "m >= p else []", "m > p else []", SCHEDULE_TEST),
    zero_bubble("the bubble of 1F1B", "def bubble",
        "(3 * M + P - 1)",
        "(M + P - 1)",
        "test_zero_bubbles_bubble", "of 1F1B"),
    zero_bubble("idle time over busy time", "def bubble",
        "(3 * M + P - 1)",
        "(3 * M)",
        "test_zero_bubbles_bubble", "idle over busy"),
    zero_bubble("both products in backward", "class Apart",
        "ctx.left.put(ctx.weight, x, dy)",
        """ctx.left.put(ctx.weight, x, dy * 0)
        dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
        ctx.weight.grad = dW if ctx.weight.grad is None else ctx.weight.grad + dW""",
        RUN_TEST, "backward makes dW at once"),
    zero_bubble("nothing is put aside", "class Apart",
        "ctx.left.put(ctx.weight, x, dy)",
        "pass",
        RUN_TEST, verdicts=ANY),
    zero_bubble("the last micro-batch's dW alone", "def run_schedule",
        "dW if weight.grad is None else weight.grad.add_(dW)",
        "dW",
        RUN_TEST, "the last micro-batch's alone"),
    zero_bubble("the sum over micro-batches", "def run_schedule",
        "torch.tensor(1.0 / M, device=y.device)",
        "torch.tensor(1.0, device=y.device)",
        RUN_TEST, "M times too much"),
    zero_bubble("all that is left in the first W", "def run_schedule",
        """            undone[m] = left.take()
""",
        """            undone[m] = []
""",
        RUN_TEST, verdicts=ANY),
    zero_bubble("the gradient leaves with its W", "def run_schedule",
        """            on_their_way += [] if first else [group.isend(x.grad, p - 1)]
        else:
""",
        """            kept[-m - 1] = x.grad
        else:
            on_their_way += [] if first else [group.isend(kept.pop(-m - 1), p - 1)]
""",
        ("test_run_in_three_kinds_of_steps[ZB-H1", "test_run_in_three_kinds_of_steps[all Ws"), "Deadlock",
        verdicts=ANY),
    zero_bubble("what a forward kept stays behind its B", "run_schedule", "kept.pop(m)", "kept[m]",
        (f"{RUN_TEST[0]}[ZB", f"{RUN_TEST[0]}[all"), "nothing is dropped after a backward"),
    zero_bubble("x and dy stay behind their W", "run_schedule", "undone.pop(m)", "undone[m]", f"{RUN_TEST[0]}[ZB"),
]

# ---- 15.11
RING_TEST = ("test_ring_attention",)
SHARES = "(l1 - both).exp().unsqueeze(-1) * o1 + (l2 - both).exp().unsqueeze(-1) * o2, both"
TWO = (
    "test_ring_attention[in order, 2]",
    "test_ring_attention[in order, 4]",
    "test_ring_attention[zigzag, 2]",
    "test_ring_attention[zigzag, 4]",
)
ring_attention = At("15.11", "stretch.ring_attention")
RING_ATTENTION = [
    ring_attention("the sequence in order", "def zigzag",
        "[(r * c, (r + 1) * c), (late * c, (late + 1) * c)]",
        "[(2 * r * c, (2 * r + 1) * c), ((2 * r + 1) * c, (2 * r + 2) * c)]",
        "test_zigzag", "the two pieces stand side by side"),
    ring_attention("dealt out in turns", "def zigzag",
        "late = T // (2 * N), 2 * N - 1 - r",
        "late = T // (2 * N), N + r",
        "test_zigzag"),
    ring_attention("no length is refused", "def zigzag", "if T % (2 * N):", "if False:", "test_zigzag_refuses"),
    ring_attention("refused for N parts alone", "def zigzag", "if T % (2 * N):", "if T % N:", "test_zigzag_refuses"),
    ring_attention("the mean of two parts", "def merge",
        SHARES,
        "(o1 + o2) / 2, both",
        ("test_merge", *RING_TEST), "the mean of both"),
    ring_attention("weights that do not add up", "def merge",
        SHARES,
        "o1 + o2, both",
        ("test_merge", *TWO), "the sum of both", may=RING_TEST),
    ring_attention("exponentials of scores", "def merge",
        "both = torch.logaddexp(l1, l2)",
        "both = (l1.exp() + l2.exp()).log()",
        "test_merge", may=RING_TEST),
    ring_attention("the denominator is not carried on", "def merge",
        "* o2, both",
        "* o2, l2",
        ("test_merge", "test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"), may=RING_TEST),
    ring_attention("later positions are seen backward", "def attend_backward",
        "        P = P.tril()",
        "        pass",
        RING_TEST),
    ring_attention("delta is left out", "def attend_backward", " - delta)", " - 0 * delta)", RING_TEST),
    ring_attention("no scale in dK", "def attend_backward",
        "@ q.flatten(2, 3) * scale",
        "@ q.flatten(2, 3)",
        RING_TEST),
    ring_attention("the block's own denominator", "class RingAttention",
        "parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], lse[:, :, a],",
        """part = attend(q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], triangle)
                    parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], part[1],""",
        RING_TEST),
    ring_attention("nothing travels", "def around",
        """            kv = coming.wait()
""",
        """            coming.wait()
""",
        TWO),
    ring_attention("its own keys only", "class RingAttention",
        """        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):
""",
        """        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):
            if owner != group.rank:
                with group.compute(f"attend {owner}"):
                    continue
""",
        TWO, "its own keys alone"),
    ring_attention("the block is waited for before it is used", "def around",
        """        yield (r - s) % N, kv, s
""",
        """        kv, now = (coming.wait(), kv) if coming else (kv, kv)
        yield (r - s) % N, now, s
""",
        TWO, "the next block is posted behind this one's products, or waited for before them"),
    ring_attention("the next block is posted behind the products", "def around",
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
    ring_attention("to the left", "def around",
        "group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)",
        "group.irecv((r + 1) % N, like=kv), group.isend(kv, (r - 1) % N)",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"), verdicts=ANY, may=RING_TEST),
    ring_attention("every pair is multiplied, and masked", "class RingAttention",
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
    ring_attention("a triangle nowhere", "def seen",
        "found.append((a, b, start == first))",
        "found.append((a, b, False))",
        RING_TEST),
    ring_attention("keys repeated before they travel", "def ring_attention",
        "return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)",
        """G = q_BntH.shape[1] // k_BktH.shape[1]
    k_BktH, v_BktH = (x.repeat_interleave(G, 1) for x in (k_BktH, v_BktH))
    return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)""",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 2]", "test_ring_attention[zigzag, 4]"),
        "keys and values are repeated for every query head", may="test_ring_attention"),
    ring_attention("the gradients' sum does not come home", "class RingAttention",
        """            own += coming.wait()
""",
        """            coming.wait()
""",
        TWO, "its own queries' part alone"),
    ring_attention("each rank's part replaces the others'", "class RingAttention",
        """                dkv += coming.wait()
""",
        """                coming.wait()
""",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]")),
    ring_attention("the own part goes all the way", "class RingAttention",
        """                own = dkv
                continue
""",
        """                own = torch.zeros_like(dkv)
""",
        TWO, "an own gradient travels all the way round", verdicts=ANY, may="test_ring_attention[zigzag, 1]"),
    ring_attention("gradients waited for where they are posted", "class RingAttention",
        """            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)
""",
        """            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)
            coming.wait(), going.wait()
""",
        ("test_ring_attention[in order, 4]", "test_ring_attention[zigzag, 4]"),
        "the gradients' messages are waited for where they are posted"),
    ring_attention("the last block that came is kept", "class RingAttention",
        "ctx.save_for_backward(q_BntH, k_BktH, v_BktH, o, lse)",
        "ctx.save_for_backward(q_BntH, k_BktH, v_BktH, o, lse)\n        ctx.kv = kv", "test_ring_attention"),
]

# ---- 15.12
LAYER_TEST = ("test_ulysses[2 ranks]", "test_ulysses[4 ranks]", "test_ulysses[each its own]")
ulysses = At("15.12", "stretch.ulysses")
ULYSSES = [
    ulysses("nothing is exchanged for heads", "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "x_BtnH.reshape(len(x_BtnH), -1, x_BtnH.shape[2] // group.size, x_BtnH.shape[3])",
        ("test_turn[to_heads]", *LAYER_TEST), "its own numbers, laid out anew", may="test_turn"),
    ulysses("joined in reversed order", "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group)[::-1], dim=1)",
        ("test_turn[to_heads]", *LAYER_TEST), "the parts are joined in another order", may="test_turn"),
    ulysses("backward stays where it is", "class ToPositions",
        "ToHeads.apply(dy_BtnH, ctx.group), None",
        "dy_BtnH.reshape(len(dy_BtnH), -1, dy_BtnH.shape[2] // ctx.group.size, dy_BtnH.shape[3]), None",
        ("test_turn[to_positions]", *LAYER_TEST), "its own numbers, laid out anew"),
    ulysses("gathered, and cut", "class ToHeads",
        "torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)",
        "group.all_gather(x_BtnH.transpose(0, 1).contiguous()).transpose(0, 1).chunk(group.size, 2)[group.rank]",
        ("test_turn[to_heads]", *LAYER_TEST), verdicts=ANY, may=("test_turn", "test_ulysses")),
    ulysses("everything to everybody", "class ToPositions",
        "torch.cat(exchange(x_BTmH.chunk(group.size, dim=1), group), dim=2)",
        "torch.cat([x.chunk(group.size, 1)[group.rank] for x in exchange([x_BTmH] * group.size, group)], dim=2)",
        ("test_turn[to_positions]", *LAYER_TEST), "every rank sends all that it has to all others", may="test_turn"),
    ulysses("weights' gradients not summed", "UlyssesAttention.forward",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(self.wq, self.wk, self.wv, self.wo)",
        LAYER_TEST, "its own positions' addend"),
    ulysses("W_o's gradient not summed", "UlyssesAttention.forward",
        "(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))",
        "(*(copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv)), self.wo)",
        LAYER_TEST, "its own positions' addend"),
    ulysses("its own positions' keys alone", "UlyssesAttention.forward",
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
    ulysses("turned by the positions' number here", "UlyssesAttention.forward",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR, sin_TR)",
        "y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR.roll(-1, 0), sin_TR.roll(-1, 0))",
        LAYER_TEST, may="test_ulysses"),
    ulysses("key/value heads are not looked at", "UlyssesAttention.__init__",
        '((n_heads, "query"), (n_kv_heads, "key/value"))',
        '((n_heads, "query"),)',
        "test_ulysses_refuses"),
]

# ---- 15.13
SPREAD_TEST = (
    "test_spread_experts[2 ranks]",
    "test_spread_experts[4 ranks, one expert unused]",
    "test_spread_experts[one rank gets everything]",
    "test_spread_experts[a rank without tokens]",
)
experts = At("15.13", "stretch.experts")
EXPERTS = [
    experts("backward in forward's sizes", "class Exchange",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "exchange(dy, ctx.to, ctx.come, ctx.group), None",
        "test_uneven_exchange", "Rank ", verdicts=ANY, may=SPREAD_TEST),
    experts("no gradient comes back", "class Exchange",
        "exchange(dy, ctx.come, ctx.to, ctx.group), None",
        "0 * exchange(dy, ctx.come, ctx.to, ctx.group), None",
        ("test_uneven_exchange", "test_spread_experts")),
    experts("the own part at the end", "def exchange",
        "    return torch.cat(found)",
        "    return torch.cat([f for s, f in enumerate(found) if s != group.rank] + [found[group.rank]])",
        "test_uneven_exchange", "Rank ", verdicts=ANY, may=SPREAD_TEST),
    experts("filled up to the largest", "spread_experts",
        """    rows = Exchange.apply(x_SD[order // K], to, come, group)
""",
        """    most = counts_Ne.new_tensor([max(to + come)])
    most = int(exchange(most.repeat(N), [1] * N, [1] * N, group).max())
    parts = x_SD[order // K].split(to)
    filled = torch.cat([torch.cat((p, p.new_zeros(most - len(p), p.shape[1]))) for p in parts])
    wide = Exchange.apply(filled, [most] * N, [most] * N, group).split(most)
    rows = torch.cat([p[:n] for p, n in zip(wide, come)])
""",
        SPREAD_TEST[:3], may=SPREAD_TEST),
    experts("counts of four bytes", "spread_experts",
        "exchange(counts_Ne, [1] * N, [1] * N, group)",
        "exchange(counts_Ne.int(), [1] * N, [1] * N, group).long()",
        SPREAD_TEST),
    experts("messages without rows", "def exchange",
        """ and to[s]]
    receives = [
        Recv(s, like=x_RD.new_empty(come[s], *x_RD.shape[1:])) for s in range(group.size) if s != group.rank and come[s]
    ]""",
        """]
    receives = [
        Recv(s, like=x_RD.new_empty(come[s], *x_RD.shape[1:])) for s in range(group.size) if s != group.rank
    ]
    come = [n + 1 for n in come]""",
        "test_uneven_exchange", may="test_spread_experts"),
    experts("rows in the tokens' order", "spread_experts",
        "order = chosen_SK.flatten().argsort(stable=True)",
        "order = torch.arange(chosen_SK.numel())",
        SPREAD_TEST, may="test_spread_experts"),
    experts("sources' rows are not sorted by expert", "spread_experts",
        "here = expert_R.argsort(stable=True)",
        "here = torch.arange(len(expert_R))",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"), may=SPREAD_TEST),
    experts("results come back unsorted", "spread_experts",
        "done[here.argsort()]",
        "done",
        ("test_spread_experts[2 ranks]", "test_spread_experts[4 ranks, one expert unused]"), may=SPREAD_TEST),
    experts("results in the experts' order", "spread_experts",
        "back[order.argsort()]",
        "back",
        SPREAD_TEST, may="test_spread_experts"),
    experts("the permutation twice, not undone", "spread_experts",
        "back[order.argsort()]",
        "back[order]",
        SPREAD_TEST, may="test_spread_experts"),
    experts("gates left out", "spread_experts",
        "(gates_SK.unsqueeze(-1) * y_SKD).sum(1)",
        "((1 + 0 * gates_SK.unsqueeze(-1)) * y_SKD).sum(1)",
        "test_spread_experts", "the sum of its experts' outputs"),
    experts("experts' gradients averaged", "spread_experts",
        "    N, e, K = ",
        """    N = group.size
    up_eFD, down_eDF = (w / N + (w - w / N).detach() for w in (up_eFD, down_eDF))
    N, e, K = """,
        SPREAD_TEST, "the mean over the ranks"),
    experts("gradients of its own rows alone", "spread_experts",
        "    done = torch.cat(",
        """    sources = torch.arange(N).repeat_interleave(torch.tensor(come))[here].split(theirs_Ne.sum(0).tolist())
    done = torch.cat([torch.where((s == group.rank).unsqueeze(-1), feed_forward(part, up, down), feed_forward(part, up.detach(), down.detach())) for s, part, up, down in zip(sources, parts, up_eFD, down_eDF)])
    _ = torch.cat(""",
        SPREAD_TEST[:3], "its own tokens' part alone", may=SPREAD_TEST),
    experts("a library's collective", "spread_experts",
        """    rows = Exchange.apply(x_SD[order // K], to, come, group)
""",
        """    rows = Exchange.apply(x_SD[order // K], to, come, group)
    group.all_reduce(x_SD.new_zeros(1))
""",
        "test_spread_experts"),
]

MUTANTS = [*ZERO_BUBBLE, *RING_ATTENTION, *ULYSSES, *EXPERTS]
