"""The class's page: what most students failed comes first, and everybody to look at is named."""

import base64
import re

from grading.mark import UNSANDBOXED
from grading.publish.class_page import html, write_page
from grading.publish.figures import draw_all
from grading.publish.overview import overview
from labkit.checks.verdict import FAULT, OUT_OF_MEMORY
from tests.grading.publish.aclass import WEEK, hand, spoil, stand
from tests.grading.publish.looking import Tags, assert_one_harmless_file, words


def small():
    made = [
        stand("ann", "13.5 GB/s"), stand("ben", "13.5 GB/s", "13.3 endless loop", seconds=50.0), stand("cai"),
        stand("dov", "13.2 one rank crashes"), stand("eva", "13.4 built-in collective in disguise"), stand("fay"),
    ]  # fmt: skip
    spoil(made[2].mark, "test_best_ring", OUT_OF_MEMORY, "rank 0 took more than 2 GiB")
    spoil(made[5].mark, "test_cost[naive", FAULT, "the check itself failed")
    made[5].mark.complete, made[5].mark.attention = False, ["13.1: the machine was out of space"]
    made[0].mark.isolation = UNSANDBOXED
    return made


def part(page: str, title: str) -> str:
    return re.search(rf"(?s)<h2[^>]*>{title}</h2>(.*?)</section>", page)[1]


def section(page: str, title: str) -> str:
    return words(part(page, title))


def test_the_page_of_forty_is_one_harmless_file_with_two_pictures(klass, tmp_path):
    text = write_page(overview(WEEK, klass), tmp_path / "class.html").read_text()
    assert_one_harmless_file(text)
    images = Tags(text).all("img")
    assert len(images) == 2
    for image in images:
        assert len(image["alt"]) > 60
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        assert "<script" not in svg and "prefers-color-scheme:dark" in svg
        assert not [u for u in re.findall(r"(?:href|src)=\"([^\"]*)\"", svg) if not u.startswith("#")]
    assert [p.name for p in tmp_path.iterdir()] == ["class.html"]


def test_what_was_not_understood_comes_first_most_failed_first(klass):
    seen = overview(WEEK, klass)
    page = html(seen)
    heads = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert heads[0] == "What the class has not understood"
    said = [int(n) for n in re.findall(r"<strong>(\d+) of \d+ students", page)]
    assert said == [e.failed for e in seen.not_understood[:8]] and said[0] == max(e.failed for e in seen.behaviours)
    first = seen.not_understood[0]
    assert " ".join(first.typical[1].split())[:60] in section(page, heads[0])
    assert f"{first.causes[0][1]} \u00d7 {first.causes[0][0]}" in section(page, heads[0])


def test_counts_agree_with_the_marks():
    seen = overview(WEEK, small())
    assert [e.failed for e in seen.behaviours[:4]] == [2, 2, 2, 1]
    assert {e.title for e in seen.behaviours[:3]} == {
        "Algorithm bandwidth",
        "Bus bandwidth on 8 ranks, as nccl-tests has it",
        "Bus bandwidth of a single rank, and of an unknown collective",
    }
    # One slip of two students: one entry, one bar, each of them counted once.
    first, second = seen.not_understood[:2]
    assert (first.failed, first.judged, first.causes) == (2, 6, [("in GB/s, expected bytes/s", 2)])
    assert {first.title, *first.also} == {e.title for e in seen.behaviours[:3]} and second.failed == 1
    assert [i.student for i in seen.incidents_of("hung")] == ["ben"]
    assert [(i.student, i.cases) for i in seen.incidents_of("crashed")] == [("dov", 6)]
    assert [i.student for i in seen.incidents_of(OUT_OF_MEMORY)] == ["cai"]
    assert [i.student for i in seen.incidents_of("forbidden call")] == ["eva"]
    assert [s.person.name for s in seen.doubtful] == ["fay"]
    assert seen.slowest[0].person.name == "ben"


def test_everybody_to_look_at_is_named_in_their_section():
    page = html(overview(WEEK, small()))
    for title, name in (
        ("Hung", "ben"),
        ("Crashed", "dov"),
        ("Out of memory", "cai"),
        ("Forbidden calls", "eva"),
        ("Grader faults to look at", "fay"),
    ):
        assert re.findall(r"<bdi>(\w+)</bdi>", part(page, title)) == [name], title
    assert "50.0" in section(page, "Slowest submissions")
    assert "UNSANDBOXED: 1 mark comes" in words(page) and "ann" in words(page).partition("UNSANDBOXED")[2][:160]


def test_a_note_on_a_submission_is_no_fault_of_the_graders():
    large = stand("zoe", attention=["This submission is larger than what is read of one: not all of it was looked at."])
    seen = overview(WEEK, [stand("a"), large])
    assert seen.doubtful == [] and [s.person.name for s in seen.noted] == ["zoe"]
    page = html(seen)
    assert section(page, "Grader faults to look at") == "None." and "Look at this first" not in page
    assert "zoe" in section(page, "Notes on submissions") and "larger than what is read" in words(page)


def test_doubtful_points_are_in_no_statistic():
    seen = overview(WEEK, small())
    assert len(seen.automatic) == 5 and 80 not in seen.automatic
    rows = {row["id"]: row for row in seen.by_task()}
    assert rows["13.1"]["open"] == 1 and len(rows["13.1"]["shares"]) == 5 and rows["13.7"]["mean"] is None
    assert rows["13.4"]["full"] == 5 and rows["13.4"]["none"] == 0
    assert seen.possible == 80


def test_quartiles_of_points():
    values = [stand(f"s{n}", by_hand=hand("13.1", n)) for n in range(5)]
    assert overview(WEEK, values).quartiles == (66, 67, 68)  # 65 of the other tasks, and 0 to 4
    assert overview(WEEK, values[:1]).quartiles == (65, 65, 65)


def test_pictures_of_odd_classes_do_not_fail(tmp_path):
    blank = stand("blank", blank=tuple(f"13.{n}" for n in range(1, 7)))
    for made in (stand("full"), blank, stand("lost", complete=False, tasks=[])):
        assert all(one.svg.exists() and one.alt for one in draw_all(overview(WEEK, [made]), tmp_path))


def test_foreign_names_and_texts_are_harmless_in_the_page():
    made = stand("<script>x</script>")
    spoil(made.mark, "test_algbw", "hung", "<img src=x onerror=y> \x1b[31m at /srv/box/week13_allreduce/a.py:3")
    page = html(overview(WEEK, [made]))
    assert_one_harmless_file(page)
    assert "<script>x</script>" in words(page) and "\x1b" not in page and "/srv/box" not in page
