"""Mutants of C.3: the reference with a line changed, and the checks that must fail for it.

`tests/test_mutants_survive.py` judges them: those of single functions and of a run without signals on thread ranks,
`STRUCK` under torchrun, where processes are stopped and killed.
"""

from tests.mutant import At

SLOW, HANGS, ACTS, SAID = "test_who_is_slow", "test_who_hangs", "test_who_acts", "test_one_message"
KEPT, WAY = "test_what_is_kept", "test_way_back"
KILLED, HUNG, ASKED = (f"test_struck[{fault}]" for fault in ("killed", "hung", "preempted"))
SKIPPED, FULL, BACK, NAMED = (f"test_goes_on[{fault}]" for fault in ("skipped", "full disk", "rolled back", "slow"))

tell, slow_rank, go_back, hung, act = At.each("C.3", "survive", "tell", "slow_rank", "go_back", "hung", "Watchdog.act")
keep, restore = At.each("C.3", "survive", "keep", "restore")
FUNCTIONS = [
    tell("each rank's own flag", "bool(rows[:, 0].max() > 0)", "stop", SAID, "each rank knows of its own signal alone"),
    tell("rank 0's flag", "rows[:, 0].max() > 0", "rows[0, 0] > 0", SAID),
    tell("a message for each", "rows = group", "group.barrier()\n    rows = group", SAID),
    slow_rank("the fastest is named", "mine >= FACTOR * others", "mine < others", SLOW),
    slow_rank("one late step", "if all(", "if any(", SLOW),
    slow_rank("no matter how little", " and mine >= others + LEAST", "", SLOW),
    slow_rank("the others' mean", "statistics.median(", "statistics.mean(", f"{SLOW}[4]"),
    slow_rank("the largest of the others", "statistics.median(", "max(", f"{SLOW}[4]", may=SLOW),
    slow_rank("the smallest of the others", "statistics.median(", "min(", f"{SLOW}[4]", may=SLOW),
    slow_rank("the shorter of two", "statistics.median(", "statistics.median_low(", f"{SLOW}[3]"),
    slow_rank("the longer of two", "statistics.median(", "statistics.median_high(", f"{SLOW}[3]"),
    go_back("batches are always skipped", " if run.config.recovery.skip_data else 0", "", f"{WAY}[the same"),
    go_back("each rank's own look at the store", "gather_json(run.group, run.store.steps())[0]", "run.store.steps()",
        WAY),
    go_back("nothing is said where there is no way back",
        'run.say("not rolled back", "there is no checkpoint to go back to")', "pass", WAY),
    hung("more than the limit", "one.stood < limit", "one.stood <= limit", HANGS),
    hung("silent for a whole limit", "if standings[rank].silent >= limit / 2:", "if standings[rank].silent >= limit:",
        HANGS),
    hung("the first that is late, silent or not",
        """        for rank in awaited:
            if standings[rank].silent >= limit / 2:
                return Hung(rank, one.call, one.group, by, "its process is stopped")
        for rank in awaited:
            if""",
        """        for rank in awaited:
            if standings[rank].silent >= limit / 2:
                return Hung(rank, one.call, one.group, by, "its process is stopped")
            if""",
        f"{HANGS}[4]"),
    act("the hung process has died meanwhile",
        """            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)""",
        "            os.kill(other.pid, signal.SIGKILL)", ACTS, verdicts=("crashed",)),
    act("the autopsy names its writer", "rank=found.rank, call", "rank=self.rank, call", ACTS),
    keep("saved before it is there", "    try:", "    run.recovery.saved(run.step)\n    try:", KEPT),
    keep("not kept, and nothing is said", "return False", "return True", f"{KEPT}[no room"),
    restore("neither rate nor shift",
        'run.recovery.rate, run.shift, run.rollbacks = (found.own[key] for key in ("rate", "shift", "rollbacks"))',
        'run.rollbacks = found.own["rollbacks"]', KEPT),
    restore("nothing was passed over", "return found.passed_over", "return []", KEPT),
    slow_rank("the oldest steps", "rows[-WINDOW:]", "rows[:WINDOW]", SLOW),
    hung("whoever is late is believed to be waiting", " or one.silent >= limit / 2", "", HANGS),
    hung("who waits is blamed", "if not standings[rank].call:", "if True:", f"{HANGS}[4]"),
    hung("a stopped rank in a call is overlooked", "if standings[rank].silent >= limit / 2:", "if False:", HANGS),
    hung("those that have come are awaited", "<= one.number", "<= one.number + 9", f"{HANGS}[4]"),
    act("all ranks act", "if found.by != self.rank:", "if found.rank == self.rank:", ACTS),
    act("a process of another host", "if other.host == me.host:", "if True:", ACTS),
    slow_rank("LEAST above the others, on average",
        "if all(mine >= FACTOR * others and mine >= others + LEAST for mine, others in pairs):",
        "if all(a >= FACTOR * b for a, b in pairs) and sum(a - b for a, b in pairs) >= WINDOW * LEAST:", SLOW),
    slow_rank("the others' median over all steps", "statistics.median(row[:rank] + row[rank + 1 :]))",
        "statistics.median(x for r in last for x in r[:rank] + r[rank + 1 :]))", SLOW),
    hung("whoever is silent is blamed", "for rank in awaited:\n            if standings[rank].silent",
        "for rank in range(len(standings)):\n            if standings[rank].silent", f"{HANGS}[4]"),
    hung("who is ahead is awaited", "<= one.number", "!= one.number + 1", f"{HANGS}[4]"),
    hung("peer 0 is no peer", "if one.peer is not None:", "if one.peer:", f"{HANGS}[4]"),
    hung("a peer that waits is blamed", "awaited = [one.peer]",
        'return Hung(one.peer, one.call, one.group, by, "it is in its own code")', f"{HANGS}[4]"),
    hung("who has begun none of the group is left out", "standings[r].begun.get(one.group, 0)",
        "standings[r].begun.get(one.group, 9)", HANGS),
    hung("who has begun less than I", "<= one.number", "< one.begun.get(one.group, 0)", f"{HANGS}[4]"),
    act("killed, then written",
        "        self.autopsy(",
        """        if other.host == me.host:
            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)
            other = other._replace(host="")
        self.autopsy(""",
        ACTS),
    act("always the same call", "call=found.call, group=found.group", 'call="all_gather", group="dp"', ACTS),
    act("whatever the host is called, but one", "if other.host == me.host:", 'if other.host != "there":', ACTS),
    act("the autopsy names nobody", "self.autopsy(text", "self.autopsy(found.why", ACTS),
    hung("at once", "one.stood < limit", "one.stood < limit / 9", HANGS),
]

RUN = [
    keep("a full disk ends the run", "        return False", "        raise", (BACK, NAMED), may=(FULL, SKIPPED)),
    keep("nothing is said of the full disk", 'run.say("not saved", f', 'run.say("checkpoint", f', FULL),
    go_back("the lowered rate is forgotten",
        "run.recovery.rate, run.rollbacks = rate, rollbacks + 1", "run.rollbacks = rollbacks + 1", BACK, may=NAMED),
    go_back("a rate of today's numbers", "= rate, rollbacks", "= 0.25 ** (rollbacks + 1), rollbacks", BACK, may=NAMED),
    tell("one's own seconds for all", "rows[:, 1].tolist()", "[own] * group.size", (SKIPPED, NAMED)),
    go_back("the count of ways back comes back, too", "rate, rollbacks + 1", "rate, run.rollbacks + 1", BACK),
    go_back("ways back are not counted", "rate, rollbacks + 1", "rate, rollbacks", BACK),
    go_back("the same batches again", "at - run.step if run.config.recovery.skip_data else 0", "0", BACK, may=NAMED),
    go_back("one batch too few is skipped", "at - run.step if", "at - run.step - 1 if", BACK, may=NAMED),
    restore("weights come back, moments do not",
        "    found = checkpoint.load(run.trainer, run.store)",
        """    o = run.trainer.optimizer
    kept = [x.clone() for x in (*o.m, *o.v)], o.steps
    found = checkpoint.load(run.trainer, run.store)
    [x.copy_(y) for x, y in zip((*o.m, *o.v), kept[0])]
    o.steps = kept[1]""",
        BACK, may=NAMED),
    restore("a step late", "run.step, run.history = found.step,", "run.step, run.history = found.step + 1,",
        BACK, may=NAMED),
    go_back("lines of undone steps stay", "    run.recut()\n", "    pass\n", BACK, may=NAMED),
    slow_rank("nobody is ever slow", "len(last) < WINDOW", "len(last) <= WINDOW", NAMED),
]

# Two at a time: a run has three faults, and costs some 40 core seconds.
STRUCK = {
    "leaves the hung process to torchrun, and ignores SIGTERM": [
        act("the hung process is left to torchrun",
            "os.kill(other.pid, signal.SIGKILL)", "os.kill(other.pid, signal.SIGTERM)", HUNG),
        tell("SIGTERM is ignored", "bool(rows[:, 0].max() > 0)", "False", ASKED),
    ],
    "never barks, and trains anew at every start": [
        act("the watchdog never barks", "if found.by != self.rank:", "if True:", HUNG),
        restore("every start trains anew, and says what loading says",
            "found = checkpoint.load(run.trainer, run.store)",
            """from capstone import assemble
    from labkit.train.optim import learning_rate

    found, c = None, run.config
    for run.step in range(1, 1 + max(run.store.steps(), default=0)):
        batch = assemble.data_of(run.trainer, run.corpus.batch(run.step, c.batch_size, c.seq_len, c.seed))
        vitals = run.trainer.step(batch, learning_rate(c, run.step) * run.recovery.rate, run.allow)
        run.history["losses"][run.step] = vitals.loss""", (KILLED, ASKED)),
    ],
}
MUTANTS = [*FUNCTIONS, *RUN, *(mutant for pair in STRUCK.values() for mutant in pair)]
