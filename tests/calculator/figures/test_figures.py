"""What holds for every figure: any value gets an answer, each control matters, and drawings are well-formed."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from calculator.browser import figure
from calculator.figures.catalogue import FIGURES
from calculator.figures.kit.controls import Choice, Given, Range, Stops
from calculator.figures.kit.drawing import Scale, wrapped

HOSTILE = ("", "x", "nan", "inf", "-inf", "-1e300", "1e300", "0", "<b>", "1" * 5000, "[]", "null", "\u202e")


def ask(name: object, values: object = None, *, narrow: bool = False) -> dict:
    return json.loads(figure(json.dumps({"name": name, "values": {} if values is None else values, "narrow": narrow})))


def other_values(control) -> list[str]:
    match control:
        case Range():
            return [control.text(control.low), control.text(control.high)]
        case Stops():
            return [control.text(stop) for stop in control.stops]
        case Choice():
            return [value for value, _ in control.options]
        case Given():
            return [control.default, control.example]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("narrow", [False, True])
def test_drawings_are_well_formed_and_inside_their_frame(name, narrow):
    for values in [{}, *({one.name: text} for one in FIGURES[name].controls for text in other_values(one))]:
        answer = ask(name, values, narrow=narrow)
        svg, *words = ElementTree.fromstring(f"<div>{answer['drawing']}</div>")
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        assert width == (340 if narrow else 720)
        for shape in svg:
            place = shape.attrib
            if shape.tag == "rect":
                assert float(place["x"]) > -1, values
                assert float(place["x"]) + float(place["width"]) < width + 1, (values, place)
                assert float(place["y"]) + float(place["height"]) < height + 1, (values, place)
            if shape.tag == "circle":
                assert 0 <= float(place["cx"]) <= width and 0 <= float(place["cy"]) <= height, (values, place)
        for word in words:
            x, y = (float(share) for share in re.fullmatch(r"left:(.+)%;top:(.+)%", word.attrib["style"]).groups())
            look = word.attrib["class"].split()
            wide = (6.4 if "soft" in look else 7.2) * len(word.text)
            start = x * width / 100 - (0.5 if "middle" in look else 1 if "end" in look else 0) * wide
            assert 0 < y <= 100 and start > -4 and start + wide < width + 6, (values, word.text)
        for handle in answer["handles"]:
            assert 0 <= handle["left"] <= 100 and 0 <= handle["top"] <= 100
        assert answer["caption"].endswith("."), answer["caption"]
        assert not re.search(r"\b(nan|inf|None|e[-+]\d\d)\b", answer["caption"] + str(answer["rows"])), answer[
            "caption"
        ]
        assert all(len(row) == len(answer["head"]) for row in answer["rows"]) and answer["rows"] and all(answer["head"])


@pytest.mark.parametrize("name, control", [(name, one) for name in FIGURES for one in FIGURES[name].controls])
def test_each_control_changes_caption_or_table(name, control):
    """With the other values as they are at first, or all at their last: what is not in use then is in use now."""
    lasts = {one.name: other_values(one)[-1] for one in FIGURES[name].controls}
    for base in ({}, lasts):
        answers = [ask(name, {**base, control.name: text}) for text in other_values(control)]
        if len({json.dumps([answer["caption"], answer["rows"]]) for answer in answers}) > 1:
            return
    pytest.fail(f"{control.name} changes nothing")


@pytest.mark.parametrize("name, control", [(name, one) for name in FIGURES for one in FIGURES[name].controls])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_are_brought_to_allowed_ones_with_a_sentence(name, control, text):
    answer = ask(name, {control.name: text})
    assert answer["values"][control.name] in (
        other_values(control) if not isinstance(control, Range) else [answer["values"][control.name]]
    )
    if isinstance(control, Range):
        assert control.low <= float(answer["values"][control.name]) <= control.high
    again = ask(name, answer["values"])
    assert again["values"] == answer["values"] and again["note"] == ""
    if answer["values"][control.name] != text and not re.fullmatch(r"0", text):
        assert control.label in answer["note"] and len(answer["note"]) < 300


@pytest.mark.parametrize(
    "request_json, said",
    [
        ("{}", "There is no figure None"),
        ('{"name": "none-such"}', "the figures are thousandfold"),
        ('{"name": ["ring"]}', "There is no figure"),
        ('{"name": "ring", "values": 3}', "are an object"),
        ("[]", "A request is an object"),
        ("{", "not JSON"),
    ],
)
def test_bad_questions_get_a_sentence(request_json, said):
    assert said in json.loads(figure(request_json))["error"]


def test_values_that_no_control_has_are_ignored():
    assert ask("ring", {"none-such": "1"}) == ask("ring")


def test_scales_and_lines():
    scale = Scale(1, 1000, 0, 300, logarithmic=True)
    assert [round(scale.at(value)) for value in (0.1, 1, 10, 100, 5000)] == [0, 0, 100, 200, 300]
    assert list(wrapped("one two three", 7)) == ["one two", "three"]
