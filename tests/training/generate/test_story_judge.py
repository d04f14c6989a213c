"""The judge of stories: the grammar's own are good; stories with one fault each are not, and chance rarely is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.demo.stories import SENTENCES, WORDS, prompts, story_at
from training.errors import BadInput
from training.generate.story_judge import evaluate_stories, judge_story, parse_sentence

GIFT = "Anna has a red ball. She goes to the garden with Tom."
SHOP = "Anna has a red ball. She goes to the shop with Tom."
LOSS = "Leo has a blue kite. He loses it in the park."
EXCHANGE = "Anna has a red ball. Tom has a blue hat."
HIDING = "Ben has a green book. He puts it in the box."
WISH = "Leo is in the barn with a blue kite. Ruby is in the park with a green drum."
HELP = "Mia is hungry. She walks to the park with Ben."


@pytest.mark.parametrize(
    "prompt, continuation",
    [
        (GIFT, "It rains, so they open an umbrella. Anna gives the red ball to Tom. Now Tom has the red ball."),
        (SHOP, "Anna gives the red ball to Tom. Now Tom has the red ball."),
        (LOSS, "Zoe finds the blue kite in the park. She keeps it. Now Zoe has the blue kite."),
        (LOSS, "Zoe finds the blue kite in the park. She gives it to Leo. Now Leo has the blue kite."),
        (
            EXCHANGE,
            "They meet in the school. They swap the ball and the hat. "
            "Now Anna has the blue hat and Tom has the red ball.",
        ),
        (
            EXCHANGE,
            "They meet in the school. They swap the hat and the ball. "
            "Now Tom has the red ball and Anna has the blue hat.",
        ),
        (HIDING, "Rosa looks in the box. She takes the green book. Now Rosa has the green book."),
        (
            WISH,
            "Kate wants the blue kite, so she goes to the barn. Leo gives her the blue kite. "
            "Now Kate has the blue kite.",
        ),
        (
            WISH,
            "Paul wants the green drum, so he goes to the park. Ruby gives him the green drum. "
            "Now Paul has the green drum.",
        ),
        (HELP, "Ben gives her some soup. Mia eats the soup. Now Mia is no longer hungry."),
    ],
)
def test_good_stories_by_hand(prompt, continuation):
    verdict = judge_story(prompt, f" {continuation}")
    assert verdict.good and verdict.reason == ""


@pytest.mark.parametrize(
    "prompt, continuation, reason",
    [
        (SHOP, "Anna gives the red ball to Tom. Now Anna has the red ball.", "the end names a wrong owner"),
        (SHOP, "Anna gives the red ball to Tom. Now Tom has the blue ball.", "a thing has another colour"),
        (SHOP, "Anna gives the red ball to Tom. Now Tom has the red kite.", "the end is about other things"),
        (SHOP, "Anna gives the red kite to Tom. Now Tom has the red kite.", "a thing that is not in the story"),
        (SHOP, "Tom gives the red ball to Anna. Now Anna has the red ball.", "somebody gives what another one has"),
        (SHOP, "Anna gives the red ball to Ben. Now Ben has the red ball.", "somebody gives to one who is not there"),
        (SHOP, "Now Anna has the red ball.", "the end comes before anything has happened"),
        (SHOP, "It rains, so they open an umbrella.", "weather within a house"),
        (GIFT, "It rains, so they make a snowman.", "an effect that does not follow from the weather"),
        (GIFT, "Tom has a blue hat.", "a new beginning within the story"),
        (LOSS, "Zoe finds the blue kite in the shop.", "a thing is found where it is not"),
        (LOSS, "Leo finds the blue kite in the park.", "the one who lost or hid a thing also finds it"),
        (LOSS, "Zoe finds the blue kite in the park. He keeps it.", "a pronoun does not fit its person"),
        (
            LOSS,
            "Zoe finds the blue kite in the park. She gives it to Ben.",
            "a thing goes back to one who did not have it",
        ),
        (LOSS, "They meet in the park.", '"they" does not mean two who can meet'),
        (EXCHANGE, "They swap the ball and the hat.", "a swap by those who are not together"),
        (EXCHANGE, "They meet in the park. They swap the ball and the cup.", "a swap of things that are not there"),
        (
            EXCHANGE,
            "They meet in the park. They swap the ball and the hat. "
            "Now Anna has the red ball and Tom has the blue hat.",
            "the end names a wrong owner",
        ),
        (HIDING, "Rosa looks in the cart.", "somebody looks where nothing is hidden"),
        (HIDING, "Ben looks in the box.", "the one who lost or hid a thing also finds it"),
        (HIDING, "He takes the green book.", "a thing is taken from where it is not"),
        (WISH, "Kate wants the blue kite, so she goes to the park.", "somebody looks for a thing where it is not"),
        (WISH, "Kate wants the blue kite, so he goes to the barn.", "a pronoun does not fit its person"),
        (
            WISH,
            "Kate wants the blue kite, so she goes to the barn. Ruby gives her the blue kite.",
            "somebody gives what another one has",
        ),
        (
            WISH,
            "Kate wants the blue kite, so she goes to the barn. Leo gives him the blue kite.",
            "a pronoun does not fit its person",
        ),
        (HELP, "Ben gives her some tea.", "help that does not help against the need"),
        (HELP, "Ben gives her some soup. Mia drinks the soup.", "a thing is used in a wrong way"),
        (HELP, "Ben gives her some soup. Mia eats the cake.", "somebody uses what was not given"),
        (
            HELP,
            "Ben gives her some soup. Now Mia is no longer hungry.",
            "the end says that a need is over which is not",
        ),
        (
            HELP,
            "Ben gives her some soup. Mia eats the soup. Now Mia is no longer cold.",
            "the end names another need",
        ),
    ],
)
def test_faults_by_hand(prompt, continuation, reason):
    verdict = judge_story(prompt, continuation)
    assert verdict.grammatical and not verdict.consistent and not verdict.good
    assert verdict.reason == reason


def test_a_good_story_ends_once():
    told = "Anna gives the red ball to Tom."
    verdict = judge_story(SHOP, told)
    assert verdict.consistent and not verdict.ends and verdict.reason == "the story has no end"
    twice = judge_story(SHOP, f"{told} Now Tom has the red ball. Now Tom has the red ball.")
    assert twice.reason == "the story goes on after its end" and not twice.good


@pytest.mark.parametrize("prompt", ["A ball is red.", "She goes to the garden with Tom.", "Now Tom has the red ball."])
def test_a_prompt_that_begins_no_story_is_refused(prompt):
    with pytest.raises(BadInput, match="Give one such as 'Anna has a red ball"):
        judge_story(prompt, "")


def test_all_stories_of_the_grammar_are_good():
    for index in range(6000):
        story = story_at(0, index)
        assert judge_story(story.opening, " ".join(story.sentences[2:])).good, story.text


@given(st.integers(), st.integers(min_value=0, max_value=10**9))
def test_a_story_of_any_seed_is_good_and_its_beginnings_only_lack_an_end(seed, index):
    story = story_at(seed, index)
    for count in range(1, len(story.sentences)):
        begun = judge_story("", " ".join(story.sentences[:count]))
        assert begun.grammatical and begun.consistent and begun.reason == "the story has no end"
    assert judge_story("", story.text).good


def filled_anew(sentence, numbers):
    """A sentence of the same kind with words drawn at random."""
    kind, words = parse_sentence(sentence)
    return SENTENCES[kind].format(**{gap: numbers.choice(WORDS[gap]) for gap in words})


def with_random_words(rest, numbers):
    return [filled_anew(sentence, numbers) for sentence in rest]


def with_random_end(rest, numbers):
    return [*rest[:-1], filled_anew(rest[-1], numbers)]


def with_end_of_another_story(rest, numbers):
    return [*rest[:-1], story_at("another", numbers.randrange(10**6)).sentences[-1]]


def of_another_story(rest, numbers):
    return story_at("another", numbers.randrange(10**6)).sentences[2:]


def shuffled(rest, numbers):
    mixed = rest
    while mixed == rest:
        mixed = numbers.sample(rest, len(rest))
    return mixed


@pytest.mark.parametrize(
    "change", [with_random_words, with_random_end, with_end_of_another_story, of_another_story, shuffled]
)
def test_chance_is_below_one_in_twenty(change):
    accepted = 0
    for index in range(2000):
        numbers, story = random.Random(index), story_at(2, index)
        accepted += judge_story(story.opening, " ".join(change(list(story.sentences[2:]), numbers))).good
    assert accepted < 0.05 * 2000


def test_every_word_that_follows_from_the_facts_counts():
    """Of a continuation, any one word in a gap is replaced by another word for that gap. Who finds a thing and where
    two people meet is free; everything else follows from what was said, or is said again."""
    changed = refused = 0
    for index in range(1500):
        numbers, sentences = random.Random(index), list(story_at(4, index).sentences)
        at = numbers.randrange(2, len(sentences))
        kind, words = parse_sentence(sentences[at])
        gap = numbers.choice(list(words))
        if (kind, gap) in (("meet", "place"), ("finds", "name")):
            continue
        words[gap] = numbers.choice([word for word in WORDS[gap] if word != words[gap]])
        sentences[at] = SENTENCES[kind].format(**words)
        changed += 1
        refused += not judge_story("", " ".join(sentences)).good
    assert refused == changed > 1000


def test_shares_have_intervals_and_reasons():
    asked = {"unseen": prompts("unseen", 100, 5), "never combined": prompts("never combined", 20, 5)}
    stories = {story.opening: story for story in (story_at(5, index) for index in range(3000))}

    def continue_(openings):
        """The grammar's own continuations, but every fifth one breaks off."""
        rests = [stories[opening].sentences[2:] for opening in openings]
        return [" ".join(rest[: -1 if at % 5 == 4 else None]) for at, rest in enumerate(rests)]

    shares = evaluate_stories(asked, continue_)
    assert list(shares) == list(asked)
    unseen, new = shares["unseen"], shares["never combined"]
    assert (unseen.count, unseen.share, new.count, new.share) == (100, 0.8, 20, 0.8)
    # 95 % interval of Wilson 1927 for 80 of 100
    assert unseen.interval == pytest.approx((0.711, 0.867), abs=1e-3)
    assert unseen.reasons == {"the story has no end": 20}
    assert [verdict.good for verdict in unseen.verdicts[:6]] == [True, True, True, True, False, True]


@pytest.mark.parametrize("given_prompts, answers", [([], []), ([SHOP], []), ([SHOP], ["", ""])])
def test_each_prompt_needs_one_continuation(given_prompts, answers):
    with pytest.raises(BadInput, match="one continuation for each"):
        evaluate_stories({"unseen": given_prompts}, lambda asked: answers)
