"""Mutants of C.1, C.2 and C.4: `tests/mutant.py` says what an entry means, `tests/test_mutants_capstone.py` judges them."""

from dataclasses import replace

from tests.mutant import ANY, At

ONE, FP8, SPOILT = "test_one_process", "test_fp8", "test_a_step_that_is_not_taken"
WITH_TP = (f"{ONE}[tp4]", f"{ONE}[dp2 x tp2]", f"{ONE}[tp2 x pp2]")
FP8_TP = (f"{FP8}[dp2 x tp2]", f"{FP8}[tp2 x pp2]")
OWN = "its own slices' amaxes", "the amax of"
HELD, MESSAGES = "test_what_a_rank_holds", "test_messages"

mesh_of, cut, sum_replicas, assemble = At.each("C.1", "assemble", "mesh_of", "cut", "sum_replicas", "assemble")
Held, held_finish, copies = At.each("C.1", "assemble", "class Held", "Held.finish", "Trainer.copies")
gradients, vitals, trainer_step = At.each("C.1", "assemble", "Trainer.gradients", "Trainer.vitals", "Trainer.step")
held_begin = At("C.1", "assemble", "Held.begin")
agreed, product_forward = At.each("C.1", "fp8", "agreed", "AgreedProduct.forward")
product_backward, converted, rounded_by = At.each("C.1", "fp8", "AgreedProduct.backward", "converted", "rounded_by")
ASSEMBLE = [
    # A vocabulary of an odd number of rows; and a rank has numbers for its own place alone.
    mesh_of("tp varies slowest",
        "Mesh(group, pp=setup.pp, dp=setup.dp, tp=setup.tp)",
        "Mesh(group, tp=setup.tp, dp=setup.dp, pp=setup.pp)",
        ("test_places", f"{ONE}[dp2 x tp2]", f"{ONE}[tp2 x pp2]", f"{ONE}[dp2 x pp2]", FP8, f"{HELD}[dp2 x pp2]"),
        "tensor-parallel ranks are not neighbours", may=(f"{HELD}[dp2 x tp2]", SPOILT)),
    mesh_of("data parallel ranks are neighbours of a pipeline's",
        "Mesh(group, pp=setup.pp, dp=setup.dp, tp=setup.tp)",
        "Mesh(group, dp=setup.dp, pp=setup.pp, tp=setup.tp)",
        ("test_places", f"{ONE}[dp2 x pp2]", f"{FP8}[dp2 x pp2]", f"{HELD}[dp2 x pp2]"), may=SPOILT),
    cut("x is not copied to the ranks", "(steps.copy_to_ranks(args[0], group), *args[1:])", "(args[0], *args[1:])",
        (*WITH_TP, *FP8_TP), "each rank has the addend of its own", "in front of the half behind it",
        may=(SPOILT, f"{HELD}[dp2 x tp2]")),
    cut("the addends are not summed", "steps.reduce_over_ranks(y, group)", "y",
        (*WITH_TP, *FP8_TP, SPOILT), "the addends of what stands in front of it"),
    cut("w3 stays the first rank's", "linear_of(ffn.w3.weight[begin:end])", "linear_of(ffn.w3.weight[: end - begin])",
        (*WITH_TP, *FP8_TP, SPOILT)),
    sum_replicas("nobody sums shared heads", "if self.replicas.size == 1:", "if True:",
        f"{ONE}[tp4]", "each rank has the addend of its own"),
    sum_replicas("shared heads: the mean",
        "self.replicas.all_reduce(unit.shard.grad[mine])",
        'self.replicas.all_reduce(unit.shard.grad[mine], op="mean")',
        f"{ONE}[tp4]", "the mean over the ranks that share a head"),
    sum_replicas("every number of a unit is summed over the replicas",
        "unit.shard.grad[mine] = self.replicas.all_reduce(unit.shard.grad[mine])",
        "self.replicas.all_reduce(unit.shard.grad)", f"{ONE}[tp4]", "added to other slices"),
    cut("all tensor-parallel ranks share each head",
        "replicas = group.split(share.replicas",
        "replicas = group.split([[*range(group.size)]]",
        (*WITH_TP, *FP8_TP, SPOILT), "the sum over all tensor-parallel ranks"),
    cut("a group of one is cut, too",
        """    if group.size == 1:
        return replicas
""", "", f"{FP8}[dp2 x pp2]"),
    agreed("each rank its own amax",
        'list(part("week16_fp8.delayed").reduce_amax(torch.stack(amaxes), group))',
        "group.all_reduce(torch.stack(amaxes * 2)) is None or amaxes", (*FP8_TP, "test_agreed_product"), *OWN),
    assemble("amaxes agreed over all ranks", 'converted(model, mesh["tp"])', "converted(model, mesh.group)",
        FP8, "amaxes agreed over all ranks", verdicts=ANY),
    product_forward("a message for each amax",
        "amax_x, amax_w = agreed([casts.amax(x_MK), casts.amax(w_NK)], group)",
        "(amax_x,), (amax_w,) = (agreed([casts.amax(t)], group) for t in (x_MK, w_NK))",
        "test_agreed_product", "a message for each amax"),
    product_backward("dy's amax is its own",
        "(amax_dy,) = agreed([casts.amax(dy_MN)], ctx.group)",
        """agreed([casts.amax(dy_MN)], ctx.group)
        amax_dy = casts.amax(dy_MN)""", (*FP8_TP, "test_agreed_product[column]"), *OWN),
    product_backward("dw from what was not rounded",
        "casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)",
        "(dy_MN.t() @ x8_MK).to(ctx.master) / s_x", "test_agreed_product", "dy is not rounded"),
    product_backward("dy as a weight is rounded",
        'rounded_by(amax_dy, dy_MN, "grad", ctx.recipe)',
        'rounded_by(amax_dy, dy_MN, "weight", ctx.recipe)',
        (*FP8_TP, "test_agreed_product"), "dy is rounded to the forward format"),
    product_backward("dx by x's scale",
        "casts.unscaled(dy8_MN @ w8_NK, s_dy, s_w)",
        "casts.unscaled(dy8_MN @ w8_NK, s_dy, s_x)",
        (*FP8_TP, "test_agreed_product"), "divided by the scale of x, not of w"),
    product_forward("the weight as an input is rounded",
        'w_NK.detach().to(x_MK.dtype), "weight"',
        'w_NK.detach().to(x_MK.dtype), "input"', "test_agreed_product", "the weight is rounded as an input"),
    Held("a root's unit of nothing", "[root] if root else []", "[root]", f"{HELD}[pp4]", verdicts=ANY),
    At("C.1", "assemble", "copies")("shared heads count once without data parallelism alone",
        "if self.is_shared(p) else 1",
        'if self.is_shared(p) and self.mesh["dp"].size == 1 else 1',
        f"{HELD}[dp2 x tp2]", "shared key/value heads count once for each rank"),
    converted("an agreed linear on one rank, too", "if group.size == 1:", "if False:", f"{FP8}[dp2 x pp2]"),
    converted("the head is converted, too", 'skip = ["head"] if model.head is not None else []', "skip: list[str] = []",
        FP8),
    converted("a plain FP8 linear under tensor parallelism", "if group.size == 1:", "if True:", FP8_TP, *OWN),
    assemble("FP8 is forgotten", 'if setup.precision == "fp8":', 'if setup.precision == "FP8":',
        FP8, verdicts=("wrong", "no result")),
    assemble("converted after sharding",
        """report: dict[str, Any] = {}
    if setup.precision == "fp8":
        report = converted(model, mesh["tp"])
    way = part("week14_fsdp.fsdp").FSDP if setup.zero == 3 else Held
    sharded = way(model, model.blocks(), mesh["dp"], setup.dtype)
""",
        """report: dict[str, Any] = {}
    way = part("week14_fsdp.fsdp").FSDP if setup.zero == 3 else Held
    sharded = way(model, model.blocks(), mesh["dp"], setup.dtype)
    if setup.precision == "fp8":
        report = converted(model, mesh["tp"])
""",
        FP8, verdicts=("wrong", "crashed")),
    assemble("everything is held", 'mesh["dp"], setup.dtype)',
        "group.split([[r] for r in range(group.size)]), setup.dtype)", (f"{ONE}[dp4]", f"{ONE}[dp2 x tp2]",
         f"{ONE}[dp2 x pp2]", f"{FP8}[dp2 x tp2]", f"{FP8}[dp2 x pp2]", f"{HELD}[dp2 x tp2]", f"{HELD}[dp2 x pp2]",
         f"{SPOILT}[dp2 x tp2]"), "nothing is cut over the data-parallel ranks"),
    held_finish("nothing is freed after a step", "unit.free()", "pass",
        f"{HELD}[dp2 x pp2]", may=(f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]", f"{SPOILT}[tp2 x pp2]", f"{ONE}[tp4]",
         f"{FP8}[dp2 x pp2]", f"{FP8}[tp2 x pp2]")),
    copies("norms count once for each rank", 'return self.mesh["tp"].size', "return 1",
        (*WITH_TP, SPOILT), "the norms' weights count once for each tensor-parallel rank", "every number counts once"),
    copies("shared heads count once for each rank", "self.replicas.size if self.is_shared(p) else 1", "1",
        f"{ONE}[tp4]", "shared key/value heads count once for each rank that has them"),
    gradients("the sum over the micro-batches", "(loss / M).backward()", "loss.backward()",
        (f"{ONE}[dp4]", f"{ONE}[dp2 x tp2]", f"{FP8}[dp2 x tp2]", f"{SPOILT}[dp2 x tp2]"),
        "too large by the number of micro-batches"),
    gradients("a step's first micro-batch alone", "rows_BT.chunk(M)]", "rows_BT.chunk(M)[:1] * M]", (ONE, FP8, SPOILT)),
    vitals("the loss is every stage's", "/ (self.setup.dp * self.setup.tp)", "/ self.mesh.group.size",
        (f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]", f"{SPOILT}[tp2 x pp2]"), "divided by the number of stages"),
    vitals("no flag: the NaN itself is sent", "if spoilt:", "if False:", SPOILT),
    vitals("each rank's own flag", "if spoilt:", "if bad:", SPOILT),
    trainer_step("allow is not heard",
        "if allow(vitals) and vitals.finite:", "if (allow(vitals) or True) and vitals.finite:", SPOILT),
    trainer_step("allow is called for finite steps alone",
        "if allow(vitals) and vitals.finite:",
        "if vitals.finite and allow(vitals):", SPOILT, "it is called for finite steps alone"),
    # The norms of the other cases lie below.
    trainer_step("no clipping", "if 0 < self.setup.clip_norm < vitals.norm:", "if False:",
        (f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]"), "the gradient is not clipped", may=ONE),
    trainer_step("the root is not clipped",
        """for unit in self.units:
                    unit.shard""",
        """for unit in self.units[len(self.units) > len(self.model.layers) :]:
                    unit.shard""",
        (f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]"), "the blocks' gradients alone are clipped",
        may=ONE),
    assemble("FSDP wherever there is no pipeline", "if setup.zero == 3 else", "if setup.pp == 1 else",
        f"{ONE}[tp4]", verdicts=ANY),
    gradients("the last micro-batch's loss", "torch.stack(losses).mean()", "losses[-1]",
        (f"{ONE}[dp4]", f"{ONE}[dp2 x tp2]", f"{HELD}[dp2 x tp2]", f"{SPOILT}[dp2 x tp2]"),
        "the last micro-batch's alone"),
    vitals("every tensor-parallel rank's loss", "(self.setup.dp * self.setup.tp)", "self.setup.dp",
        (*WITH_TP, f"{HELD}[dp2 x tp2]", SPOILT), "it counts once for each tensor-parallel rank"),
    vitals("the data-parallel ranks' vitals", "self.mesh.group.all_reduce(whole)", 'self.mesh["dp"].all_reduce(whole)',
        (*WITH_TP, f"{ONE}[dp2 x pp2]", HELD, SPOILT), "the share of the data-parallel ranks alone",
        "nothing: the stages"),
    trainer_step("gradients of a refused step stay",
        """            self.optimizer.step(lr)
        self.optimizer.zero_grad()""",
        """            self.optimizer.step(lr)
            self.optimizer.zero_grad()""",
        SPOILT),
    vitals("zeros where it is not step() that asks", "all_reduce(whole)",
        'all_reduce(whole * (__import__("sys")._getframe(1).f_code.co_name == "step"))', (MESSAGES, SPOILT)),
    vitals("vitals in three messages",
        "self.mesh.group.all_reduce(whole).tolist()",
        "(float(self.mesh.group.all_reduce(one[None])) for one in whole)", MESSAGES),
    sum_replicas("a message for a unit without shared heads", "if mine.any():", "if True:", f"{MESSAGES}[tp4]"),
    held_begin("gathered one at a time", "unit.gather()", "unit.wait()", f"{MESSAGES}[dp2 x pp2]"),
    held_finish("reduced one at a time",
        """handles = [unit.reduce() for unit in self.units]
        for unit, handle in zip(self.units, handles):""",
        """for unit in self.units:
            handle = unit.reduce()""",
        f"{MESSAGES}[dp2 x pp2]"),
    assemble("refused when it is built",
        """setup.refuse(group.size)
    mesh = mesh_of(group, setup)
    model = built(setup, mesh)""",
        """mesh = mesh_of(group, setup)
    model = built(setup, mesh)
    setup.refuse(group.size)""", "test_refused", verdicts=("wrong", "crashed")),
    assemble("the dtype is ignored", 'mesh["dp"], setup.dtype)', 'mesh["dp"])',
        "test_bf16", "it is float32's gradient", verdicts=ANY),
    assemble("in BF16 the shards are BF16",
        "    model = built(setup, mesh)\n",
        "    model = built(setup, mesh).to(torch.bfloat16 if setup.precision == 'bf16' else torch.float32)\n",
        "test_bf16"),
    vitals("isnan for isfinite", "(~values.isfinite()).any()", "values.isnan().any()", SPOILT),
    vitals("a flag of the gradient alone", "(~values.isfinite()).any()", "(~values[1:].isfinite()).any()", SPOILT),
    vitals("the squares are float32", "u.shard.grad.double().square()", "u.shard.grad.square()", SPOILT),
    vitals("the message is float32", "all_reduce(whole)", "all_reduce(whole.float())", SPOILT),
    vitals("several bad ranks are none", "if spoilt:", "if spoilt == 1:", SPOILT),
    vitals("numbers for what is not finite",
        "return Vitals(math.nan, math.nan, False)", "return Vitals(value, math.sqrt(square), False)", SPOILT),
    trainer_step("clip 0 stops the training",
        "if 0 < self.setup.clip_norm < vitals.norm:", "if self.setup.clip_norm < vitals.norm:", (f"{ONE}[dp4]", SPOILT),
        "scaled to `clip_norm` whatever its norm is"),
    trainer_step("clipped to 1", "self.setup.clip_norm / vitals.norm)", "1.0 / vitals.norm)",
        f"{ONE}[dp2 x tp2]", "clipped to 1"),
    trainer_step("small gradients are scaled up",
        "if 0 < self.setup.clip_norm < vitals.norm:",
        "if self.setup.clip_norm > 0:", f"{ONE}[tp4]", "scaled to `clip_norm` whatever its norm is"),
    gradients("one micro-batch at a time",
        "steps = pipeline.one_f_one_b(pipe.size, M, pipe.rank)",
        'steps = [(kind, m) for m in range(M) for kind in "FB"]', f"{MESSAGES}[dp2 x pp2]"),
    gradients("all forwards first",
        "steps = pipeline.one_f_one_b(pipe.size, M, pipe.rank)",
        'steps = [(kind, m) for kind in "FB" for m in range(M)]', f"{MESSAGES}[dp2 x pp2]"),
    product_backward("dw in x's dtype", "(dy8_MN.t() @ x8_MK).to(ctx.master)", "dy8_MN.t() @ x8_MK",
        "test_agreed_product"),
    product_forward("the master is x's dtype", "recipe, group, w_NK.dtype", "recipe, group, x_MK.dtype",
        "test_agreed_product"),
    rounded_by("the recipe's epsilon is ignored", "epsilon=recipe.epsilon.get(slot, 0.0), ", "",
        "test_agreed_product", "the recipe's epsilon is ignored"),
    rounded_by("the recipe's kind of scale is ignored", ", power_of_two=recipe.powers(slot))", ")",
        "test_agreed_product", "the recipe's power_of_two is ignored"),
    agreed("an amax without a flag",
        'list(part("week16_fp8.delayed").reduce_amax(torch.stack(amaxes), group))',
        'list(group.all_reduce(torch.stack(amaxes).nan_to_num(0.0), op="max"))', "test_agreed_product"),
    gradients("a loss with its graph", "losses.append(loss.detach())", "losses.append(loss)", f"{SPOILT}[dp2 x tp2]"),
    sum_replicas("the whole shard is sent",
        "unit.shard.grad[mine] = self.replicas.all_reduce(unit.shard.grad[mine])",
        "unit.shard.grad[mine] = self.replicas.all_reduce(unit.shard.grad.clone())[mine]", f"{MESSAGES}[tp4]"),
    cut("rows of the embedding that nobody knows",
        "table.weight.detach()[first:last].clone()",
        "table.weight.detach().chunk(group.size)[group.rank].clone()", f"{ONE}[tp4]", verdicts=ANY),
    gradients("every other row",
        "[(rows[:, :-1], rows[:, 1:]) for rows in rows_BT.chunk(M)]",
        "[(rows_BT[m::M, :-1], rows_BT[m::M, 1:]) for m in range(M)]", FP8),
    assemble("what the rest computes in is forgotten",
        'mesh["dp"], setup.dtype)',
        'mesh["dp"], torch.bfloat16 if setup.precision == "bf16" else None)',
        f"{MESSAGES}[dp2 x pp2]", verdicts=("crashed",)),
    cut("x is copied for each linear",
        "            half.register_forward_pre_hook(lambda _, args: (steps.copy_to_ranks(args[0], group), *args[1:]))",
        """            for one in (attn.wq, attn.wk, attn.wv) if half is attn else (ffn.w1, ffn.w3):
                one.register_forward_pre_hook(lambda _, args: (steps.copy_to_ranks(args[0], group),))""",
        # FP8's linears come in the place of these, without their hooks.
        (f"{MESSAGES}[tp4]", f"{FP8}[dp2 x tp2]", f"{FP8}[tp2 x pp2]"), "x is copied to the ranks once for each linear",
        "in front of the half"),
    gradients("no loss is a loss of zero", "return loss\n", "return torch.zeros(()) if loss is None else loss\n",
        f"{MESSAGES}[dp2 x pp2]"),
    held_finish("what was not used has no gradient",
        """        handles = [unit.reduce() for unit in self.units]
        for unit, handle in zip(self.units, handles):""",
        """        used = [unit for unit in self.units if any(p.grad is not None for p in unit.params)]
        handles = [unit.reduce() for unit in used]
        for unit, handle in zip(used, handles):""",
        f"{MESSAGES}[dp2 x pp2]"),
    gradients("shared heads are summed in every backward",
        'M, pipe = self.setup.micro, self.mesh["pp"]',
        """M, pipe, self.sum_replicas = self.setup.micro, self.mesh["pp"], lambda: None
        for p in self.names:
            if self.is_shared(p) and self.replicas.size > 1:
                p.register_hook(self.replicas.all_reduce)""",
        f"{MESSAGES}[tp4]", may=(ONE, SPOILT, HELD)),
    product_forward("the scales are multiplied first",
        "casts.unscaled(x8_MK @ w8_NK.t(), s_x, s_w)", "x8_MK @ w8_NK.t() / (s_x * s_w)", "test_agreed_product"),
    product_forward("x is kept besides", "= recipe, group, w_NK.dtype",
        "= recipe, group, w_NK.dtype\n        ctx.x = x_MK", "test_agreed_product"),
    product_forward("x is hung on the group", "= recipe, group, w_NK.dtype",
        "= recipe, group, w_NK.dtype\n        group.x = x_MK", "test_agreed_product"),
    product_forward("the first micro-batch's amaxes for all",
        "= agreed([casts.amax(x_MK), casts.amax(w_NK)], group)",
        '= vars(w_NK).setdefault("tops", agreed([casts.amax(x_MK), casts.amax(w_NK)], group))', FP8_TP,
        "amaxes agreed over all", seldom=True),  # both replicas may have the token of the largest x
    trainer_step("a learning rate of its own", "self.optimizer.step(lr)", "self.optimizer.step(0.1)", (ONE, SPOILT)),
    trainer_step("a refused step counts", "self.optimizer.zero_grad()",
        "self.optimizer.steps += not vitals.finite\n        self.optimizer.zero_grad()", SPOILT),
    vitals("a flag of the last unit alone", "(~values.isfinite()).any()",
        "~(values[0] + self.units[-1].shard.grad.sum()).isfinite()\n        values = values.nan_to_num()", SPOILT),
    vitals("a message of six numbers", "all_reduce(whole).tolist()", "all_reduce(whole.repeat(2)).tolist()[:3]",
        MESSAGES),
    gradients("gathered one at a time in front of begin", "self.sharded.begin()",
        "[unit.wait() for unit in self.units]\n        self.sharded.begin()", f"{MESSAGES}[dp2 x pp2]"),
    held_finish("a copy of the weights stays", "unit.add(handle)",
        "unit.add(handle)\n            unit.kept = unit.full.clone()", (f"{HELD}[dp2 x pp2]", f"{HELD}[pp4]")),
]

# A step that is wrong in FP32 is wrong in BF16, too, and one that waits elsewhere may send one micro-batch at a time.
ASSEMBLE = [replace(one, may=(*one.may, "test_bf16", MESSAGES)) for one in ASSEMBLE]

SAVED, OTHER, DAMAGED, LESS = "test_resumed", "test_another_mesh", "test_damaged", "test_one_rank_sees_less"
FLIPPED = tuple(f"{DAMAGED}[{case}" for case in ("a file]", "a rank's that is gone]", "all]", "by rank]"))
OLDER = tuple(f"{DAMAGED}[{case}" for case in ("a file]", "the manifest]", "cut short]", "missing]", "a rank's that is gone]"))  # one is left
BY_RANK = f"{DAMAGED}[by rank]"
save, load, damage, recut = At.each("C.2", "checkpoint", "save", "load", "damage", "recut")
CHECKPOINT = [
    save("published before the others have written",
        """        store.put(step, name_of(group.rank), data)
    except OSError as error:
        problem = f"rank {group.rank}: {error}"
""",
        """        if group.rank == 0:
            store.put(step, name_of(group.rank), data)
            store.publish(step)
            store.publish = lambda step: None
        gather_json(group, 0)
        if group.rank > 0:
            store.put(step, name_of(group.rank), data)
    except OSError as error:
        problem = f"rank {group.rank}: {error}"
""",
        SAVED, "published before all had written", may="test_a_disk_that_is_full"),
    save("every rank publishes", "if group.rank == 0 and not problems:", "if not problems:",
        (SAVED, OTHER, *OLDER, f"{DAMAGED}[all]", LESS, "test_another_run")),
    save("a disk that is full is passed over", 'if one["problem"]]', "if False]", "test_a_disk_that_is_full"),
    save("what was put stays on the full disk", "store.discard(step)", "pass", "test_a_disk_that_is_full"),
    save("a publishing that fails is rank 0's alone",
        """            store.publish(step)
        except OSError as error:
            problems = [f"rank 0: {error}"]
""",
        """        except OSError as error:
            problems = [f"rank 0: {error}"]
        else:
            store.publish(step)
""", "test_a_disk_that_is_full", verdicts=("crashed",)),
    save("dp before pp", '("pp", "dp", "tp")]', '("dp", "pp", "tp")]', f"{SAVED}[dp2",
        may=(OTHER, f"{DAMAGED}[a rank's that is gone]"), verdicts=ANY),
    save("AdamW's count is the manifest's step", '"step": step', '"step": optimizer.steps', SAVED),
    load("of another run, before it is whole",
        "        saved = gather_json(",
        """        if (body := _body(store, step)) is not None and body["setup"] != fingerprint(trainer):
            raise LabError(f"another setup: precision, weight_decay: {body['setup']}")
        saved = gather_json(""", "test_another_run"),
    save("the first moment is the second", '"m": optimizer.m', '"m": optimizer.v', (SAVED, OTHER)),
    load("AdamW begins to count anew", 'trainer.optimizer.steps = own["steps"]', "pass", (SAVED, OTHER)),
    load("rank 0's file for all",
        "own = from_bytes(store.get(step, name_of(group.rank)))",
        "own = from_bytes(store.get(step, name_of(0)))", SAVED, verdicts=("wrong", "crashed"), may=DAMAGED),
    damage("sizes alone are compared",
        '(len(data), zlib.crc32(data)) != (wanted["bytes"], wanted["crc32"])',
        'len(data) != wanted["bytes"]', (*FLIPPED, "test_another_run"), verdicts=("wrong", "crashed")),
    damage("the manifest alone is looked at", "for rank in ranks:", "for rank in ():",
        (*FLIPPED, f"{DAMAGED}[cut short]", f"{DAMAGED}[missing]", "test_another_run"), verdicts=("wrong", "crashed")),
    damage("whoever is asked about must have saved", 'if rank < len(body["ranks"]):', "if True:", BY_RANK),
    damage("a file that is gone is damaged, one that cannot be read raises",
        "except OSError as error:", "except FileNotFoundError as error:", BY_RANK, verdicts=("crashed",)),
    damage("all files, whoever is asked about", "for rank in ranks:", 'for rank in range(len(body["ranks"])):',
        BY_RANK),
    load("a damaged one ends the run",
        """            passed_over.append(problem)
            continue""", "            raise LabError(problem)", (*OLDER, "test_another_run")),
    load("nothing is said of the damaged one", 'Loaded(step, own["own"], passed_over)', 'Loaded(step, own["own"], [])',
        OLDER),
    load("of several damaged ones the last is spoken of",
        'Loaded(step, own["own"], passed_over)', 'Loaded(step, own["own"], passed_over[-1:])', f"{DAMAGED}[cut short]"),
    load("the oldest first",
        "in gather_json(group, store.steps())[0]:",
        "in gather_json(group, store.steps())[0][::-1]:", OLDER, may="test_another_run"),
    load("each rank's own listing", "in gather_json(group, store.steps())[0]:", "in store.steps():", LESS),
    load("of whatever run", 'if body["setup"] != fingerprint(trainer):', "if False:", "test_another_run"),
    load("the weights first, the question afterwards",
        'if body["setup"] != fingerprint(trainer):',
        """if body["setup"] != fingerprint(trainer):
            with torch.no_grad():
                trainer.units[0].shard.mul_(2)""", "test_another_run"),
    recut("the parts of a vector in the wrong order",
        'ranks.sort(key=lambda rank: body["ranks"][rank]["place"][1])',
        'ranks.sort(key=lambda rank: -body["ranks"][rank]["place"][1])',
        (f"{OTHER}[dp2 x tp2 to dp4]", f"{OTHER}[dp4 to tp4]", f"{OTHER}[dp2 x tp2 to dp3]")),
    recut("the first rank's slice on all", "place(name, config, tp_group.size, tp_group.rank)",
        "place(name, config, tp_group.size, 0)",
        (f"{OTHER}[dp4 to tp4]", f"{OTHER}[tp2 x pp2 to dp2 x tp2]", f"{OTHER}[tp2 to dp2 x tp2]"),
        verdicts=("wrong", "crashed"), may=f"{DAMAGED}[a rank's that is gone]"),
    recut("moments are cut from the weights", "files[rank][kind][unit]", 'files[rank]["shards"][unit]', OTHER),
    load("all are damaged, and it starts at 0 in silence", "    if passed_over:\n", "    if False:\n",
        f"{DAMAGED}[all]"),
    load("a new rank's own is nobody's",
        "own = files[group.rank if group.rank < len(files) else 0]",
        "own = files[group.rank % len(files)]", f"{OTHER}[tp2 to dp2 x tp2]"),
    load("more ranks than files",
        "own = files[group.rank if group.rank < len(files) else 0]",
        "own = files[group.rank]", f"{OTHER}[tp2 to dp2 x tp2]", verdicts=("crashed",)),
    load("only one's own file is verified", "list(range(group.rank, max(saved, 1), group.size))", "[group.rank]",
        f"{DAMAGED}[a rank's that is gone]", verdicts=("wrong", "crashed")),
    load("the newest of another setup is skipped in silence",
        """            raise LabError(
                f"the checkpoint of step""",
        """            continue
            raise LabError(
                f"the checkpoint of step""", "test_another_run"),
    load("AdamW's count is the step's", 'trainer.optimizer.steps = own["steps"]', "trainer.optimizer.steps = step",
        (SAVED, OTHER)),
    load("own is made up", 'own["own"], passed', '{"rate": 0.25, "rank": group.rank}, passed', (SAVED, OTHER)),
    load("of another precision alone", 'body["setup"] != fingerprint(trainer)',
        'body["setup"]["precision"] != trainer.setup.precision', "test_another_run"),
    load("moments first, the question afterwards",
        "raise LabError(f\"no", "trainer.optimizer.m[0].add_(1)\n        raise LabError(f\"no", f"{DAMAGED}[all]"),
    save("put again behind the publishing", "    if problems:\n        if group",
        "    store.put(step, name_of(group.rank), data)\n    if problems:\n        if group",
        SAVED, "published before all had written", verdicts=("wrong", "crashed"), may="test_a_disk_that_is_full"),
    save("another step is thrown away", "store.discard(step)", "store.discard(0)", "test_a_disk_that_is_full"),
    save("whichever rank it was", 'f"rank {group.rank}: {e', 'f"rank 0, rank 1, rank 2 or rank 3: {e',
        "test_a_disk_that_is_full"),
    save("three times as much", '"own": own})', '"own": own, "": [x.repeat(6) for x in vectors["shards"]]})', SAVED),
    recut("what is cut anew is rounded to what weights are gathered in",
        "torch.zeros(shapes[name])",
        "torch.zeros(shapes[name], dtype=trainer.setup.dtype)", f"{OTHER}[dp2 x tp2 to dp3]", "rounded to BF16"),
    recut("zeros in front", "torch.cat([*own, filling])", "torch.cat([filling, *own])", f"{OTHER}[dp2 x tp2 to dp3]"),
    recut("no zeros behind", "filling = torch.zeros(", "filling = torch.ones(", f"{OTHER}[dp2 x tp2 to dp3]"),
]
UNUSUAL, SLOW, ALARMS = "test_unusual", "test_slow_ranks", "test_alarms"

unusual, median, slow_ranks, alarms = At.each("C.4", "health", "unusual", "median", "slow_ranks", "alarms")
HEALTH = [
    unusual("the row itself is usual", "before(log_SN, width)", "before(torch.cat([log_SN, log_SN[-1:]]), width)[1:]",
        UNUSUAL, "the row itself is among those that say what is usual"),
    unusual("means", "",
        """
        fine = x_SN.isfinite() & (x_SN > 0)
        log_SN = torch.where(fine, x_SN.double(), 1.0).log2().where(fine, torch.nan)
        past_SNW = before(log_SN, width)
        usual_SN = past_SNW.nanmean(-1)
        scatter_SN = SIGMA * (past_SNW - usual_SN[..., None]).abs().nanmean(-1)
        z_SN = (log_SN - usual_SN) / (scatter_SN + floor)
        enough_SN = (~past_SNW.isnan()).sum(-1) >= known
        return torch.where(fine & enough_SN, z_SN, 0.0)
        """,
        UNUSUAL, "means, and not medians", may=ALARMS),
    unusual("no floor", "(scatter_SN + floor)", "scatter_SN", UNUSUAL, "without the floor", may=ALARMS),
    unusual("natural logarithms", "x_SN.double(), 1.0).log2()", "x_SN.double(), 1.0).log()",
        UNUSUAL, "natural logarithms"),
    unusual("whatever is known is enough", "(~past_SNW.isnan()).sum(-1) >= known", "(~past_SNW.isnan()).sum(-1) >= 1",
        UNUSUAL, "less than `known` is recorded before, and it is judged", may=ALARMS),
    unusual("known, and one more", "(~past_SNW.isnan()).sum(-1) >= known", "(~past_SNW.isnan()).sum(-1) > known",
        UNUSUAL, "`known` are recorded before, and it is not judged", may=ALARMS),
    unusual("the whole width is asked for",
        "(~past_SNW.isnan()).sum(-1) >= known",
        "(~past_SNW.isnan()).sum(-1) >= width",
        UNUSUAL, "`known` are recorded before, and it is not judged", may=ALARMS),
    unusual("the lower of two", "usual_SN = median(past_SNW)", "usual_SN = past_SNW.nanmedian(-1).values",
        UNUSUAL, "the lower of the middle two is usual", may=ALARMS),
    median("the lower of two, twice",
        "(x.nanmedian(-1).values - (-x).nanmedian(-1).values) / 2",
        "x.nanmedian(-1).values", UNUSUAL, "the lower of the middle two, twice", may=ALARMS),
    unusual("a standard deviation",
        "SIGMA * median((past_SNW - usual_SN[..., None]).abs())",
        "(past_SNW - usual_SN[..., None]).square().nanmean(-1).sqrt()",
        UNUSUAL, "the scatter is a standard deviation", may=ALARMS),
    unusual("mean and standard deviation",
        """median(past_SNW)
    scatter_SN = SIGMA * median((past_SNW - usual_SN[..., None]).abs())""",
        """past_SNW.nanmean(-1)
    scatter_SN = (past_SNW - usual_SN[..., None]).square().nanmean(-1).sqrt()""",
        UNUSUAL, "mean and standard deviation", may=ALARMS),
    unusual("no 1.4826", "SIGMA * median", "median", UNUSUAL, "the scatter is not multiplied", may=ALARMS),
    unusual("without a sign", "(log_SN - usual_SN)", "(log_SN - usual_SN).abs()", UNUSUAL, "z has no sign", may=ALARMS),
    unusual("what has no logarithm is judged",
        "torch.where(fine & enough_SN, z_SN, 0.0)",
        "torch.where(enough_SN, z_SN, 0.0)",
        f"{UNUSUAL}[not everything]", "what is no positive number is judged", may=ALARMS),
    unusual("what was not recorded counts as known",
        "(~past_SNW.isnan()).sum(-1) >= known",
        "(torch.arange(len(x_SN)) >= known)[:, None]",
        f"{UNUSUAL}[not everything]", "less than `known` is recorded before, and it is judged", may=ALARMS),
    unusual("the larger of scatter and floor", "(scatter_SN + floor)", "scatter_SN.clamp(min=floor)",
        UNUSUAL, "the larger of scatter and floor", may=ALARMS),
    unusual("the mean is usual", "usual_SN = median(past_SNW)", "usual_SN = past_SNW.nanmean(-1)",
        UNUSUAL, "the usual value is a mean", may=ALARMS),
    unusual("the mean deviation",
        "SIGMA * median((past_SNW - usual_SN[..., None]).abs())",
        "SIGMA * (past_SNW - usual_SN[..., None]).abs().nanmean(-1)", UNUSUAL, "the scatter is a mean", may=ALARMS),
    unusual("zeros are judged", "x_SN.isfinite() & (x_SN > 0)", "x_SN.isfinite() & (x_SN >= 0)",
        f"{UNUSUAL}[not everything]", "what is no positive number is judged", may=ALARMS),
    unusual("infinities are judged", "x_SN.isfinite() & (x_SN > 0)", "x_SN > 0",
        f"{UNUSUAL}[not everything]", "what is no positive number is judged", may=ALARMS),
    slow_ranks("the mean of a rank's last steps",
        "usual_NR, now_NR = median(windows_NRW[..., :used_to]), median(windows_NRW[..., used_to:])",
        "usual_NR, now_NR = windows_NRW[..., :used_to].mean(-1), windows_NRW[..., used_to:].mean(-1)",
        SLOW, "long steps of a rank ring", may=ALARMS, seldom=True),
    slow_ranks("no rank is compared", "log_SR - median(others_SRR)", "log_SR",
        SLOW, "its own seconds alone", may=ALARMS, seldom=True),
    slow_ranks("more to do from the beginning", "now_NR - usual_NR > slower", "now_NR > slower",
        SLOW, "a rank rings that had more to do", may=ALARMS, seldom=True),
    slow_ranks("one long step", "median(windows_NRW[..., used_to:])", "windows_NRW[..., -1]",
        SLOW, "long steps of a rank ring", may=ALARMS, seldom=True),
    slow_ranks("the mean of the last steps", "median(windows_NRW[..., used_to:])",
        "windows_NRW[..., -6:].exp2().mean(-1).log2()", SLOW, "long steps of a rank ring", may=ALARMS, seldom=True),
    slow_ranks("four steps", "48, 20, 0.32", "48, 4, 0.32", SLOW, "long steps of a rank ring", may=ALARMS, seldom=True),
    slow_ranks("the rank that waits", "enumerate(slow_NR.T)", "enumerate(slow_NR.flip(1).T)",
        SLOW, "another rank is named", may=ALARMS),
    slow_ranks("late for a rank", "used_to, lately, slower = 48, 20, 0.32", "used_to, lately, slower = 48, 80, 0.32",
        SLOW, "it rings too late", may=ALARMS),
    slow_ranks("only the first slow rank", "sorted(begins)]", "sorted(begins)[:1]]",
        SLOW, "one slow rank rings, and no other after it", may=ALARMS),
    slow_ranks("half as long again", "48, 20, 0.32", "48, 20, 0.6",
        SLOW, "it rings for slower ranks alone", may=ALARMS),
    slow_ranks("late for a rank that is slow at row 64", "48, 20, 0.32", "64, 40, 0.32",
        SLOW, "it rings too late", may=ALARMS),
    slow_ranks("no rank is slow", "", "return []", SLOW, "it never rings", may=ALARMS),
    alarms("always", "", 'return [Alarm(row, "who knows") for row in range(len(run.loss_S))]',
        ALARMS, "it rings at the first row of every run"),
    alarms("never", "", "return []", ALARMS, "it never rings"),
    alarms("at a row that is likely", "", 'return [Alarm(120, "it is time")] if len(run.loss_S) > 120 else []',
        ALARMS, "most healthy runs ring"),
    alarms("it looks ahead",
        "return sorted(found)",
        "return sorted(Alarm(max(0, row - 8), why, rank) for row, why, rank in found)", ALARMS, "it looks ahead"),
    alarms("the whole run's median", "",
        """
        z = (run.loss_S - run.loss_S.nanmean()) / run.loss_S.std()
        return sorted(slow_ranks(run.work_SR) + first((z.abs() > 2).nonzero(), "far from the mean"))
        """,
        ALARMS, "it looks ahead", seldom=True),
    alarms("what saturates in the whole run is usual",
        "usual_PT = median(before(run.over_PT.double(), 24))",
        "usual_PT = median(run.over_PT.double().T)[None]", ALARMS, "it looks ahead"),
    alarms("a loss in units of the whole run",
        "loss_S = unusual(run.loss_S[:, None], width=48, known=24, floor=0.05)[:, 0]",
        "loss_S = (run.loss_S - run.loss_S.nanmean()) / run.loss_S.nan_to_num().std(correction=0)",
        ALARMS, "it looks ahead"),
    alarms("ranks without a number",
        "return sorted(found)",
        "return sorted(Alarm(row, why) for row, why, rank in found)", ALARMS, "slow ranks ring without their number"),
    alarms("ranks are not looked at", "if run.work_SR.shape[1] > 1:", "if False:",
        ALARMS, "it rings for no fault of these kinds: slow rank"),
    alarms("two ranks are not looked at", "if run.work_SR.shape[1] > 1:", "if run.work_SR.shape[1] > 2:", ALARMS),
    alarms("only the first alarm", "return sorted(found)", "return sorted(found)[:1]", ALARMS),
    alarms("only the first slow rank is reported", "slow_ranks(run.work_SR)", "slow_ranks(run.work_SR)[:1]", ALARMS),
    alarms("not in the order of rows", "return sorted(found)", "return found", ALARMS),
    alarms("what is no number is left out", "found = not_finite(run)", "found = []", ALARMS),
    alarms("no weights", "if len(run.probe_P) > 1:", "if False:", ALARMS),
    alarms("only large gradients", "",
        """
        z_S = unusual(run.norm_S[:, None], width=48, known=24, floor=0.05)[:, 0]
        return sorted(slow_ranks(run.work_SR) + first((z_S > 6).nonzero(), "a large gradient"))
        """,
        ALARMS),
    alarms("the folklore", "",
        """
        falls_P = (run.scale_PT[1:] < run.scale_PT[:-1] / 4).any(1)
        return sorted(slow_ranks(run.work_SR) + first(run.probe_P[1:][falls_P, None], "a scale fell"))
        """,
        ALARMS),
    alarms("a loss in absolute numbers", "",
        'return sorted(slow_ranks(run.work_SR) + first((run.loss_S > 5).nonzero(), "a large loss"))', ALARMS),
]
MUTANTS = [*ASSEMBLE, *CHECKPOINT, *HEALTH]
