"""Mutants of C.3: the reference with a line changed, and the checks that must fail for it.

`tests/test_mutants_survive.py` judges them: those of single functions and of a run without signals on thread ranks,
`STRUCK` under torchrun, where processes are stopped and killed.
"""

from tests.mutant import At

SLOW, HANGS, ACTS, SAID = "test_who_is_slow", "test_who_hangs", "test_who_acts", "test_one_message"
KEPT, WAY = "test_what_is_kept", "test_way_back"
KILLED, HUNG, ASKED = (f"test_struck[{fault}]" for fault in ("killed", "hung", "preempted"))
SKIPPED, FULL, BACK, NAMED = (f"test_goes_on[{fault}]" for fault in ("skipped", "full disk", "rolled back", "slow"))

survive = At("C.3", "survive")
FUNCTIONS = [
    survive("each rank's own flag", "tell",
        "bool(rows[:, 0].max() > 0)",
        "stop",
        SAID, "each rank knows of its own signal alone"),
    survive("rank 0's flag", "tell", "rows[:, 0].max() > 0", "rows[0, 0] > 0", SAID),
    survive("a message for each", "tell",
        "rows = group",
        """group.barrier()
    rows = group""",
        SAID),
    survive("the fastest is named", "slow_rank", "mine >= FACTOR * others", "mine < others", SLOW),
    survive("one late step", "slow_rank", "if all(", "if any(", SLOW),
    survive("no matter how little", "slow_rank", " and mine >= others + LEAST", "", SLOW),
    survive("the others' mean", "slow_rank", "statistics.median(", "statistics.mean(", f"{SLOW}[4]"),
    survive("the largest of the others", "slow_rank", "statistics.median(", "max(", f"{SLOW}[4]", may=SLOW),
    survive("the smallest of the others", "slow_rank", "statistics.median(", "min(", f"{SLOW}[4]", may=SLOW),
    survive("the shorter of two", "slow_rank", "statistics.median(", "statistics.median_low(", f"{SLOW}[3]"),
    survive("the longer of two", "slow_rank", "statistics.median(", "statistics.median_high(", f"{SLOW}[3]"),
    survive("batches are always skipped", "go_back", " if run.config.recovery.skip_data else 0", "", f"{WAY}[the same"),
    survive("each rank's own look at the store", "go_back", "gather_json(run.group, run.store.steps())[0]", "run.store.steps()", WAY),
    survive("nothing is said where there is no way back", "go_back",
        'run.say("not rolled back", "there is no checkpoint to go back to")',
        "pass",
        WAY),
    survive("more than the limit", "hung", "one.stood < limit", "one.stood <= limit", HANGS),
    survive("silent for a whole limit", "hung",
        "if standings[rank].silent >= limit / 2:",
        "if standings[rank].silent >= limit:",
        HANGS),
    survive("the first that is late, silent or not", "hung",
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
    survive("the hung process has died meanwhile", "Watchdog.act",
        """            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)""",
        "            os.kill(other.pid, signal.SIGKILL)",
        ACTS, verdicts=("crashed",)),
    survive("the autopsy names its writer", "Watchdog.act", "rank=found.rank, call", "rank=self.rank, call", ACTS),
    survive("saved before it is there", "keep", "    try:", "    run.recovery.saved(run.step)\n    try:", KEPT),
    survive("not kept, and nothing is said", "keep", "return False", "return True", f"{KEPT}[no room"),
    survive("neither rate nor shift", "restore",
        'run.recovery.rate, run.shift, run.rollbacks = (found.own[key] for key in ("rate", "shift", "rollbacks"))',
        'run.rollbacks = found.own["rollbacks"]',
        KEPT),
    survive("nothing was passed over", "restore", "return found.passed_over", "return []", KEPT),
    survive("the oldest steps", "slow_rank", "rows[-WINDOW:]", "rows[:WINDOW]", SLOW),
    survive("whoever is late is believed to be waiting", "hung", " or one.silent >= limit / 2", "", HANGS),
    survive("who waits is blamed", "hung", "if not standings[rank].call:", "if True:", f"{HANGS}[4]"),
    survive("a stopped rank in a call is overlooked", "hung",
        "if standings[rank].silent >= limit / 2:",
        "if False:",
        HANGS),
    survive("those that have come are awaited", "hung", "<= one.number", "<= one.number + 9", f"{HANGS}[4]"),
    survive("all ranks act", "Watchdog.act", "if found.by != self.rank:", "if found.rank == self.rank:", ACTS),
    survive("a process of another host", "Watchdog.act", "if other.host == me.host:", "if True:", ACTS),
    survive("LEAST above the others, on average", "slow_rank",
        "if all(mine >= FACTOR * others and mine >= others + LEAST for mine, others in pairs):",
        "if all(a >= FACTOR * b for a, b in pairs) and sum(a - b for a, b in pairs) >= WINDOW * LEAST:",
        SLOW),
    survive("the others' median over all steps", "slow_rank",
        "statistics.median(row[:rank] + row[rank + 1 :]))",
        "statistics.median(x for r in last for x in r[:rank] + r[rank + 1 :]))",
        SLOW),
    survive("whoever is silent is blamed", "hung",
        """for rank in awaited:
            if standings[rank].silent""",
        """for rank in range(len(standings)):
            if standings[rank].silent""",
        f"{HANGS}[4]"),
    survive("who is ahead is awaited", "hung", "<= one.number", "!= one.number + 1", f"{HANGS}[4]"),
    survive("peer 0 is no peer", "hung", "if one.peer is not None:", "if one.peer:", f"{HANGS}[4]"),
    survive("a peer that waits is blamed", "hung",
        "awaited = [one.peer]",
        'return Hung(one.peer, one.call, one.group, by, "it is in its own code")',
        f"{HANGS}[4]"),
    survive("who has begun none of the group is left out", "hung", "standings[r].begun.get(one.group, 0)", "standings[r].begun.get(one.group, 9)", HANGS),
    survive("who has begun less than I", "hung", "<= one.number", "< one.begun.get(one.group, 0)", f"{HANGS}[4]"),
    survive("killed, then written", "Watchdog.act",
        "        self.autopsy(",
        """        if other.host == me.host:
            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)
            other = other._replace(host="")
        self.autopsy(""",
        ACTS),
    survive("the autopsy names nobody", "Watchdog.act", "self.autopsy(text", "self.autopsy(found.why", ACTS),
    survive("at once", "hung", "one.stood < limit", "one.stood < limit / 9", HANGS),
]

RUN = [
    survive("a full disk ends the run", "keep",
        "        return False",
        "        raise",
        (BACK, NAMED), may=(FULL, SKIPPED)),
    survive("nothing is said of the full disk", "keep", 'run.say("not saved", f', 'run.say("checkpoint", f', FULL),
    survive("the lowered rate is forgotten", "go_back",
        "run.recovery.rate, run.rollbacks = rate, rollbacks + 1",
        "run.rollbacks = rollbacks + 1",
        BACK, may=NAMED),
    survive("the count of ways back comes back, too", "go_back",
        "rate, rollbacks + 1",
        "rate, run.rollbacks + 1",
        BACK),
    survive("ways back are not counted", "go_back", "rate, rollbacks + 1", "rate, rollbacks", BACK),
    survive("the same batches again", "go_back",
        "run.shift = shift + (at - run.step if run.config.recovery.skip_data else 0)",
        "run.shift = shift",
        BACK, may=NAMED),
    survive("one batch too few is skipped", "go_back", "at - run.step if", "at - run.step - 1 if", BACK, may=NAMED),
    survive("weights come back, moments do not", "restore",
        "    found = checkpoint.load(run.trainer, run.store)",
        """    o = run.trainer.optimizer
    kept = [x.clone() for x in (*o.m, *o.v)], o.steps
    found = checkpoint.load(run.trainer, run.store)
    [x.copy_(y) for x, y in zip((*o.m, *o.v), kept[0])]
    o.steps = kept[1]""",
        BACK, may=NAMED),
    survive("a step late", "restore",
        "run.step, run.history = found.step,",
        "run.step, run.history = found.step + 1,",
        BACK, may=NAMED),
    survive("lines of undone steps stay", "go_back",
        """    run.recut()
""",
        """    pass
""",
        BACK, may=NAMED),
    survive("nobody is ever slow", "slow_rank", "len(last) < WINDOW", "len(last) <= WINDOW", NAMED),
]

# Two at a time: a run has three faults, and costs some 40 core seconds.
STRUCK = {
    "leaves the hung process to torchrun, and ignores SIGTERM": [
        survive("the hung process is left to torchrun", "Watchdog.act",
            "os.kill(other.pid, signal.SIGKILL)",
            "os.kill(other.pid, signal.SIGTERM)",
            HUNG),
        survive("SIGTERM is ignored", "tell", "bool(rows[:, 0].max() > 0)", "False", ASKED),
    ],
    "never barks, and trains anew at every start": [
        survive("the watchdog never barks", "Watchdog.act", "if found.by != self.rank:", "if True:", HUNG),
        survive("every start trains anew, and says what loading says", "restore",
            "found = checkpoint.load(run.trainer, run.store)",
            """from capstone import assemble
    from labkit.train.optim import learning_rate

    found, c = None, run.config
    for run.step in range(1, 1 + max(run.store.steps(), default=0)):
        batch = assemble.data_of(run.trainer, run.corpus.batch(run.step, c.batch_size, c.seq_len, c.seed))
        vitals = run.trainer.step(batch, learning_rate(c, run.step) * run.recovery.rate, run.allow)
        run.history["losses"][run.step] = vitals.loss""",
            (KILLED, ASKED)),
    ],
}
MUTANTS = [*FUNCTIONS, *RUN, *(mutant for pair in STRUCK.values() for mutant in pair)]
