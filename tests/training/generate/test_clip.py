"""CLIP through one class: transformers' own scores for OpenAI's form, and a small one that learns drawn pictures."""

import json
import random

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from training.data.demo.captions import parse_caption
from training.data.demo.draw import draw_picture
from training.errors import BadInput
from training.generate.clip import load_clip, save_clip
from training.generate.neighbours import find_neighbours
from training.generate.pictures import Picture
from training.generate.ranking import draw_best
from training.generate.small_clip import train_small_clip


def quiet(*_):
    pass


@pytest.fixture(scope="module")
def openai_form(tmp_path_factory):
    """A folder as OpenAI's models are published in: byte-pair vocabulary, merges, and how pictures are prepared."""
    folder = tmp_path_factory.mktemp("clip")
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    words = [*letters, *(letter + "</w>" for letter in letters), "re", "red</w>", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: at for at, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nr e\nre d</w>\n")
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    shared = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, projection_dim=16)
    ends = dict(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=dict(**shared, **ends, vocab_size=len(words), max_position_embeddings=12),
            vision_config=dict(**shared, image_size=48, patch_size=16),
            projection_dim=16,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shaping = dict(
        image_processor_type="CLIPImageProcessor",
        image_mean=[0.48145466, 0.4578275, 0.40821073],
        image_std=[0.26862954, 0.26130258, 0.27577711],
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(shaping))
    return folder


def test_scores_are_those_of_transformers(openai_form):
    """Its own processor and forward pass, divided by the temperature, for pictures that must be resized."""
    clip = load_clip(openai_form)
    pictures = list(np.random.RandomState(0).randint(0, 256, (3, 64, 64, 3)).astype(np.uint8))
    texts = ["a red car", "b", "a very long text about red red red red red things"]
    prepare = transformers.models.clip.image_processing_pil_clip.CLIPImageProcessorPil.from_pretrained(
        openai_form, size={"shortest_edge": 48}, crop_size=48
    )
    pixels = prepare([Image.fromarray(picture) for picture in pictures], return_tensors="pt")["pixel_values"]
    tokens = clip.tokenizer(texts, padding=True, truncation=True, max_length=12, return_tensors="pt")
    with torch.no_grad():
        logits = clip.model(pixel_values=pixels, **tokens).logits_per_text / clip.model.logit_scale.exp()
    torch.testing.assert_close(clip.embed_texts(texts) @ clip.embed_pictures(pictures).t(), logits, atol=1e-5, rtol=0)


def test_saved_and_loaded_it_is_the_same(openai_form, tmp_path):
    clip = load_clip(openai_form)
    save_clip(clip, tmp_path)
    picture = np.random.RandomState(1).randint(0, 256, (48, 48, 3)).astype(np.uint8)
    again = load_clip(tmp_path)
    assert torch.equal(again.embed_pictures([picture]), clip.embed_pictures([picture]))
    assert torch.equal(again.embed_texts(["a red car"]), clip.embed_texts(["a red car"]))


def test_what_is_no_clip_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(BadInput, match=r"No CLIP model can be read from .* with --clip"):
        load_clip(tmp_path)


COLOURS, SHAPES = ("red", "blue", "green", "yellow"), ("square", "circle", "star")
CAPTIONS = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]


def drawn(seed):
    """One picture of each caption."""
    pictures = [draw_picture(parse_caption(one), random.Random(f"{seed} {one}"), size=32) for one in CAPTIONS]
    return np.stack([np.asarray(picture) for picture in pictures])


@pytest.fixture(scope="module")
def small():
    """Trained on twelve pictures of each caption, for seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pictures = np.concatenate([drawn(seed) for seed in range(12)])
    clip = train_small_clip(pictures, CAPTIONS * 12, steps=60, batch_size=32, progress=quiet)
    torch.set_num_threads(threads)
    return clip


def test_the_small_one_tells_new_pictures_apart(small):
    """Of twelve captions the right one; by chance a twelfth would be."""
    scores = small.embed_pictures(list(drawn("new"))) @ small.embed_texts(CAPTIONS).t()
    assert (scores.argmax(1) == torch.arange(len(CAPTIONS))).float().mean() >= 0.5


def test_training_is_reproducible_and_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, again = (train_small_clip(drawn(0), CAPTIONS, steps=2, progress=quiet) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one, other) for one, other in _pairs(first, again))


def _pairs(first, again):
    return zip(first.model.parameters(), again.model.parameters(), strict=True)


def test_the_best_candidates_are_kept_with_their_seeds(small):
    """Drawn here are true pictures of random captions: those of the prompt's own caption must win."""
    shown = drawn("candidates")

    def draw(prompts, seed):
        return [
            Picture(prompt=prompt, seed=seed + at, codes=np.zeros(1, np.uint16), pixels=shown[(seed + at) % 12])
            for at, prompt in enumerate(prompts)
        ]

    ranked = draw_best(draw, small, [CAPTIONS[2], CAPTIONS[7]], candidates=12, keep=3, seed=24)
    for one, caption, first_seed in zip(ranked, (CAPTIONS[2], CAPTIONS[7]), (24, 36), strict=True):
        assert one.prompt == caption and len(one.scores) == 12 and len(one.pictures) == 3
        assert list(one.kept_scores) == sorted(one.scores, reverse=True)[:3]
        for picture, score in zip(one.pictures, one.kept_scores, strict=True):
            assert one.scores[picture.seed - first_seed] == score
            assert np.array_equal(picture.pixels, shown[picture.seed % 12])
    with pytest.raises(BadInput, match="3 of 2 candidates"):
        draw_best(draw, small, ["a red star"], candidates=2, keep=3)


def test_neighbours_are_the_nearest_by_a_plain_search(small):
    known = np.concatenate([drawn(seed) for seed in (20, 21)])
    queries = list(drawn("query")[:3])
    found = find_neighbours(small, queries, known, CAPTIONS * 2, count=4)
    for query, near in zip(queries, found, strict=True):
        embedded = small.embed_pictures([query])[0]
        by_picture = {}
        for caption, picture in zip(CAPTIONS * 2, known, strict=True):
            cosine = float(small.embed_pictures([picture])[0] @ embedded)
            by_picture[caption] = max(by_picture.get(caption, -2), cosine)
        assert [one.caption for one in near.pictures] == sorted(by_picture, key=by_picture.get, reverse=True)[:4]
        by_caption = {caption: float(small.embed_texts([caption])[0] @ embedded) for caption in CAPTIONS}
        assert [one.caption for one in near.captions] == sorted(by_caption, key=by_caption.get, reverse=True)[:4]
        for one in near.pictures:
            assert one.similarity == pytest.approx(by_picture[one.caption], abs=1e-5)
