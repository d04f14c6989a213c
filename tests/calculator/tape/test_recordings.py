"""A step that was played once stands for others: the same bytes as if they were played anew."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS
from calculator.parts.adapters import Lora, modules_of
from calculator.parts.parameters import odd_matrix
from calculator.step import timeline
from calculator.step.timeline import Options
from calculator.tape.sizes import Formulas, Size

COURSES, SIZES = 60, 24
MODELS = ("gpt2", "bert-base", "t5-small", "t5-3b", "gpt-j-6b", "dalle-2021")
DECODERS = (
    "llama-3.2-1b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "smollm3-3b",
    "phi-3-mini",
    "gemma-2-2b",
    "gemma-3-1b",
    "mixtral-8x7b",
    "deepseek-v3",
)


def _course(draw: random.Random):
    """A model and how its step is done, without sizes."""
    name = draw.choice(MODELS + DECODERS)
    architecture = dataclasses.replace(
        PRESETS[name],
        num_layers=draw.randint(1, 5),
        num_decoder_layers=draw.randint(1, 4) if PRESETS[name].num_decoder_layers else 0,
    )
    own = family_of(architecture).own_trainer
    if own:
        architecture = dataclasses.replace(
            architecture, text_length=6, sequence_length=6 + draw.choice((4, 16)) ** 2, shared_groups=0
        )
    autocast = draw.random() < 0.5
    reversible = own and draw.random() < 0.5
    options = Options(
        batch=1,
        length=architecture.sequence_length,
        target_length=0,
        autocast=autocast,
        itemsize=4 if autocast else draw.choice((2, 4)),
        half="bf16",
        fused_attention=draw.random() < 0.5,
        dropout=draw.choice((0.0, 0.1)),
        attention_dropout=draw.choice((0.0, 0.1)),
        checkpoint_every=0 if reversible else draw.choice((0, 0, 1, 2)),
        shared_groups=0 if architecture.mixed else draw.choice((0, 0, 2)),
        reversible=reversible,
        accumulating=draw.random() < 0.2,
        packed=family_of(architecture).packs and draw.random() < 0.3,
        fp8=family_of(architecture).fp8 and not odd_matrix(architecture) and draw.random() < 0.2,
    )
    return architecture, _adapted(draw, architecture, options)


def _adapted(draw: random.Random, architecture, options: Options) -> Options:
    """The same, for some decoders with LoRA."""
    possible = family_of(architecture).modules is not None and not options.shared_groups and not options.fp8
    if not possible or draw.random() < 0.4:
        return options
    bits = draw.choice((4, 16, 32)) if options.autocast else 32 if options.itemsize == 4 else draw.choice((4, 16))
    modules = [own for names in modules_of(architecture).values() for own in names]
    lora = Lora(
        rank=8,
        targets=frozenset(draw.sample(modules, draw.randint(1, len(modules)))),
        dropout=draw.choice((0.0, 0.1)),
        adapter_itemsize=draw.choice((2, 4)) if options.autocast else options.itemsize,
        base_bits=bits,
        rest_itemsize=2 if bits == 16 or (not options.autocast and bits == 4) else 4,
    )
    return dataclasses.replace(options, lora=lora, itemsize=lora.rest_itemsize)


def _sized(draw: random.Random, architecture, options: Options):
    """The same course with sizes at which operations behave in another way, such as 1 or a multiple of 16."""
    heads, head_dim = draw.choice((1, 2, 3)), draw.choice((4, 6, 8, 20))
    architecture = dataclasses.replace(
        architecture,
        hidden_size=heads * head_dim,
        num_heads=heads,
        head_dim=head_dim,
        num_key_value_heads=draw.choice([n for n in (1, 2, 3) if heads % n == 0])
        * bool(architecture.num_key_value_heads),
        rotary_dim=architecture.rotary_dim and head_dim // (2 if architecture.latent_dim else 1),
        sliding_window=architecture.sliding_window and draw.choice((10, 40)),
        num_experts=architecture.num_experts and 8,
        experts_per_token=architecture.experts_per_token and draw.choice((1, 3)),
        expert_size=architecture.expert_size and draw.choice((8, 24)),
        query_rank=architecture.query_rank and draw.choice((16, 40)),
        latent_dim=architecture.latent_dim and draw.choice((16, 24)),
        value_dim=architecture.value_dim and draw.choice((8, 12)),
        intermediate_size=draw.choice((16, heads * head_dim, 200)),
        vocab_size=draw.choice((50, 1000)),
        image_vocab_size=20 if architecture.image_vocab_size else 0,
    )
    fixed = architecture.family == "text-to-image"
    return architecture, dataclasses.replace(
        options,
        batch=draw.choice((1, 2, 5)),
        length=options.length if fixed else draw.choice((1, 2, 16, 31, 64)),
        target_length=draw.choice((1, 16, 33)) if architecture.num_decoder_layers else 0,
        dropout=options.dropout * draw.choice((1, 2)),
        lora=options.lora and dataclasses.replace(options.lora, rank=draw.choice((1, 7, 16))),
    )


@pytest.mark.exhaustive
def test_a_recording_says_what_playing_anew_says(monkeypatch):
    draw = random.Random(2026)
    courses = [_course(draw) for _ in range(COURSES)]
    cases = [_sized(draw, *course) for course in courses for _ in range(SIZES)]
    played = []
    record = timeline._record
    monkeypatch.setattr(timeline, "_record", lambda *given: played.append(given) or record(*given))
    timeline.play.cache_clear()
    timeline._recordings.cache_clear()
    found = [timeline.play(*case) for case in cases]
    assert COURSES / 2 < len(played) < len(cases) / 2  # the others came from recordings
    for case, timed in zip(cases, found, strict=True):
        timeline.play.cache_clear()
        timeline._recordings.cache_clear()
        assert timeline.play(*case) == timed, case


@given(st.lists(st.integers(1, 50), min_size=3, max_size=3), st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_formulas_hold_for_other_numbers_unless_a_decision_differs(first, second):
    def course(a, b, c):
        rows = a * b // 3 + (b - 2) % 7
        padded = -(-rows // 8) * 8 & -4
        return [rows, padded, max(padded, c * 2), 1 if c == a else c**2, 5 - b if b else 0, sum([a, b, c])]

    formulas = Formulas(first)
    results = course(*formulas.given)
    assert [int(result) for result in results] == course(*first)
    values = formulas.evaluate(second)
    if values is not None:
        again = [values[formulas.number(result)] if isinstance(result, Size) else result for result in results]
        assert again == course(*second)
    else:
        different = [
            [c * 2 > -(-(a * b // 3 + (b - 2) % 7) // 8) * 8 & -4, c == a, c == 0] for a, b, c in (first, second)
        ]
        assert different[0] != different[1]
    assert formulas.evaluate(first) is not None


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_formula_that_divides_by_zero_for_other_numbers_is_one_that_they_would_not_reach(all_of, parts, other):
    """A model like DeepSeek-V3 has so many tokens for each expert, or no experts."""
    formulas = Formulas([all_of, parts])
    count, of = formulas.given
    share = count // of if of > 0 else 0
    values = formulas.evaluate([all_of, other])
    assert (values is None) == ((parts > 0) != (other > 0))
    if values is not None and parts > 0:
        assert values[formulas.number(share)] == all_of // other
