"""What each precision recipe needs, refuses and has shown: one entry a recipe, in RECIPES.

An entry says what the recipe needs of a machine (`needs`, `no_cpu`), and in `ways` what goes with it: `shown` names the
test or the committed record that shows it, `untried` says what is known instead. What an entry does not name, OTHERWISE
decides: a way that some recipes have and others lack is refused unless the entry claims it, and whatever nobody has run
is untried. So a new recipe begins untried everywhere, and nothing is claimed for it by accident.

The backends refuse by these entries (labkit.precision.base), and so do `lab compare` and the trainer before a run
(labkit.precision.matrix, which `lab doctor --matrix` prints). TP, EP and PP have no setting: a configuration has no key
for them, and what runs is built around the trainer (labkit.parallel.tensor, week 15).

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.errors import LabError

YES, UNTRIED, NO = "yes", "untried", "no"
SCHEDULE, PARAMETERS = "schedule", "FP8 params"
ACROSS = {SCHEDULE: "with a schedule", PARAMETERS: "with FP8 params"}  # settings that go across the recipes
FEATURES = ("FSDP2", "TP", "EP", "PP", "compile", "checkpointing", "fused", *ACROSS)
Capability = tuple[int, int]  # NVIDIA's compute capability, as (9, 0)


class Word(NamedTuple):
    """yes: runs, and `proof` shows it. untried: allowed, nobody has shown it here. no: refused before a run."""

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

    ways: Mapping[str, Word]  # by column: a feature or a generation of machines
    multiple: int = 1  # in and out features and tokens must be multiples of it
    needs: tuple[Need, ...] = ()  # of a GPU, the commonest first
    no_cpu: str = ""  # why it does not run on a CPU
    remembers: bool = False  # do its scales come from earlier steps?
    scalable: bool = False  # can its amax epsilons and kinds of scales be chosen?
    # Features of which each goes alone, and why they do not go together.
    apart: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def word(self, column: str) -> Word:
        """What is said of a feature or a generation, its needs of a machine left out. KeyError: no such column."""
        return self.ways.get(column) or OTHERWISE[column]


def shown(proof: str, why: str = "") -> Word:
    return Word(YES, why, proof)


def untried(why: str) -> Word:
    return Word(UNTRIED, why)


def lacks(needs: Iterable[Need], gpu: Capability) -> Need | None:
    """The first need that a GPU of this compute capability does not meet."""
    return next((need for need in needs if gpu < need.least), None)


# ---- what a GPU must have

FP16_UNITS = Need((7, 0), "GPUs before Volta (compute capability 7.0) have no FP16 units", "take backend fp32")
BF16_UNITS = Need(
    (8, 0), "GPUs before Ampere have no BF16 units", "take backend fp32, or amp with recipe fp16, or another GPU"
)
FP8_UNITS = Need(
    (8, 9),
    "FP8 products need units that GPUs have from Ada (compute capability 8.9) on",
    "take backend bf16 or emulated",
)
FP8_ROWS = Need((9, 0), "the rowwise FP8 product needs Hopper (compute capability 9.0)", "take recipe tensorwise")
FP8_BLOCKS = Need((9, 0), "block scaling needs Hopper (compute capability 9.0) and CUDA 12.9", "take recipe current")

# ---- where a yes is shown

CHECK = "results/2026-11-22-h200-gpu-check-124m"  # one rank, compiled, Hopper
DEMO = "results/2026-11-23-cpu-demo"  # two ranks, CPU
# Two training steps in each combination that the table allowed on that day, one H200 each.
TRIED = "week16_fp8/results/h200-matrix.json"
SCHEDULED = "week16_fp8/results/h200-matrix-2.json"  # with schedules
PARAMETERISED = "week16_fp8/results/h200-matrix-3.json"  # FP8 parameters, and the emulated block recipe
EIGHT_B = "week16_fp8/results/2026-11-26-h200-8b/two"  # two ranks, Hopper
EIGHT_B_CURRENT = "week16_fp8/results/2026-11-26-h200-8b/two-kept-current"  # two ranks, Hopper
STAGED = "week16_fp8/results/2026-11-26-h200-two-stage"  # two ranks, Hopper
TWO_TP = "week15_tp_attention/results/h200-2.json"  # two ranks, Hopper
PIPED = "week15_tp_attention/test_pipeline.py"  # these run on a CPU
MESHES = "tests/parallel/test_meshes.py"
SCHEDULES_HERE = "tests/train/test_schedule.py"
PARAMETERS_HERE = "tests/train/test_fp8_parameters.py"
JOB = "tests/train/test_job.py"
AMP = "tests/precision/test_amp.py"
HERE = "tests/doctor/test_matrix.py"

# ---- what holds of a column where an entry says nothing

_POWERS = "FP8 parameters need power-of-two scales, so that rounding twice is rounding once"
_NO_SUCH_GPU = untried("should run by its libraries' own tables; no such GPU was at hand")
OTHERWISE = {
    "FSDP2": untried("the same gather as tensorwise's; no record of several ranks"),
    "TP": Word(
        NO,
        "a scale needs the amax of the whole tensor, and nothing here agrees it over the tensor-parallel ranks: take "
        "Transformer Engine, or leave tp at 1",
    ),
    "EP": Word(
        NO,
        "every rank multiplies all experts, and FSDP2 shards their weights: nothing here sends a token to another "
        "rank's expert: leave ep at 1",
    ),
    "PP": Word(NO, "the pipeline here (week 15's run_schedule) has run in fp32 and bf16 alone: leave pp at 1"),
    "compile": untried("no record of it"),
    "checkpointing": untried("no record of it"),
    "fused": Word(NO, "fused = true is Transformer Engine's: take backend te, or set fused = false"),
    SCHEDULE: Word(NO, "there is no FP8 phase to switch to: take out the schedule, or take a backend with FP8"),
    PARAMETERS: Word(NO, f"{_POWERS}: take recipe block of te or emulated"),
    "CPU": untried("no record of it"),
    "older": _NO_SUCH_GPU,
    "Ampere": _NO_SUCH_GPU,
    "Ada": _NO_SUCH_GPU,
    "Hopper": untried("no record of it"),
    "Blackwell": _NO_SUCH_GPU,
    "Blackwell RTX": _NO_SUCH_GPU,
}

# ---- the recipes

_TRIED = {"compile": shown(TRIED, "a block is compiled whole"), "checkpointing": shown(TRIED), "Hopper": shown(TRIED)}
_GATHERED = shown(DEMO, "weights are gathered in BF16 and cast on every rank")
_SWITCH = shown(SCHEDULED, "the same switch as torchao tensorwise's")
_PLAIN_SWITCH = shown(SCHEDULES_HERE, "the linear becomes a plain product in the BF16 steps")
_SLOW = shown(HERE, "real FP8 numbers, multiplied slowly")

_AMP = {
    "FSDP2": shown(AMP, "weights are gathered in FP32, and autocast casts them for each product"),
    "TP": untried("plain linears, whose products autocast casts; no record of it"),
    "compile": untried("the compiler follows autocast; no record of it"),
    "checkpointing": shown(AMP, "torch's checkpoint recomputes under the same autocast"),
    "CPU": shown(AMP, "FP16 products go through FP32 and are rounded once"),
    "Hopper": untried("torch's autocast; no record of it"),
}

_TE = {
    "TP": shown(
        TWO_TP,
        "te.Linear(parallel_mode=...), whose features are global sizes; amax is agreed over the tensor-parallel ranks",
    ),
    "compile": shown(TRIED, "te.Linear stays eager, what lies between the linears is compiled"),
    "checkpointing": shown(TRIED, "by Transformer Engine's own checkpoint, which puts delayed scales back"),
    "fused": shown(
        TRIED, "a block's norms and SwiGLU inside te's kernels; every linear of the block must be converted"
    ),
    "Hopper": shown(CHECK),
}
_TE_FP8 = _TE | {
    SCHEDULE: shown(
        SCHEDULED, "by te.autocast(enabled=...). Delayed scaling starts blind at the switch; calibrate is untried"
    )
}
_NO_KERNELS = "Transformer Engine has no kernels for a CPU: take backend torchao or emulated"
_MXFP8 = untried("Transformer Engine 2.20 lets it through and gives Blackwell block scales of its own kind (MXFP8)")
_BY_HAND = untried("it is your own: an autograd function, which torch can do both to")

RECIPES: dict[str, dict[str, Recipe]] = {  # by backend; its first recipe is the default, "*" stands for any name
    "fp32": {
        "fp32": Recipe(
            _TRIED
            | {
                "FSDP2": shown(JOB, "nothing is cast"),
                "TP": shown(MESHES, "labkit.parallel.tensor, before the trainer is handed the model"),
                "PP": shown(PIPED, "week 15's run_schedule on stages of the decoder"),
                "CPU": shown(HERE),
                "older": untried("plain torch"),
            }
        )
    },
    "bf16": {
        "bf16": Recipe(
            _TRIED
            | {
                "FSDP2": _GATHERED,
                "TP": shown(TWO_TP, "week 15's block by hand, and by DTensor"),
                "PP": shown(TWO_TP, "week 15's run_schedule, each stage under autocast; messages are float32"),
                "CPU": shown(DEMO),
                "Hopper": shown(CHECK),
            },
            needs=(BF16_UNITS,),
        )
    },
    "amp": {
        "bf16": Recipe(_AMP, needs=(BF16_UNITS,)),
        "fp16": Recipe(
            _AMP
            | {
                "older": untried("GPUs have FP16 units from Volta (compute capability 7.0) on; no such GPU was at hand")
            },
            needs=(FP16_UNITS,),
        ),
    },
    "te": {
        "current": Recipe(
            _TE_FP8
            | {"FSDP2": shown(EIGHT_B_CURRENT, "weights are gathered in BF16, and every rank casts what it gathered")},
            multiple=16,
            needs=(BF16_UNITS, FP8_UNITS),
            no_cpu=_NO_KERNELS,
        ),
        "delayed": Recipe(
            _TE_FP8
            | {
                "FSDP2": shown(
                    EIGHT_B, "all ranks take the largest amax of all: Transformer Engine reduces it when autocast ends"
                )
            },
            multiple=16,
            needs=(BF16_UNITS, FP8_UNITS),
            no_cpu=_NO_KERNELS,
            remembers=True,
        ),
        "block": Recipe(
            _TE_FP8
            | {
                "FSDP2": shown(STAGED, "weights are gathered in BF16, or as FP8 parameters"),
                "TP": untried("te.Linear(parallel_mode=...) as for the other recipes; no record of it"),
                PARAMETERS: shown(PARAMETERISED, "te.quantized_model_init, gathered as FP8"),
                "Blackwell": _MXFP8,
                "Blackwell RTX": _MXFP8,
            },
            multiple=128,
            needs=(BF16_UNITS, FP8_UNITS, FP8_BLOCKS),
            no_cpu=_NO_KERNELS,
            scalable=True,
            apart={
                (PARAMETERS, "checkpointing"): "in backward Transformer Engine gathers a weight's columns alone, and "
                "the forward that is repeated there needs its rows (seen on an H200, 2.20.2): set "
                'activation_checkpointing = "none", or fp8_parameters = false'
            },
        ),
        "bf16": Recipe(
            _TE | {"FSDP2": untried("one rank is on record, several are not")}, needs=(BF16_UNITS,), no_cpu=_NO_KERNELS
        ),
    },
    "torchao": {
        "tensorwise": Recipe(
            _TRIED
            | {
                "FSDP2": _GATHERED,
                SCHEDULE: _PLAIN_SWITCH,
                "CPU": shown(DEMO, "rounds to real FP8 and multiplies slowly"),
                "Hopper": shown(CHECK),
            },
            multiple=16,
            needs=(BF16_UNITS, FP8_UNITS),
        ),
        "rowwise": Recipe(
            _TRIED | {SCHEDULE: _SWITCH, "CPU": _SLOW, "Hopper": shown(CHECK)},
            multiple=16,
            needs=(BF16_UNITS, FP8_UNITS, FP8_ROWS),
        ),
        "rowwise_with_gw_hp": Recipe(
            _TRIED | {SCHEDULE: _SWITCH, "CPU": _SLOW}, multiple=16, needs=(BF16_UNITS, FP8_UNITS, FP8_ROWS)
        ),
    },
    "emulated": {
        "tensorwise": Recipe(
            _TRIED | {SCHEDULE: _PLAIN_SWITCH, "CPU": _SLOW}, multiple=16, needs=(BF16_UNITS,), scalable=True
        ),
        "block": Recipe(
            {
                "FSDP2": shown(PARAMETERS_HERE, "weights are gathered in BF16"),
                "compile": shown(PARAMETERISED),
                "checkpointing": shown(PARAMETERISED),
                SCHEDULE: _PLAIN_SWITCH,
                PARAMETERS: shown(
                    PARAMETERS_HERE, "an FP32 tensor of FP8 values, FP32 master weights in AdamW; the gather is BF16"
                ),
                "CPU": _SLOW,
                "Hopper": shown(PARAMETERISED),
            },
            multiple=16,
            needs=(BF16_UNITS,),
            scalable=True,
        ),
    },
    "broken": {
        "*": Recipe(
            _TRIED | {"FSDP2": _GATHERED, SCHEDULE: _SWITCH, "CPU": shown(DEMO), "Hopper": shown(CHECK)},
            multiple=16,
            needs=(BF16_UNITS,),
        )
    },
    "week16": {
        "*": Recipe(
            {
                "compile": _BY_HAND,
                "checkpointing": _BY_HAND,
                SCHEDULE: untried("the same switch as torchao tensorwise's; no record of it"),
                "CPU": untried("it is your own"),
                "Hopper": untried("it is your own"),
            },
            multiple=16,
            needs=(BF16_UNITS,),
            scalable=True,
        )
    },
}

# ---- what the settings that go across the recipes do together with the other ways and machines

_NO_BF16_PHASE = Word(
    NO, "a BF16 phase would multiply weights that are FP8 all the same: take either the schedule or fp8_parameters"
)
_EMULATED_ALONE = untried("for the emulated backend alone, the others have no FP8 there; no such GPU was at hand")
_NOT_AT_HAND = untried("no such GPU was at hand")
_AS_MXFP8 = untried(
    "Transformer Engine 2.20 turns its block scales into MXFP8's there, "
    "and its own tests expect a failure on 12.0; not run"
)
SETTINGS = {
    SCHEDULE: Recipe(
        {
            PARAMETERS: _NO_BF16_PHASE,
            "FSDP2": shown(SCHEDULES_HERE, "shown on CPU ranks; several GPUs have not been tried"),
            "checkpointing": shown(SCHEDULES_HERE, "shown on CPU ranks; several GPUs have not been tried"),
            "compile": shown(SCHEDULED, "each switch compiles one more graph of every block"),
            "fused": shown(SCHEDULED, "te's fused modules follow te.autocast like the others"),
            "CPU": shown(SCHEDULES_HERE, "real FP8 numbers in the FP8 steps"),
            "Ampere": _EMULATED_ALONE,
            "Ada": _NOT_AT_HAND,
            "Hopper": shown(SCHEDULED),
            "Blackwell": _NOT_AT_HAND,
            "Blackwell RTX": _NOT_AT_HAND,
        },
        needs=(BF16_UNITS,),
    ),
    PARAMETERS: Recipe(
        {
            SCHEDULE: _NO_BF16_PHASE,
            "FSDP2": shown(
                STAGED,
                "a rank's rows must be a multiple of 128. te gathers FP8 (two H200s); emulated runs on CPU ranks",
            ),
            "compile": shown(PARAMETERISED, "te.Linear stays eager as without"),
            "checkpointing": shown(PARAMETERISED, "for the emulated backend alone; te's is refused"),
            "fused": Word(
                NO,
                "a fused module joins the weights of several linears, which would dequantise them: set fused = false",
            ),
            "CPU": shown(PARAMETERS_HERE, "the emulated backend"),
            "Ampere": _EMULATED_ALONE,
            "Ada": untried("for the emulated backend alone: te's block scaling needs Hopper"),
            "Hopper": shown(PARAMETERISED),
            "Blackwell": _AS_MXFP8,
            "Blackwell RTX": _AS_MXFP8,
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
