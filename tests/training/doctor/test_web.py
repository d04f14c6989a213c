"""The way to the run's site: names, proxies, certificates, servers and clocks that are really wrong."""

import datetime
import email.utils
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.training.doctor.places import closed_port, file_of, listening, serving
from training.doctor.checks.clock import check_clock
from training.doctor.checks.recipe import check_recipe
from training.doctor.checks.shards import check_shards
from training.doctor.facts import web
from training.doctor.facts.shared import Asked, Shared
from training.doctor.facts.web import Unfetched, fetch
from training.recipe import read_recipe


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    """Whatever the machine of these tests has."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def fault_of(url):
    """Name and words of the fault that fetching finds."""
    with pytest.raises(Unfetched) as raised:
        fetch(url, limit=100)
    return raised.value.finding.name, raised.value.finding.found


def test_a_file_arrives_whole_or_in_part():
    with serving(file_of(b"x" * 1000)) as url:
        whole, part = fetch(url, limit=2000), fetch(url, limit=300)
    assert (len(whole.body), whole.complete) == (1000, True) and (len(part.body), part.complete) == (300, False)


def test_a_name_that_nobody_knows():
    name, found = fault_of("http://no-such-name.invalid/recipe.toml")
    assert name == "name-unknown" and "no-such-name.invalid" in found


def test_a_site_where_nothing_listens():
    assert fault_of(f"http://127.0.0.1:{closed_port()}/recipe.toml")[0] == "site-refuses"


def test_a_site_that_accepts_and_says_nothing(monkeypatch):
    monkeypatch.setattr(web, "ANSWER_SECONDS", 0.3)
    with listening() as listener:
        assert fault_of(f"http://127.0.0.1:{listener.getsockname()[1]}/")[0] == "site-silent"


@pytest.mark.parametrize(
    "answer, name",
    [
        (file_of("not here", status=404), "site-answers-error"),
        (file_of("<html>Log in</html>", Content_Type="text/html; charset=utf-8"), "page-instead-of-file"),
        (lambda request: request.connection.close(), "site-answers-error"),
    ],
    ids=["404", "login page", "breaks off"],
)
def test_a_site_that_answers_something_else(answer, name):
    with serving(answer) as url:
        assert fault_of(f"{url}/recipe.toml")[0] == name


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:99999/recipe.toml", "http://[::1/recipe.toml"],
)
def test_addresses_that_are_none(url, monkeypatch):
    """The port and a bracket: `join` refuses them."""
    with listening() as listener:
        name, found = fault_of(url.replace("localhost/", f"localhost:{listener.getsockname()[1]}/"))
    assert name == "address-invalid" and "is no address" in found
    assert check_recipe(Shared(Asked(recipe="http://127.0.0.1:99999/recipe.toml"))).level == "fault"


def slow_or_broken(seconds):
    """Half of what is promised; then nothing for so long, and the end."""

    def answer(request):
        request.send_response_only(200)
        request.send_header("Content-Length", "200")
        request.end_headers()
        request.wfile.write(b"x" * 100)
        request.wfile.flush()
        time.sleep(seconds)

    return answer


@pytest.mark.parametrize("seconds, name, level", [(0.9, "site-slow", "warning"), (0.0, "site-answers-error", "fault")])
def test_a_manifest_that_does_not_arrive_whole_is_not_damaged(monkeypatch, seconds, name, level):
    monkeypatch.setattr(web, "WHOLE_SECONDS", 0.5)
    with serving(slow_or_broken(seconds)) as url:
        found = check_shards(Shared(Asked(shards=url)))
    assert (found.name, found.level) == (name, level) and "100 bytes" in found.found


def test_a_proxy_whose_address_is_none(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy.example:port")
    name, found = fault_of("http://run.example/recipe.toml")
    assert name == "proxy-unreachable" and "proxy.example:port is no address" in found and "secret" not in found


def test_a_proxy_that_is_off(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    assert fault_of("http://run.example/recipe.toml")[0] == "proxy-unreachable"


@pytest.mark.parametrize("scheme, status", [("http", 407), ("https", 403)])
def test_a_proxy_that_refuses(monkeypatch, scheme, status):
    with serving(file_of("", status=status)) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", proxy.replace("://", "://me:secret@"))
        name, found = fault_of(f"{scheme}://run.example/recipe.toml")
    assert name == "proxy-refuses" and str(status) in found and proxy in found
    assert "secret" not in found  # volunteers show others what the doctor says


def test_a_proxy_that_lets_pass(monkeypatch):
    with serving(file_of("recipe")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removeprefix("http://"))
        assert fetch("http://run.example/recipe.toml", limit=100).body == b"recipe"


def certificate(path, *, host="localhost", days=1, authority=None):
    """A certificate with its key, signed by itself or by an authority; gives the pair for signing others."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Test {host}")])
    now = datetime.datetime.now(datetime.UTC)
    issuer, signer = (authority[0].subject, authority[1]) if authority else (name, key)
    ends = now + datetime.timedelta(days=days)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - datetime.timedelta(days=1))
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + built.public_bytes(serialization.Encoding.PEM))
    return built, key


def test_certificates_that_are_refused(tmp_path, monkeypatch):
    authority = certificate(tmp_path / "authority.pem", host="authority")
    (tmp_path / "trusted.pem").write_bytes(authority[0].public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
    found = {}
    for name, options in {
        "good": {"authority": authority},
        "own": {},
        "old": {"authority": authority, "days": -2},
        "other": {"authority": authority, "host": "elsewhere.example"},
    }.items():
        certificate(tmp_path / f"{name}.pem", **options)
        with serving(file_of("recipe"), certificate=tmp_path / f"{name}.pem") as url:
            if name == "good":
                assert fetch(url, limit=100).body == b"recipe"
            else:
                found[name] = fault_of(url)
    assert {name: fault for name, (fault, _) in found.items()} == {
        "own": "certificate-not-trusted",
        "old": "certificate-date",
        "other": "certificate-of-another-site",
    }
    assert "signed by 'CN=Test localhost'" in found["own"][1]


def dated(content, seconds, **headers):
    """An answer from a server whose clock is so many seconds ahead."""
    return lambda request: file_of(content, Date=email.utils.formatdate(time.time() + seconds, usegmt=True), **headers)(
        request
    )


@pytest.mark.parametrize(
    "answer, name",
    [
        (dated(read_recipe("demo"), 0), ""),
        (dated(read_recipe("demo"), 60), "clock-off"),
        (dated(read_recipe("demo"), -7200), "clock-off"),
        (dated(read_recipe("demo"), 3.6), "clock-inexact"),
        (dated(read_recipe("demo"), -600, Age="600"), ""),
    ],
    ids=["right", "behind", "ahead", "a little", "from a cache"],
)
def test_a_clock_that_differs_from_the_sites(answer, name):
    with serving(answer) as url:
        assert check_clock(Shared(Asked(recipe=f"{url}/recipe.toml"))).name == name


def test_a_clock_with_nothing_to_compare_it_with():
    assert check_clock(Shared(Asked())).level == "skipped"


@pytest.mark.parametrize(
    "answer, name",
    [
        (file_of(read_recipe("demo")), ""),
        (file_of("run_id = "), "recipe-invalid"),
        (file_of(read_recipe("demo").replace("num_heads", "number_of_heads")), "recipe-invalid"),
        (file_of(b"\xff\xfe\x00"), "recipe-invalid"),
        (file_of("", status=404), "site-answers-error"),
    ],
)
def test_recipes_from_a_site(answer, name):
    with serving(answer) as url:
        assert check_recipe(Shared(Asked(recipe=f"{url}/recipe.toml"))).name == name


def test_recipes_from_a_file(tmp_path):
    assert check_recipe(Shared(Asked(recipe=str(tmp_path / "none.toml")))).name == "recipe-missing"
    assert check_recipe(Shared(Asked(recipe="demo"))).level == "ok"
    assert check_recipe(Shared(Asked())).level == "skipped"
