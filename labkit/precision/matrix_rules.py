"""The compatibility matrix's content: recipes, columns, and one rule for each thing known. See labkit.precision.matrix."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

YES, UNTRIED, NO = "yes", "untried", "no"
# "backend recipe"; the multiple of which in and out features and tokens must be
RECIPES = {
    "fp32 fp32": 1,
    "bf16 bf16": 1,
    "te bf16": 1,
    "te delayed": 16,
    "te current": 16,
    "te block": 128,
    "torchao tensorwise": 16,
    "torchao rowwise": 16,
    "torchao rowwise_with_gw_hp": 16,
    "emulated tensorwise": 16,
    "emulated block": 16,
    "broken *": 16,
    "week16 *": 16,
}
SCHEDULE, PARAMETERS = "schedule", "FP8 params"
ROWS = {SCHEDULE: "with a schedule", PARAMETERS: "with FP8 params"}  # beside the recipes
FEATURES = ("FSDP2", "TP", "EP", "PP", "compile", "checkpointing", "fused", SCHEDULE, PARAMETERS)
# name -> (lowest compute capability, examples)
GENERATIONS = {
    "CPU": (None, "any"),
    "older": ((0, 0), "V100, T4"),
    "Ampere": ((8, 0), "A100, RTX 3090"),
    "Ada": ((8, 9), "L40S, RTX 4090"),
    "Hopper": ((9, 0), "H100, H200"),
    "Blackwell": ((10, 0), "B200"),
    "Blackwell RTX": ((12, 0), "RTX 5090"),
}
COLUMNS = (*FEATURES, *GENERATIONS)
_CHECK = "results/2026-11-21-h200-gpu-check-124m"  # one rank, compiled, Hopper
_DEMO = "results/2026-11-21-cpu-demo"  # two ranks, CPU
_TRIED = "week16_fp8/results/h200-matrix.json"  # labkit.doctor.matrix_try on one H200
_TRIED_2 = "week16_fp8/results/h200-matrix-2.json"  # the same with schedules, on another H200
_TRIED_3 = "week16_fp8/results/h200-matrix-3.json"  # FP8 parameters, and the emulated block recipe
_8B = "week16_fp8/results/2026-11-22-h200-8b-2-gpus"  # two ranks, Hopper
_SCHEDULED = "tests/train/test_schedule.py"  # CPU
_PARAMETERS = "tests/train/test_fp8_parameters.py"  # CPU
_UNITS = "FP8 products need units that GPUs have from Ada (compute capability 8.9) on: take backend bf16 or emulated"


@dataclass(frozen=True)
class Rule:
    """`recipes` and `columns`: patterns, several by "|"."""

    recipes: str
    columns: str
    state: str
    why: str
    proof: str = ""

    def speaks_of(self, recipe: str, column: str) -> bool:
        return any(fnmatchcase(recipe, pattern) for pattern in self.recipes.split("|")) and any(
            fnmatchcase(column, pattern) for pattern in self.columns.split("|")
        )


RULES = (
    # -- a precision schedule: as a column, then as a row
    Rule(
        "fp32 *|bf16 *|te bf16",
        SCHEDULE,
        NO,
        "there is no FP8 phase to switch to: take out the schedule, or take a backend with FP8",
    ),
    Rule(
        "torchao tensorwise|emulated *",
        SCHEDULE,
        YES,
        "the linear becomes a plain product in the BF16 steps",
        _SCHEDULED,
    ),
    Rule(
        "te *",
        SCHEDULE,
        YES,
        "by te.autocast(enabled=...). Delayed scaling starts blind at the switch; calibrate is untried",
        _TRIED_2,
    ),
    Rule("torchao *|broken *", SCHEDULE, YES, "the same switch as torchao tensorwise's", _TRIED_2),
    Rule("week16 *", SCHEDULE, UNTRIED, "the same switch as torchao tensorwise's; no record of it"),
    Rule(
        f"{SCHEDULE}|{PARAMETERS}",
        f"{SCHEDULE}|{PARAMETERS}",
        NO,
        "a BF16 phase would multiply weights that are FP8 all the same: take either the schedule or fp8_parameters",
    ),
    Rule(SCHEDULE, "FSDP2|checkpointing", YES, "shown on CPU ranks; several GPUs have not been tried", _SCHEDULED),
    Rule(SCHEDULE, "compile", YES, "each switch compiles one more graph of every block", _TRIED_2),
    Rule(SCHEDULE, "fused", YES, "te's fused modules follow te.autocast like the others", _TRIED_2),
    Rule(SCHEDULE, "CPU", YES, "real FP8 numbers in the FP8 steps", _SCHEDULED),
    Rule(
        f"{SCHEDULE}|{PARAMETERS}",
        "Ampere",
        UNTRIED,
        "for the emulated backend alone, the others have no FP8 there; no such GPU was at hand",
    ),
    Rule(SCHEDULE, "Hopper", YES, "on record", _TRIED_2),
    Rule(SCHEDULE, "Ada|Blackwell*", UNTRIED, "no such GPU was at hand"),
    # -- FP8 parameters: as a column, then as a row
    Rule(
        "emulated block",
        PARAMETERS,
        YES,
        "an FP32 tensor of FP8 values, FP32 master weights in AdamW; the gather is BF16",
        _PARAMETERS,
    ),
    Rule("te block", PARAMETERS, YES, "te.quantized_model_init, gathered as FP8", _TRIED_3),
    Rule(
        "*",
        PARAMETERS,
        NO,
        "FP8 parameters need power-of-two scales, so that rounding twice is rounding once: take recipe block of te or "
        "emulated",
    ),
    Rule(
        PARAMETERS,
        "FSDP2",
        UNTRIED,
        "a rank's rows must be a multiple of 128. emulated runs on CPU ranks (tests); te's FP8 gather ran for 24 "
        "steps on two H200s, beside no other arm",
    ),
    Rule(
        PARAMETERS,
        "fused",
        NO,
        "a fused module joins the weights of several linears, which would dequantise them: set fused = false",
    ),
    Rule(PARAMETERS, "compile", YES, "te.Linear stays eager as without", _TRIED_3),
    Rule(PARAMETERS, "checkpointing", YES, "for the emulated backend alone; te's is refused", _TRIED_3),
    Rule(PARAMETERS, "CPU", YES, "the emulated backend", _PARAMETERS),
    Rule(PARAMETERS, "Ada", UNTRIED, "for the emulated backend alone: te's block scaling needs Hopper"),
    Rule(PARAMETERS, "Hopper", YES, "on record", _TRIED_3),
    Rule(
        PARAMETERS,
        "Blackwell*",
        UNTRIED,
        "Transformer Engine 2.20 turns its block scales into MXFP8's there, and its own tests expect a failure on "
        "12.0; not run",
    ),
    # -- the ways to train: this trainer spreads a model by FSDP2 alone
    Rule(
        "te *",
        "TP",
        NO,
        "the trainer here has no tensor parallelism (week 15 builds it by hand); Transformer Engine's own"
        " is te.Linear(parallel_mode=...), whose features are global sizes",
    ),
    Rule("*", "TP", NO, "the trainer here has no tensor parallelism (week 15 builds it by hand): leave tp at 1"),
    Rule(
        "*",
        "EP",
        NO,
        "the decoder here has no experts, so there is nothing for expert parallelism to spread: leave ep at 1",
    ),
    Rule("*", "PP", NO, "the trainer here has no pipeline: leave pp at 1"),
    Rule(
        "bf16 *|torchao tensorwise|broken *", "FSDP2", YES, "weights are gathered in BF16 and cast on every rank", _DEMO
    ),
    Rule("fp32 *", "FSDP2", YES, "nothing is cast", "tests/train/test_job.py"),
    Rule("emulated block", "FSDP2", YES, "weights are gathered in BF16", _PARAMETERS),
    Rule(
        "te delayed",
        "FSDP2",
        YES,
        "all ranks take the largest amax of all: Transformer Engine reduces it when autocast ends",
        _8B,
    ),
    Rule("te *", "FSDP2", UNTRIED, "one rank is on record, several are not"),
    Rule(
        "torchao rowwise*|emulated tensorwise|week16 *",
        "FSDP2",
        UNTRIED,
        "the same gather as tensorwise's; no record of several ranks",
    ),
    Rule(
        "te *",
        "fused",
        YES,
        "a block's norms and SwiGLU inside te's kernels; every linear of the block must be converted",
        _TRIED,
    ),
    Rule("*", "fused", NO, "fused = true is Transformer Engine's: take backend te, or set fused = false"),
    Rule("te *", "compile", YES, "te.Linear stays eager, what lies between the linears is compiled", _TRIED),
    Rule("emulated block", "compile|checkpointing", YES, "as tensorwise", _TRIED_3),
    Rule("fp32 *|bf16 *|torchao *|emulated *|broken *", "compile", YES, "a block is compiled whole", _TRIED),
    Rule(
        "te *", "checkpointing", YES, "by Transformer Engine's own checkpoint, which puts delayed scales back", _TRIED
    ),
    Rule(
        "fp32 *|bf16 *|torchao *|emulated *|broken *",
        "checkpointing",
        YES,
        "scales come from the tensor at hand: nothing to put back",
        _TRIED,
    ),
    Rule(
        "week16 *", "compile|checkpointing", UNTRIED, "it is your own: an autograd function, which torch can do both to"
    ),
    # -- the machines
    Rule("te *", "CPU", NO, "Transformer Engine has no kernels for a CPU: take backend torchao or emulated"),
    Rule("bf16 *|torchao tensorwise|broken *", "CPU", YES, "torchao rounds to real FP8 and multiplies slowly", _DEMO),
    Rule(
        "fp32 *|torchao rowwise*|emulated *",
        "CPU",
        YES,
        "real FP8 numbers (but for fp32), multiplied slowly",
        "tests/doctor/test_matrix.py",
    ),
    Rule("week16 *", "CPU|Hopper", UNTRIED, "it is your own"),
    Rule("fp32 *", "older", UNTRIED, "plain torch"),
    Rule("*", "older", NO, "GPUs before Ampere have no BF16 units: take backend fp32, or another GPU"),
    Rule("te delayed|te current|te block|torchao *", "Ampere", NO, _UNITS),
    Rule(
        "te block", "Ada", NO, "block scaling needs Hopper (compute capability 9.0) and CUDA 12.9: take recipe current"
    ),
    Rule(
        "torchao rowwise*",
        "Ada",
        NO,
        "the rowwise FP8 product needs Hopper (compute capability 9.0): take recipe tensorwise",
    ),
    Rule(
        "bf16 *|te *|torchao tensorwise|torchao rowwise|broken *",
        "Hopper",
        YES,
        "FP8 products on the GPU's own units, but for bf16 and broken",
        _CHECK,
    ),
    Rule("emulated block", "Hopper", YES, "on record", _TRIED_3),
    Rule("fp32 *|torchao *|emulated *", "Hopper", YES, "on record", _TRIED),
    Rule(
        "te block",
        "Blackwell*",
        UNTRIED,
        "Transformer Engine 2.20 lets it through and gives Blackwell block scales of its own kind (MXFP8)",
    ),
    Rule("*", "Ampere|Ada|Blackwell*", UNTRIED, "should run by its libraries' own tables; no such GPU was at hand"),
)

# What no pair of these tells: (recipes, the ways that this recipe may have one at a time, why not together).
TOGETHER = (
    (
        "te *",
        (PARAMETERS, "checkpointing"),
        "in backward Transformer Engine gathers a weight's columns alone, and the forward that is repeated there needs "
        'its rows (seen on an H200, 2.20.2): set activation_checkpointing = "none", or fp8_parameters = false',
    ),
)
