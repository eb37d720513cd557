"""Mutants of C.3: the reference with a line changed, and the checks that must fail for it.

`tests/test_mutants_survive.py` judges them: those of single functions and of a run without signals on thread ranks,
`STRUCK` under torchrun, where processes are stopped and killed.
"""

from __future__ import annotations

from functools import partial

from tests.mutant import Mutant

SURVIVE = partial(Mutant, task="C.3", module="survive")
SLOW, HANGS, ACTS, SAID = "test_who_is_slow", "test_who_hangs", "test_who_acts", "test_one_message"
KILLED, HUNG, ASKED = (f"test_struck[{fault}]" for fault in ("killed", "hung", "preempted"))
SKIPPED, FULL, BACK, NAMED = (f"test_goes_on[{fault}]" for fault in ("skipped", "full disk", "rolled back", "slow"))

FUNCTIONS = [
    SURVIVE(
        "each rank's own flag",
        place="tell",
        old="bool(rows[:, 0].max() > 0)",
        new="asked",
        fails=(SAID,),
        causes=("each rank knows of its own signal alone",),
    ),
    SURVIVE("rank 0's flag", place="tell", old="rows[:, 0].max() > 0", new="rows[0, 0] > 0", fails=(SAID,)),
    SURVIVE(
        "a message for each", place="tell", old="rows = group", new="group.barrier()\n    rows = group", fails=(SAID,)
    ),
    SURVIVE(
        "the fastest is named", place="slow_rank", old="mine >= FACTOR * others", new="mine < others", fails=(SLOW,)
    ),
    SURVIVE("one late step", place="slow_rank", old="if all(", new="if any(", fails=(SLOW,)),
    SURVIVE("no matter how little", place="slow_rank", old=" and mine >= others + LEAST", new="", fails=(SLOW,)),
    SURVIVE("the oldest steps", place="slow_rank", old="rows[-WINDOW:]", new="rows[:WINDOW]", fails=(SLOW,)),
    SURVIVE(
        "whoever is late is believed to be waiting",
        place="hung",
        old=" or one.silent >= limit / 2",
        new="",
        fails=(HANGS,),
    ),
    SURVIVE(
        "who waits is blamed", place="hung", old="if not standings[rank].call:", new="if True:", fails=(f"{HANGS}[4]",)
    ),
    SURVIVE(
        "a stopped rank in a call is overlooked",
        place="hung",
        old="if standings[rank].silent >= limit / 2:",
        new="if False:",
        fails=(HANGS,),
    ),
    SURVIVE(
        "those that have come are awaited",
        place="hung",
        old="<= one.number",
        new="<= one.number + 9",
        fails=(f"{HANGS}[4]",),
    ),
    SURVIVE(
        "all ranks act",
        place="Watchdog.act",
        old="if found.by != self.rank:",
        new="if found.rank == self.rank:",
        fails=(ACTS,),
    ),
    SURVIVE(
        "a process of another host",
        place="Watchdog.act",
        old="if other.host == me.host:",
        new="if True:",
        fails=(ACTS,),
    ),
    SURVIVE("at once", place="hung", old="one.stood < limit", new="one.stood < limit / 9", fails=(HANGS,)),
]

RUN = [
    SURVIVE(
        "a full disk ends the run",
        place="keep",
        old="        return False",
        new="        raise",
        fails=(BACK, NAMED),
        may=(FULL, SKIPPED),
    ),
    SURVIVE(
        "nothing is said of the full disk",
        place="keep",
        old='run.say("not saved", f',
        new='run.say("checkpoint", f',
        fails=(FULL,),
        verdicts=("wrong",),
    ),
    SURVIVE(
        "the lowered rate is forgotten",
        place="go_back",
        old="run.recovery.rate, run.rollbacks = rate, rollbacks + 1",
        new="run.rollbacks = rollbacks + 1",
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "the count of ways back comes back, too",
        place="go_back",
        old="rate, rollbacks + 1",
        new="rate, run.rollbacks + 1",
        fails=(BACK,),
    ),
    SURVIVE(
        "ways back are not counted", place="go_back", old="rate, rollbacks + 1", new="rate, rollbacks", fails=(BACK,)
    ),
    SURVIVE(
        "the same batches again",
        place="go_back",
        old="run.shift = shift + (at - run.step if run.config.recovery.skip_data else 0)",
        new="run.shift = shift",
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "one batch too few is skipped",
        place="go_back",
        old="at - run.step if",
        new="at - run.step - 1 if",
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "weights come back, moments do not",
        place="restore",
        old="    found = checkpoint.load(run.trainer, run.store)",
        new=(
            "    o = run.trainer.optimizer\n"
            "    kept = [x.clone() for x in (*o.m, *o.v)], o.steps\n"
            "    found = checkpoint.load(run.trainer, run.store)\n"
            "    [x.copy_(y) for x, y in zip((*o.m, *o.v), kept[0])]\n"
            "    o.steps = kept[1]"
        ),
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "a step late",
        place="restore",
        old="run.step, run.history = found.step,",
        new="run.step, run.history = found.step + 1,",
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "lines of undone steps stay",
        place="go_back",
        old="    run.recut()\n",
        new="    pass\n",
        fails=(BACK,),
        may=(NAMED,),
    ),
    SURVIVE(
        "nobody is ever slow", place="slow_rank", old="len(last) < WINDOW", new="len(last) <= WINDOW", fails=(NAMED,)
    ),
]

# Two at a time: a run has three faults, and costs some 40 core seconds.
STRUCK = {
    "leaves the hung process to torchrun, and ignores SIGTERM": [
        SURVIVE(
            "the hung process is left to torchrun",
            place="Watchdog.act",
            old="os.kill(other.pid, signal.SIGKILL)",
            new="os.kill(other.pid, signal.SIGTERM)",
            fails=(HUNG,),
        ),
        SURVIVE("SIGTERM is ignored", place="tell", old="bool(rows[:, 0].max() > 0)", new="False", fails=(ASKED,)),
    ],
    "never barks, and begins anew at every start": [
        SURVIVE(
            "the watchdog never barks",
            place="Watchdog.act",
            old="if found.by != self.rank:",
            new="if True:",
            fails=(HUNG,),
        ),
        SURVIVE(
            "every start begins anew", place="restore", old="if found is None:", new="if True:", fails=(KILLED, ASKED)
        ),
    ],
}
MUTANTS = [*FUNCTIONS, *RUN, *(mutant for pair in STRUCK.values() for mutant in pair)]
