"""A mark: what grading one submission gave. It holds no expected value of a hidden case and nothing of another student.

`key` is a hash of (content, tests, seed, environment): a mark whose key is still right need not be made again.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT
from labkit.errors import LabError

VERSION = 2
SANDBOXED, UNSANDBOXED = "bubblewrap", "none"


@dataclass
class Mark:
    """The automatic part of one submission's grade.

    submission  its number in the class's store
    assignment  "week13"
    key         see above; `content` (of the files as they are read), `tests`, `environment` are the hashes it is made
                of (hex), `seed` the class's
    isolation   SANDBOXED, or UNSANDBOXED: then the student's code could have done anything, also to this mark
    points      automatic points earned; `possible`: of how many. Written tasks are in `tasks` with points None
    complete    False: the grader itself failed somewhere (`attention` says where). Not a zero: a human must look
    attention   sentences for the instructor
    notes       sentences for the student, about the submission as a whole ("there is no collectives.py: ...")
    missing     file of a graded module that was not handed in -> a file that looks like it, or "":
                {"collectives.py": "collectives (1).py"}
    renamed     the names that an instructor had given to misnamed files: old -> new
    unanswered  ids of written tasks to which nothing was handed in: no notebook, or its cells as they were handed out
    tasks       as Outcome.to_json gives them: id, title, kind, cell, points, possible, cases
    seconds     wall clock; core_seconds: of all its processes and the judge
    """

    submission: int
    assignment: str
    key: str = ""
    content: str = ""
    tests: str = ""
    environment: str = ""
    seed: int = 0
    isolation: str = SANDBOXED
    points: float = 0
    possible: float = 0
    complete: bool = True
    attention: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    core_seconds: float = 0.0
    finished: str = ""
    version: int = VERSION

    @property
    def cases(self) -> list[dict[str, Any]]:
        """All cases of all tasks: test, behaviour, verdict, points, possible, seconds, text, cause, printed."""
        return [case for task in self.tasks for case in task["cases"]]

    def doubtful(self, task: dict[str, Any]) -> bool:
        """Whether the grader itself failed at this automatic task. Its points are no zero then, and not decided."""
        if self.complete or task["kind"] != "auto":
            return False
        anywhere = any(case["verdict"] == FAULT for case in self.cases)
        return not anywhere or any(case["verdict"] == FAULT for case in task["cases"])

    def automatic(self, id: str) -> float | None:
        """What the checks give for a task; None for one that they do not judge, and where the grader failed."""
        task = next((task for task in self.tasks if task["id"] == id), None)
        return None if task is None or task["kind"] != "auto" or self.doubtful(task) else task["points"]

    def verdicts(self) -> dict[str, int]:
        """How often each verdict came: {"passed": 40, "hung": 2}."""
        return dict(Counter(case["verdict"] for case in self.cases))

    def to_json(self) -> str:
        """As text that UTF-8 can hold, whatever a submission printed."""
        text = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "backslashreplace").decode()

    @classmethod
    def from_json(cls, text: str) -> "Mark":
        """The mark of such text. LabError if it is none."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise LabError(f"a mark is of version {data['version']}, and this grader reads version {VERSION}")
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"this is not a mark ({type(error).__name__}: {error}): run `grade run` again") from None


def in_words(points: float | None) -> str:
    """Points in words; "none" where there are none."""
    return "none" if points is None else f"{number(points)}"
