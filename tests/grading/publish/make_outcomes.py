"""Record week13_outcomes.json again: what the checks really say of the mutants of week 13 in it. About three minutes.

    python -m tests.grading.publish.make_outcomes

Run it again when the checks' words or tests change. Paths of the machine become /tmp/student.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

from labkit.checks import load_week, run_checks
from labkit.checks.runner import LocalRunner
from tests.mutants13 import MUTANTS
from tests.stripped import strip_folder

ROOT = Path(__file__).resolve().parents[3]
WEEK, TO = ROOT / "week13_allreduce", Path(__file__).with_name("week13_outcomes.json")
KEPT = ("test", "verdict", "seconds", "text", "cause")


def main() -> None:
    week, root = load_week(WEEK), Path(tempfile.mkdtemp())
    shutil.copytree(WEEK, root / WEEK.name, ignore=shutil.ignore_patterns("__pycache__"))
    strip_folder(WEEK, root / "blank" / WEEK.name)
    taken, failed = json.loads(TO.read_text())["mutants"], {}
    with LocalRunner(root, reference=ROOT) as runner:
        reference = run_checks(["week13"], weeks=[week], runner=runner, seed=13, deadline=20).to_json()["tasks"]
        for mutant in MUTANTS:
            name = f"{mutant.task} {mutant.name}"
            if name not in taken:
                continue
            print(name, flush=True)
            path = root / WEEK.name / f"{mutant.module}.py"
            original = path.read_text()
            path.write_text(mutant.apply(original))
            outcome = run_checks([mutant.task], weeks=[week], runner=runner, seed=13, deadline=mutant.deadline or 5)
            path.write_text(original)
            cases = (case for task in outcome.to_json()["tasks"] for case in task["cases"])
            failed[name] = [{key: case[key] for key in KEPT} for case in cases if case["verdict"] != "passed"]
    with LocalRunner(root / "blank") as runner:
        blank = run_checks(["week13"], weeks=[week], runner=runner, seed=13, deadline=20).to_json()["tasks"]
    blanks = {case["test"]: case["text"] for task in blank for case in task["cases"]}
    shutil.rmtree(root)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(cases)}" for name, cases in failed.items())
    text = f'{{"reference": {json.dumps(reference)},\n"blank": {json.dumps(blanks)},\n"mutants": {{\n{lines}}}}}\n'
    TO.write_text(re.sub(rf"{re.escape(str(root))}/", "/tmp/student/", text))


if __name__ == "__main__":
    main()
