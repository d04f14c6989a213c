"""Pictures that are nearly the same as an earlier one: found, counted, left out; what is found wrongly, and what not."""

import io
import json
import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from training.data import near as near_module
from training.data import prepare as prepare_module
from training.data.near import HASH_BYTES, MOST_BITS, MOST_DIFFERENCE, NearDuplicates, mark_of
from training.data.pictures import square_picture
from training.data.prepare import Input, prepare
from tests.training.data.test_prepare import RUN, codec_folder, drawn  # noqa: F401

SIZE = 64


def scene(seed, side=240):
    """A picture with detail of all sizes, as photos have it: noise whose strength falls with its frequency."""
    noise = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    frequency[0, 0] = 1
    layers = [np.fft.ifft2(np.fft.fft2(noise.standard_normal((side, side))) / frequency).real for _ in range(3)]
    layers = np.stack([layers[0] + 0.4 * layers[channel] for channel in range(3)], axis=-1)
    low, high = np.percentile(layers, (1, 99))
    return Image.fromarray((255 * np.clip((layers - low) / (high - low), 0, 1)).astype(np.uint8))


def recompressed(picture, quality):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file)


def cropped(picture, share):
    cut = round(share * picture.width)
    return picture.crop((cut, cut, picture.width - cut, picture.height - cut))


COPIES = {
    "half the size": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "twice the size": lambda picture: picture.resize((picture.width * 2, picture.height * 2)),
    "JPEG 75": lambda picture: recompressed(picture, 75),
    "JPEG 30": lambda picture: recompressed(picture, 30),
    "2 % cut off each side": lambda picture: cropped(picture, 0.02),
    "5 % cut off each side": lambda picture: cropped(picture, 0.05),
}


def marked(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return mark_of(square_picture(file, image_size=SIZE, max_aspect_ratio=2))


def are_near(one, other):
    """By the definition, without any table."""
    bits = sum((a ^ b).bit_count() for a, b in zip(one[:HASH_BYTES], other[:HASH_BYTES], strict=True))
    colours = [np.frombuffer(mark[HASH_BYTES:], np.uint8).astype(float) for mark in (one, other)]
    return bits <= MOST_BITS and np.sqrt(np.mean((colours[0] - colours[1]) ** 2)) <= MOST_DIFFERENCE


def found_shares(pictures):
    marks = [marked(picture) for picture in pictures]
    return {
        name: np.mean([are_near(mark, marked(copy(picture))) for picture, mark in zip(pictures, marks, strict=True)])
        for name, copy in COPIES.items()
    }, marks
