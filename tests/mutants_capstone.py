"""Mutants of the capstone: the reference with a line changed, the checks that must fail for it, and the causes to be
told.

`tests/test_mutants_capstone.py` runs them on thread ranks (`tests/kills.py`, also on many seeds) and some through the
real machinery. A mutant fails the checks named here and no others; a cause that is printed is one of those given.
"""

from dataclasses import replace

from tests.mutant import ANY, At

ONE, FP8, SPOILT = "test_one_process", "test_fp8", "test_a_step_that_is_not_taken"
WITH_TP = (f"{ONE}[tp4]", f"{ONE}[dp2 x tp2]", f"{ONE}[tp2 x pp2]")
FP8_TP = (f"{FP8}[dp2 x tp2]", f"{FP8}[tp2 x pp2]")
OWN = "its own slices' amaxes", "the amax of"
HELD, MESSAGES = "test_what_a_rank_holds", "test_messages"

assemble = At("C.1", "assemble")
fp8 = At("C.1", "fp8")
ASSEMBLE = [
    # A vocabulary of an odd number of rows; and a rank has numbers for its own place alone.
    assemble("tp varies slowest", "mesh_of",
        "Mesh(group, pp=setup.pp, dp=setup.dp, tp=setup.tp)",
        "Mesh(group, tp=setup.tp, dp=setup.dp, pp=setup.pp)",
        ("test_places", f"{ONE}[dp2 x tp2]", f"{ONE}[tp2 x pp2]", f"{ONE}[dp2 x pp2]", FP8, f"{HELD}[dp2 x pp2]"),
        "tensor-parallel ranks are not neighbours", may=(f"{HELD}[dp2 x tp2]", SPOILT)),
    assemble("data parallel ranks are neighbours of a pipeline's", "mesh_of",
        "Mesh(group, pp=setup.pp, dp=setup.dp, tp=setup.tp)",
        "Mesh(group, dp=setup.dp, pp=setup.pp, tp=setup.tp)",
        ("test_places", f"{ONE}[dp2 x pp2]", f"{FP8}[dp2 x pp2]", f"{HELD}[dp2 x pp2]"), may=SPOILT),
    assemble("x is not copied to the ranks", "cut",
        "(steps.copy_to_ranks(args[0], group), *args[1:])",
        "(args[0], *args[1:])",
        (*WITH_TP, *FP8_TP), "each rank has the addend of its own", "in front of the half behind it",
        may=(SPOILT, f"{HELD}[dp2 x tp2]")),
    assemble("the addends are not summed", "cut",
        "steps.reduce_over_ranks(y, group)",
        "y",
        (*WITH_TP, *FP8_TP, SPOILT), "the addends of what stands in front of it"),
    assemble("w3 stays the first rank's", "cut",
        "linear_of(ffn.w3.weight[begin:end])",
        "linear_of(ffn.w3.weight[: end - begin])",
        (*WITH_TP, *FP8_TP, SPOILT)),
    assemble("nobody sums shared heads", "sum_replicas", "if self.replicas.size == 1:", "if True:", f"{ONE}[tp4]",
        "each rank has the addend of its own"),
    assemble("shared heads: the mean", "sum_replicas",
        "self.replicas.all_reduce(unit.shard.grad[mine])",
        'self.replicas.all_reduce(unit.shard.grad[mine], op="mean")',
        f"{ONE}[tp4]", "the mean over the ranks that share a head"),
    assemble("every number of a unit is summed over the replicas", "sum_replicas",
        "unit.shard.grad[mine] = self.replicas.all_reduce(unit.shard.grad[mine])",
        "self.replicas.all_reduce(unit.shard.grad)",
        f"{ONE}[tp4]", "added to other slices"),
    assemble("all tensor-parallel ranks share each head", "cut",
        "replicas = group.split(share.replicas",
        "replicas = group.split([[*range(group.size)]]",
        (*WITH_TP, *FP8_TP, SPOILT), "the sum over all tensor-parallel ranks"),
    assemble("a group of one is cut, too", "cut",
        """    if group.size == 1:
        return replicas
""",
        "",
        f"{FP8}[dp2 x pp2]"),
    fp8("each rank its own amax", "agreed",
        'list(part("week16_fp8.delayed").reduce_amax(torch.stack(amaxes), group))',
        "group.all_reduce(torch.stack(amaxes * 2)) is None or amaxes",
        (*FP8_TP, "test_agreed_product"), *OWN),
    assemble("amaxes agreed over all ranks", "assemble",
        'converted(model, mesh["tp"])',
        "converted(model, mesh.group)",
        FP8, "amaxes agreed over all ranks", verdicts=ANY),
    fp8("a message for each amax", "AgreedProduct.forward",
        "amax_x, amax_w = agreed([casts.amax(x_MK), casts.amax(w_NK)], group)",
        "(amax_x,), (amax_w,) = (agreed([casts.amax(t)], group) for t in (x_MK, w_NK))",
        "test_agreed_product", "a message for each amax"),
    fp8("dy's amax is its own", "AgreedProduct.backward",
        "(amax_dy,) = agreed([casts.amax(dy_MN)], ctx.group)",
        """agreed([casts.amax(dy_MN)], ctx.group)
        amax_dy = casts.amax(dy_MN)""",
        (*FP8_TP, "test_agreed_product[column]"), *OWN),
    fp8("dw from what was not rounded", "AgreedProduct.backward",
        "casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)",
        "(dy_MN.t() @ x8_MK).to(ctx.master) / s_x",
        "test_agreed_product", "dy is not rounded"),
    fp8("dy as a weight is rounded", "AgreedProduct.backward",
        'rounded_by(amax_dy, dy_MN, "grad", ctx.recipe)',
        'rounded_by(amax_dy, dy_MN, "weight", ctx.recipe)',
        (*FP8_TP, "test_agreed_product"), "dy is rounded to the forward format"),
    fp8("dx by x's scale", "AgreedProduct.backward",
        "casts.unscaled(dy8_MN @ w8_NK, s_dy, s_w)",
        "casts.unscaled(dy8_MN @ w8_NK, s_dy, s_x)",
        (*FP8_TP, "test_agreed_product"), "divided by the scale of x, not of w"),
    fp8("the weight as an input is rounded", "AgreedProduct.forward",
        'w_NK.detach().to(x_MK.dtype), "weight"',
        'w_NK.detach().to(x_MK.dtype), "input"',
        "test_agreed_product", "the weight is rounded as an input"),
    fp8("the head is converted, too", "converted",
        'skip = ["head"] if model.head is not None else []',
        "skip: list[str] = []",
        FP8),
    fp8("a plain FP8 linear under tensor parallelism", "converted", "if group.size == 1:", "if True:", FP8_TP, *OWN),
    assemble("FP8 is forgotten", "assemble",
        'if setup.precision == "fp8":',
        'if setup.precision == "FP8":',
        FP8, verdicts=("wrong", "no result")),
    assemble("converted after sharding", "assemble",
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
    assemble("everything is held", "assemble",
        'mesh["dp"], setup.dtype)',
        "group.split([[r] for r in range(group.size)]), setup.dtype)",
        (f"{ONE}[dp4]", f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{FP8}[dp2 x tp2]", f"{FP8}[dp2 x pp2]", HELD,
         f"{SPOILT}[dp2 x tp2]"), "nothing is cut over the data-parallel ranks"),
    assemble("nothing is freed after a step", "Held.finish",
        "unit.free()",
        "pass",
        f"{HELD}[dp2 x pp2]", may=(f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]", f"{SPOILT}[tp2 x pp2]", f"{ONE}[tp4]")),
    assemble("norms count once for each rank", "Trainer.copies",
        'return self.mesh["tp"].size',
        "return 1",
        (*WITH_TP, SPOILT), "the norms' weights count once for each tensor-parallel rank", "every number counts once"),
    assemble("shared heads count once for each rank", "Trainer.copies",
        "self.replicas.size if self.is_shared(p) else 1",
        "1",
        f"{ONE}[tp4]", "shared key/value heads count once for each rank that has them"),
    assemble("the sum over the micro-batches", "Trainer.gradients",
        "(loss / M).backward()",
        "loss.backward()",
        (f"{ONE}[dp2 x tp2]", f"{FP8}[dp2 x tp2]", f"{SPOILT}[dp2 x tp2]"),
        "2 times too large: the sum over the micro-batches"),
    assemble("a step's first micro-batch alone", "Trainer.gradients",
        "rows_BT.chunk(M)]",
        "rows_BT.chunk(M)[:1] * M]",
        (f"{ONE}[tp4]", f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]", FP8, SPOILT)),
    assemble("the loss is every stage's", "Trainer.vitals",
        "/ (self.setup.dp * self.setup.tp)",
        "/ self.mesh.group.size",
        (f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]", f"{SPOILT}[tp2 x pp2]"), "divided by the number of stages"),
    assemble("no flag: the NaN itself is sent", "Trainer.vitals", "if spoilt:", "if False:", SPOILT),
    assemble("each rank's own flag", "Trainer.vitals", "if spoilt:", "if bad:", SPOILT),
    assemble("allow is not heard", "Trainer.step",
        "if allow(vitals) and vitals.finite:",
        "if (allow(vitals) or True) and vitals.finite:",
        SPOILT),
    assemble("allow is asked about finite steps alone", "Trainer.step",
        "if allow(vitals) and vitals.finite:",
        "if vitals.finite and allow(vitals):",
        SPOILT, "it is asked about finite steps alone"),
    assemble("no clipping", "Trainer.step", "if 0 < self.setup.clip_norm < vitals.norm:", "if False:",
        (f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]"), "the gradient is not clipped",
        may=ONE),  # the norms of the other lie below
    assemble("the root is not clipped", "Trainer.step",
        """for unit in self.units:
                    unit.shard""",
        """for unit in self.units[len(self.units) > len(self.model.layers) :]:
                    unit.shard""",
        (f"{ONE}[dp2 x tp2]", f"{ONE}[dp2 x pp2]", f"{ONE}[tp2 x pp2]"), "the blocks' gradients alone are clipped", may=ONE),
    assemble("FSDP wherever there is no pipeline", "assemble",
        "if setup.zero == 3 else",
        "if setup.pp == 1 else",
        f"{ONE}[tp4]", verdicts=ANY),
    assemble("the last micro-batch's loss", "Trainer.gradients",
        "torch.stack(losses).mean()",
        "losses[-1]",
        (f"{ONE}[dp2 x tp2]", f"{HELD}[dp2 x tp2]", f"{SPOILT}[dp2 x tp2]"), "the last micro-batch's alone"),
    assemble("every tensor-parallel rank's loss", "Trainer.vitals",
        "(self.setup.dp * self.setup.tp)",
        "self.setup.dp",
        (*WITH_TP, f"{HELD}[dp2 x tp2]", SPOILT), "it counts once for each tensor-parallel rank"),
    assemble("the data-parallel ranks' vitals", "Trainer.vitals",
        "self.mesh.group.all_reduce(whole)",
        'self.mesh["dp"].all_reduce(whole)',
        (*WITH_TP, f"{ONE}[dp2 x pp2]", HELD, SPOILT), "the share of the data-parallel ranks alone", "nothing: the stages"),
    assemble("gradients of a refused step stay", "Trainer.step",
        """            self.optimizer.step(lr)
        self.optimizer.zero_grad()""",
        """            self.optimizer.step(lr)
            self.optimizer.zero_grad()""",
        SPOILT),
    assemble("vitals in three messages", "Trainer.vitals",
        "self.mesh.group.all_reduce(whole).tolist()",
        "(float(self.mesh.group.all_reduce(one[None])) for one in whole)",
        MESSAGES),
    assemble("a message for a unit without shared heads", "sum_replicas",
        "if mine.any():",
        "if True:",
        f"{MESSAGES}[tp4]"),
    assemble("gathered one at a time", "Held.begin", "unit.gather()", "unit.wait()", f"{MESSAGES}[dp2 x pp2]"),
    assemble("reduced one at a time", "Held.finish",
        """handles = [unit.reduce() for unit in self.units]
        for unit, handle in zip(self.units, handles):""",
        """for unit in self.units:
            handle = unit.reduce()""",
        f"{MESSAGES}[dp2 x pp2]"),
    assemble("refused when it is built", "assemble",
        """setup.refuse(group.size)
    mesh = mesh_of(group, setup)
    model = built(setup, mesh)""",
        """mesh = mesh_of(group, setup)
    model = built(setup, mesh)
    setup.refuse(group.size)""",
        "test_refused", verdicts=("wrong", "crashed")),
]

ASSEMBLE += [
    assemble("the dtype is ignored", "assemble",
        'mesh["dp"], setup.dtype)',
        'mesh["dp"])',
        "test_bf16", "it is float32's gradient", verdicts=ANY),
    assemble("isnan for isfinite", "Trainer.vitals", "(~told.isfinite()).any()", "told.isnan().any()", SPOILT),
    assemble("a flag of the gradient alone", "Trainer.vitals",
        "(~told.isfinite()).any()",
        "(~told[1:].isfinite()).any()",
        SPOILT),
    assemble("the squares are float32", "Trainer.vitals", "u.shard.grad.double().square()", "u.shard.grad.square()", SPOILT),
    assemble("the message is float32", "Trainer.vitals", "all_reduce(whole)", "all_reduce(whole.float())", SPOILT),
    assemble("several bad ranks are none", "Trainer.vitals", "if spoilt:", "if spoilt == 1:", SPOILT),
    assemble("numbers for what is not finite", "Trainer.vitals",
        "return Vitals(math.nan, math.nan, False)",
        "return Vitals(value, math.sqrt(square), False)",
        SPOILT),
    assemble("clip 0 stops the training", "Trainer.step",
        "if 0 < self.setup.clip_norm < vitals.norm:",
        "if self.setup.clip_norm < vitals.norm:",
        f"{ONE}[dp4]", "scaled to `clip_norm` whatever its norm is"),
    assemble("clipped to 1", "Trainer.step", "self.setup.clip_norm / vitals.norm)", "1.0 / vitals.norm)", f"{ONE}[dp2 x tp2]",
        "clipped to 1"),
    assemble("small gradients are scaled up", "Trainer.step",
        "if 0 < self.setup.clip_norm < vitals.norm:",
        "if self.setup.clip_norm > 0:",
        f"{ONE}[tp4]", "scaled to `clip_norm` whatever its norm is"),
    assemble("one micro-batch at a time", "Trainer.gradients",
        "steps = pipeline.one_f_one_b(pipe.size, M, pipe.rank)",
        'steps = [(kind, m) for m in range(M) for kind in "FB"]',
        f"{MESSAGES}[dp2 x pp2]"),
    assemble("all forwards first", "Trainer.gradients",
        "steps = pipeline.one_f_one_b(pipe.size, M, pipe.rank)",
        'steps = [(kind, m) for kind in "FB" for m in range(M)]',
        f"{MESSAGES}[dp2 x pp2]"),
    fp8("dw in x's dtype", "AgreedProduct.backward", "(dy8_MN.t() @ x8_MK).to(ctx.master)", "dy8_MN.t() @ x8_MK", "test_agreed_product"),
    fp8("the master is x's dtype", "AgreedProduct.forward", "recipe, group, w_NK.dtype", "recipe, group, x_MK.dtype", "test_agreed_product"),
    fp8("the recipe's epsilon is ignored", "rounded_by",
        "epsilon=recipe.epsilon.get(slot, 0.0), ",
        "",
        "test_agreed_product", "the recipe's epsilon is ignored"),
    fp8("the recipe's kind of scale is ignored", "rounded_by",
        ", power_of_two=recipe.powers(slot))",
        ")",
        "test_agreed_product", "the recipe's power_of_two is ignored"),
    fp8("an amax without a flag", "agreed",
        'list(part("week16_fp8.delayed").reduce_amax(torch.stack(amaxes), group))',
        'list(group.all_reduce(torch.stack(amaxes).nan_to_num(0.0), op="max"))',
        "test_agreed_product"),
]
# A step that is wrong in FP32 is wrong in BF16, too, and one that waits elsewhere may send one micro-batch at a time.
ASSEMBLE = [replace(one, may=(*one.may, "test_bf16", MESSAGES)) for one in ASSEMBLE]

SAVED, OTHER, DAMAGED, LESS = "test_resumed", "test_another_mesh", "test_damaged", "test_one_rank_sees_less"
FLIPPED = tuple(f"{DAMAGED}[{case}" for case in ("a file]", "a rank's that is gone]", "all]", "by rank]"))
OLDER = tuple(f"{DAMAGED}[{case}" for case in ("a file]", "the manifest]", "cut short]", "missing]", "a rank's that is gone]"))  # one is left
BY_RANK = f"{DAMAGED}[by rank]"
checkpoint = At("C.2", "checkpoint")
CHECKPOINT = [
    checkpoint("published before the others have written", "save",
        """        store.put(step, name_of(group.rank), data)
    except OSError as error:
        problem = f"rank {group.rank}: {error}"
""",
        """        if group.rank == 0:
            store.put(step, name_of(group.rank), data)
            store.publish(step)
            store.publish = lambda step: None
        told(group, 0)
        if group.rank > 0:
            store.put(step, name_of(group.rank), data)
    except OSError as error:
        problem = f"rank {group.rank}: {error}"
""",
        SAVED, "published before all had written", may="test_a_disk_that_is_full"),
    checkpoint("every rank publishes", "save",
        "if group.rank == 0 and not problems:",
        "if not problems:",
        (SAVED, OTHER, *OLDER, f"{DAMAGED}[all]", LESS, "test_another_run")),
    checkpoint("a disk that is full is passed over", "save",
        'if one["problem"]]',
        "if False]",
        "test_a_disk_that_is_full"),
    checkpoint("what was put stays on the full disk", "save",
        "store.discard(step)",
        "pass",
        "test_a_disk_that_is_full"),
    checkpoint("the first moment is the second", "save", '"m": optimizer.m', '"m": optimizer.v', (SAVED, OTHER)),
    checkpoint("AdamW begins to count anew", "load", 'trainer.optimizer.steps = own["steps"]', "pass", (SAVED, OTHER)),
    checkpoint("rank 0's file for all", "load",
        "own = from_bytes(store.get(step, name_of(group.rank)))",
        "own = from_bytes(store.get(step, name_of(0)))",
        SAVED, verdicts=("wrong", "crashed"), may=DAMAGED),
    checkpoint("sizes alone are compared", "damage",
        '(len(data), zlib.crc32(data)) != (wanted["bytes"], wanted["crc32"])',
        'len(data) != wanted["bytes"]',
        FLIPPED, verdicts=("wrong", "crashed")),
    checkpoint("the manifest alone is looked at", "damage",
        "for rank in ranks:",
        "for rank in ():",
        (*FLIPPED, f"{DAMAGED}[cut short]", f"{DAMAGED}[missing]"), verdicts=("wrong", "crashed")),
    checkpoint("whoever is asked about must have saved", "damage",
        'if rank < len(body["ranks"]):',
        "if True:",
        BY_RANK),
    checkpoint("a file that is gone is damaged, one that cannot be read raises", "damage",
        "except OSError as error:",
        "except FileNotFoundError as error:",
        BY_RANK, verdicts=("crashed",)),
    checkpoint("all files, whoever is asked about", "damage",
        "for rank in ranks:",
        'for rank in range(len(body["ranks"])):',
        BY_RANK),
    checkpoint("a damaged one ends the run", "load",
        """            passed_over.append(problem)
            continue""",
        "            raise LabError(problem)",
        OLDER),
    checkpoint("nothing is said of the damaged one", "load",
        'Loaded(step, own["own"], passed_over)',
        'Loaded(step, own["own"], [])',
        OLDER),
    checkpoint("of several damaged ones the last is spoken of", "load",
        'Loaded(step, own["own"], passed_over)',
        'Loaded(step, own["own"], passed_over[-1:])',
        f"{DAMAGED}[cut short]"),
    checkpoint("the oldest first", "load",
        "in told(group, store.steps())[0]:",
        "in told(group, store.steps())[0][::-1]:",
        OLDER, may="test_another_run"),
    checkpoint("each rank's own listing", "load", "in told(group, store.steps())[0]:", "in store.steps():", LESS),
    checkpoint("of whatever run", "load", 'if body["setup"] != fingerprint(trainer):', "if False:", "test_another_run"),
    checkpoint("the weights first, the question afterwards", "load",
        'if body["setup"] != fingerprint(trainer):',
        """if body["setup"] != fingerprint(trainer):
            with torch.no_grad():
                trainer.units[0].shard.mul_(2)""",
        "test_another_run"),
    checkpoint("the parts of a vector in the wrong order", "recut",
        'ranks.sort(key=lambda rank: body["ranks"][rank]["place"][1])',
        'ranks.sort(key=lambda rank: -body["ranks"][rank]["place"][1])',
        (f"{OTHER}[dp2 x tp2 to dp4]", f"{OTHER}[dp4 to tp4]", f"{OTHER}[dp2 x tp2 to dp2]")),
    checkpoint("the first rank's slice on all", "recut",
        "place(name, config, tp_group.size, tp_group.rank)",
        "place(name, config, tp_group.size, 0)",
        (f"{OTHER}[dp4 to tp4]", f"{OTHER}[tp2 x pp2 to dp2 x tp2]", f"{OTHER}[tp2 to dp2 x tp2]"), verdicts=("wrong", "crashed")),
    checkpoint("moments are cut from the weights", "recut",
        "files[rank][kind][unit]",
        'files[rank]["shards"][unit]',
        OTHER),
]
CHECKPOINT += [
    checkpoint("all are damaged, and it starts at 0 in silence", "load",
        """    if passed_over:
""",
        """    if False:
""",
        f"{DAMAGED}[all]"),
    checkpoint("a new rank's own is nobody's", "load",
        "own = files[group.rank if group.rank < len(files) else 0]",
        "own = files[group.rank % len(files)]",
        f"{OTHER}[tp2 to dp2 x tp2]"),
    checkpoint("more ranks than files", "load",
        "own = files[group.rank if group.rank < len(files) else 0]",
        "own = files[group.rank]",
        f"{OTHER}[tp2 to dp2 x tp2]", verdicts=("crashed",)),
    checkpoint("only one's own file is verified", "load",
        "list(range(group.rank, max(saved, 1), group.size))",
        "[group.rank]",
        f"{DAMAGED}[a rank's that is gone]", verdicts=("wrong", "crashed")),
    checkpoint("the newest of another setup is skipped in silence", "load",
        """            raise LabError(
                f"the checkpoint of step""",
        """            continue
            raise LabError(
                f"the checkpoint of step""",
        "test_another_run"),
    checkpoint("AdamW's count is the step's", "load",
        'trainer.optimizer.steps = own["steps"]',
        "trainer.optimizer.steps = step",
        SAVED),
]
UNUSUAL, SLOW, ALARMS = "test_unusual", "test_slow_ranks", "test_alarms"

health = At("C.4", "health")
HEALTH = [
    health("the row itself is usual", "unusual",
        "before(log_SN, width)",
        "before(torch.cat([log_SN, log_SN[-1:]]), width)[1:]",
        UNUSUAL, "the row itself is among those that tell what is usual"),
    health("means", "unusual", "",
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
    health("no floor", "unusual", "(scatter_SN + floor)", "scatter_SN", UNUSUAL, "without the floor", may=ALARMS),
    health("natural logarithms", "unusual",
        "x_SN.double(), 1.0).log2()",
        "x_SN.double(), 1.0).log()",
        UNUSUAL, "natural logarithms"),
    health("whatever is known is enough", "unusual",
        "(~past_SNW.isnan()).sum(-1) >= known",
        "(~past_SNW.isnan()).sum(-1) >= 1",
        UNUSUAL, may=ALARMS),
    health("what was not recorded counts as known", "unusual",
        "(~past_SNW.isnan()).sum(-1) >= known",
        "(torch.arange(len(x_SN)) >= known)[:, None]",
        f"{UNUSUAL}[not everything]", may=ALARMS),
    health("the larger of scatter and floor", "unusual",
        "(scatter_SN + floor)",
        "scatter_SN.clamp(min=floor)",
        UNUSUAL, "the larger of scatter and floor", may=ALARMS),
    health("the mean is usual", "unusual",
        "usual_SN = median(past_SNW)",
        "usual_SN = past_SNW.nanmean(-1)",
        UNUSUAL, "the usual value is a mean", may=ALARMS),
    health("the mean deviation", "unusual",
        "SIGMA * median((past_SNW - usual_SN[..., None]).abs())",
        "SIGMA * (past_SNW - usual_SN[..., None]).abs().nanmean(-1)",
        UNUSUAL, "the scatter is a mean", may=ALARMS),
    health("zeros are judged", "unusual",
        "x_SN.isfinite() & (x_SN > 0)",
        "x_SN.isfinite() & (x_SN >= 0)",
        f"{UNUSUAL}[not everything]", may=ALARMS),
    health("the mean of a rank's last steps", "slow_ranks",
        "usual_NR, now_NR = median(windows_NRW[..., :used_to]), median(windows_NRW[..., used_to:])",
        "usual_NR, now_NR = windows_NRW[..., :used_to].mean(-1), windows_NRW[..., used_to:].mean(-1)",
        SLOW, may=ALARMS),
    health("no rank is compared", "slow_ranks",
        "log_SR - median(others_SRR)",
        "log_SR",
        SLOW, "another rank is named", may=ALARMS, seldom=True),
    health("more to do from the beginning", "slow_ranks",
        "now_NR - usual_NR > slower",
        "now_NR > slower",
        SLOW, may=ALARMS),
    health("one long step", "slow_ranks",
        "median(windows_NRW[..., used_to:])",
        "windows_NRW[..., -1]",
        SLOW, may=ALARMS),
    health("the mean of the last steps", "slow_ranks",
        "median(windows_NRW[..., used_to:])",
        "windows_NRW[..., -6:].exp2().mean(-1).log2()",
        SLOW, may=ALARMS),
    health("the rank that waits", "slow_ranks",
        "enumerate(slow_NR.T)",
        "enumerate(slow_NR.flip(1).T)",
        SLOW, "another rank is named", may=ALARMS),
    health("late for a rank", "slow_ranks",
        "used_to, lately, slower = 48, 20, 0.32",
        "used_to, lately, slower = 48, 80, 0.32",
        SLOW, may=ALARMS),
    health("only the first slow rank", "slow_ranks", "sorted(begins)]", "sorted(begins)[:1]]", SLOW, may=ALARMS),
    health("half as long again", "slow_ranks", "48, 20, 0.32", "48, 20, 0.6", SLOW, may=ALARMS),
    health("late for a rank that is slow at row 64", "slow_ranks", "48, 20, 0.32", "64, 40, 0.32", SLOW, may=ALARMS),
    health("no rank is slow", "slow_ranks", "", "return []", SLOW, "it never rings", may=ALARMS),
    health("always", "alarms", "",
        'return [Alarm(row, "who knows") for row in range(len(run.loss_S))]',
        ALARMS, "it rings at the first row of every run"),
    health("never", "alarms", "", "return []", ALARMS, "it never rings"),
    health("at a row that is likely", "alarms", "",
        'return [Alarm(120, "it is time")] if len(run.loss_S) > 120 else []',
        ALARMS),
    health("it looks ahead", "alarms",
        "return sorted(found)",
        "return sorted(Alarm(max(0, row - 8), why, rank) for row, why, rank in found)",
        ALARMS, "it looks ahead"),
    health("the whole run's median", "alarms", "",
        """
        z = (run.loss_S - run.loss_S.nanmean()) / run.loss_S.std()
        return slow_ranks(run.work_SR) + first((z.abs() > 2).nonzero(), "far from the mean")
        """,
        ALARMS, "it looks ahead", seldom=True),
    health("ranks without a number", "alarms",
        "return sorted(found)",
        "return sorted(Alarm(row, why) for row, why, rank in found)",
        ALARMS),
    health("ranks are not looked at", "alarms", "if run.work_SR.shape[1] > 1:", "if False:", ALARMS),
    health("two ranks are not looked at", "alarms", "if run.work_SR.shape[1] > 1:", "if run.work_SR.shape[1] > 2:", ALARMS),
    health("only the first alarm", "alarms", "return sorted(found)", "return sorted(found)[:1]", ALARMS),
    health("not in the order of rows", "alarms", "return sorted(found)", "return found", ALARMS),
    health("what is no number is left out", "alarms", "found = not_finite(run)", "found = []", ALARMS),
    health("no weights", "alarms", "if len(run.probe_P) > 1:", "if False:", ALARMS),
    health("only large gradients", "alarms", "",
        """
        z_S = unusual(run.norm_S[:, None], width=48, known=24, floor=0.05)[:, 0]
        return sorted(slow_ranks(run.work_SR) + first((z_S > 6).nonzero(), "a large gradient"))
        """,
        ALARMS),
    health("the folklore", "alarms", "",
        """
        falls_P = (run.scale_PT[1:] < run.scale_PT[:-1] / 4).any(1)
        return sorted(slow_ranks(run.work_SR) + first(run.probe_P[1:][falls_P, None], "a scale fell"))
        """,
        ALARMS),
    health("a loss in absolute numbers", "alarms", "",
        'return sorted(slow_ranks(run.work_SR) + first((run.loss_S > 5).nonzero(), "a large loss"))',
        ALARMS),
]
MUTANTS = [*ASSEMBLE, *CHECKPOINT, *HEALTH]
