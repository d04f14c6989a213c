"""Weights of a repository of the Hugging Face Hub, fetched from a server that answers as the hub does."""

import hashlib

import pytest
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

from tests.support.serving import serving
from training.errors import TrainingError
from training.model.language.config import AdapterConfig, LanguageModelConfig
from training.model.language.folders import build_language_model, export_folder

ARCHITECTURE = dict(
    model_type="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    max_position_embeddings=16,
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path):
    """The hub's address, the folder of the repository, and the files that were fetched whole."""
    folder, fetched = tmp_path / "repository", []
    model = build_language_model(LanguageModelConfig(architecture=ARCHITECTURE, block_length=16), 3)
    export_folder(model, folder, tokenizer_file=None)
    app = FastAPI()

    @app.head("/{owner}/{name}/resolve/{revision}/{file}")
    @app.get("/{owner}/{name}/resolve/{revision}/{file}")
    def resolve(owner: str, name: str, revision: str, file: str) -> Response:
        path = folder / file
        if (owner, name) != ("ada", "small"):
            return Response(status_code=404, headers={"X-Error-Code": "RepoNotFound"})
        if not path.is_file():
            return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        tag = hashlib.sha256(path.read_bytes()).hexdigest()
        return FileResponse(path, headers={"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    @app.middleware("http")
    async def note(request, call_next):
        if request.method == "GET" and "/resolve/" in request.url.path:
            fetched.append(request.url.path.rpartition("/")[2])
        return await call_next(request)

    with serving(app) as address:
        yield address, folder, fetched


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Builds the model of a repository or folder with the hub at an address: the sum of its weights, or the refusal."""

    def build(address: str, source: str, adapter: AdapterConfig | None = None) -> float | str:
        # As HF_ENDPOINT sets them when the library is imported.
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        try:
            model = build_language_model(LanguageModelConfig(**{"from": source}, block_length=16), 0, adapter)
        except TrainingError as error:
            return f"{type(error).__name__} {error}"
        return sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())

    return build


def test_weights_are_fetched_once_and_then_need_no_hub(hub, build):
    address, folder, fetched = hub
    first = build(address, "ada/small")
    assert first == build(address, str(folder)) > 0
    assert sorted(fetched) == ["config.json", "model.safetensors"]
    assert build("http://127.0.0.1:9", "ada/small") == first
    adapter = AdapterConfig(rank=2, alpha=2.0, frozen_bits=32, base_digest="0" * 64)
    refused = build(address, "ada/small", adapter)
    assert refused.startswith("BadInput The weights of ada/small have the digest")
    assert sorted(fetched) == ["config.json", "model.safetensors"], "nothing is fetched twice"


def test_what_the_hub_does_not_have_is_told(hub, build):
    address, folder, fetched = hub
    (folder / "model.safetensors").unlink()
    assert "ada/small of model.from lacks model.safetensors" in build(address, "ada/small")
    assert "The hub does not give out ada/other" in build(address, "ada/other")
    assert fetched == ["config.json"]


@pytest.mark.parametrize("where", ["the hub", "a folder"])
def test_a_configuration_of_absurd_size_is_not_read(hub, build, where):
    address, folder, fetched = hub
    with (folder / "config.json").open("ab") as file:
        file.truncate(2 << 20)
    told = build(address, "ada/small" if where == "the hub" else str(folder))
    assert "config.json of " in told and f"has more than {1 << 20:,} bytes; choose other weights" in told
    assert fetched == []


def test_weights_that_are_larger_than_their_architecture_are_not_fetched(hub, build):
    address, folder, fetched = hub
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(200 << 20)
    told = build(address, "ada/small")
    assert told.startswith(
        f"BadInput The weights of ada/small have {200 << 20:,} bytes, and a model of their config.json"
    )
    assert fetched == ["config.json"]
