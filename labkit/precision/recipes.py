"""What each precision recipe needs, refuses and has shown: one entry a recipe, in RECIPES. Imports no torch.

In `ways`, `shown` names the test or committed record that shows it, `untried` what is known instead; for the rest
OTHERWISE decides: a new recipe begins untried everywhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from labkit.errors import LabError

INSTALL_TE = 'pip install --no-build-isolation -e ".[te]" (not in NVIDIA\'s PyTorch container, which brings its own)'
YES, UNTRIED, NO = "yes", "untried", "no"
SCHEDULE, PARAMETERS = "schedule", "FP8 params"
ACROSS = {SCHEDULE: "with a schedule", PARAMETERS: "with FP8 params"}  # settings that go across the recipes
FEATURES = ("FSDP2", "TP", "EP", "PP", "compile", "checkpointing", "fused", *ACROSS)
Capability = tuple[int, int]  # NVIDIA's compute capability, as (9, 0)


class Word(NamedTuple):
    """yes: it runs, and `proof` shows it. untried: allowed, nobody has shown it here. no: refused before a run."""

    state: str
    why: str = ""
    proof: str = ""


class Need(NamedTuple):
    """Units that a GPU has from a compute capability on; what a recipe that needs them says of an older one."""

    least: Capability
    why: str
    fix: str


@dataclass(frozen=True)
class Recipe:
    """One recipe of one backend, or a setting that goes across all of them."""

    ways: Mapping[str, Word] = field(default_factory=dict)  # by column: a feature or a generation of machines
    multiple: int = 1  # in and out features and tokens must be multiples of it
    needs: tuple[Need, ...] = ()  # of a GPU, the commonest first
    no_cpu: str = ""  # why it does not run on a CPU
    remembers: bool = False  # do its scales come from earlier steps?
    scalable: bool = False  # can its amax epsilons and kinds of scales be chosen?
    # Features of which each goes alone, and why they do not go together.
    apart: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def having(self, ways: Mapping[str, Word], **more: Any) -> "Recipe":
        """This recipe with other words in some columns, and other settings."""
        return replace(self, ways={**self.ways, **ways}, **more)

    def word(self, column: str) -> Word:
        """What is said of a feature or a generation, its needs of a machine left out. KeyError: no such column."""
        return self.ways.get(column) or OTHERWISE[column]


shown, untried, refused = partial(Word, YES, ""), partial(Word, UNTRIED), partial(Word, NO)


def lacks(needs: Iterable[Need], gpu: Capability) -> Need | None:
    """The first need that a GPU of this compute capability does not meet."""
    return next((need for need in needs if gpu < need.least), None)


# ---- what a GPU must have

FP16_UNITS = Need((7, 0), "GPUs before Volta (compute capability 7.0) have no FP16 units", "take backend fp32")
BF16_UNITS = Need((8, 0), "GPUs before Ampere have no BF16 units", "take backend fp32, or amp with recipe fp16")
FP8_UNITS = Need(
    (8, 9), "FP8 products need a GPU from Ada (compute capability 8.9) on", "take backend bf16 or emulated"
)
FP8_ROWS = Need((9, 0), "the rowwise FP8 product needs Hopper (compute capability 9.0)", "take recipe tensorwise")
BLACKWELL_UNITS = Need(
    (10, 0), "MXFP8 and NVFP4 need units of Blackwell (compute capability 10.0)", "take recipe current"
)
FP8_BLOCKS = Need((9, 0), "block scaling needs Hopper (compute capability 9.0) and CUDA 12.9", "take recipe current")

GENERATIONS: dict[str, Capability | None] = {  # name -> lowest compute capability; what is older counts as "older"
    "CPU": None,
    "older": FP16_UNITS.least,  # V100, T4
    "Ampere": BF16_UNITS.least,  # A100, RTX 3090
    "Ada": FP8_UNITS.least,  # L40S, RTX 4090
    "Hopper": (9, 0),
    "Blackwell": (10, 0),  # B200
    "Blackwell RTX": (12, 0),  # RTX 5090
}

# ---- where a yes is shown

CHECK = shown("results/2026-11-22-h200-gpu-check-124m")  # one rank, compiled, Hopper
DEMO = shown("results/2026-11-23-cpu-demo")  # two ranks, CPU
FORMATS = shown("week16_fp8/results/2026-11-28-cpu-formats")  # likewise
# Two training steps in each combination that was allowed on that day, one H200 each: without schedules; with them; with
# FP8 parameters, and the emulated block recipe.
TRIED = shown("week16_fp8/results/h200-matrix.json")
TRIED_SCHEDULE = shown("week16_fp8/results/h200-matrix-2.json")
TRIED_PARAMETERS = shown("week16_fp8/results/h200-matrix-3.json")
EIGHT_B = shown("week16_fp8/results/2026-11-26-h200-8b/two")  # these four: two ranks, Hopper
EIGHT_B_CURRENT = shown("week16_fp8/results/2026-11-26-h200-8b/two-kept-current")
STAGED = shown("week16_fp8/results/2026-11-26-h200-two-stage")
TWO_TP = shown("week15_tp_attention/results/h200-2.json")
PIPED = shown("week15_tp_attention/test_pipeline.py")  # from here on: a CPU
MESHES = shown("tests/parallel/test_meshes.py")
JOB = shown("tests/train/test_job.py")
SCHEDULED = shown("tests/train/test_schedule.py")
PARAMETERISED = shown("tests/train/test_fp8_parameters.py")
AMP = shown("tests/precision/test_amp.py")
HERE = shown("tests/doctor/test_matrix.py")

# ---- what holds of a column where an entry says nothing

NO_RECORD = untried("no record of it")
NOT_AT_HAND = untried("should run by its libraries' own tables; no such GPU was at hand")
OTHERWISE = {
    "FSDP2": untried("the same gather as tensorwise's; no record of several ranks"),
    "TP": refused(
        "a scale needs the amax of the whole tensor, and nothing here agrees it over the tensor-parallel ranks: take "
        "Transformer Engine, or leave tp at 1"
    ),
    "EP": refused(
        "every rank multiplies all experts, and FSDP2 shards their weights: nothing here sends a token to another "
        "rank's expert: leave ep at 1"
    ),
    "PP": refused("the pipeline here (week 15's run_schedule) has run in fp32 and bf16 alone: leave pp at 1"),
    "compile": NO_RECORD,
    "checkpointing": NO_RECORD,
    "fused": refused("fused = true is Transformer Engine's: take backend te, or set fused = false"),
    SCHEDULE: refused("there is no FP8 phase to switch to: take out the schedule, or take a backend with FP8"),
    PARAMETERS: refused(
        "FP8 parameters need power-of-two scales, so that rounding twice is rounding once: take recipe block of te or "
        "emulated"
    ),
    **dict.fromkeys(("CPU", "Hopper"), NO_RECORD),
    **dict.fromkeys(("older", "Ampere", "Ada", "Blackwell", "Blackwell RTX"), NOT_AT_HAND),
}

# ---- the recipes

_WHOLE = Recipe({"compile": TRIED, "checkpointing": TRIED, "Hopper": TRIED})  # a block is compiled whole
_FP8 = _WHOLE.having({}, multiple=16, needs=(BF16_UNITS, FP8_UNITS))
_IN_BF16 = _WHOLE.having({}, multiple=16, needs=(BF16_UNITS,))  # FP8 values, multiplied in BF16
_AMP = Recipe(
    {
        "FSDP2": AMP,  # weights are gathered in FP32, and autocast casts them for each product
        "TP": untried("plain linears, whose products autocast casts; no record of it"),
        "compile": untried("the compiler follows autocast; no record of it"),
        "checkpointing": AMP,
        "CPU": AMP,
        "Hopper": untried("torch's autocast; no record of it"),
    }
)
_TE = Recipe(
    # te.Linear stays eager, and what lies between is compiled; checkpoint and tensor parallelism are the library's own.
    {"TP": TWO_TP, "compile": TRIED, "checkpointing": TRIED, "fused": TRIED, "Hopper": CHECK},
    needs=(BF16_UNITS,),
    no_cpu="Transformer Engine has no kernels for a CPU: take backend torchao or emulated",
)
_TE_FP8 = _TE.having({SCHEDULE: TRIED_SCHEDULE}, multiple=16, needs=(BF16_UNITS, FP8_UNITS))
_MXFP8 = untried("Transformer Engine 2.20 lets it through and gives Blackwell block scales of its own kind (MXFP8)")
_NO_MXFP8 = refused(
    "Transformer Engine refuses MXFP8 from compute capability 12.0 on, since not all its products run there: take recipe nvfp4"
)
_BLACKWELL = Recipe(
    dict.fromkeys(
        ("FSDP2", "TP", "compile", "checkpointing", "fused", SCHEDULE, "Blackwell", "Blackwell RTX"), NOT_AT_HAND
    ),
    multiple=32,
    needs=(BF16_UNITS, FP8_UNITS, BLACKWELL_UNITS),
    no_cpu=_TE.no_cpu,
)
_SAME_SWITCH = untried("the same switch as tensorwise's; no record of it")
_BY_WEEK_16 = Recipe({SCHEDULE: _SAME_SWITCH, "FSDP2": FORMATS, "CPU": HERE}, needs=(BF16_UNITS,))
_CPU_ALONE = refused("week 16's NVFP4 keeps its table of values on the CPU: take a CPU, or Transformer Engine's nvfp4")
_YOURS = untried("it is your own")

RECIPES: dict[str, dict[str, Recipe]] = {  # by backend; its first recipe is the default, "*" stands for any name
    "fp32": {
        "fp32": _WHOLE.having({"FSDP2": JOB, "TP": MESHES, "PP": PIPED, "CPU": HERE, "older": untried("plain torch")})
    },
    "bf16": {
        "bf16": _WHOLE.having(
            {"FSDP2": DEMO, "TP": TWO_TP, "PP": TWO_TP, "CPU": DEMO, "Hopper": CHECK}, needs=(BF16_UNITS,)
        )
    },
    "amp": {"bf16": _AMP.having({}, needs=(BF16_UNITS,)), "fp16": _AMP.having({}, needs=(FP16_UNITS,))},
    "te": {
        "current": _TE_FP8.having({"FSDP2": EIGHT_B_CURRENT}),
        "delayed": _TE_FP8.having({"FSDP2": EIGHT_B}, remembers=True),  # all ranks take the largest amax of all
        "block": _TE_FP8.having(
            {
                "FSDP2": STAGED,
                "TP": untried("te.Linear(parallel_mode=...) as for the other recipes; no record of it"),
                PARAMETERS: TRIED_PARAMETERS,
                "Blackwell": _MXFP8,
                "Blackwell RTX": _MXFP8,
            },
            multiple=128,
            needs=(BF16_UNITS, FP8_UNITS, FP8_BLOCKS),
            scalable=True,
            apart={
                (PARAMETERS, "checkpointing"): "in backward Transformer Engine gathers a weight's columns alone, and "
                "the forward that is repeated there needs its rows (seen on an H200, 2.20.2): set "
                'activation_checkpointing = "none", or fp8_parameters = false'
            },
        ),
        "mxfp8": _BLACKWELL.having({"Blackwell RTX": _NO_MXFP8}),
        "nvfp4": _BLACKWELL,
        "bf16": _TE.having({"FSDP2": untried("one rank is on record, several are not")}),
    },
    "torchao": {
        "tensorwise": _FP8.having({"FSDP2": DEMO, SCHEDULE: SCHEDULED, "CPU": DEMO, "Hopper": CHECK}),
        "rowwise": _FP8.having(
            {SCHEDULE: TRIED_SCHEDULE, "CPU": HERE, "Hopper": CHECK}, needs=(BF16_UNITS, FP8_UNITS, FP8_ROWS)
        ),
        "rowwise_with_gw_hp": _FP8.having(
            {SCHEDULE: TRIED_SCHEDULE, "CPU": HERE}, needs=(BF16_UNITS, FP8_UNITS, FP8_ROWS)
        ),
    },
    "emulated": {
        "tensorwise": _IN_BF16.having({SCHEDULE: SCHEDULED, "CPU": HERE}, scalable=True),
        "block": _IN_BF16.having(
            {
                **dict.fromkeys(("compile", "checkpointing", "Hopper"), TRIED_PARAMETERS),
                "FSDP2": PARAMETERISED,
                SCHEDULE: SCHEDULED,
                PARAMETERS: PARAMETERISED,
                "CPU": HERE,
            },
            scalable=True,
        ),
        "mxfp8": _BY_WEEK_16.having({}, multiple=16),
        "nvfp4": _BY_WEEK_16.having(
            dict.fromkeys(("older", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell RTX"), _CPU_ALONE), multiple=16
        ),
    },
    "broken": {"*": _IN_BF16.having({"FSDP2": DEMO, SCHEDULE: TRIED_SCHEDULE, "CPU": DEMO, "Hopper": CHECK})},
    "week16": {
        "*": Recipe(
            {SCHEDULE: _SAME_SWITCH, **dict.fromkeys(("compile", "checkpointing", "CPU", "Hopper"), _YOURS)},
            multiple=16,
            needs=(BF16_UNITS,),
            scalable=True,
        )
    },
}

# ---- what the settings that go across the recipes do together with the other ways and machines

_NO_BF16_PHASE = refused(
    "a BF16 phase would multiply weights that are FP8 all the same: take either the schedule or fp8_parameters"
)
_EMULATED_ALONE = untried("for the emulated backend alone, the others have no FP8 there; no such GPU was at hand")
SETTINGS = {
    SCHEDULE: Recipe(
        {
            PARAMETERS: _NO_BF16_PHASE,
            **dict.fromkeys(("FSDP2", "checkpointing", "CPU"), SCHEDULED),
            **dict.fromkeys(("compile", "fused", "Hopper"), TRIED_SCHEDULE),
            "Ampere": _EMULATED_ALONE,
            **dict.fromkeys(("Ada", "Blackwell", "Blackwell RTX"), NOT_AT_HAND),
        },
        needs=(BF16_UNITS,),
    ),
    PARAMETERS: Recipe(
        {
            SCHEDULE: _NO_BF16_PHASE,
            "FSDP2": STAGED,
            **dict.fromkeys(("compile", "checkpointing", "Hopper"), TRIED_PARAMETERS),
            "fused": refused(
                "a fused module joins the weights of several linears, which would dequantise them: set fused = false"
            ),
            "CPU": PARAMETERISED,
            "Ampere": _EMULATED_ALONE,
            "Ada": untried("for the emulated backend alone: te's block scaling needs Hopper"),
            **dict.fromkeys(("Blackwell", "Blackwell RTX"), _MXFP8),
        },
        needs=(BF16_UNITS,),
    ),
}


def find_recipe(backend: str, recipe: str | None) -> tuple[str, Recipe]:
    """(the matrix's name of a recipe, its entry); None: the backend's default. LabError if there is none."""
    family = "broken" if backend.startswith("broken-") else backend
    known = RECIPES.get(family, {})
    name = recipe or next(iter(known), "*")
    name = name if name in known else "*"
    if name not in known:
        have = ", ".join(f"{each} {one}" for each, some in RECIPES.items() for one in some)
        raise LabError(f"the compatibility matrix has no recipe '{backend} {recipe or backend}'; it has: {have}")
    return f"{family} {name}", known[name]
