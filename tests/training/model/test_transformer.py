"""The transformer against a slow one, written for reading: dense masks, token by token shifts, autograd, float64."""

import itertools
import math
from itertools import cycle, islice

import pytest
import torch

from training.errors import BadInput
from training.model.attention import CONV_KERNEL_SIZE
from training.model.config import ModelConfig
from training.model.layout import Layout
from training.model.rotary import rotary_angles
from training.model.transformer import build_model, usual_activation_budget
from training.recipe import load_recipe

SIZES = dict(
    hidden_size=24,
    num_layers=6,
    num_heads=2,
    head_dim=16,
    text_vocab_size=11,
    text_seq_len=5,
    image_grid=6,
    image_vocab_size=13,
)
VARIANTS = {
    "as the paper": {},
    "sequential": dict(reversible=False),
    "nothing shared": dict(shared_groups=None),
    "two groups": dict(shared_groups=2),
    "one layer": dict(num_layers=1),
    "full": dict(attention_cycle=("full",), last_attention="full"),
    "conv everywhere": dict(attention_cycle=("conv",)),
    "columns": dict(attention_cycle=("column",), last_attention="row"),
    "no shift": dict(shift_tokens=False),
    "no rotary": dict(rotary=False),
    "untied": dict(tied_embeddings=False),
    "padding as in 2021": dict(text_padding_id=1),
    "padding mask, full": dict(text_padding_id=1, attention_cycle=("full", "column")),
    "conv in bands": dict(image_grid=14, num_layers=2, attention_cycle=("conv",)),
    "full in bands": dict(image_grid=14, num_layers=2, attention_cycle=("full",)),
}


class Reference:
    """The model's function on its weights, computed the plain way."""

    def __init__(self, model):
        self.config, self.weights = model.config, dict(model.named_parameters())
        self.text_len = self.config.text_seq_len + 1
        self.kinds = [
            *islice(cycle(self.config.attention_cycle), self.config.num_layers - 1),
            self.config.last_attention,
        ]

    def logits(self, text, codes):
        config, weights = self.config, self.weights
        ids = torch.tensor([[0, *row] for row in self.padded(text).tolist()])
        rows = config.text_vocab_size + config.text_seq_len
        if config.tied_embeddings:
            x = torch.cat([weights["output.weight"][ids], weights["output.weight"][codes + rows]], dim=1)
        else:
            x = torch.cat([weights["text_embedding.weight"][ids], weights["image_embedding.weight"][codes]], dim=1)
        if not config.rotary:
            grid = range(config.image_grid)
            places = [weights["row_positions"][r] + weights["column_positions"][c] for r in grid for c in grid]
            x = x + torch.cat([weights["text_positions"], torch.stack(places)])
        x = x[:, :-1]
        seen = torch.cat([torch.ones(len(text), 1, dtype=torch.bool), text != 0], dim=1)
        x1, x2 = x, x
        for layer in range(config.num_layers):
            group = layer % config.shared_groups if config.shared_groups else layer
            if config.shared_groups and layer == config.num_layers - 1:
                group = min(config.shared_groups, config.num_layers - 1)
            if config.reversible:
                x1 = x1 + self.branch(x2, "attention", layer, group, seen)
                x2 = x2 + self.branch(x1, "feed_forward", layer, group, seen)
            else:
                x1 = x1 + self.branch(x1, "attention", layer, group, seen)
                x2 = x1 = x1 + self.branch(x1, "feed_forward", layer, group, seen)
        x = self.norm((x1 + x2) / 2, "final_norm")
        logits = x @ weights["output.weight"].T + weights["output.bias"]
        image_row = torch.arange(logits.shape[-1]) >= rows
        predicts_image = torch.arange(logits.shape[1]) >= config.text_seq_len
        return logits.masked_fill(image_row[None] != predicts_image[:, None], -torch.finfo(logits.dtype).max)

    def padded(self, text):
        """Padding by the recipe's id, or by one of each position's own."""
        return torch.tensor(
            [
                [t or self.config.text_padding_id or self.config.text_vocab_size + i for i, t in enumerate(row)]
                for row in text.tolist()
            ]
        )

    def losses(self, text, codes):
        config, logits = self.config, self.logits(text, codes)
        rows = config.text_vocab_size + config.text_seq_len
        labels = torch.cat([self.padded(text), codes + rows], dim=1)
        chosen = -torch.log_softmax(logits, dim=-1).gather(-1, labels[..., None])[..., 0]
        text_loss = chosen[:, : config.text_seq_len].mean()
        image_loss = chosen[:, config.text_seq_len :].mean()
        return (text_loss + 7 * image_loss) / 8, text_loss, image_loss

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def branch(self, x, part, layer, group, seen):
        x = self.norm(x, f"{part}_branches.{layer}.norm")
        if self.config.shift_tokens:
            x = torch.stack([self.shifted(x, position) for position in range(x.shape[1])], dim=1)
        weights = {
            n.removeprefix(f"{part}.{group}."): w for n, w in self.weights.items() if n.startswith(f"{part}.{group}.")
        }
        if part == "attention":
            x = self.attention(x @ weights["qkv.weight"].T, self.kinds[layer], seen)
        else:
            values, gates = (x @ weights["inner.weight"].T + weights["inner.bias"]).chunk(2, dim=-1)
            x = values * gates * (1 + torch.erf(gates / math.sqrt(2))) / 2
        return (x @ weights["out.weight"].T + weights["out.bias"]) * self.weights[f"{part}_branches.{layer}.scale"]

    def shifted(self, x, position):
        """One token: a half from the token before (text); a quarter from above and one from the left (image)."""
        width, zero = x.shape[-1], torch.zeros_like(x[:, 0])
        if position < self.text_len:
            before = x[:, position - 1] if position else zero
            return torch.cat([before[:, : width // 2], x[:, position, width // 2 :]], dim=-1)
        row, column = divmod(position - self.text_len, self.config.image_grid)
        above = x[:, position - self.config.image_grid] if row else zero
        left = x[:, position - 1] if column else zero
        quarter, half = width // 4, width // 2
        return torch.cat([above[:, :quarter], left[:, quarter:half], x[:, position, half:]], dim=-1)

    def attention(self, qkv, kind, seen):
        heads, width = self.config.num_heads, self.config.head_dim
        q, k, v = (part.unflatten(-1, (heads, width)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        if self.config.rotary:
            q, k, v = (self.rotated(part) for part in (q, k, v))
        allowed = self.allowed(kind, q.shape[2])[None, None].repeat(len(q), 1, 1, 1)
        if self.config.text_padding_id:
            first = 0 if kind == "full" else self.text_len
            allowed[:, :, first:, : self.text_len] &= seen[:, None, None]
        scores = (q @ k.transpose(-1, -2) / math.sqrt(width)).masked_fill(~allowed, -torch.inf)
        return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)

    def rotated(self, x):
        layout = Layout(text_len=self.text_len, grid=self.config.image_grid)
        angles = rotary_angles(layout, self.config.head_dim)[: x.shape[2]].to(x.dtype)
        out = x.clone()
        for pair in range(angles.shape[1]):
            a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
            cos, sin = torch.cos(angles[:, pair]), torch.sin(angles[:, pair])
            out[..., 2 * pair], out[..., 2 * pair + 1] = a * cos - b * sin, b * cos + a * sin
        return out

    def allowed(self, kind, length):
        grid, reach = self.config.image_grid, CONV_KERNEL_SIZE
        mask = torch.zeros(length, length, dtype=torch.bool)
        for i in range(length):
            for j in range(i + 1):
                if i < self.text_len or j < self.text_len:
                    mask[i, j] = True
                    continue
                (ri, ci), (rj, cj) = divmod(i - self.text_len, grid), divmod(j - self.text_len, grid)
                mask[i, j] = {
                    "full": True,
                    "row": ri == rj,
                    "column": ci == cj,
                    "conv": ri - rj < reach and 0 <= ci - cj < reach,
                }[kind]
        return mask


def make(variant, dtype=torch.float64):
    """A model whose layer scales and norms are far from their first values, so that every weight shows."""
    model = build_model(ModelConfig(**(SIZES | VARIANTS[variant])), seed=2).to(dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            parameter.copy_(0.4 + 0.2 * noise if name.endswith("scale") else parameter + 0.1 * noise)
    return model


def batch(config, rows=3):
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(1, config.text_vocab_size, (rows, config.text_seq_len), generator=generator)
    text[0, 3:] = 0
    text[1, :] = 0
    return text, torch.randint(0, config.image_vocab_size, (rows, config.image_seq_len), generator=generator)


def gradients(model, losses):
    """Gradient of the loss for each parameter; one that the loss does not depend on has zero."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(losses, parameters, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_slow_model(variant):
    """Logits, losses and every gradient, to the precision of float64; whether activations are recomputed or stored, and
    by either kind of kernels."""
    model = make(variant)
    text, codes = batch(model.config)
    slow = Reference(model)
    with torch.no_grad():
        expected_logits = slow.logits(text, codes)
    loss, text_loss, image_loss = slow.losses(text, codes)
    expected = gradients(model, loss)
    for kernels, stored_layers in itertools.product(("products", "fused"), (0, 2, model.config.num_layers)):
        model.attention_kernels = kernels
        with torch.no_grad():
            torch.testing.assert_close(model.logits(text, codes), expected_logits, rtol=0, atol=1e-11)
        losses = model(text, codes, stored_layers=stored_layers)
        for ours, theirs in ((losses.loss, loss), (losses.text_loss, text_loss), (losses.image_loss, image_loss)):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        for name, gradient in gradients(model, losses.loss).items():
            torch.testing.assert_close(
                gradient, expected[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("kernels", ["products", "fused"])
def test_float32_is_near_float64(kernels):
    """At the demo's real sizes: losses within 1e-6, gradients within 1e-4 of each one's norm."""
    config = load_recipe("demo").model
    model = build_model(config, seed=0)
    model.attention_kernels = kernels
    text, codes = batch(config)
    single = gradients(model, model(text, codes).loss)
    single_loss = model(text, codes).loss.item()
    model.double()
    assert model(text, codes).loss.item() == pytest.approx(single_loss, abs=1e-6)
    for name, gradient in gradients(model, model(text, codes).loss).items():
        assert (single[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name


@pytest.mark.parametrize("variant", ["as the paper", "sequential", "padding mask, full"])
@pytest.mark.parametrize("stored_layers", [0, 6])
@pytest.mark.parametrize("kernels", ["products", "fused"])
def test_autocast_is_near_float64(variant, stored_layers, kernels):
    """bfloat16 has 8 bits: losses within 1 %, and each large gradient within 5 % of its norm, in its weight's type."""
    model = make(variant, torch.float32)
    text, codes = batch(model.config)
    model.attention_kernels = kernels
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model(text, codes, stored_layers=stored_layers)
    low = gradients(model, losses.loss)
    model.double()
    exact_loss = model(text, codes).loss
    exact = gradients(model, exact_loss)
    assert losses.loss.item() == pytest.approx(exact_loss.item(), rel=0.01)
    assert losses.loss.item() != pytest.approx(exact_loss.item(), rel=1e-7)
    largest = max(gradient.norm() for gradient in exact.values())
    for name, gradient in exact.items():
        assert low[name].dtype == torch.float32
        assert (low[name] - gradient).norm() < 0.05 * max(gradient.norm(), 0.05 * largest), name


def test_angles_are_the_published_ones():
    """Three parts of 10 pairs at head width 64: words 1 apart, the image at 8192; pixels from -1 to 1, text at -10."""
    angles = rotary_angles(Layout(text_len=257, grid=32), 64).double()
    assert angles.shape == (257 + 1024, 30)
    frequencies = torch.tensor([10_000.0 ** (-2 * pair / 21) for pair in range(10)], dtype=torch.float64)
    pixels = torch.tensor([math.pi * (1 + 4 * pair / 9) for pair in range(10)], dtype=torch.float64)
    torch.testing.assert_close(angles[256, :10], 256 * frequencies, rtol=1e-6, atol=0)
    torch.testing.assert_close(angles[700, :10], 8192 * frequencies, rtol=1e-6, atol=0)
    row, column = divmod(700 - 257, 32)
    torch.testing.assert_close(angles[700, 10:20], (row / 31 * 2 - 1) * pixels, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(angles[700, 20:], (column / 31 * 2 - 1) * pixels, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(angles[3, 10:], torch.cat([-10 * pixels, -10 * pixels]), rtol=1e-6, atol=0)


def saved_bytes(model, text, codes, stored_layers):
    """Bytes of the distinct tensors that autograd keeps for backward, weights left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.hidden_states(text, codes, stored_layers=stored_layers).sum().backward()
    return sum(nbytes for nbytes, _ in kept.values())


@pytest.mark.parametrize("reversible", [True, False])
def test_recomputed_activations_hardly_grow_with_depth(reversible):
    """Reversible layers keep nothing of their own, others their two inputs."""
    kept = {}
    for layers in (3, 9):
        sizes = dict(num_layers=layers, image_grid=8, reversible=reversible)
        model = build_model(ModelConfig(**(SIZES | sizes)), seed=0)
        text, codes = batch(model.config)
        kept[layers] = saved_bytes(model, text, codes, 0)
    stream = len(text) * model.layout.length * model.config.hidden_size * 4
    assert kept[9] - kept[3] == (0 if reversible else 6 * 2 * stream)


@pytest.mark.parametrize("reversible", [True, False])
@pytest.mark.parametrize("low", [True, False])
def test_stored_activations_are_as_large_as_said(reversible, low):
    """A budget for one layer more keeps as much more as `activation_bytes` says; other layers keep inputs anyway."""
    model = build_model(load_recipe("demo").model.model_copy(update=dict(reversible=reversible)), seed=0)
    text, codes = batch(model.config)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        said, kept = model.activation_bytes(len(text)), []
        for layers in range(model.config.num_layers + 1):
            budget = sum(said[model.config.num_layers - layers :])
            assert model.stored_layers(len(text), budget) == layers
            kept.append(saved_bytes(model, text, codes, layers))
    grown = [more - less for less, more in itertools.pairwise(kept)]
    inputs = 0 if reversible else 2 * len(text) * model.layout.length * model.config.hidden_size * 4
    assert grown[1:-1] == [layer - inputs for layer in said[::-1][1:-1]]


def test_the_demo_keeps_activations_and_the_full_model_does_not():
    demo = build_model(load_recipe("demo").model, seed=0)
    assert sum(demo.activation_bytes(32)) < usual_activation_budget(demo.config)
    with torch.device("meta"):
        full = build_model(load_recipe("dalle-2021").model, seed=0)
    assert sum(full.activation_bytes(1)) > 10 * usual_activation_budget(full.config)


def test_full_model_has_125_9_million_parameters():
    """Eight times fewer than its 64 layers' worth of computing, about 1.1 B (paper, section 3.1)."""
    config = load_recipe("dalle-2021").model
    with torch.device("meta"):
        model = build_model(config, seed=0)
    unique = sum(p.numel() for p in model.parameters())
    assert round(unique / 1e6, 1) == 125.9
    one_layer = (model.attention[0], model.feed_forward[0], model.attention_branches[0], model.feed_forward_branches[0])
    per_layer = sum(p.numel() for part in one_layer for p in part.parameters())
    outside = sum(p.numel() for p in (*model.final_norm.parameters(), *model.output.parameters()))
    assert 1.10e9 < 64 * per_layer + outside < 1.12e9


def test_the_recipe_of_2021_pads_as_its_fork_did():
    """Its text ends in id 1, which attention passes over; ids of positions, as in dalle-pytorch 1.6.6, never occur."""
    recipe = load_recipe("dalle-2021").model
    assert recipe.text_padding_id == 1
    text = torch.tensor([[5, 0, 7, 0, 0]])
    ours, released = (build_model(ModelConfig(**SIZES, text_padding_id=pad), seed=0) for pad in (1, 0))
    assert ours.text_ids(text).tolist() == [[5, 1, 7, 1, 1]]
    assert released.text_ids(text).tolist() == [[5, 12, 7, 14, 15]]
    with pytest.raises(BadInput, match="text_padding_id"):
        build_model(ModelConfig(**SIZES, text_padding_id=11), seed=0)


def test_seed_alone_decides_first_weights():
    config = load_recipe("demo").model
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build_model(config, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    again = build_model(config, seed=3).state_dict()
    other = build_model(config, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["output.weight"], other["output.weight"])


@pytest.mark.parametrize("text_shape, codes_shape", [((2, 23), (2, 64)), ((2, 24), (2, 63)), ((2, 24), (1, 64))])
def test_wrong_shapes_are_refused(text_shape, codes_shape):
    model = build_model(load_recipe("demo").model, seed=0)
    with pytest.raises(BadInput, match="takes"):
        model(torch.ones(text_shape, dtype=torch.long), torch.zeros(codes_shape, dtype=torch.long))


@pytest.mark.parametrize("change", [dict(hidden_size=30), dict(head_dim=7), dict(head_dim=4)])
def test_sizes_that_do_not_fit_are_refused(change):
    with pytest.raises(BadInput, match=next(iter(change))):
        build_model(ModelConfig(**(SIZES | change)), seed=0)
