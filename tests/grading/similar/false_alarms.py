"""How alike honest submissions are, and how alike copies: what SHARE in grading/similar/compare.py stands on.

python -m tests.grading.similar.false_alarms
"""

from itertools import combinations

from grading.intake.submission import Submission
from grading.similar import compare
from labkit.checks import load_week
from tests.grading.similar.variants import DISGUISES, MANY, WEEK, student


def measured() -> tuple[list[compare.Pair], dict[str, list[compare.Pair]]]:
    """(all honest pairs, disguise -> pairs of a submission and its disguised copy)."""
    week, labels = load_week(WEEK), {}
    handed_out = compare.given(week, labels)

    def works(all_files):
        named = (Submission.of(f"student {n}", files) for n, files in enumerate(all_files))
        made = [compare.read(week, compare.Source(one), labels) for one in named]
        compare.without(made, handed_out)
        return made

    honest = []
    for shift in range(MANY):  # two of one shift have no variant in common
        honest += [compare.alike(*pair) for pair in combinations(works(student(n, shift) for n in range(MANY)), 2)]
    whole = [student(n, shift) for shift in range(MANY) for n in range(MANY)]
    return honest, {
        name: [compare.alike(*works([one, disguise(one)])) for one in whole] for name, disguise in DISGUISES.items()
    }


def main() -> None:
    honest, copies = measured()
    for name, pairs in (("honest", honest), *copies.items()):
        shares, ones = sorted(pair.share for pair in pairs), sorted(pair.one for pair in pairs)
        print(f"{len(pairs)} pairs, {name}: share {shares[0]:.2f} to {shares[-1]:.2f}")
        print(f"    median {shares[len(shares) // 2]:.2f}; of one function {ones[0]:.2f} to {ones[-1]:.2f}")


if __name__ == "__main__":
    main()
