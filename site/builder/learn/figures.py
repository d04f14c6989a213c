"""The interactive figures as HTML with their default values, which pages show without JavaScript.

With JavaScript, `calculator.browser.figure` computes the same texts in the browser (site/javascripts/figures/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from urllib.parse import quote

from calculator import browser
from calculator.choose.devices import device_named
from calculator.choose.flops import samples_per_second
from calculator.figures.catalogue import FIGURES
from calculator.figures.kit.controls import Choice, Control, Given, Range, Stops
from calculator.figures.kit.figure import Figure
from calculator.models.architectures import PRESETS

MOST_RADIOS = 4
"""Most options of a choice that is shown as a row of buttons; a choice with more is a list."""


def default_rows(name: str) -> list[list[str]]:
    """The table of a figure with its default values, for numbers in a page's text."""
    return answer_of(name, {})["rows"]


def figure_html(name: str) -> str:
    """A figure with its default values, as one line of HTML for a page's text.

    Raises:
        KeyError: If there is no such figure.
    """
    figure = FIGURES[name]
    wide, narrow = (answer_of(name, {}, narrow=narrow) for narrow in (False, True))
    controls = [_control(figure, control, wide) for control in figure.controls if not control.folded]
    folded = [_control(figure, control, wide) for control in figure.controls if control.folded]
    if folded:
        controls.append(f'<details class="twin"><summary>By numbers</summary>{"".join(folded)}</details>')
    handles = "".join(map(_handle, wide["handles"], narrow["handles"]))
    sources = "; ".join(f'<a href="{escape(one.address)}">{escape(one.text)}</a>' for one in figure.sources)
    return (
        f'<figure class="figure" id="figure-{name}" data-figure="{name}" aria-labelledby="{name}-title">'
        f'<p class="figure__title" id="{name}-title">{escape(figure.title)}</p>'
        f'<form class="figure__controls with-script" aria-label="{escape(figure.title)}: settings">'
        f"{''.join(controls)}</form>"
        '<div class="figure__stage">'
        '<div class="figure__drawing" data-slot="drawing" data-search-exclude role="img" '
        f'aria-label="{escape(wide["label"])}">'
        f'<div class="figure__wide">{wide["drawing"]}</div><div class="figure__narrow">{narrow["drawing"]}</div></div>'
        f'<div class="figure__handles with-script" data-slot="handles" '
        f'data-handles="{escape(json.dumps(wide["handles"]))}">{handles}</div></div>'
        f'<figcaption data-slot="caption">{escape(wide["caption"])}</figcaption>'
        '<p class="figure__message" role="status"><span data-slot="note"></span>'
        '<span class="visually-hidden" data-slot="spoken"></span></p>'
        f'<details class="twin" data-slot="twin"><summary>The numbers as a table</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(figure.title)}, table">'
        f'<table class="numbers" data-slot="table">{_table(wide)}</table></div></details>'
        f"{_file(wide['file'])}"
        f'<p class="figure__source">Source: {sources}.</p>'
        '<p class="with-script"><button type="button" class="small" data-slot="share">Copy a link to this</button>'
        '<button type="button" class="small" data-slot="reset">Start over</button></p></figure>'
    )


def samples_a_second(gpu: str) -> str:
    """Samples that a GPU computes per second with the 2021 run's model, rounded to one digit.

    >>> samples_a_second("t4")
    '2'
    """
    return f"{samples_per_second(PRESETS['dalle-2021'], device_named(gpu)):.1g}"


def answer_of(name: str, values: dict, *, narrow: bool = False) -> dict:
    """Computes a figure's answer to these values, as the browser gets it.

    Raises:
        ValueError: If the values are invalid.
    """
    answer = json.loads(browser.figure(json.dumps({"name": name, "values": values, "narrow": narrow})))
    if "error" in answer:
        raise ValueError(f"The figure {name} does not accept the values {values}: {answer['error']}")
    return answer


def exercise_figures() -> list[tuple[str, dict]]:
    """Requests to `calculator.browser` for all figures, with each control at its ends or options: all their code runs.

    The first two are of one figure with its defaults.
    """
    return [
        ("figure", {"name": name, "values": values, "narrow": narrow})
        for name, figure in FIGURES.items()
        for values in ends_of(figure)
        for narrow in (False, True)
    ]


def ends_of(figure: Figure) -> Iterator[dict[str, str]]:
    """Values of a figure: all defaults, and then with each control in turn at each of its ends or options."""
    yield {}
    for control in figure.controls:
        for value in _ends(control):
            yield {control.name: control.text(value)}


def _ends(control: Control) -> list:
    match control:
        case Range():
            return [control.low, control.high]
        case Stops():
            return [control.stops[0], control.stops[-1]]
        case Choice():
            return [value for value, _ in control.options]
        case Given():
            return [control.default, control.example]


def _control(figure: Figure, control: Control, answer: dict) -> str:
    name, text, shown = f"{figure.name}-{control.name}", answer["values"][control.name], answer["shown"][control.name]
    facts = f'data-control="{control.name}" autocomplete="off"'
    box = f'class="control"{_needs(control, answer)}'
    if isinstance(control, Choice):
        made = _radios if len(control.options) <= MOST_RADIOS else _list
        return made(name, control, box, facts)
    if isinstance(control, Given):
        return f'<input type="hidden" name="{name}" value="{escape(text)}" {facts}>'
    if isinstance(control, Stops):
        stops = [control.text(stop) for stop in control.stops]
        ends = f'min="0" max="{len(stops) - 1}" step="1" value="{stops.index(text)}" '
        ends += f'data-stops="{escape(json.dumps(stops))}"'
    else:
        high = answer["limits"].get(control.name, control.high)
        ends = f'min="{control.low:g}" max="{high:g}" step="{control.step:g}" value="{text}"'
    return (
        f'<div {box}><label for="{name}">{escape(control.label)}</label>'
        f'<span class="control__value" data-shown="{control.name}" aria-hidden="true">{escape(shown)}</span>'
        f'<input type="range" id="{name}" name="{name}" {ends} {facts} aria-valuetext="{escape(shown)}"></div>'
    )


def _needs(control: Control, answer: dict) -> str:
    """HTML attributes of a control that needs a value of another control; the script hides and shows it later."""
    if control.needs is None:
        return ""
    other, value = control.needs
    hidden = "" if answer["values"][other] == value else " hidden"
    return f' data-needs="{escape(other)}={escape(value)}"{hidden}'


def _radios(name: str, control: Choice, box: str, facts: str) -> str:
    radios = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(value)}"'
        f"{' checked' if value == control.default else ''} {facts}><span>{escape(label)}</span></label>"
        for value, label in control.options
    )
    return f"<fieldset {box}><legend>{escape(control.label)}</legend>{radios}</fieldset>"


def _list(name: str, control: Choice, box: str, facts: str) -> str:
    options = "".join(
        f'<option value="{escape(value)}"{" selected" if value == control.default else ""}>{escape(label)}</option>'
        for value, label in control.options
    )
    return (
        f'<div {box}><label for="{name}">{escape(control.label)}</label>'
        f'<select id="{name}" name="{name}" {facts}>{options}</select></div>'
    )


def _handle(wide: dict, narrow: dict) -> str:
    """A point that can be dragged, at its place in the wide and in the narrow drawing; the script makes it a slider."""
    places = f"--left:{wide['left']}%;--top:{wide['top']}%"
    places += f";--narrow-left:{narrow['left']}%;--narrow-top:{narrow['top']}%"
    return f'<div class="handle" style="{places}"></div>'


def _file(file: dict | None) -> str:
    """The file that a figure makes of its values, to download and to read; the script updates both.

    Line breaks are written as `&#10;`: Markdown would end the figure's HTML, which is one line, at a real one.
    """
    if file is None:
        return ""
    text = escape(file["text"]).replace("\n", "&#10;")
    address = f"data:text/plain;charset=utf-8,{quote(file['text'])}"
    return (
        f'<p class="figure__file"><a class="md-button md-button--primary" data-slot="file" download="{file["name"]}" '
        f'href="{address}">Download the recipe</a></p>'
        f'<details class="twin"><summary>{file["name"]}</summary>'
        f'<pre tabindex="0" data-search-exclude><code data-slot="file-text">{text}</code></pre></details>'
    )


def _table(answer: dict) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in answer["head"])
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in answer["rows"]
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
