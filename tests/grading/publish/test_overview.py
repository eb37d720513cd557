"""The class's page: what most students failed comes first, and everybody to look at is named."""

import base64
import re

from grading.mark import UNSANDBOXED
from grading.publish.class_page import html, write_page
from grading.publish.figures import draw_all
from grading.publish.overview import overview
from labkit.checks.verdict import FAULT, NO_RESULT, OUT_OF_MEMORY
from tests.grading.publish.aclass import WEEK, hand, spoil, stand
from tests.grading.publish.looking import Tags, assert_one_harmless_file, words


def small():
    made = [
        stand("ann", "13.5 GB/s"), stand("ben", "13.5 GB/s", "13.3 endless loop", seconds=50.0), stand("cai"),
        stand("dov", "13.2 one rank crashes"), stand("eva", "13.4 built-in collective in disguise"), stand("fay"),
        stand("zoe", attention=["This submission is larger than what is read of one."]),
    ]  # fmt: skip
    spoil(made[2].mark, "test_best_ring", OUT_OF_MEMORY, "rank 0 took more than 2 GiB")
    spoil(made[5].mark, "test_cost[naive", FAULT, "the check itself failed")
    made[5].mark.complete, made[5].mark.attention = False, ["13.1: the machine was out of space"]
    made[0].mark.isolation = UNSANDBOXED
    return made


def part(page: str, title: str) -> str:
    return re.search(rf"(?s)<h2[^>]*>{title}</h2>(.*?)</section>", page)[1]


def test_the_page_of_forty_is_one_harmless_file_with_two_pictures(klass, tmp_path):
    seen = overview(WEEK, klass)
    text = write_page(seen, tmp_path / "class.html").read_text()
    assert_one_harmless_file(text)
    images = Tags(text).all("img")
    assert len(images) == 2
    for image in images:
        assert len(image["alt"]) > 60
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        assert "<script" not in svg and "prefers-color-scheme:dark" in svg
        assert not [u for u in re.findall(r"(?:href|src)=\"([^\"]*)\"", svg) if not u.startswith("#")]
    heading = re.findall(r"<h2[^>]*>(.*?)</h2>", text)[0]
    assert heading == "What the class has not understood", "what most failed comes first"
    said = [int(n) for n in re.findall(r"<strong>(\d+) of \d+ students", text)]
    assert said == [len(e.failed) for e in seen.not_understood[:8]]
    assert said[0] == max(len(e.failed) for e in seen.behaviours)
    first = seen.not_understood[0]
    assert " ".join(first.typical.example.split())[:60] in words(part(text, heading))
    assert f"{len(first.mistakes[0].who)} \u00d7 {first.mistakes[0].words}" in words(part(text, heading))


def test_everybody_to_look_at_is_named_in_their_section():
    page = html(overview(WEEK, small()))
    assert_one_harmless_file(page)
    for title, name in (
        ("Hung", "ben"),
        ("Crashed", "dov"),
        ("Out of memory", "cai"),
        ("Forbidden calls", "eva"),
        ("Grader faults to look at", "fay"),
        ("Notes on submissions", "zoe"),
    ):
        assert re.findall(r"<bdi>(\w+)</bdi>", part(page, title)) == [name], title
    slowest = part(page, "Slowest submissions")
    assert re.findall(r"<bdi>(\w+)</bdi>", slowest)[0] == "ben" and "50.0" in slowest
    assert "UNSANDBOXED: 1 mark comes" in words(page) and "ann" in words(page).partition("UNSANDBOXED")[2][:160]
    quiet = html(overview(WEEK, [stand("a")]))
    assert words(part(quiet, "Grader faults to look at")) == "None." and "Look at this first" not in quiet


def test_doubtful_points_are_in_no_statistic():
    seen = overview(WEEK, small())
    assert len(seen.automatic) == 6 and seen.automatic.count(80) == 1 and seen.possible == 80
    rows = {row["id"]: row for row in seen.by_task()}
    assert rows["13.1"]["open"] == 1 and len(rows["13.1"]["shares"]) == 6 and rows["13.7"]["mean"] is None
    assert rows["13.4"]["full"] == 6 and rows["13.4"]["none"] == 0
    values = [stand(f"s{n}", by_hand=hand("13.1", n)) for n in range(5)]
    assert overview(WEEK, values).quartiles == (66, 67, 68)  # 65 of the other tasks, and 0 to 4
    assert overview(WEEK, values[:1]).quartiles == (65, 65, 65)


def test_what_was_not_tried_is_no_misunderstanding():
    gone = stand("gone", missing={"collectives.py": ""})
    for task in gone.tasks:
        for case in task["cases"] if task["id"] == "13.2" else ():
            case.update(verdict=NO_RESULT, points=0, text="There is no collectives.py in this submission.")
    seen = overview(WEEK, [stand("full"), stand("left", blank=("13.2",)), gone])
    untried = [entry.untried for entry in seen.behaviours if entry.task == "13.2"]
    assert seen.not_understood == [] and untried and all(one == {1, 2} for one in untried)


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
